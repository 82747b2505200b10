// Global tensors and shared tiles as kernels of the simulated GPU see them: each access is checked, counted and then
// done. common/gpu/views.hpp has the same names for the GPU, where an access is a plain load or store.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "common/base/layout.hpp"
#include "common/base/problem.hpp"
#include "common/base/vector.hpp"
#include "common/sim/block.hpp"
#include "common/sim/members.hpp"

namespace flash::sim {

/// The source of a cp.async.
struct GlobalAddress {
  const std::byte* data;
  GlobalPlace place;
};

/// Where a piece of a shared tile lies.
struct SharedAddress {
  std::byte* data;
  TilePlace place;
};

/// [rows, cols] of one head; rows are row_stride elements apart, columns are neighbours.
template <typename T>
class GlobalMatrix {
 public:
  using Value = std::remove_const_t<T>;

  GlobalMatrix(T* data, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, int tensor, int batch, int head)
      : data_(data), row_stride_(row_stride), rows_(rows), cols_(cols), tensor_(tensor), batch_(batch), head_(head) {}

  int rows() const { return int(rows_); }
  int cols() const { return int(cols_); }

  Value load(std::int64_t row, std::int64_t col, Site site = Site::here()) const {
    T* const at = element(row, col, 1, "read", site);
    this_block().read_global(place(row, col, 1), at, sizeof(T), site);
    return *at;
  }
  template <int N>  // see the free function load_vector
  Vector<Value, N> load_vector(std::int64_t row, std::int64_t col, Site site) const {
    T* const at = element(row, col, N, "read", site);
    this_block().read_global(place(row, col, N), at, sizeof(T) * N, site);
    return *reinterpret_cast<const Vector<Value, N>*>(at);
  }
  void store(std::int64_t row, std::int64_t col, Value value, Site site = Site::here()) const {
    T* const at = element(row, col, 1, "write", site);
    this_block().write_global(place(row, col, 1), at, sizeof(T), site);
    *at = value;
  }
  template <int N>
  void store_vector(std::int64_t row, std::int64_t col, const Vector<Value, N>& value, Site site = Site::here()) const {
    T* const at = element(row, col, N, "write", site);
    this_block().write_global(place(row, col, N), at, sizeof(T) * N, site);
    *reinterpret_cast<Vector<Value, N>*>(at) = value;
  }
  /// One atomic read-modify-write: stores update(old) and returns old (see atomics.hpp).
  template <typename Update>
  Value atomic_update(std::int64_t row, std::int64_t col, Update update, Site site) const {
    T* const at = element(row, col, 1, "atomic", site);
    this_block().atomic_global(place(row, col, 1), at, sizeof(T), site);
    Value old{};
    this_block().history().synchronise(at, [&] {
      std::atomic_ref<T> element_ref(*at);
      old = element_ref.load();
      while (!element_ref.compare_exchange_weak(old, update(old))) {
      }
    });
    return old;
  }
  /// For cp.async: the address of 16 bytes at (row, col).
  GlobalAddress address(std::int64_t row, std::int64_t col, Site site = Site::here()) const {
    constexpr int count = 16 / sizeof(T);
    return {reinterpret_cast<const std::byte*>(element(row, col, count, "copy", site)), place(row, col, count)};
  }

 private:
  GlobalPlace place(std::int64_t row, std::int64_t col, int count) const {
    return {tensor_, batch_, head_, row, col, count};
  }
  T* element(std::int64_t row, std::int64_t col, int count, const char* access, Site site) const {
    if (row < 0 || row >= rows_ || col < 0 || col + count > cols_) [[unlikely]] {
      this_block().fault("out of bounds",
                         fmt::format("{} of {}, which has {} rows and {} columns", access,
                                     element_name(place(row, col, count)), rows_, cols_),
                         site);
    }
    T* const at = data_ + row * row_stride_ + col;
    if (reinterpret_cast<std::uintptr_t>(at) % (sizeof(T) * std::size_t(count)) != 0) [[unlikely]] {
      this_block().fault("misaligned",
                         fmt::format("{} of {}: the address is not a multiple of {} bytes", access,
                                     element_name(place(row, col, count)), sizeof(T) * std::size_t(count)),
                         site);
    }
    return at;
  }

  T* data_;
  std::int64_t row_stride_, rows_, cols_;
  int tensor_, batch_, head_;
};

/// [cols] of one head: a statistic for each row of the problem.
template <typename T>
class GlobalVector {
 public:
  using Value = std::remove_const_t<T>;
  explicit GlobalVector(GlobalMatrix<T> matrix) : matrix_(matrix) {}
  int size() const { return matrix_.cols(); }
  Value load(std::int64_t i, Site site = Site::here()) const { return matrix_.load(0, i, site); }
  void store(std::int64_t i, Value value, Site site = Site::here()) const { matrix_.store(0, i, value, site); }

 private:
  GlobalMatrix<T> matrix_;
};

/// [batch, heads, rows, cols] with any strides but the last, which is 1.
template <typename T>
class GlobalTensor {
 public:
  explicit GlobalTensor(const TensorRef& ref) : ref_(ref), tensor_(tensor_slot(ref.name)) {}

  GlobalMatrix<T> head(std::int64_t batch, std::int64_t head, Site site = Site::here()) const {
    check(batch, head, site);
    T* const data = static_cast<T*>(ref_.data) + batch * ref_.batch_stride + head * ref_.head_stride;
    return {data, ref_.row_stride, ref_.rows, ref_.cols, tensor_, int(batch), int(head)};
  }
  /// For statistics: the values of one head.
  GlobalVector<T> vector(std::int64_t batch, std::int64_t head_index, Site site = Site::here()) const {
    return GlobalVector<T>(head(batch, head_index, site));
  }

