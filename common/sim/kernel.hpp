// Everything a kernel may use, on the simulated GPU: CUDA's keywords and built-in variables, the views, and the
// instructions. common/gpu/kernel.hpp is its twin for nvcc; common/kernel/kernel.hpp picks one.
#pragma once

#include <algorithm>

#include "common/base/chapter.hpp"
#include "common/base/error.hpp"
#include "common/sim/atomics.hpp"
#include "common/sim/barrier.hpp"
#include "common/sim/cp_async.hpp"
#include "common/sim/machine.hpp"
#include "common/sim/math.hpp"
#include "common/sim/matrix.hpp"
#include "common/sim/mbarrier.hpp"
#include "common/sim/tma.hpp"
#include "common/sim/views.hpp"
#include "common/sim/warp.hpp"
#include "common/sim/warpgroup.hpp"
#include "common/sim/wgmma.hpp"

#define MACHINE sim
#define __global__
#define __host__
#define __device__ inline
#define __forceinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (::flash::sim::running_thread->index)
#define blockIdx (::flash::sim::this_block().block_index())
#define blockDim (::flash::sim::Dim3{unsigned(::flash::sim::this_block().threads()), 1, 1})
#define gridDim (::flash::sim::this_block().grid())
// The simulation checks shared memory that it can see, and the launch must know its size.
#define __shared__ \
  static_assert(false, "not __shared__: put it into a struct and take that with shared_storage<...>()");

namespace flash::sim {
using half = float16;
using flash::bfloat16;
using flash::from_float;
using flash::to_float;
using std::max;
using std::min;
}  // namespace flash::sim
