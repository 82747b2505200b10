#include "common/sim/machine.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "common/sim/block.hpp"

namespace flash::sim {

namespace {

constexpr std::size_t kMaxShared = 227 * 1024;

/// Blocks with their fibers, kept from one launch to the next.
class BlockPool {
 public:
  std::unique_ptr<Block> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(free_.back());
    free_.pop_back();
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

}  // namespace

Machine::Machine(std::uint64_t schedule_seed, int host_threads)
    : schedule_seed_(schedule_seed),
      host_threads_(host_threads > 0 ? host_threads : int(std::max(1u, std::thread::hardware_concurrency()))) {}

std::string Machine::describe() const {
  return fmt::format("simulated GPU ({} host thread{}, schedule seed {})", host_threads_, host_threads_ == 1 ? "" : "s",
                     schedule_seed_);
}

std::size_t Machine::free_bytes() const {
  return std::size_t(sysconf(_SC_AVPHYS_PAGES)) * std::size_t(sysconf(_SC_PAGESIZE));
}

void* Machine::allocate(std::size_t bytes) {
  void* data = std::aligned_alloc(256, (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void Machine::release(void* data) noexcept { std::free(data); }

void Machine::upload(void* device_data, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device_data, host, bytes);
}

void Machine::download(void* host, const void* device_data, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device_data, bytes);
}

void Machine::fill_bytes(void* device_data, unsigned char value, std::size_t bytes) {
  std::memset(device_data, value, bytes);
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
  if (config.shared_bytes > kMaxShared) {
    throw DeviceError(fmt::format("kernel {}: {} bytes of shared memory for a block; {} are possible", config.name,
                                  config.shared_bytes, kMaxShared));
  }

  const KernelRun kernel{config, std::move(body), schedule_seed_};
  const auto blocks = std::uint64_t(grid.x * grid.y * grid.z);
  const BlockOrder order(blocks, schedule_seed_);
  const int workers = int(std::min<std::uint64_t>(blocks, std::uint64_t(host_threads_)));

  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::condition_variable ended;
  int running = workers;
  std::exception_ptr failure;
  std::int64_t failed_block = -1;
  std::vector<Block*> in_flight;

  const auto work = [&](Block& block) {
    Counters counted;
    for (std::uint64_t i = next++; i < blocks; i = next++) {
      const std::int64_t index = order[i];
      try {
        block.run(kernel, index, counted);
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
    const std::lock_guard lock(mutex);
    counters_ += counted;
    --running;
    ended.notify_one();
  };

  std::vector<std::unique_ptr<Block>> taken;
  for (int i = 0; i < workers; ++i) {
    taken.push_back(block_pool().take());
    in_flight.push_back(taken.back().get());
  }
  {
    std::vector<std::jthread> threads;
    for (Block* block : in_flight) threads.emplace_back([&work, block] { work(*block); });
    // Watch over the blocks: one whose threads take no turns for long is in an endless loop.
    std::vector<std::uint64_t> seen(in_flight.size(), 0);
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, watchdog_, [&] { return running == 0; })) {
      for (std::size_t i = 0; i < in_flight.size(); ++i) {
        const std::uint64_t progress = in_flight[i]->progress();
        if (progress == seen[i] && i < std::size_t(running)) {
          std::fprintf(
              stderr, "%s\n",
              fmt::format("fault: endless loop\n  {}\n  has run for {} ms without an access, a barrier or its end",
                          in_flight[i]->where(), watchdog_.count())
                  .c_str());
          std::_Exit(kExitCheckFailed);
        }
        seen[i] = progress;
      }
    }
  }
  for (auto& block : taken) block_pool().give(std::move(block));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace flash::sim

namespace flash {

std::unique_ptr<Device> make_simulated_gpu(std::uint64_t schedule_seed) {
  return std::make_unique<sim::Machine>(schedule_seed);
}

}  // namespace flash
