#include "common/gpu/cublas.hpp"

#include <cublas_v2.h>

#include <string>
#include <type_traits>

#include "common/base/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/dynamic_library.hpp"

namespace flash {
namespace {

/// The functions of cuBLAS that are used here. The _64 forms take 64-bit sizes; cuBLAS 12 and later have them.
struct Library {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasGetStatusName) status_name = nullptr;
  decltype(&cublasGemmEx_64) gemm = nullptr;
  decltype(&cublasGemmStridedBatchedEx_64) gemm_strided_batched = nullptr;
  std::string why_not;  // empty if the library is there

  Library() {
    void* library = load_library({"libcublas.so.13", "libcublas.so.12"}, {}, &why_not);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && why_not.empty()) why_not = std::string("the cuBLAS found lacks ") + name;
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(status_name, "cublasGetStatusName");
    find(gemm, "cublasGemmEx_64");
    find(gemm_strided_batched, "cublasGemmStridedBatchedEx_64");
  }

  static const Library& get() {
    static const Library library;
    return library;
  }
};

void check(cublasStatus_t status, const char* call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string(call) + " failed: " + Library::get().status_name(status) + " at " +
                    source_position(__FILE__, line));
}

cudaDataType cuda_type(DType type) { return type == DType::fp16 ? CUDA_R_16F : CUDA_R_16BF; }

cublasOperation_t operation(const MatrixBatch& matrix) { return matrix.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

cublasHandle_t as_handle(void* handle) { return static_cast<cublasHandle_t>(handle); }

}  // namespace

bool Cublas::available(std::string* why_not) {
  if (why_not) *why_not = Library::get().why_not;
  return Library::get().why_not.empty();
}

Cublas::Cublas(CUstream_st* stream) {
  const Library& library = Library::get();
  if (!library.why_not.empty()) throw DeviceError("cuBLAS is not available: " + library.why_not);
  cublasHandle_t handle = nullptr;
  check(library.create(&handle), "cublasCreate", __LINE__);
  handle_ = handle;
  const cublasStatus_t status = library.set_stream(handle, stream);
  if (status != CUBLAS_STATUS_SUCCESS) library.destroy(handle);  // no destructor runs after a throw from here
  check(status, "cublasSetStream", __LINE__);
}

Cublas::~Cublas() { Library::get().destroy(as_handle(handle_)); }

void Cublas::set_stream(CUstream_st* stream) {
  check(Library::get().set_stream(as_handle(handle_), stream), "cublasSetStream", __LINE__);
}

// cuBLAS is column-major, where a row-major matrix reads as its transpose. C^T = B^T A^T is therefore the same product
// with the operands swapped: m and n change places, and each operand keeps its own transposition.

void Cublas::gemm_strided_batched(DType type, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                                  const MatrixBatch& a, const MatrixBatch& b, float beta, void* c,
                                  std::int64_t c_row_stride, std::int64_t c_batch_stride, std::int64_t batch) {
  const cudaDataType element = cuda_type(type);
  check(Library::get().gemm_strided_batched(as_handle(handle_), operation(b), operation(a), n, m, k, &alpha, b.data,
                                            element, b.row_stride, b.batch_stride, a.data, element, a.row_stride,
                                            a.batch_stride, &beta, c, element, c_row_stride, c_batch_stride, batch,
                                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx_64", __LINE__);
}

void Cublas::gemm(DType type, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const MatrixBatch& a,
                  const MatrixBatch& b, float beta, void* c, std::int64_t c_row_stride) {
  const cudaDataType element = cuda_type(type);
  check(Library::get().gemm(as_handle(handle_), operation(b), operation(a), n, m, k, &alpha, b.data, element,
                            b.row_stride, a.data, element, a.row_stride, &beta, c, element, c_row_stride,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx_64", __LINE__);
}

}  // namespace flash
