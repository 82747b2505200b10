// Where an element of a shared-memory tile lies: machine-independent, so that both machines agree to the byte.
// A layout is a type with `offset<Bytes, Rows, Cols>(row, col)` and `elements<Bytes, Rows, Cols>()`, in elements of
// `Bytes` bytes.
#pragma once

#if defined(__CUDACC__)
#define FLASH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASH_HOST_DEVICE inline
#endif

namespace flash {

/// Row after row, nothing between.
struct RowMajor {
  template <int Bytes, int Rows, int Cols>
  static constexpr int elements() {
    return Rows * Cols;
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr int offset(int row, int col) {
    return row * Cols + col;
  }
};

/// Row after row, each row followed by 16 unused bytes, so that a column of 16-byte pieces falls into all banks.
struct Padded16 {
  template <int Bytes, int Rows, int Cols>
  static constexpr int elements() {
    return Rows * (Cols + 16 / Bytes);
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr int offset(int row, int col) {
    return row * (Cols + 16 / Bytes) + col;
  }
};

/// The 128-byte swizzle of Hopper's copy engine and matrix descriptors: panels of 128 bytes by Rows; in row r of a
/// panel the 16-byte piece c lies at place c xor (r mod 8). Eight consecutive rows of one piece fall into all banks.
/// A tile in this layout starts at a multiple of 1024 bytes.
struct Swizzle128 {
  template <int Bytes, int Rows, int Cols>
  static constexpr int elements() {
    static_assert(Cols * Bytes % 128 == 0, "a row is a whole number of 128-byte panels");
    return Rows * Cols;
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr int offset(int row, int col) {
    constexpr int panel_cols = 128 / Bytes, piece = 16 / Bytes;
    const int in_panel = col % panel_cols;
    return col / panel_cols * (Rows * panel_cols) + row * panel_cols + ((in_panel / piece) ^ (row % 8)) * piece +
           in_panel % piece;
  }
};

}  // namespace flash
