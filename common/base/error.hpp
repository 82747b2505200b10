// The kinds of failure that a program of this project ends with, each with its exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace flash {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDevice = 3;

/// Bad arguments or input: exit code 2. The message is one line that says what is wrong and what would be right.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device is missing or cannot run what was asked: exit code 3.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The simulated GPU stopped a kernel: exit code 1. The message is the whole report (several lines); `kind` is its
/// first word group ("out of bounds", "data race", ...), which tests look for.
struct Fault : std::runtime_error {
  Fault(std::string fault_kind, const std::string& report) : std::runtime_error(report), kind(std::move(fault_kind)) {}
  std::string kind;
};

}  // namespace flash
