#include "common/base/tensor_map.hpp"

namespace flash {

std::string refusal(const TensorMapSpec& spec) {
  const std::string of = "TMA cannot copy " + spec.tensor + ": ";
  const auto dimension = [](int i) { return " of dimension " + std::to_string(i); };
  if (spec.rank < 1 || spec.rank > 5)
    return of + "it has " + std::to_string(spec.rank) + " dimensions; 1 to 5 are possible";
  if (spec.element_bytes != 1 && spec.element_bytes != 2 && spec.element_bytes != 4)
    return of + "its elements have " + std::to_string(spec.element_bytes) + " bytes; 1, 2 or 4 are possible";
  if (reinterpret_cast<std::uintptr_t>(spec.data) % 16 != 0) return of + "its address is not a multiple of 16 bytes";
  if (spec.stride[0] != spec.element_bytes) return of + "elements of the innermost dimension are not neighbours";
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.extent[i] < 1 || spec.extent[i] > std::int64_t(1) << 32)
      return of + "the extent" + dimension(i) + " is " + std::to_string(spec.extent[i]) + "; 1 to 2^32 are possible";
    if (i > 0 && (spec.stride[i] < 0 || spec.stride[i] >= std::int64_t(1) << 40 || spec.stride[i] % 16 != 0))
      return of + "the stride" + dimension(i) + " is " + std::to_string(spec.stride[i]) +
             " bytes; multiples of 16 from 0 to below 2^40 are possible";
    if (spec.box[i] < 1 || spec.box[i] > 256)
      return of + "the box has " + std::to_string(spec.box[i]) + " elements" + dimension(i) + "; 1 to 256 are possible";
  }
  const int row = spec.box[0] * spec.element_bytes, widest = swizzle_bytes(spec.swizzle);
  if (row % 16 != 0) return of + "a row of the box has " + std::to_string(row) + " bytes; multiples of 16 are possible";
  if (widest != 0 && row > widest)
    return of + "a row of the box has " + std::to_string(row) + " bytes; the swizzle takes at most " +
           std::to_string(widest);
  return "";
}

}  // namespace flash
