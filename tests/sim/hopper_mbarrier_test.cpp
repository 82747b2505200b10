// mbarriers of the simulated GPU: phases, what they order, and what happens to those who use them wrongly.
#include "tests/sim/hopper.hpp"

using flash::Fault;
using flash::test::contains;
using flash::test::expect_clean;
using flash::test::expect_fault;
using flash::test::expect_one_of;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

struct RingStorage {
  SharedVector<float, 32> slot[2];
  Mbarrier full[2], empty[2];
  SHARED_MEMBERS(slot, full, empty);
};

enum class Ring {
  right,
  no_init,
  no_barrier_after_init,
  wrong_full_parity,
  wrong_empty_parity,
  one_arrival_too_many_expected,
  one_arrival_too_few_expected,
  no_release,
  early_release,
  no_wait,
  overwritten,
  polls,
};

constexpr int kRounds = 7;

/// Warp 0 gives warp 1 kRounds times 32 numbers through two slots; warp 1 adds them up.
__global__ void ring_kernel(GlobalTensor<float> out, Ring what) {
  auto& shared = shared_storage<RingStorage>();
  const int lane = int(threadIdx.x % 32);
  if (threadIdx.x == 0 && what != Ring::no_init) {
    for (int s = 0; s < 2; ++s) {
      shared.full[s].init(32 + (what == Ring::one_arrival_too_many_expected) -
                          (what == Ring::one_arrival_too_few_expected));
      shared.empty[s].init(32);
    }
  }
  if (what != Ring::no_barrier_after_init) __syncthreads();
  if (what == Ring::overwritten) {
    if (threadIdx.x == 0) reinterpret_cast<SharedVector<float, 2>&>(shared.full[0]).store(1, 0.0f);
    __syncthreads();
  }
  float sum = 0.0f;
  for (int i = 0; i < kRounds; ++i) {
    const int stage = i % 2;
    const unsigned parity = i / 2 % 2;
    if (threadIdx.x < 32) {
      shared.empty[stage].wait(what == Ring::wrong_empty_parity ? parity : parity ^ 1u);
      shared.slot[stage].store(lane, float(i * 32 + lane));
      shared.full[stage].arrive();
    } else {
      if (what == Ring::polls) {
        while (!shared.full[stage].try_wait(parity)) {
        }
      } else if (what != Ring::no_wait) {
        shared.full[stage].wait(what == Ring::wrong_full_parity ? parity ^ 1u : parity);
      }
      if (what == Ring::early_release) shared.empty[stage].arrive();
      sum += shared.slot[stage].load(31 - lane);
      if (what != Ring::early_release && what != Ring::no_release) shared.empty[stage].arrive();
    }
  }
  if (threadIdx.x >= 32) out.head(0, 0).store(0, lane, sum);
}

const LaunchConfig kRing{"probe", {1}, 64, sizeof(RingStorage)};

TEST_CASE("an mbarrier hands data from warp to warp, phase after phase") {
  for (const Ring what : {Ring::right, Ring::polls}) {
    Tensor<float> out("out", 1, 32);
    expect_clean(kRing, ring_kernel, GlobalTensor<float>(out.ref()), what);
    for (int lane = 0; lane < 32; ++lane) {
      const int first = 31 - lane;
      CHECK(out[lane] == float(kRounds * first + 32 * kRounds * (kRounds - 1) / 2));
    }
  }
}

void expect_ring_fault(Ring what, const std::string& kind, const std::vector<std::string>& texts) {
  Tensor<float> out("out", 1, 32);
  expect_fault(kind, texts, kRing, ring_kernel, GlobalTensor<float>(out.ref()), what);
}

TEST_CASE("an mbarrier that nobody has initialised is a fault") {
  expect_ring_fault(Ring::no_init, "mbarrier not initialised", {"[0] at byte", "tests/sim/hopper_mbarrier_test.cpp"});
  expect_ring_fault(Ring::overwritten, "mbarrier not initialised", {"full[0] at byte", "something else was written"});
}

