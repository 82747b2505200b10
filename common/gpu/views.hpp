// Global tensors and shared tiles as kernels see them on a GPU: an access is a plain load or store.
// common/sim/views.hpp has the same names for the simulated GPU, which checks and counts each access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/base/layout.hpp"
#include "common/base/problem.hpp"
#include "common/base/vector.hpp"
#include "common/ptx/global.hpp"

namespace flash::gpu {

/// The source of a cp.async.
struct GlobalAddress {
  const void* data;
};

/// A shared-memory address as PTX takes it.
struct SharedAddress {
  unsigned value;
};

namespace detail {

template <int Bytes>
constexpr auto word() {
  static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16, "an access has 2, 4, 8 or 16 bytes");
  if constexpr (Bytes == 2) {
    return std::uint16_t{};
  } else if constexpr (Bytes == 4) {
    return std::uint32_t{};
  } else if constexpr (Bytes == 8) {
    return uint2{};
  } else {
    return uint4{};
  }
}

// Through a built-in vector type, so that the compiler makes one access of it.
template <typename Value, int N>
__device__ __forceinline__ Vector<Value, N> load_as_one(const Value* at) {
  using Word = decltype(word<int(sizeof(Value)) * N>());
  const Word bits = *reinterpret_cast<const Word*>(at);
  Vector<Value, N> value;
  memcpy(&value, &bits, sizeof(Word));
  return value;
}
template <typename Value, int N>
__device__ __forceinline__ void store_as_one(Value* at, const Vector<Value, N>& value) {
  using Word = decltype(word<int(sizeof(Value)) * N>());
  Word bits;
  memcpy(&bits, &value, sizeof(Word));
  *reinterpret_cast<Word*>(at) = bits;
}

/// The same to global memory, through PTX where the compiler would split it.
template <typename Value, int N>
__device__ __forceinline__ void store_global_as_one(Value* at, const Vector<Value, N>& value) {
  using Word = decltype(word<int(sizeof(Value)) * N>());
  Word bits;
  memcpy(&bits, &value, sizeof(Word));
  if constexpr (sizeof(Word) == 16) {
    store_global_16(at, bits);
  } else if constexpr (sizeof(Word) == 8) {
    store_global_8(at, bits);
  } else {
    *reinterpret_cast<Word*>(at) = bits;
  }
}

}  // namespace detail

/// [rows, cols] of one head; rows are row_stride elements apart, columns are neighbours.
template <typename T>
class GlobalMatrix {
 public:
  using Value = std::remove_const_t<T>;

  __device__ __forceinline__ GlobalMatrix(T* data, std::int64_t row_stride, int rows, int cols)
      : data_(data), row_stride_(row_stride), rows_(rows), cols_(cols) {}

  __device__ __forceinline__ int rows() const { return rows_; }
  __device__ __forceinline__ int cols() const { return cols_; }

  __device__ __forceinline__ Value load(std::int64_t row, std::int64_t col) const { return *element(row, col); }
  __device__ __forceinline__ void store(std::int64_t row, std::int64_t col, Value value) const {
    *element(row, col) = value;
  }
  template <int N>  // see the free function load_vector
  __device__ __forceinline__ Vector<Value, N> load_vector(std::int64_t row, std::int64_t col) const {
    return detail::load_as_one<Value, N>(element(row, col));
  }
  template <int N>
  __device__ __forceinline__ void store_vector(std::int64_t row, std::int64_t col,
                                               const Vector<Value, N>& value) const {
    detail::store_global_as_one(element(row, col), value);
  }
  /// For cp.async: the address of 16 bytes at (row, col).
  __device__ __forceinline__ GlobalAddress address(std::int64_t row, std::int64_t col) const {
    return {element(row, col)};
  }
  __device__ __forceinline__ T* element(std::int64_t row, std::int64_t col) const {
    return data_ + row * row_stride_ + col;
  }

 private:
  T* data_;
  std::int64_t row_stride_;
  int rows_, cols_;
};

