#include "common/sim/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "common/base/host_memory.hpp"
#include "common/sim/block.hpp"
#include "common/sim/global_shadow.hpp"

namespace flash::sim {

namespace {

/// CUDA threads in flight at once. Each has a stack with a guard page, two of the mappings of which Linux gives a
/// process 65530.
constexpr int kMaxFibers = 16 * 1024;

/// Blocks with their fibers, kept from one launch to the next.
class BlockPool {
 public:
  std::unique_ptr<Block> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Block>();
    // The one with the most threads, so that few blocks grow to the size of the largest launch.
    const auto most = std::max_element(free_.begin(), free_.end(),
                                       [](const auto& a, const auto& b) { return a->fibers() < b->fibers(); });
    std::unique_ptr<Block> block = std::move(*most);
    free_.erase(most);
    return block;
  }
  void give(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_;
};

BlockPool& block_pool() {
  static BlockPool pool;
  return pool;
}

/// A permutation of 0 .. count - 1 for the seed: i -> (i * step + start) mod count with step and count coprime.
struct BlockOrder {
  std::uint64_t count, step = 1, start = 0;
  BlockOrder(std::uint64_t blocks, std::uint64_t seed) : count(blocks) {
    if (seed == 0 || count < 2) return;
    std::uint64_t z = seed * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9u;
    start = (z >> 32) % count;
    step = (z & 0xffffffffu) % count;
    while (std::gcd(step, count) != 1) step = (step + 1) % count;
  }
  std::int64_t operator[](std::uint64_t i) const {
    return std::int64_t((static_cast<unsigned __int128>(i) * step + start) % count);
  }
};

/// A launch that takes long says now and then how far it is.
constexpr std::chrono::seconds kProgressInterval{14};

/// One block may run this many times as long as the watchdog lets one thread run: a loop with a barrier in it ends too.
constexpr int kBlockLimit = 10;

/// The memory of all machines.
class Allocations {
 public:
  void add(const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[reinterpret_cast<std::uintptr_t>(data)] = bytes;
  }
  void remove(const void* data) {
    const std::lock_guard lock(mutex_);
    bytes_.erase(reinterpret_cast<std::uintptr_t>(data));
  }
  std::size_t bytes_from(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const auto behind = bytes_.upper_bound(at);
    if (behind == bytes_.begin()) return 0;
    const auto& [start, bytes] = *std::prev(behind);
    return at - start < bytes ? bytes - (at - start) : 0;
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> bytes_;  // by the first byte's address
};

/// Never destroyed: buffers that end with the process still give back theirs.
Allocations& allocations() {
  static auto& all = *new Allocations;
  return all;
}

/// A thread in an endless loop cannot be stopped from outside, so the report ends the process.
[[noreturn]] void end_process(const char* kind, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "fault: %s\n  %s\n", kind, what.c_str());
  std::_Exit(kExitCheckFailed);
}

}  // namespace

Machine::Machine(std::uint64_t schedule_seed, int host_threads, const GpuProfile& gpu)
    : schedule_seed_(schedule_seed),
      host_threads_(host_threads > 0 ? host_threads : int(std::max(1u, std::thread::hardware_concurrency()))),
      gpu_(gpu) {}

std::string Machine::describe() const {
  return fmt::format(
      "simulated GPU ({}: compute capability {}, {} KB of shared memory a block; {} host thread{}, schedule seed "
      "{})",
      gpu_.title, capability_text(gpu_.limits.capability), gpu_.limits.shared_bytes / 1024, host_threads_,
      host_threads_ == 1 ? "" : "s", schedule_seed_);
}

std::size_t Machine::free_bytes() const { return host_available_bytes(); }

void* Machine::allocate(std::size_t bytes) {
  void* data = std::aligned_alloc(256, (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256);
  if (data == nullptr) throw std::bad_alloc();
  allocations().add(data, bytes);
  return data;
}

void Machine::release(void* data) noexcept {
  allocations().remove(data);
  std::free(data);
}

std::size_t Machine::allocated_from(const void* data) { return allocations().bytes_from(data); }

void Machine::upload(void* device_data, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device_data, host, bytes);
}

void Machine::download(void* host, const void* device_data, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device_data, bytes);
}

void Machine::fill_bytes(void* device_data, unsigned char value, std::size_t bytes) {
  std::memset(device_data, value, bytes);
}

TensorMap Machine::tensor_map(const TensorMapSpec& spec) const {
  if (const std::string why = refusal(spec); !why.empty()) throw UsageError(why);
  return TensorMap(spec, tensor_slot(spec.tensor));
}

