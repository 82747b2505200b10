// NumPy's .npy files: one array each, read and written without NumPy.
// Format: numpy.lib.format, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace flash {

/// An array as a file holds it: the elements stay in the file's type, in C order (the last index runs fastest).
struct NpyArray {
  std::vector<std::int64_t> shape;  // every extent at least 1; empty for a single number
  std::string descr;                // "<f2", "<f4", "<f8" or "V2" (bfloat16)
  std::vector<std::byte> bytes;     // size() * element_bytes()

  std::int64_t size() const;
  int element_bytes() const;

  /// Element `i` in C order. Exact for all types.
  double as_double(std::int64_t i) const;
  /// Element `i` in C order; f8 is rounded to nearest.
  float as_float(std::int64_t i) const;
};

/// "(2, 197, 12, 64)", as Python writes it.
std::string shape_text(std::span<const std::int64_t> shape);

/// What elements of two bytes without a type are: JAX and ml_dtypes save bfloat16 so, with the descr '<V2' or '|V2'.
enum class VoidElements { refused, bfloat16 };

/// Reads a little-endian f2, f4 or f8 array in C order ('=', this machine's byte order, is little-endian); format
/// versions 1.0, 2.0 and 3.0. With `rank`, the array must have that many dimensions. The file's size is compared with
/// the header's claims before anything is allocated, and pickled objects are never loaded. Throws UsageError, one line
/// that names the file, what is wrong with it and what would be right.
NpyArray read_npy(const std::string& path, std::optional<int> rank = std::nullopt,
                  VoidElements void_elements = VoidElements::refused);

/// Writes a C-order array as format version 1.0. `bytes` holds product(shape) elements of `descr`, which is one of
/// "<f2", "<f4", "<f8".
///
/// The file appears under `path` only when it is complete (write_file in common/program/file.hpp).
/// Throws UsageError when the file cannot be written, std::invalid_argument when the arguments contradict each other.
void write_npy(const std::string& path, std::span<const std::int64_t> shape, const std::string& descr,
               std::span<const std::byte> bytes);

}  // namespace flash
