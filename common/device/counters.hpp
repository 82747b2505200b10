// What the simulated GPU counted: the bytes and operations that a kernel asked for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace flash::sim {

inline constexpr int kMaxTensors = 64;

/// One global tensor's accesses. A sector is 32 bytes; the lanes of a warp-wide access that touch the same sector
/// count it once, as the load and store units do.
struct TensorCounters {
  std::int64_t read_sectors = 0;
  std::int64_t written_sectors = 0;
  std::int64_t atomic_sectors = 0;
  std::int64_t read_requests = 0;  // warp-wide instructions, and TMA's
  std::int64_t written_requests = 0;
  std::int64_t useful_bytes_read = 0;  // what the lanes received
  std::int64_t useful_bytes_written = 0;

  std::int64_t bytes_read() const { return 32 * read_sectors; }
  std::int64_t bytes_written() const { return 32 * written_sectors; }
};

/// The last three are made by units that touch shared memory on their own, in whole boxes and operands.
enum class SharedAccess { load, store, ldmatrix, stmatrix, cp_async, tma_load, tma_store, wgmma };
inline constexpr int kSharedAccessKinds = 8;

/// Shared memory answers a warp-wide access in wavefronts of up to 32 banks of 4 bytes; a conflict is a wavefront
/// more than the bytes need.
struct SharedCounters {
  std::int64_t accesses = 0;  // instructions of a warp; of a thread for TMA, of a warpgroup for wgmma
  std::int64_t bytes = 0;
  std::int64_t bank_conflicts = 0;
};

struct Counters {
  std::array<TensorCounters, kMaxTensors> tensors{};  // by tensor_slot
  std::array<SharedCounters, kSharedAccessKinds> shared{};
  std::int64_t matrix_flops = 0;
  std::int64_t exponentials = 0;  // of one thread each
  std::int64_t barriers = 0;      // completed, of a whole block or a named one
  std::int64_t blocks = 0;
  std::int64_t threads = 0;
  std::int64_t shared_bytes = 0;  // dynamic shared memory of a block, the most of any launch

  SharedCounters& shared_of(SharedAccess kind) { return shared[std::size_t(kind)]; }
  const SharedCounters& shared_of(SharedAccess kind) const { return shared[std::size_t(kind)]; }
  std::int64_t bank_conflicts() const;
  /// A tensor's by its name; null where no tensor of that name was ever touched.
  const TensorCounters* of_tensor(const std::string& name) const;
  void operator+=(const Counters& other);
};

/// The index under which a tensor's accesses are counted; the same name gives the same index. At most kMaxTensors.
int tensor_slot(const std::string& name);
std::string tensor_name(int slot);
int tensor_slots();

}  // namespace flash::sim
