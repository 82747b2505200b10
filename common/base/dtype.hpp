// The 16-bit element types as plain host storage, with conversions that round to nearest even.
// The simulated GPU computes with these; on a GPU the same bits are CUDA's __half and __nv_bfloat16.
#pragma once

#include <bit>
#include <cstdint>

namespace flash {

enum class DType { fp16, bf16 };

constexpr const char* to_string(DType t) { return t == DType::fp16 ? "fp16" : "bf16"; }

/// IEEE 754 binary16. Only storage: arithmetic is done in float.
struct float16 {
  std::uint16_t bits;
};

/// The upper half of a binary32. Only storage: arithmetic is done in float.
struct bfloat16 {
  std::uint16_t bits;
};

/// Exact: every float16 is a float. A NaN keeps its sign and the upper part of its payload.
inline float to_float(float16 x) {
  // Shifting the exponent and mantissa into place leaves an exponent that is 112 too small; one
  // multiplication mends that for normal and subnormal numbers alike.
  const std::uint32_t magnitude = std::uint32_t(x.bits & 0x7fffu) << 13;
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
  if ((x.bits & 0x7c00u) == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f));
}

inline float to_float(bfloat16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }

inline float to_float(float x) { return x; }

/// Rounds to nearest even; beyond 65504 becomes infinity, as the hardware's conversion does.
inline float16 to_float16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {std::uint16_t(0x7fffu)};          // NaN: the hardware's canonical one
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                                         // below 2^-14: subnormal
    // Adding 0.5 puts the result's last bit (2^-24) at the last bit of the sum, so the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {std::uint16_t(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return {std::uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13))};
}

/// Rounds to nearest even.
inline bfloat16 to_bfloat16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t(0x7fffu)};
  return {std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// Rounds `x` to the element type named by the template argument.
template <typename T>
T from_float(float x);
template <>
inline float16 from_float<float16>(float x) {
  return to_float16(x);
}
template <>
inline bfloat16 from_float<bfloat16>(float x) {
  return to_bfloat16(x);
}
template <>
inline float from_float<float>(float x) {
  return x;
}

}  // namespace flash
