#include "common/base/host_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <new>
#include <numbers>
#include <stdexcept>
#include <thread>

#include "common/base/error.hpp"

namespace flash {
namespace {

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// 64 random bits for each counter, random access into one SplitMix64 sequence for each key.
struct CounterGenerator {
  std::uint64_t key;
  std::uint64_t operator()(std::uint64_t counter) const { return mix(key + (counter + 1) * 0x9e3779b97f4a7c15u); }
};

struct NormalPair {
  float first, second;
};

/// Two independent N(0, 1) values from 64 random bits (Box and Muller, 1958); at most 6.7 in magnitude.
NormalPair box_muller(std::uint64_t bits) {
  const float uniform = (float(std::uint32_t(bits >> 32)) + 1.0f) * 0x1p-32f;  // in (0, 1]: its logarithm is finite
  const float angle = float(std::uint32_t(bits)) * (0x1p-31f * std::numbers::pi_v<float>);
  const float radius = std::sqrt(-2.0f * std::log(uniform));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  if (threads <= 0) threads = std::max(1, int(std::thread::hardware_concurrency()));
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::int64_t i; (i = next.fetch_add(1)) < count;) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, count); ++i) helpers.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

HostTensor::HostTensor(DType dtype, std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t dim)
    : dtype_(dtype), batch_(batch), seq_(seq), heads_(heads), dim_(dim) {
  if (batch < 1 || seq < 1 || heads < 1 || dim < 1) {
    throw UsageError(fmt::format("a tensor of shape [{}, {}, {}, {}] is empty: each extent must be at least 1", batch,
                                 seq, heads, dim));
  }
  const std::int64_t bytes = sequence_tensor("on the host", batch, seq, heads, dim).span_bytes();
  const auto refuse = [&] {
    throw UsageError(
        fmt::format("a tensor of shape [{}, {}, {}, {}] needs {:.1f} GiB of host memory, more than there is", batch,
                    seq, heads, dim, double(bytes) / 0x1p30));
  };
  try {
    bits_.resize(std::size_t(bytes) / sizeof(std::uint16_t));
  } catch (const std::bad_alloc&) {
    refuse();
  } catch (const std::length_error&) {
    refuse();
  }
}

TensorRef HostTensor::ref(const char* name) {
  TensorRef tensor = sequence_tensor(name, batch_, seq_, heads_, dim_);
  tensor.data = bits_.data();
  return tensor;
}

void fill_random(HostTensor& tensor, Distribution distribution, std::uint64_t seed, std::uint64_t stream, int threads) {
  constexpr std::int64_t kSlice = 1 << 16;  // elements; even, so that both values of a pair lie in one slice
  const CounterGenerator normals{mix(seed + mix(stream + 1))};
  const CounterGenerator outlier_choice{mix(normals.key ^ 1u)};
  const CounterGenerator outlier_values{mix(normals.key ^ 2u)};
  constexpr std::uint64_t kOutlierThreshold = std::uint64_t(0.001 * 0x1p64);
  constexpr float kOutlierDeviation = 10.0f;
  const std::int64_t elements = tensor.elements();
  std::uint16_t* const bits = tensor.bits();

  const auto element = [&](std::int64_t i, float value) {
    if (distribution == Distribution::outliers && outlier_choice(std::uint64_t(i)) < kOutlierThreshold) {
      value += kOutlierDeviation * box_muller(outlier_values(std::uint64_t(i))).first;
    }
    bits[i] = tensor.encode(value);
  };
  parallel_for((elements + kSlice - 1) / kSlice, threads, [&](std::int64_t slice) {
    const std::int64_t end = std::min(elements, (slice + 1) * kSlice);
    for (std::int64_t i = slice * kSlice; i < end; i += 2) {
      const NormalPair pair = box_muller(normals(std::uint64_t(i / 2)));
      element(i, pair.first);
      if (i + 1 < end) element(i + 1, pair.second);
    }
  });
}

}  // namespace flash
