#include "common/device/counters.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

namespace flash::sim {

namespace {

struct TensorNames {
  std::mutex mutex;
  std::vector<std::string> names;
};

TensorNames& tensor_names() {
  static TensorNames names;
  return names;
}

}  // namespace

std::int64_t Counters::bank_conflicts() const {
  std::int64_t sum = 0;
  for (const SharedCounters& kind : shared) sum += kind.bank_conflicts;
  return sum;
}

const TensorCounters* Counters::of_tensor(const std::string& name) const {
  for (int slot = 0; slot < tensor_slots(); ++slot) {
    if (tensor_name(slot) == name) return &tensors[std::size_t(slot)];
  }
  return nullptr;
}

void Counters::operator+=(const Counters& other) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorCounters& mine = tensors[i];
    const TensorCounters& theirs = other.tensors[i];
    mine.read_sectors += theirs.read_sectors;
    mine.written_sectors += theirs.written_sectors;
    mine.atomic_sectors += theirs.atomic_sectors;
    mine.read_requests += theirs.read_requests;
    mine.written_requests += theirs.written_requests;
    mine.useful_bytes_read += theirs.useful_bytes_read;
    mine.useful_bytes_written += theirs.useful_bytes_written;
  }
  for (std::size_t i = 0; i < shared.size(); ++i) {
    shared[i].accesses += other.shared[i].accesses;
    shared[i].bytes += other.shared[i].bytes;
    shared[i].bank_conflicts += other.shared[i].bank_conflicts;
  }
  matrix_flops += other.matrix_flops;
  exponentials += other.exponentials;
  barriers += other.barriers;
  blocks += other.blocks;
  threads += other.threads;
  shared_bytes = std::max(shared_bytes, other.shared_bytes);
}

int tensor_slot(const std::string& name) {
  TensorNames& names = tensor_names();
  const std::lock_guard lock(names.mutex);
  const auto found = std::find(names.names.begin(), names.names.end(), name);
  if (found != names.names.end()) return int(found - names.names.begin());
  if (names.names.size() == std::size_t(kMaxTensors)) throw std::length_error("more tensor names than counters");
  names.names.push_back(name);
  return int(names.names.size()) - 1;
}

std::string tensor_name(int slot) {
  TensorNames& names = tensor_names();
  const std::lock_guard lock(names.mutex);
  return names.names.at(std::size_t(slot));
}

int tensor_slots() {
  TensorNames& names = tensor_names();
  const std::lock_guard lock(names.mutex);
  return int(names.names.size());
}

}  // namespace flash::sim
