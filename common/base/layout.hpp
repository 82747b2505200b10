// Where an element of a shared-memory tile lies: machine-independent, so that both machines agree to the byte.
// A layout is a type with `offset<Bytes, Rows, Cols>(row, col)` and `elements<Bytes, Rows, Cols>()`, in elements of
// `Bytes` bytes, and `advance`, which leads from the byte address of element (r, c) of an aligned tile to that of
// (r + row, c + col), where c lies in the first 32 bytes of a row, col is a multiple of 32 bytes, and r % 8 and row % 8
// have no bit in common (row is a multiple of 8, say). With row and col known to the compiler that is at most one
// exclusive or with a constant, and an addition that fits into the instruction.
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
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr unsigned advance(unsigned address, int row, int col) {
    return address + unsigned(offset<Bytes, Rows, Cols>(row, col) * Bytes);
  }
};

/// Row after row, each row followed by `PadBytes` unused bytes.
template <int PadBytes>
struct Padded {
  template <int Bytes, int Rows, int Cols>
  static constexpr int elements() {
    return Rows * (Cols + PadBytes / Bytes);
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr int offset(int row, int col) {
    return row * (Cols + PadBytes / Bytes) + col;
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr unsigned advance(unsigned address, int row, int col) {
    return address + unsigned(offset<Bytes, Rows, Cols>(row, col) * Bytes);
  }
};

/// A column of 16-byte pieces falls into all banks, where rows are a multiple of 128 bytes: what ldmatrix reads.
using Padded16 = Padded<16>;
/// The same for 8-byte pieces, four of each row: what a warp stores of its fp32 sums.
using Padded32 = Padded<32>;

/// Panels of 128 bytes by Rows, in which row follows row: eight consecutive rows of one 16-byte piece lie in the same
/// four banks. Swizzle128 is this with the pieces of a row exchanged.
struct Panels128 {
  template <int Bytes, int Rows, int Cols>
  static constexpr int elements() {
    static_assert(Cols * Bytes % 128 == 0, "a row is a whole number of 128-byte panels");
    return Rows * Cols;
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr int offset(int row, int col) {
    constexpr int panel_cols = 128 / Bytes;
    return col / panel_cols * (Rows * panel_cols) + row * panel_cols + col % panel_cols;
  }
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr unsigned advance(unsigned address, int row, int col) {
    return address + unsigned(offset<Bytes, Rows, Cols>(row, col) * Bytes);
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
  template <int Bytes, int Rows, int Cols>
  static FLASH_HOST_DEVICE constexpr unsigned advance(unsigned address, int row, int col) {
    constexpr int panel_cols = 128 / Bytes;
    return (address ^ unsigned(col % panel_cols * Bytes ^ row % 8 * 16)) +
           unsigned((col / panel_cols * Rows + row) * 128);
  }
};

}  // namespace flash
