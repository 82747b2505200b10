// One fp32 sum in a register: a float, which wgmma works on while the program runs on. Until the wait the register
// holds a mark that no computation gives, so that reading or writing it is seen.
#pragma once

#include <bit>
#include <cstdint>

namespace flash::sim {

class AccumulatorRegister {
 public:
  AccumulatorRegister() = default;
  AccumulatorRegister(float value) : bits_(std::bit_cast<std::uint32_t>(value)) {}
  AccumulatorRegister(const AccumulatorRegister& other) : bits_(other.checked()) {}

  operator float() const { return std::bit_cast<float>(checked()); }
  AccumulatorRegister& operator=(float value) {
    checked();
    bits_ = std::bit_cast<std::uint32_t>(value);
    return *this;
  }
  AccumulatorRegister& operator=(const AccumulatorRegister& other) { return *this = float(other); }
  AccumulatorRegister& operator+=(float value) { return *this = float(*this) + value; }
  AccumulatorRegister& operator-=(float value) { return *this = float(*this) - value; }
  AccumulatorRegister& operator*=(float value) { return *this = float(*this) * value; }
  AccumulatorRegister& operator/=(float value) { return *this = float(*this) / value; }

 private:
  friend class WarpgroupUnit;
  static constexpr std::uint32_t kInFlight = 0x7fa5c3a5u;  // a signalling NaN

  std::uint32_t checked() const {
    if (bits_ == kInFlight) [[unlikely]]
      in_flight();
    return bits_;
  }
  /// Ends the run where a wgmma works on this register.
  void in_flight() const;

  std::uint32_t bits_;
};
static_assert(sizeof(AccumulatorRegister) == sizeof(float));

}  // namespace flash::sim