TEST_CASE("an mbarrier that others use without a barrier after its initialisation is a fault") {
  Tensor<float> out("out", 1, 32);
  expect_one_of({"mbarrier not initialised", "data race"}, {"probe"}, kRing, ring_kernel,
                GlobalTensor<float>(out.ref()), Ring::no_barrier_after_init);
}

TEST_CASE("a wait for the wrong parity is found") {
  // The consumer goes on at once and reads what nobody has written, or comes later and waits for a phase too many.
  Tensor<float> out("out", 1, 32);
  expect_one_of({"unwritten shared memory", "data race", "deadlock"}, {"probe"}, kRing, ring_kernel,
                GlobalTensor<float>(out.ref()), Ring::wrong_full_parity);
  // The producer waits for a release that nobody can give.
  expect_ring_fault(Ring::wrong_empty_parity, "deadlock",
                    {"empty[0] at byte", "phase 0, parity 0: 32 of 32 arrivals and 0 bytes are missing", "full[0]"});
}

TEST_CASE("a wrong count of arrivals is found") {
  expect_ring_fault(Ring::one_arrival_too_many_expected, "deadlock",
                    {"full[0] at byte", "phase 0, parity 0: 1 of 33 arrivals and 0 bytes are missing"});
  Tensor<float> out("out", 1, 32);
  expect_one_of({"data race", "unwritten shared memory", "phase missed"}, {"probe"}, kRing, ring_kernel,
                GlobalTensor<float>(out.ref()), Ring::one_arrival_too_few_expected);
}

TEST_CASE("a slot that is released before it has been read is a data race") {
  Tensor<float> out("out", 1, 32);
  expect_one_of({"data race"}, {"slot["}, kRing, ring_kernel, GlobalTensor<float>(out.ref()), Ring::early_release);
}

TEST_CASE("a slot that is never released is a deadlock that names the mbarrier") {
  expect_ring_fault(Ring::no_release, "deadlock", {"empty[0] at byte", "32 of 32 arrivals and 0 bytes are missing"});
}

TEST_CASE("a read without a wait is found") {
  Tensor<float> out("out", 1, 32);
  expect_one_of({"data race", "unwritten shared memory"}, {"slot["}, kRing, ring_kernel, GlobalTensor<float>(out.ref()),
                Ring::no_wait);
}

enum class Single { fresh, too_many, no_arrivals, parity_2, bytes, negative_bytes, missed, misplaced, lone_lane };

struct SingleStorage {
  Mbarrier barrier, other;
  std::byte rest[16];
  SHARED_MEMBERS(barrier, other);
};

__global__ void single_kernel(Single what) {
  auto& shared = shared_storage<SingleStorage>();
  if (what == Single::misplaced) {
    if (threadIdx.x == 0) this_block().copy_engine().init(shared.rest + 4, 1, Site::here());
    return;
  }
  if (threadIdx.x == 0) {
    shared.barrier.init(what == Single::no_arrivals ? 0 : 1);
    shared.other.init(1);
  }
  __syncthreads();
  switch (what) {
    case Single::fresh:  // the phase before the first one counts as complete
      shared.barrier.wait(1);
      if (shared.barrier.try_wait(0)) shared.barrier.wait(2);
      break;
    case Single::too_many:
      if (threadIdx.x == 0) {
        shared.barrier.arrive_expect_tx(128);
        shared.barrier.arrive();
      }
      break;
    case Single::parity_2:
      shared.barrier.wait(2);
      break;
    case Single::bytes:
      if (threadIdx.x == 0) shared.barrier.arrive_expect_tx(1 << 20);
      break;
    case Single::negative_bytes:
      if (threadIdx.x == 0) shared.barrier.arrive_expect_tx(-16);
      break;
    case Single::missed:  // thread 32 completes two phases, whether or not thread 0 has seen the first
      if (threadIdx.x == 0) {
        shared.other.arrive();
        shared.barrier.wait(0);
      }
      if (threadIdx.x == 32) {
        shared.other.wait(0);
        shared.barrier.arrive();
        shared.barrier.arrive();
      }
      break;
    case Single::lone_lane:  // the other lanes wait for it at a barrier of the whole warp, where it would come later
      if (threadIdx.x == 0) shared.barrier.wait(0);
      __syncthreads();
      break;
    case Single::no_arrivals:
    case Single::misplaced:
      break;
  }
}

