// Hopper's mbarriers and copy engine (TMA) within one block of the simulated GPU. Issuing a copy only records it: data
// move at the latest legal moment, which is when no thread can go on and one waits for them, or with a schedule seed at
// a moment drawn from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/sim/shared_shadow.hpp"
#include "common/sim/site.hpp"
#include "common/sim/tensor_map.hpp"

namespace flash::sim {

class Block;
struct Thread;
struct GlobalPlace;
enum class GlobalAccess : std::uint8_t;

class CopyEngine {
 public:
  explicit CopyEngine(Block& block) : block_(block) {}
  void begin_block();

  // -- For the instructions, called from a thread's fiber

  void init(const void* mbarrier, int arrivals, Site site);
  /// One arrival; the phase waits for so many bytes more.
  void arrive(const void* mbarrier, int bytes, const char* instruction, Site site);
  void wait(const void* mbarrier, unsigned parity, Site site);
  bool try_wait(const void* mbarrier, unsigned parity, Site site);
  /// Initialisations by the running thread so far are there for the copy engine.
  void fence_inits();

  void load(std::byte* to, const TensorMap& map, const int* coordinates, int rank, const void* mbarrier, Site site);
  void store(const TensorMap& map, const int* coordinates, int rank, const std::byte* from, Site site);
  void commit_stores();
  /// Returns when at most `pending` of this thread's committed groups of stores have not read their sources, or with
  /// `written` not written their destinations.
  void wait_stores(int pending, bool written, Site site);

  // -- For the scheduler

  /// Lets the oldest copy arrive that a waiting thread needs, or with `any` the oldest of all. False if there is none.
  bool finish_oldest(bool any);
  /// Lets some work be done early.
  void finish_some();
  /// A thread ends; its stores must have read their sources.
  void thread_exits(const Thread& thread);
  /// The block has ended, and with it its shared memory; somebody must have waited for each copy into it.
  void block_ends();

  // -- For reports

  /// "full[0] (phase 3: 1 of 2 arrivals and 4096 bytes are missing)"
  std::string describe(int mbarrier_offset) const;
  /// The store that reads this byte of shared memory, or "".
  std::string reader_of(int offset) const;
  /// For a deadlock: what the mbarrier lacks at which this thread waits. `bytes_alone`: all arrivals are there.
  bool bytes_alone(int mbarrier_offset) const;

 private:
  /// What a copy has brought and nobody has waited for.
  struct Piece {
    int offset, bytes, thread;
    SiteId site;
  };
  struct Mbarrier {
    int offset = 0, count = 0;
    int pending = 0;         // arrivals that the phase waits for
    std::int64_t bytes = 0;  // and bytes: expected and not arrived
    unsigned phase = 0;
    int thread = 0;  // that initialised it, with a write at that time
    SiteId site = 0;
    Stamp written = 0;
    bool fenced = false;
    int engine = 0;
    Clock arriving, completed;     // what those release who arrive in this phase; what all phases before released
    std::vector<Thread*> waiting;  // for this phase
    std::vector<Thread*> waking;   // let go by the last one, and have not run since
    std::array<std::uint32_t, kMaxWarps> knows{};  // lanes that have acquired `completed`
    std::vector<Piece> landing, landed;            // what copies brought in this phase, and in those before unseen
  };
  struct Box {
    const TensorMapSpec* map;
    int tensor;
    int coordinate[5];
  };
  struct Load {
    Box box;
    std::size_t mbarrier;
    unsigned phase;
    int offset, bytes, thread;
    SiteId site;
  };
  struct Store {
    Box box;
    int thread, group, offset, bytes;
    SiteId site;
    bool read = false, released = false;  // the data are in `data`; the thread knows
    std::vector<std::byte> data;
  };
  /// One innermost row of a box.
  struct Run {
    int shared;                  // byte in the box
    int before, count;           // elements outside the tensor that come first, elements inside
    std::byte* global;           // the first inside
    std::int64_t coordinate[5];  // of that
  };

  template <typename Visit>
  static void each_run(const Box& box, Visit visit);
  Box box_of(const TensorMap& map, const int* coordinates, int rank, const char* what, Site site);
  void check_store(const Box& box, Site site);
  int check_box(const std::byte* shared, const TensorMapSpec& spec, const char* what, Site site);
  void count(const Box& box, bool write);
  static GlobalPlace place_of(const Box& box, const Run& run, int bytes);
  void access_global(const Box& box, GlobalAccess access, int thread, SiteId site);
  Mbarrier& mbarrier(const void* address, const char* use, Site site);
  const Mbarrier* find(int offset) const;
  bool passed(const Mbarrier& barrier, unsigned parity, Site site);
  void observe(Mbarrier& barrier);
  void complete_if_done(Mbarrier& barrier, SiteId site);
  void land(std::size_t load);
  void read_source(Store& store);
  void write_destination(Store& store);

  Block& block_;
  std::deque<Mbarrier> mbarriers_;
  std::vector<Load> loads_;
  std::vector<Store> stores_;
  std::vector<int> store_groups_;  // committed, of each thread
};

}  // namespace flash::sim
