// Executes one thread block: each CUDA thread is a fiber, and this scheduler decides who runs. A thread runs until it
// waits (barrier, warp collective, asynchronous work), so everything between two waits is one step of the schedule.
//
// The schedule belongs here alone: which warp runs next, and when asynchronous work completes (at the latest legal
// moment, or with a schedule seed at a moment drawn from it). Instructions (warp.hpp, barrier.hpp, cp_async.hpp, ...)
// only say what they wait for.
#pragma once

#include <array>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "common/base/launch_config.hpp"
#include "common/base/limits.hpp"
#include "common/device/counters.hpp"
#include "common/device/gpu_profile.hpp"
#include "common/sim/access_log.hpp"
#include "common/sim/global_shadow.hpp"
#include "common/sim/shared_shadow.hpp"
#include "common/sim/site.hpp"

namespace flash::sim {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// How a thread comes to a barrier: bar.arrive, bar.sync, bar.red.
enum class Arrival { arrive, wait, vote };

class Block;
class CopyEngine;
class WarpgroupUnit;

/// What a thread waits for, in words for the deadlock report.
struct Wait {
  const char* what = "";  // "__syncthreads", "__shfl_xor_sync"; empty: nothing
  SiteId site = 0;
  std::uint32_t mask = 0;  // lanes a warp collective waits for
  int barrier = -1;        // its number, where the thread waits at one
  int mbarrier = -1;       // its byte in shared memory, where the thread waits at one
  int warpgroup = -1;      // its number, where the thread waits for the rest of it
};

/// A piece of a shared tile, for reports: `count` elements from (row, col) on. With no rows it is a byte of shared
/// memory.
struct TilePlace {
  const void* tile;
  int rows, cols, row, col, count;
};

/// A piece of a global tensor, for reports: `count` elements of one head's row from (row, col) on.
struct GlobalPlace {
  int tensor;  // tensor_slot
  int batch, head;
  std::int64_t row, col;
  int count;
};

/// A copy into shared memory that has been issued and not been waited for.
struct AsyncCopy {
  int group;
  int shared_offset;
  const std::byte* source;  // null: zero fill only
  int source_bytes;         // the rest of `bytes` becomes zero
  int bytes;
  SiteId site;
  bool arrived;  // the data are there, which nobody may rely on yet
};

/// One CUDA thread.
struct Thread {
  boost::context::fiber fiber;
  boost::context::fiber scheduler;  // to go back to, while the thread runs
  Block* block = nullptr;
  Dim3 index;  // threadIdx
  int linear = 0;
  int warp = 0;
  int lane = 0;
  bool exited = true;
  SiteId caller = 0;    // from where the function that runs was called; see CalledFrom
  bool packed = false;  // an operand register since the last wgmma_fence
  bool vote = false;    // at a barrier that votes: the thread's own, and afterwards whether there was one
  Wait wait;
  AccessLog log;
  // cp.async: groups are numbered from 1 in the order they were committed; copies issued and not yet committed belong
  // to the group that comes next.
  int copy_groups_committed = 0;
  std::vector<AsyncCopy> copies;
};

/// The running thread of this OS thread; null outside kernels.
inline constinit thread_local Thread* running_thread = nullptr;

/// What all blocks of a launch have in common.
struct KernelRun {
  LaunchConfig config;
  std::function<void()> body;  // the kernel with its arguments, called once in each thread
  std::uint64_t schedule_seed = 0;
  const GpuProfile& gpu;
  GlobalShadow* global_shadow = nullptr;  // none where there is a single block
};

/// "O[batch 0, head 1, row 3, columns 8 to 15]"
std::string element_name(const GlobalPlace& place);

class Block {
 public:
  Block();
  ~Block();
  Block(const Block&) = delete;

  /// Runs one block to its end and adds what it counted. Throws Fault.
  void run(const KernelRun& kernel, std::int64_t block_linear, Counters& counters);

