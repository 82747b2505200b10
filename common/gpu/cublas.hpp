// Matrix products by cuBLAS, which is loaded at run time by whoever makes a Cublas.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/dtype.hpp"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace flash {

/// A batch of row-major matrices in device memory. Element (row, col) of matrix i of the stored shape [rows, cols] lies
/// at data + i * batch_stride + row * row_stride + col, in elements. `transposed` uses each matrix as [cols, rows].
struct MatrixBatch {
  const void* data = nullptr;
  std::int64_t row_stride = 0;    // at least the stored number of columns
  std::int64_t batch_stride = 0;  // 0: the same matrix for the whole batch
  bool transposed = false;
};

/// A cuBLAS handle. Calls are queued on its stream and return at once.
class Cublas {
 public:
  /// Throws DeviceError, one line, when cuBLAS cannot be loaded (with the names that were tried) or started.
  explicit Cublas(CUstream_st* stream = nullptr);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  /// Whether the library can be loaded; if not, `why_not` (may be null) receives one line.
  static bool available(std::string* why_not = nullptr);

  void set_stream(CUstream_st* stream);

  /// For each i in [0, batch): C[i] = alpha * A[i] B[i] + beta * C[i], where A[i] is [m, k] and B[i] is [k, n] after
  /// their transposition and C[i] is [m, n], row-major. All elements have type `type`; the sums are fp32. C is not read
  /// when beta is 0. The scores S = scale * Q K^T of h heads, for instance, where K is stored as [Nk, d]:
  ///
  ///   gemm_strided_batched(type, Nq, Nk, d, scale, {q, q_row, q_head}, {k, k_row, k_head, true}, 0, s, s_row, s_head,
  ///   h)
  ///
  /// Throws DeviceError if cuBLAS refuses the call.
  void gemm_strided_batched(DType type, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                            const MatrixBatch& a, const MatrixBatch& b, float beta, void* c, std::int64_t c_row_stride,
                            std::int64_t c_batch_stride, std::int64_t batch);

  /// The same for one product.
  void gemm(DType type, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const MatrixBatch& a,
            const MatrixBatch& b, float beta, void* c, std::int64_t c_row_stride);

 private:
  void* handle_ = nullptr;
};

}  // namespace flash
