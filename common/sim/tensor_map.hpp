// A tensor map of the simulated GPU: what TMA copies take as their parameter.
#pragma once

#include <memory>

#include "common/base/tensor_map.hpp"

namespace flash::sim {

/// A kernel parameter, by value. Machine::tensor_map makes it.
class TensorMap {
 public:
  const TensorMapSpec& spec() const { return *spec_; }
  /// See tensor_slot.
  int tensor() const { return tensor_; }

 private:
  friend class Machine;
  TensorMap(const TensorMapSpec& spec, int tensor)
      : spec_(std::make_shared<const TensorMapSpec>(spec)), tensor_(tensor) {}

  std::shared_ptr<const TensorMapSpec> spec_;
  int tensor_;
};

}  // namespace flash::sim
