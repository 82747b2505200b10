// How much memory the host can still give.
#pragma once

#include <cstddef>

namespace flash {

/// Bytes that a process can allocate without swapping: what Linux calls available (free, or a cache that it can drop),
/// and no more than the process's control group leaves.
std::size_t host_available_bytes();

}  // namespace flash
