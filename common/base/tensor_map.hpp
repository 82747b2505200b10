// placeholder until the simulation's arrives
#pragma once
#include <cstdint>
#include <string>
namespace flash {
enum class Swizzle { none, bytes32, bytes64, bytes128 };
struct TensorMapSpec {
  std::string tensor;
  void* data = nullptr;
  int element_bytes = 2;
  int rank = 1;
  std::int64_t extent[5] = {1, 1, 1, 1, 1};
  std::int64_t stride[5] = {2, 0, 0, 0, 0};
  int box[5] = {1, 1, 1, 1, 1};
  Swizzle swizzle = Swizzle::none;
};
inline std::string refusal(const TensorMapSpec&) { return ""; }
}