  // -- For the instructions, called from a thread's fiber

  const Dim3& block_index() const { return block_index_; }
  const Dim3& grid() const { return grid_; }
  const GpuProfile& gpu() const { return kernel_->gpu; }
  int threads() const { return thread_count_; }
  std::byte* shared_memory() { return shared_.get(); }
  int shared_bytes() const { return shared_bytes_; }
  Counters& counters() { return *counters_; }

  /// Arrives at barrier `id` (0 is __syncthreads) and, but for Arrival::arrive, returns when `count` threads have. The
  /// lanes of a warp come together: none goes on before all are there.
  void barrier(int id, int count, Arrival arrival, Site site);
  /// Arrival::vote: true in all threads if `mine` is true in one of them.
  bool barrier_vote(int id, int count, bool mine, Site site);

  /// Meets the lanes of `mask` in this warp: each deposits a pointer, the last one to come runs `compute` over all 32
  /// pointers (null for lanes outside the mask), and then all go on. `operation` must be the same for all.
  template <typename Operand, typename Compute>
  void meet(const char* operation, std::uint32_t mask, Operand& mine, Site site, Compute compute) {
    meet_lanes(operation, mask, false, mine, site, compute);
  }
  /// The same for instructions that PTX calls .aligned (mma, ldmatrix, ...): all 32 lanes must come, and from the same
  /// place, called from the same places.
  template <typename Operand, typename Compute>
  void meet_aligned(const char* operation, Operand& mine, Site site, Compute compute) {
    meet_lanes(operation, 0xffffffffu, true, mine, site, compute);
  }

  /// __syncwarp: orders the memory accesses of the running thread's warp, of the lanes in `mask`.
  void order_lanes(std::uint32_t mask);
  /// For barriers that threads pass alone: whoever acquires `clock` comes after what the `lanes` of the running
  /// thread's warp did so far.
  void release(std::uint32_t lanes, Clock& clock) { shadow_.release(running_thread->warp, lanes, clock); }
  void acquire(std::uint32_t lanes, const Clock& clock) { shadow_.acquire(running_thread->warp, lanes, clock); }

  /// The running thread calls a function from `site`; returns what leave() takes when that ends.
  SiteId enter(Site site) { return std::exchange(running_thread->caller, here(site)); }
  void leave(SiteId caller) { running_thread->caller = caller; }

  void read_shared(const void* address, int bytes, SharedAccess kind, const TilePlace& place, Site site);
  /// `values` are the bytes that will stand there.
  void write_shared(const void* address, int bytes, SharedAccess kind, const TilePlace& place, const void* values,
                    Site site);
  void read_global(const GlobalPlace& place, const void* address, int bytes, Site site) {
    access_global(GlobalAccess::read, AccessKind::global_read, place, address, bytes, site);
  }
  void write_global(const GlobalPlace& place, const void* address, int bytes, Site site) {
    access_global(GlobalAccess::write, AccessKind::global_write, place, address, bytes, site);
  }
  void atomic_global(const GlobalPlace& place, const void* address, int bytes, Site site) {
    access_global(GlobalAccess::atomic, AccessKind::global_atomic, place, address, bytes, site);
  }
  /// Hopper's asynchronous units.
  CopyEngine& copy_engine() { return *copy_engine_; }
  WarpgroupUnit& warpgroup_unit() { return *warpgroup_unit_; }
  /// fence.proxy.async of the running thread.
  void fence_proxy();
  /// Grows with each event of the block: a thread that goes on, a barrier or collective that completes, a copy that
  /// arrives, a call of this.
  std::uint32_t clock_stamp() { return std::uint32_t(++events_); }

  /// What orders this block's accesses of global memory and those of others.
  BlockHistory& history() { return history_; }

  void issue_copy(void* shared_address, const std::byte* source, int source_bytes, int bytes, const TilePlace& place,
                  Site site);
  void commit_copies();
  /// Returns when at most `pending` of this thread's committed groups are incomplete.
  void wait_copies(int pending);

