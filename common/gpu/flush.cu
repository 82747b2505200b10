#include "common/gpu/check.hpp"
#include "common/gpu/flush.hpp"

namespace flash::gpu {

namespace {

__global__ void read_kernel(const uint4* data, std::size_t count) {
  unsigned seen = 0;
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
       i += gridDim.x * std::size_t(blockDim.x)) {
    const uint4 word = __ldcg(data + i);
    seen |= word.x | word.y | word.z | word.w;
  }
  // Never so, but the compiler cannot know, and must keep the loads.
  if (seen == 0xdeadbeef) __trap();
}

}  // namespace

void read_through_l2(const void* data, std::size_t bytes, cudaStream_t stream) {
  read_kernel<<<1024, 256, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16);
  FLASH_CUDA(cudaGetLastError());
}

cudaError_t find_code() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, read_kernel);
}

}  // namespace flash::gpu
