// Measures the roofline's ceilings.
#pragma once

#include "common/device/ceilings.hpp"

namespace flash {

/// Measures both on the current device: medians over several runs, timed by CUDA events after a warm-up. Takes about a
/// second and up to 2.4 GiB of device memory for its duration, less where less is free. Throws DeviceError.
Ceilings measure_ceilings();

}  // namespace flash
