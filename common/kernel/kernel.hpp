// The one header that a chapter's kernel includes. The same file is compiled twice: by nvcc, where MACHINE is `gpu`,
// and by the host compiler for the simulated GPU, where MACHINE is `sim`.
#pragma once

#if defined(__CUDACC__)
#include "common/gpu/kernel.hpp"
#else
#include "common/sim/kernel.hpp"
#endif

#include "common/kernel/warp_reduce.hpp"
