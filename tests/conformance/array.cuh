// Device memory of the conformance suite's kernels.
#pragma once

#include <cstring>

#include "common/kernel/kernel.hpp"
#include "tests/conformance/primitives.hpp"

namespace flash::MACHINE::conformance {

using test::Output;

/// Device memory with contents, as a [rows, cols] tensor.
template <typename T>
class Array {
 public:
  Array(Machine& machine, const char* name, std::int64_t rows, std::int64_t cols)
      : machine_(machine), buffer_(machine, std::size_t(rows * cols) * sizeof(T)) {
    ref_.name = name;
    ref_.data = buffer_.data();
    ref_.rows = rows;
    ref_.cols = cols;
    ref_.row_stride = ref_.head_stride = ref_.batch_stride = cols;
    ref_.element_bytes = sizeof(T);
    machine_.fill_bytes(buffer_.data(), 0xee, buffer_.bytes());
  }
  Array(Machine& machine, const char* name, std::int64_t rows, std::int64_t cols, const void* contents)
      : Array(machine, name, rows, cols) {
    machine_.upload(buffer_.data(), contents, buffer_.bytes());
  }
  GlobalTensor<const T> in() const { return GlobalTensor<const T>(ref_); }
  GlobalTensor<T> out() const { return GlobalTensor<T>(ref_); }

  void* data() const { return ref_.data; }

  Output output(const std::string& name) const {
    const std::size_t count = std::size_t(ref_.rows * ref_.cols);
    std::vector<T> host(count);
    machine_.synchronize();
    machine_.download(static_cast<void*>(host.data()), buffer_.data(), count * sizeof(T));
    Output result{name, std::vector<std::uint32_t>(count, 0)};
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&result.words[i], static_cast<const void*>(&host[i]), sizeof(T));
    }
    return result;
  }

 private:
  Machine& machine_;
  DeviceBuffer buffer_;
  TensorRef ref_;
};

}  // namespace flash::MACHINE::conformance
