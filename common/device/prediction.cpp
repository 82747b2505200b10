#include "common/device/prediction.hpp"

#include <fmt/format.h>

namespace flash {

std::vector<std::string> differences(const sim::Counters& counted, const Traffic& predicted) {
  Traffic all = predicted;  // and a line for each tensor that was touched and not predicted
  std::vector<std::string> list;
  for (int slot = 0; slot < sim::tensor_slots(); ++slot) {
    const sim::TensorCounters& counters = counted.tensors[std::size_t(slot)];
    const std::string name = sim::tensor_name(slot);
    const std::size_t named = all.tensors.size();
    if (counters.read_sectors + counters.written_sectors + counters.atomic_sectors > 0) all.add(name, 0, 0);
    if (all.tensors.size() > named && counters.read_sectors + counters.written_sectors == 0) {
      list.push_back(fmt::format("{}: counted atomic operations, predicted no access", name));
    }
  }
  for (const TensorTraffic& tensor : all.tensors) {
    const sim::TensorCounters* counters = counted.of_tensor(tensor.tensor);
    const auto compare = [&](const char* what, std::int64_t got, std::int64_t expected) {
      if (got == expected) return;
      list.push_back(fmt::format("{} {}: counted {} B, predicted {} B", tensor.tensor, what, got, expected));
    };
    compare("read", counters ? counters->bytes_read() : 0, tensor.read);
    compare("written", counters ? counters->bytes_written() : 0, tensor.written);
  }
  return list;
}

std::vector<std::string> differences(const sim::Counters& counted, const BankConflicts& predicted) {
  std::vector<std::string> list;
  const auto compare = [&](const char* what, sim::SharedAccess kind, std::int64_t expected) {
    const std::int64_t got = counted.shared_of(kind).bank_conflicts;
    if (got != expected)
      list.push_back(fmt::format("bank conflicts of {}: counted {}, predicted {}", what, got, expected));
  };
  compare("loads", sim::SharedAccess::load, predicted.loads);
  compare("stores", sim::SharedAccess::store, predicted.stores);
  compare("ldmatrix", sim::SharedAccess::ldmatrix, predicted.ldmatrix);
  compare("stmatrix", sim::SharedAccess::stmatrix, predicted.stmatrix);
  compare("cp.async", sim::SharedAccess::cp_async, predicted.cp_async);
  return list;
}

BankConflicts predicted_bank_conflicts(const ChapterInfo& chapter, const Problem& problem,
                                       const LaunchOptions& options) {
  return chapter.bank_conflicts ? chapter.bank_conflicts(problem, options) : BankConflicts{};
}

}  // namespace flash
