// What four warps (a warpgroup) do together on Hopper, within one block of the simulated GPU: matrix products on shared
// memory that run on while the program does (wgmma), and the division of the registers (setmaxnreg).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/sim/accumulator_register.hpp"
#include "common/sim/shared_shadow.hpp"
#include "common/sim/site.hpp"

namespace flash::sim {

class Block;
struct Thread;

inline constexpr int kWgmmaRows = 64, kWgmmaDepth = 16;

/// d[64, n] (+)= a[64, 16]·b[16, n] with 16-bit operands.
struct WgmmaShape {
  int n;
  bool bf16;
  bool a_in_registers;
  bool a_is_m_major, b_is_n_major;
};

/// What one thread gives: its registers d[n / 8][4], those of its part of `a`, or the descriptor of it.
struct WgmmaOperands {
  AccumulatorRegister* d;
  const std::uint32_t* a_registers;
  std::uint64_t a, b;
  bool accumulate;
};

class WarpgroupUnit {
 public:
  explicit WarpgroupUnit(Block& block) : block_(block) {}
  void begin_block();

  // -- For the instructions, called from a thread's fiber

  void issue(const WgmmaShape& shape, const WgmmaOperands& mine, Site site);
  void fence(Site site);
  void commit(Site site);
  void wait(int pending, Site site);
  void set_registers(int count, bool increase, Site site);
  /// Ends the run if a wgmma works on this register of the running thread.
  void check_register(const AccumulatorRegister* accumulator);

  // -- For the scheduler

  void thread_exits(const Thread& thread);

  // -- For reports

  /// The product that reads this byte of shared memory, as far as the running thread can know, or "".
  std::string reader_of(int offset) const;
  std::string wait_text(int warpgroup) const;
  /// A warpgroup of which some warps wait for others that are elsewhere, in words; or "".
  std::string diverged() const;
  /// Who waits for how many registers, or "".
  std::string register_report() const;

 private:
  /// Threads of a warpgroup that wait for the others.
  struct Gathering {
    const char* operation = nullptr;
    SiteId site = 0;
    int arrived = 0;
    std::uint32_t lanes[4] = {};
    const void* operands[128] = {};
  };
  /// The accumulators of a warpgroup, known by where its threads keep them.
  struct Accumulators {
    std::array<AccumulatorRegister*, 128> of_thread;
    int n;
    std::vector<float> values;       // [64, n]: what the registers hold after the products issued and computed so far
    std::array<int, 4> in_flight{};  // products that the warp has not waited for
    std::array<bool, 4> fenced{};    // a wgmma_fence of the warp since its last wait
    SiteId site;                     // of the last product
  };
  struct Product {
    WgmmaShape shape;
    std::size_t accumulators;
    bool accumulate;
    SiteId site;
    bool read = false, computed = false;
    std::vector<std::uint16_t> a, b;      // [64, 16] and [n, 16]
    std::vector<int> a_pieces, b_pieces;  // 16 bytes of shared memory each, by their offset, in the order of a and b
  };
  /// One warp's view of its warpgroup's products, which are numbered in the order of issue.
  struct Side {
    std::size_t committed = 0, delivered = 0;  // so many
    std::deque<std::size_t> groups;            // where each group ends that has not been waited for
    bool fenced = false;                       // ever
  };
  struct Warpgroup {
    Gathering gathering;
    std::vector<Accumulators> accumulators;
    std::deque<Product> products;  // from number `first` on
    std::size_t first = 0, issued = 0;
    std::array<Side, 4> sides;
    int registers = 0;  // of a thread
    int wanted = 0;     // waits for so many
    SiteId wanted_site = 0;
  };

  Warpgroup& group_of_running(const char* operation, Site site);
  /// True in the last thread to come; the others come back when release() has been called.
  bool gather(Warpgroup& group, const char* operation, const void* operand, Site site);
  void release(Warpgroup& group);
  void issue_gathered(Warpgroup& group, const WgmmaShape& shape, Site site);
  std::size_t accumulators_of(Warpgroup& group, int number, const WgmmaShape& shape, bool accumulate, Site site);
  void locate(const WgmmaShape& shape, std::uint64_t a, std::uint64_t b, Product& product, Site site);
  void check_operands(int warpgroup, const Product& product, Site site);
  void read_operands(Product& product);
  void compute(Warpgroup& group, int warpgroup, Product& product);
  void deliver(Warpgroup& group, int warp, std::size_t to);
  void grant_registers();

  Block& block_;
  std::vector<Warpgroup> groups_;
  int free_registers_ = 0;
};

}  // namespace flash::sim
