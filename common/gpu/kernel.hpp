// Everything a kernel may use, on a GPU; common/sim/kernel.hpp is its twin for the simulated GPU.
#pragma once

#include "common/base/chapter.hpp"
#include "common/base/error.hpp"
#include "common/gpu/machine.hpp"
#include "common/gpu/site.hpp"
#include "common/gpu/types.hpp"
#include "common/gpu/views.hpp"
#include "common/ptx/atomics.hpp"
#include "common/ptx/barrier.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/math.hpp"
#include "common/ptx/matrix.hpp"
#include "common/ptx/mbarrier.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/warpgroup.hpp"
#include "common/ptx/wgmma.hpp"

#define MACHINE gpu
// Names in shared storage are for the simulation's reports.
