// The conformance suite: every primitive that kernels use, run on given inputs. The same kernels (primitives.cuh) are
// compiled for both machines; what they leave must be the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/dtype.hpp"
#include "common/device/device.hpp"

namespace flash::test {

/// What one primitive left: 32-bit words, or 16-bit elements with the upper half 0.
struct Output {
  std::string name;
  std::vector<std::uint32_t> words;
};

/// Runs all primitives on the device, which must be of the machine that the function is for.
std::vector<Output> run_primitives_sim(Device& device);
std::vector<Output> run_primitives_gpu(Device& device);
/// Hopper's, on a device of compute capability 9.0.
std::vector<Output> run_hopper_sim(Device& device);
std::vector<Output> run_hopper_gpu(Device& device);

// -- Inputs, the same for both machines and for the expectations

/// A number that depends on nothing but its arguments (splitmix64).
inline std::uint64_t hash(std::uint64_t stream, std::uint64_t i) {
  std::uint64_t z = (stream << 32) + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// About N(0, 1): a sum of twelve uniform numbers, so that all hosts get the same bits.
float normal(std::uint64_t stream, std::uint64_t i);

/// What each lane of a warp puts into shuffles and votes.
inline std::uint32_t lane_value(int lane) { return std::uint32_t(hash(1, std::uint64_t(lane))); }

/// Floats to convert and to compute with: special values, ties of both 16-bit types and their neighbours, random bits.
std::vector<float> float_inputs();

/// Arguments of 2^x.
std::vector<float> exp2_inputs();

/// One product of the tensor cores: d = a·b + c with a [16, 16], b [16, 8], c and d [16, 8]. The elements of a and b
/// are bits of the element type.
struct MmaCase {
  std::uint16_t a[16][16];
  std::uint16_t b[16][8];
  float c[16][8];
};

/// Sets of cases. The first is of small integers: every sum is exact, so the order of the additions does not show.
inline constexpr const char* kMmaSets[] = {"integers",   "normal", "probabilities", "wide exponents",
                                           "cancelling", "sparse", "subnormal"};
inline constexpr int kMmaSetCount = 7;
inline constexpr int kMmaCases = 64;  // of each set
std::vector<MmaCase> mma_cases(int set, DType dtype);

/// Registers of a warp for a case, as the PTX manual lays the fragments out: [lane][register].
struct Fragments {
  std::uint32_t a[32][4], b[32][2];
  float c[32][4];
};
Fragments to_fragments(const MmaCase& c);
/// Where d[row][col] lies: lane and register.
inline int fragment_lane(int row, int col) { return row % 8 * 4 + col / 2; }
inline int fragment_register(int row, int col) { return row / 8 * 2 + col % 2; }

// -- Results of hardware, in files

/// Writes the outputs as text: for each a line "name count hash", then its words (the first kKeptWords of them).
void write_outputs(const std::string& path, const std::string& device, const std::vector<Output>& outputs);

inline constexpr std::size_t kKeptWords = 2048;
std::uint64_t hash_of(const std::vector<std::uint32_t>& words);

struct RecordedOutput {
  std::string name;
  std::size_t count = 0;
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> words;
};
std::vector<RecordedOutput> read_outputs(const std::string& path);

}  // namespace flash::test