  /// Finds the name of a tile in the block's storage, "" if it has none; see SHARED_MEMBERS.
  using MemberName = std::string (*)(const void* storage, const TilePlace& place);
  void name_members(MemberName name) { member_name_ = name; }

  /// "row 3, columns 8 to 15 of KV[0][1] (64 by 64 at byte 1024)"
  std::string describe(const TilePlace& place) const;
  /// The byte, for reports: "KV[0][1] at byte 1024 of shared memory".
  static TilePlace place_of(const void* address) { return {address, 0, 0, 0, 0, 0}; }
  TilePlace place_of(int offset) const { return place_of(shared_.get() + offset); }
  /// Ends the run with a report that names kernel, block, thread and source line. `what` may have several lines.
  [[noreturn]] void fault(const std::string& kind, const std::string& what, Site site);

  /// For the watchdog of the launch: grows when a barrier or a warp collective completes or a thread ends.
  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  /// The same for whole blocks.
  std::uint64_t blocks_started() const { return blocks_started_.load(std::memory_order_relaxed); }
  /// The kernel, block and thread that runs and its last access, for the watchdog's report (read from another OS
  /// thread, approximate).
  std::string where() const;

  /// Threads that have been made; they are kept for later blocks.
  std::size_t fibers() const { return threads_.size(); }

 private:
  friend class CopyEngine;
  friend class WarpgroupUnit;

  struct Meeting {
    const char* operation = nullptr;
    std::uint32_t mask = 0;
    std::uint32_t arrived = 0;
    std::size_t operand_bytes = 0;
    void* operands[32] = {};
    SiteId site = 0;  // of the first lane
    bool aligned = false;
  };
  struct Warp {
    std::uint32_t lanes = 0;        // that the block has
    std::uint32_t live = 0;         // of these, those that have not exited
    std::uint32_t ready = 0;        // lanes that can run
    std::uint32_t log_full = 0;     // lanes that paused so that the others catch up
    std::uint32_t polling = 0;      // lanes that ask again for what was not there
    std::vector<Meeting> meetings;  // one for each mask that is being waited on
  };
  struct Barrier {
    int expected = 0;                              // threads
    std::uint32_t arrived = 0;                     // warps
    std::uint32_t waiting = 0;                     // warps that wait, or will when their last lane is there
    std::array<std::uint32_t, kMaxWarps> lanes{};  // of each warp, those that are there
    std::array<SiteId, kMaxWarps> sites{};         // of each warp, where its first lane came from
    bool votes = false;                            // all come with Arrival::vote, or none
    bool any = false;                              // of the votes
    Clock clock;
    int threads() const;
  };
  struct Cancelled {};

