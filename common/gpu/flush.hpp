// Empties the L2 cache by reading.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace flash::gpu {

/// Queues a kernel that reads `bytes` bytes (a multiple of 16). Reading more than L2 holds leaves nothing else in it,
/// and nothing to be written back later: a buffer that is overwritten instead stays there dirty, and its way to HBM is
/// then counted with the next kernel's.
void read_through_l2(const void* data, std::size_t bytes, cudaStream_t stream);

/// Asks whether this build has code for the current GPU: success, or the error that every launch would give.
cudaError_t find_code();

}  // namespace flash::gpu
