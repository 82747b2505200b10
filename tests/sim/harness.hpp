// What the tests of the simulated GPU share: tensors in host memory and launches that are expected to end in a fault,
// or not to.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "common/base/problem.hpp"
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"

namespace flash::test {

/// A contiguous [batch, heads, rows, cols] tensor whose first element lies at a multiple of 256 bytes, with the values
/// 0, 1, 2, ...
template <typename T>
class Tensor {
 public:
  Tensor(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t cols)
      : name_(name),
        batch_(batch),
        heads_(heads),
        rows_(rows),
        cols_(cols),
        memory_(machine_, std::size_t(size()) * sizeof(T)) {
    for (std::int64_t i = 0; i < size(); ++i) {
      if constexpr (std::is_arithmetic_v<T>) {
        data()[i] = T(i);
      } else {
        data()[i] = from_float<T>(float(i));
      }
    }
  }
  Tensor(const char* name, std::int64_t rows, std::int64_t cols) : Tensor(name, 1, 1, rows, cols) {}

  T* data() { return static_cast<T*>(memory_.data()); }
  T& operator[](std::int64_t i) { return data()[i]; }
  std::int64_t size() const { return batch_ * heads_ * rows_ * cols_; }

  TensorRef ref() {
    TensorRef ref;
    ref.name = name_;
    ref.data = memory_.data();
    ref.batch = batch_;
    ref.heads = heads_;
    ref.rows = rows_;
    ref.cols = cols_;
    ref.row_stride = cols_;
    ref.head_stride = rows_ * cols_;
    ref.batch_stride = heads_ * rows_ * cols_;
    ref.element_bytes = sizeof(T);
    return ref;
  }

 private:
  const char* name_;
  std::int64_t batch_, heads_, rows_, cols_;
  sim::Machine machine_{0, 1};
  DeviceBuffer memory_;
};

/// The fault that the launch ends in, if it does.
template <typename... Parameters, typename... Arguments>
std::optional<Fault> fault_of(sim::Machine& machine, const LaunchConfig& config, void (*kernel)(Parameters...),
                              Arguments&&... arguments) {
  try {
    machine.launch(config, kernel, std::forward<Arguments>(arguments)...);
  } catch (const Fault& fault) {
    return fault;
  }
  return std::nullopt;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace flash::test