  void thread_main(Thread& thread);
  void make_fibers(int count);
  void schedule();
  void run_warp(int warp);
  void resume(Thread& thread);
  void suspend(Thread& thread);  // back to the scheduler; returns when resumed
  void yield(Thread& thread);    // the same, for one that would only ask again
  void count_event() {
    ++events_;
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  /// The report of a fault at a place that is known by number. `who` is "" for the running thread, or for nobody where
  /// none runs.
  [[noreturn]] void fault_at(const std::string& kind, const std::string& what, const std::string& who, SiteId site);
  void flush_logs(int warp, std::uint32_t open = 0);
  SiteId here(Site site) { return sites_.id(site, running_thread->caller); }
  void log(Thread& thread, AccessKind kind, int tensor, std::uintptr_t address, int bytes, SiteId site);
  void check_barrier(const Barrier& barrier, int id, int count, Arrival arrival, Site site);
  void complete(Barrier& barrier);
  void move_data(AsyncCopy& copy);
  void let_copies_arrive();
  int shared_offset(const void* address, int bytes, const char* access, const TilePlace& place, Site site);
  template <typename Operand, typename Compute>
  void meet_lanes(const char* operation, std::uint32_t mask, bool aligned, Operand& mine, Site site, Compute compute);
  Meeting& join_meeting(const char* operation, std::uint32_t mask, bool aligned, std::size_t operand_bytes, Site site);
  void finish_meeting(std::uint32_t mask);
  // Inline, so that a place is put together only where it is needed.
  void access_global(GlobalAccess access, AccessKind kind, const GlobalPlace& place, const void* address, int bytes,
                     Site site) {
    log_global(kind, place.tensor, address, bytes, site);  // may let other lanes run, so it comes first
    if (!history_.knows(access, address, bytes))
      record_global(access, place, address, bytes, here(site), running_thread->linear);
  }
  void record_global(GlobalAccess access, const GlobalPlace& place, const void* address, int bytes, SiteId site,
                     int thread);
  void log_global(AccessKind kind, int tensor, const void* address, int bytes, Site site);
  void check(const Conflict& conflict, const char* access, const TilePlace& place, Site site);
  [[noreturn]] void deadlock();
  /// Where an instruction needs whole warps: a warp of which some lanes wait at one and others elsewhere, in words; or
  /// "".
  std::string diverged() const;
  /// Lanes of the warp that wait alone at an mbarrier, and may come to a collective later.
  std::uint32_t at_mbarriers(std::size_t warp) const;
  std::string wait_text(const Thread& thread) const;
  std::string waiting_report() const;
  /// "chapters/...:12: text of the line", and the line of common/ that it led to.
  std::string describe(SiteId site, const char* separator = ", in ") const;
  std::string thread_name(int linear) const;
  std::uint64_t random();

  const KernelRun* kernel_ = nullptr;
  Counters* counters_ = nullptr;
  Dim3 block_index_, grid_;
  int thread_count_ = 0;
  int shared_bytes_ = 0;
  std::unique_ptr<std::byte, void (*)(void*)> shared_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<Barrier> barriers_;
  SharedShadow shadow_;
  std::unique_ptr<CopyEngine> copy_engine_;
  std::unique_ptr<WarpgroupUnit> warpgroup_unit_;
  BlockHistory history_;
  SiteTable sites_;
  MemberName member_name_ = nullptr;
  int live_threads_ = 0;
  int current_warp_ = 0;
  bool cancelled_ = false;
  std::exception_ptr failure_;
  std::uint64_t random_state_ = 0;
  std::uint64_t events_ = 0;
  int idle_polls_ = 0;  // rounds in which threads polled and nothing else happened
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::uint64_t> blocks_started_{0};
  std::atomic<int> last_thread_{0};
  std::atomic<const char*> last_file_{""};
  std::atomic<int> last_line_{0};
};

template <typename Operand, typename Compute>
void Block::meet_lanes(const char* operation, std::uint32_t mask, bool aligned, Operand& mine, Site site,
                       Compute compute) {
  Thread& self = *running_thread;
  Meeting& meeting = join_meeting(operation, mask, aligned, sizeof(Operand), site);
  meeting.operands[self.lane] = &mine;
  meeting.arrived |= 1u << self.lane;
  if (meeting.arrived != mask) {
    self.wait = {operation, here(site), mask};
    suspend(self);
    return;
  }
  Operand* operands[32];
  for (int lane = 0; lane < 32; ++lane) operands[lane] = static_cast<Operand*>(meeting.operands[lane]);
  compute(operands);
  finish_meeting(mask);
}

/// The block of the running thread.
inline Block& this_block() { return *running_thread->block; }

/// Stands first in the functions of common/kernel that access memory or let threads meet: reports then name the place
/// from which a chapter called them, and lanes that call them from different places are told apart.
class CalledFrom {
 public:
  explicit CalledFrom(Site site) : caller_(this_block().enter(site)) {}
  ~CalledFrom() { this_block().leave(caller_); }
  CalledFrom(const CalledFrom&) = delete;

 private:
  SiteId caller_;
};

}  // namespace flash::sim