const LaunchConfig kSingle{"probe", {1}, 64, sizeof(SingleStorage)};

TEST_CASE("the phase before the first counts as complete, the first does not") {
  expect_clean(kSingle, single_kernel, Single::fresh);
}

TEST_CASE("more arrivals than a phase takes are a fault") {
  expect_fault("too many arrivals", {"barrier at byte 0", "0 of 1 arrivals and 128 bytes are missing"}, kSingle,
               single_kernel, Single::too_many);
}

TEST_CASE("arguments that an mbarrier does not take are faults") {
  expect_fault("bad mbarrier", {"for 0 arrivals: 1 to 1048575"}, kSingle, single_kernel, Single::no_arrivals);
  expect_fault("bad mbarrier", {"parity 2: use 0 or 1"}, kSingle, single_kernel, Single::parity_2);
  expect_fault("bad mbarrier", {"1048576 bytes more"}, kSingle, single_kernel, Single::bytes);
  expect_fault("bad mbarrier", {"-16 bytes more"}, kSingle, single_kernel, Single::negative_bytes);
  expect_fault("misaligned", {"the mbarrier at byte 20"}, kSingle, single_kernel, Single::misplaced);
}

TEST_CASE("a phase that ends before a waiting thread has seen the one before is a fault") {
  Machine machine(0, 1);
  const auto fault = fault_of(machine, kSingle, single_kernel, Single::missed);
  REQUIRE(fault.has_value());
  INFO(fault->what());
  CHECK(fault->kind == "phase missed");
  CHECK(contains(fault->what(), "barrier at byte 0 of shared memory completes phase 1 before thread 0"));
}

TEST_CASE("a lane that waits alone at an mbarrier has not diverged") {
  expect_fault("deadlock",
               {"barrier at byte 0", "1 of 1 arrivals and 0 bytes are missing", "warp 0, lanes 0 wait at mbarrier"},
               kSingle, single_kernel, Single::lone_lane);
}

__global__ void use_on_older_gpu_kernel(int what) {
  auto& shared = shared_storage<SingleStorage>();
  if (what == 0) shared.barrier.wait(1);
  if (what == 1) shared.barrier.arrive_expect_tx(16);
  if (what == 2) mbarrier_init_fence();
  if (what == 3) async_proxy_fence();
  if (what == 4) tma_store_commit();
  if (what == 5) tma_store_wait<0>();
  if (what == 6) wgmma_fence();
  if (what == 7) wgmma_commit();
  if (what == 8) wgmma_wait<0>();
  if (what == 9) decrease_registers<24>();
  if (what == 10) elect_one();
}

TEST_CASE("a GPU before Hopper refuses Hopper's instructions by name") {
  const char* const names[] = {"mbarrier.try_wait",
                               "mbarrier.arrive.expect_tx",
                               "fence.mbarrier_init",
                               "fence.proxy.async",
                               "cp.async.bulk.commit_group",
                               "cp.async.bulk.wait_group",
                               "wgmma.fence",
                               "wgmma.commit_group",
                               "wgmma.wait_group",
                               "setmaxnreg",
                               "elect.sync"};
  for (int what = 0; what < 11; ++what) {
    Machine machine(0, 1, gpu_profile("a100"));
    const auto fault = fault_of(machine, {"probe", {1}, 128, sizeof(SingleStorage)}, use_on_older_gpu_kernel, what);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK(fault->kind == "missing instruction");
    CHECK(contains(fault->what(), std::string(names[what]) + " needs compute capability 9.0"));
  }
}

TEST_CASE("a machine has the processors of the GPU that it stands for") {
  CHECK(Machine(0, 1).processors() == 132);
  CHECK(Machine(0, 1, gpu_profile("a100")).processors() == 108);
  CHECK(Machine(0, 1, gpu_profile("rtx4090")).processors() == 128);
  CHECK(Machine(0, 1, gpu_profile("t4")).processors() == 40);
}

}  // namespace
}  // namespace flash::sim