void Machine::no_library(const char* name) {
  throw DeviceError(
      fmt::format("this variant needs {}, which the simulated GPU does not have: use --device gpu", name));
}

void Machine::run(const LaunchConfig& config, std::function<void()> body) {
  const Extent3& grid = config.grid;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    throw DeviceError(fmt::format("kernel {}: a grid of {} x {} x {} blocks is outside 1 to 2147483647 x 65535 x 65535",
                                  config.name, grid.x, grid.y, grid.z));
  }
  if (config.threads < 1 || config.threads > 1024) {
    throw DeviceError(
        fmt::format("kernel {}: {} threads in a block; 1 to 1024 are possible", config.name, config.threads));
  }
  if (config.shared_bytes > gpu_.limits.shared_bytes) {
    throw DeviceError(fmt::format("kernel {}: {} bytes of shared memory for a block; {} are possible on the {}",
                                  config.name, config.shared_bytes, gpu_.limits.shared_bytes, gpu_.title));
  }

  const auto blocks = std::uint64_t(grid.x * grid.y * grid.z);
  GlobalShadow global_shadow{std::int64_t(blocks)};
  const KernelRun kernel{config, std::move(body), schedule_seed_, gpu_, blocks > 1 ? &global_shadow : nullptr};
  const BlockOrder order(blocks, schedule_seed_);
  const int workers =
      int(std::min<std::uint64_t>(blocks, std::uint64_t(std::min(host_threads_, kMaxFibers / config.threads))));

  struct Worker {
    std::unique_ptr<Block> block;
    bool ended = false;
    // For the watchdog: what it saw last, and when that began.
    std::uint64_t progress = 0, blocks_started = 0;
    std::chrono::steady_clock::time_point progress_since{}, block_since{};
  };
  std::vector<Worker> taken(static_cast<std::size_t>(workers));
  for (Worker& worker : taken) worker.block = block_pool().take();

  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::condition_variable ended;
  std::exception_ptr failure;
  std::int64_t failed_block = -1;

  const auto work = [&](Worker& worker) {
    Counters counted;
    for (std::uint64_t i = next++; i < blocks; i = next++) {
      const std::int64_t index = order[i];
      try {
        worker.block->run(kernel, index, counted);
      } catch (...) {
        // Several blocks may fail at once: report the first in order.
        const std::lock_guard lock(mutex);
        if (!failure || index < failed_block) {
          failure = std::current_exception();
          failed_block = index;
        }
        next = blocks;
      }
    }
    {
      const std::lock_guard lock(counters_mutex_);
      counters_ += counted;
    }
    const std::lock_guard lock(mutex);
    worker.ended = true;
    ended.notify_one();
  };

  {
    std::vector<std::jthread> threads;
    for (Worker& worker : taken) threads.emplace_back([&work, &worker] { work(worker); });
    std::unique_lock lock(mutex);
    const auto all_ended = [&] { return std::all_of(taken.begin(), taken.end(), [](auto& w) { return w.ended; }); };
    const auto start = std::chrono::steady_clock::now();
    auto told = start;
    for (Worker& worker : taken) worker.progress_since = worker.block_since = start;
    while (!ended.wait_for(lock, watchdog_ / 4, all_ended)) {
      const auto now = std::chrono::steady_clock::now();
      if (now - told > kProgressInterval) {
        told = now;
        std::fprintf(stderr, "simulating kernel %s: block %llu of %llu\n", config.name,
                     static_cast<unsigned long long>(std::min<std::uint64_t>(next, blocks)),
                     static_cast<unsigned long long>(blocks));
      }
      for (Worker& worker : taken) {
        if (worker.ended) continue;
        const std::uint64_t progress = worker.block->progress(), started = worker.block->blocks_started();
        if (std::exchange(worker.progress, progress) != progress) worker.progress_since = now;
        if (std::exchange(worker.blocks_started, started) != started) worker.block_since = now;
        const bool stuck = now - worker.progress_since > watchdog_;
        if (!stuck && now - worker.block_since <= kBlockLimit * watchdog_) continue;
        end_process("endless loop", fmt::format("{}\n  has run for {} ms {}", worker.block->where(),
                                                (stuck ? 1 : kBlockLimit) * watchdog_.count(),
                                                stuck ? "without a barrier, a warp collective or its end"
                                                      : "without an end of its block"));
      }
    }
  }
  for (Worker& worker : taken) block_pool().give(std::move(worker.block));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace flash::sim

namespace flash {

std::unique_ptr<Device> make_simulated_gpu(std::uint64_t schedule_seed, const GpuProfile& gpu) {
  return std::make_unique<sim::Machine>(schedule_seed, 0, gpu);
}

}  // namespace flash