 private:
  void check(std::int64_t batch, std::int64_t head, Site site) const {
    if (batch < 0 || batch >= ref_.batch || head < 0 || head >= ref_.heads) [[unlikely]] {
      this_block().fault("out of bounds",
                         fmt::format("{}[batch {}, head {}], which has {} batches and {} heads", ref_.name, batch, head,
                                     ref_.batch, ref_.heads),
                         site);
    }
  }
  TensorRef ref_;
  int tensor_;
};

/// A tile in shared memory: the type carries shape and layout.
template <typename T, int Rows, int Cols, typename Layout = RowMajor>
class SharedTile {
 public:
  static constexpr int rows() { return Rows; }
  static constexpr int cols() { return Cols; }

  T load(int row, int col, Site site = Site::here()) const {
    const T* const at = element(row, col, 1, "read", site);
    this_block().read_shared(at, sizeof(T), SharedAccess::load, place(row, col, 1), site);
    return *at;
  }
  template <int N>  // see the free function load_vector
  Vector<T, N> load_vector(std::int64_t row, std::int64_t col, Site site) const {
    const T* const at = element(int(row), int(col), N, "read", site);
    this_block().read_shared(at, sizeof(T) * N, SharedAccess::load, place(int(row), int(col), N), site);
    return *reinterpret_cast<const Vector<T, N>*>(at);
  }
  void store(int row, int col, T value, Site site = Site::here()) {
    T* const at = element(row, col, 1, "write", site);
    this_block().write_shared(at, sizeof(T), SharedAccess::store, place(row, col, 1), &value, site);
    *at = value;
  }
  template <int N>
  void store_vector(int row, int col, const Vector<T, N>& value, Site site = Site::here()) {
    T* const at = element(row, col, N, "write", site);
    this_block().write_shared(at, sizeof(T) * N, SharedAccess::store, place(row, col, N), &value, site);
    *reinterpret_cast<Vector<T, N>*>(at) = value;
  }
  /// For ldmatrix and cp.async: where the 16 bytes at (row, col) lie.
  SharedAddress address(int row, int col, Site site = Site::here()) const {
    constexpr int count = 16 / sizeof(T);
    return {const_cast<std::byte*>(reinterpret_cast<const std::byte*>(element(row, col, count, "address", site))),
            place(row, col, count)};
  }
  /// address(row + lane_row, col + lane_col), for the row and col that Layout::advance takes.
  SharedAddress lane_address(int row, int col, int lane_row, int lane_col, Site site = Site::here()) const {
    const SharedAddress whole = address(row + lane_row, col + lane_col, site);
    const SharedAddress lane = address(lane_row, lane_col, site);
    std::byte* const memory = this_block().shared_memory();
    const unsigned advanced =
        Layout::template advance<int(sizeof(T)), Rows, Cols>(unsigned(lane.data - memory), row, col);
    if (memory + advanced != whole.data) [[unlikely]] {
      this_block().fault("misaligned",
                         fmt::format("from row {}, column {} the layout does not advance by {} rows and {} columns",
                                     lane_row, lane_col, row, col),
                         site);
    }
    return whole;
  }

 private:
  TilePlace place(int row, int col, int count) const { return {this, Rows, Cols, row, col, count}; }
  const T* element(int row, int col, int count, const char* access, Site site) const {
    if (row < 0 || row >= Rows || col < 0 || col + count > Cols) [[unlikely]] {
      this_block().fault("out of bounds",
                         fmt::format("{} of {}", access, this_block().describe(place(row, col, count))), site);
    }
    const T* const at = data_ + Layout::template offset<int(sizeof(T)), Rows, Cols>(row, col);
    if (reinterpret_cast<std::uintptr_t>(at) % (sizeof(T) * std::size_t(count)) != 0) [[unlikely]] {
      this_block().fault("misaligned",
                         fmt::format("{} of {}: the address is not a multiple of {} bytes", access,
                                     this_block().describe(place(row, col, count)), sizeof(T) * std::size_t(count)),
                         site);
    }
    return at;
  }
  T* element(int row, int col, int count, const char* access, Site site) {
    return const_cast<T*>(static_cast<const SharedTile*>(this)->element(row, col, count, access, site));
  }

  T data_[Layout::template elements<int(sizeof(T)), Rows, Cols>()];
};

/// One value for each row of a tile.
template <typename T, int Size>
class SharedVector {
 public:
  T load(int i, Site site = Site::here()) const { return tile_.load(0, i, site); }
  void store(int i, T value, Site site = Site::here()) { tile_.store(0, i, value, site); }

 private:
  SharedTile<T, 1, Size> tile_;
};

/// N neighbouring elements of a GlobalMatrix or SharedTile as one access of up to 16 bytes.
template <int N, typename Source>
auto load_vector(const Source& source, std::int64_t row, std::int64_t col, Site site = Site::here()) {
  return source.template load_vector<N>(row, col, site);
}

/// The block's dynamic shared memory as the kernel's storage type, at a multiple of 1024 bytes.
template <typename Storage>
Storage& shared_storage(Site site = Site::here()) {
  static_assert(std::is_trivially_default_constructible_v<Storage>, "shared memory is not constructed");
  Block& block = this_block();
  if (sizeof(Storage) > std::size_t(block.shared_bytes())) {
    block.fault("out of bounds",
                fmt::format("the kernel's storage has {} bytes and the launch gave {} bytes of shared memory",
                            sizeof(Storage), block.shared_bytes()),
                site);
  }
  block.name_members(detail::member_name<Storage>);
  return *reinterpret_cast<Storage*>(block.shared_memory());
}

}  // namespace flash::sim