/// [cols] of one head: a statistic for each row of the problem.
template <typename T>
class GlobalVector {
 public:
  using Value = std::remove_const_t<T>;
  __device__ __forceinline__ explicit GlobalVector(GlobalMatrix<T> matrix) : matrix_(matrix) {}
  __device__ __forceinline__ int size() const { return matrix_.cols(); }
  __device__ __forceinline__ Value load(std::int64_t i) const { return matrix_.load(0, i); }
  __device__ __forceinline__ void store(std::int64_t i, Value value) const { matrix_.store(0, i, value); }

 private:
  GlobalMatrix<T> matrix_;
};

/// [batch, heads, rows, cols] with any strides but the last, which is 1.
template <typename T>
class GlobalTensor {
 public:
  explicit GlobalTensor(const TensorRef& ref)
      : data_(static_cast<T*>(ref.data)),
        batch_stride_(ref.batch_stride),
        head_stride_(ref.head_stride),
        row_stride_(ref.row_stride),
        rows_(int(ref.rows)),
        cols_(int(ref.cols)) {}

  __device__ __forceinline__ GlobalMatrix<T> head(std::int64_t batch, std::int64_t head) const {
    return {data_ + batch * batch_stride_ + head * head_stride_, row_stride_, rows_, cols_};
  }
  /// For statistics: the values of one head.
  __device__ __forceinline__ GlobalVector<T> vector(std::int64_t batch, std::int64_t head_index) const {
    return GlobalVector<T>(head(batch, head_index));
  }

 private:
  T* data_;
  std::int64_t batch_stride_, head_stride_, row_stride_;
  int rows_, cols_;
};

/// A tile in shared memory: the type carries shape and layout.
template <typename T, int Rows, int Cols, typename Layout = RowMajor>
class SharedTile {
 public:
  __host__ __device__ static constexpr int rows() { return Rows; }
  __host__ __device__ static constexpr int cols() { return Cols; }

  __device__ __forceinline__ T load(int row, int col) const { return data_[offset(row, col)]; }
  __device__ __forceinline__ void store(int row, int col, T value) { data_[offset(row, col)] = value; }
  template <int N>  // see the free function load_vector
  __device__ __forceinline__ Vector<T, N> load_vector(std::int64_t row, std::int64_t col) const {
    return detail::load_as_one<T, N>(data_ + offset(int(row), int(col)));
  }
  template <int N>
  __device__ __forceinline__ void store_vector(int row, int col, const Vector<T, N>& value) {
    detail::store_as_one(data_ + offset(row, col), value);
  }
  /// For ldmatrix and cp.async: where the 16 bytes at (row, col) lie.
  __device__ __forceinline__ SharedAddress address(int row, int col) const {
    return {static_cast<unsigned>(__cvta_generic_to_shared(data_ + offset(row, col)))};
  }
  /// address(row + lane_row, col + lane_col), for unrolled loops over row and col: what the lane adds stays in a
  /// register, and the loop's part goes into the instructions. For the row and col that Layout::advance takes.
  __device__ __forceinline__ SharedAddress lane_address(int row, int col, int lane_row, int lane_col) const {
    return {Layout::template advance<int(sizeof(T)), Rows, Cols>(address(lane_row, lane_col).value, row, col)};
  }

 private:
  __device__ __forceinline__ static int offset(int row, int col) {
    return Layout::template offset<int(sizeof(T)), Rows, Cols>(row, col);
  }
  T data_[Layout::template elements<int(sizeof(T)), Rows, Cols>()];
};

/// One value for each row of a tile.
template <typename T, int Size>
class SharedVector {
 public:
  __device__ __forceinline__ T load(int i) const { return tile_.load(0, i); }
  __device__ __forceinline__ void store(int i, T value) { tile_.store(0, i, value); }

 private:
  SharedTile<T, 1, Size> tile_;
};

/// N neighbouring elements of a GlobalMatrix or SharedTile as one access of up to 16 bytes.
template <int N, typename Source>
__device__ __forceinline__ auto load_vector(const Source& source, std::int64_t row, std::int64_t col) {
  return source.template load_vector<N>(row, col);
}

/// The block's dynamic shared memory as the kernel's storage type, at a multiple of 1024 bytes.
template <typename Storage>
__device__ __forceinline__ Storage& shared_storage() {
  extern __shared__ __align__(1024) unsigned char flash_dynamic_shared_memory[];
  return *reinterpret_cast<Storage*>(flash_dynamic_shared_memory);
}

}  // namespace flash::gpu
