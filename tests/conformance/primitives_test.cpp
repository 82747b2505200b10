// Every primitive of the simulated GPU against what the PTX manual says it gives, worked out here independently; and
// against what hardware gave, where its results lie in data/.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/conformance/mma_model.hpp"
#include "tests/conformance/primitives.hpp"

namespace flash::test {
namespace {

using Words = std::vector<std::uint32_t>;

const std::map<std::string, Words>& simulated() {
  static const std::map<std::string, Words> all = [] {
    sim::Machine machine(0, 2);
    std::map<std::string, Words> result;
    const std::vector<Output> outputs = run_primitives_sim(machine);
    for (const Output& output : outputs) result[output.name] = output.words;
    if (const char* path = std::getenv("FLASH_RECORD_CONFORMANCE")) write_outputs(path, machine.describe(), outputs);
    return result;
  }();
  return all;
}

/// Compares word by word; says where the first difference is.
void require_same(const std::string& name, const Words& expected) {
  INFO(name);
  const auto found = simulated().find(name);
  REQUIRE(found != simulated().end());
  const Words& actual = found->second;
  REQUIRE(actual.size() == expected.size());
  const auto [difference, in_expected] = std::mismatch(actual.begin(), actual.end(), expected.begin());
  if (difference != actual.end()) {
    INFO("word " << difference - actual.begin() << " is " << std::hex << *difference << ", expected " << *in_expected);
    CHECK(*difference == *in_expected);
  } else {
    CHECK(in_expected == expected.end());
  }
}

TEST_CASE("shuffles read the lanes that the PTX manual names") {
  Words expected;
  const auto shuffle = [&](auto from) {
    for (int lane = 0; lane < 32; ++lane) expected.push_back(lane_value(from(lane)));
  };
  for (int width = 1; width <= 32; width *= 2) {
    // The manual's formulas: the segment mask, its first and last lane, a source outside of which is the lane itself.
    const int segment = 32 - width;
    const auto first = [&](int lane) { return lane & segment; };
    const auto last = [&](int lane) { return (lane & segment) | (31 & ~segment); };
    const auto index = [&](int lane, int source) { return first(lane) | ((source & 31) & ~segment); };
    const auto butterfly = [&](int lane, int mask) {
      return (lane ^ (mask & 31)) <= last(lane) ? lane ^ (mask & 31) : lane;
    };
    const auto up = [&](int lane, int delta) { return lane - delta >= first(lane) ? lane - delta : lane; };
    const auto down = [&](int lane, int delta) { return lane + delta <= last(lane) ? lane + delta : lane; };
    shuffle([&](int lane) { return index(lane, 0); });
    shuffle([&](int lane) { return index(lane, 5); });
    shuffle([&](int lane) { return index(lane, 31); });
    shuffle([&](int lane) { return index(lane, (lane * 7 + 3) % 40 - 4); });
    shuffle([&](int lane) { return butterfly(lane, 1); });
    shuffle([&](int lane) { return butterfly(lane, 6); });
    shuffle([&](int lane) { return butterfly(lane, 16); });
    shuffle([&](int lane) { return butterfly(lane, lane & 3); });
    shuffle([&](int lane) { return up(lane, 0); });
    shuffle([&](int lane) { return up(lane, 1); });
    shuffle([&](int lane) { return up(lane, 7); });
    shuffle([&](int lane) { return up(lane, lane % 5); });
    shuffle([&](int lane) { return down(lane, 1); });
    shuffle([&](int lane) { return down(lane, 16); });
    shuffle([&](int lane) { return down(lane, 31); });
    shuffle([&](int lane) { return down(lane, lane % 5); });
  }
  int largest = -2147483647;
  std::uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) {
    largest = std::max(largest, int(float(lane_value(lane) >> 8) - 5e6f));
    sum += lane_value(lane) % 1000u;
  }
  expected.insert(expected.end(), 32, std::uint32_t(largest));
  expected.insert(expected.end(), 32, sum);
  for (int lane = 0; lane < 32; ++lane) expected.push_back(lane < 16 ? lane_value(lane ^ 3) : 0u);
  require_same("shuffles", expected);
}

TEST_CASE("votes") {
  std::uint32_t thirds = 0, fifths = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (lane_value(lane) % 3u == 0u) thirds |= 1u << lane;
    if (lane % 2 == 1 && lane_value(lane) % 5u < 2u) fifths |= 1u << lane;
  }
  Words expected;
  for (const std::uint32_t of_all : {thirds, 0u, 1u, 0u, 1u, 0u}) expected.insert(expected.end(), 32, of_all);
  for (const std::uint32_t of_odd : {fifths, 0u, 1u}) {
    for (int lane = 0; lane < 32; ++lane) expected.push_back(lane % 2 == 1 ? of_odd : 7u);
  }
  require_same("votes", expected);
}

TEST_CASE("ldmatrix distributes the matrices as the PTX manual draws them, whatever the tile's layout") {
  const auto element = [](int row, int col) { return std::uint32_t(to_float16(float(64 * row + col)).bits); };
  Words expected;
  for (const bool transposed : {false, true}) {
    for (const int count : {4, 2}) {
      // Matrix m has the 8 rows from 8 (m mod 2) and the 8 columns from 24 + 8 (m / 2) on.
      for (int m = 0; m < count; ++m) {
        for (int lane = 0; lane < 32; ++lane) {
          const auto at = [&](int i) {
            const int row = transposed ? lane % 4 * 2 + i : lane / 4, col = transposed ? lane / 4 : lane % 4 * 2 + i;
            return element(m % 2 * 8 + row, 24 + m / 2 * 8 + col);
          };
          expected.push_back(at(0) | at(1) << 16);
        }
      }
    }
  }
  for (const char* layout : {"RowMajor", "Padded16", "Swizzle128"})
    require_same(std::string("ldmatrix ") + layout, expected);
}

TEST_CASE("a tile gives back what was put in, by elements and by vectors, whatever its layout") {
  const auto element = [](int row, int col) { return std::uint32_t(to_float16(float(64 * row + col)).bits); };
  Words expected;
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 64; ++col) expected.push_back(element(row, col));
  }
  for (const int row : {5, 6}) {
    for (int col = 0; col < 64; ++col) expected.push_back(element(row, col));
  }
  for (int col = 0; col < 64; ++col) expected.push_back(col < 32 ? element(8, 63 - col) : element(7, col));
  for (const char* layout : {"RowMajor", "Padded16", "Swizzle128"})
    require_same(std::string("tile ") + layout, expected);
}

TEST_CASE("cp.async copies and zeroes") {
  constexpr int threads = 128, cols = 4 * threads;
  const auto source = [](int row, int col) { return std::uint32_t(hash(2, std::uint64_t(row * cols + col))); };
  Words expected;
  for (int row = 0; row < 3; ++row) {
    for (int thread = 0; thread < threads; ++thread) {
      const int issuer = (thread + 45) % threads;  // whose copy the thread reads
      for (int i = 0; i < 4; ++i) {
        if (row == 1) {
          expected.push_back(issuer % 3 == 0 ? 0u : source(1, 4 * ((issuer + 45) % threads) + i));
        } else {
          expected.push_back(source(row, 4 * issuer + i));
        }
      }
    }
  }
  require_same("cp.async", expected);
}

TEST_CASE("named barriers hand buffers from one warp to another") {
  Words expected;
  for (int round = 0; round < 20; ++round) {
    for (int lane = 0; lane < 32; ++lane) expected.push_back(std::uint32_t(1000 * round + 31 - lane));
  }
  for (const int warp : {2, 3}) {
    for (int round = 0; round < 20; ++round) {
      for (int lane = 0; lane < 32; ++lane) {
        expected.push_back(std::uint32_t(100000 * (5 - warp) + 100 * round + (lane ^ 1)));
      }
    }
  }
  require_same("named barriers", expected);
}

TEST_CASE("atomics lose nothing and return what was there") {
  Words integers(66, 0), floats(16, 0);
  float sums[8] = {};
  for (int index = 0; index < 50 * 64; ++index) {
    integers[std::size_t(index % 64 % 8)] += std::uint32_t(index);
    std::uint32_t& most = integers[std::size_t(8 + index % 64 % 4)];
    most = std::max(most, std::uint32_t(index * 37 % 1009));
    sums[index % 64 % 8] += float(index % 16);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    integers[44 + i] = std::uint32_t(1000 + i);
    floats[i] = std::bit_cast<std::uint32_t>(sums[i]);
  }
  require_same("atomics int", integers);
  require_same("atomics float", floats);
}

// -- Conversions: against arithmetic in double, not against common/base/dtype.hpp

/// The value of a 16-bit float with `fraction` fraction bits and this exponent bias; NaN for NaN.
double value_of(std::uint32_t bits, int fraction, int bias) {
  const int exponents = 1 << (15 - fraction), field = int(bits & 0x7fff) >> fraction;
  const double significand = double(bits & ((1u << fraction) - 1)) * std::ldexp(1.0, -fraction);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (field == exponents - 1) return significand == 0.0 ? sign * INFINITY : NAN;
  return sign * (field == 0 ? std::ldexp(significand, 1 - bias) : std::ldexp(1.0 + significand, field - bias));
}

/// The 16-bit float nearest to `x`, ties to even, by the definition: a search over all of them.
std::uint32_t nearest(double x, int fraction, int bias) {
  if (std::isnan(x)) return 0x7fff;
  const std::uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
  const double magnitude = std::abs(x);
  const std::uint32_t infinity = ((1u << (15 - fraction)) - 1) << fraction;
  // Positive floats are ordered as their bits are. Beyond the largest, rounding acts as if there were one more step.
  const auto at = [&](std::uint32_t bits) {
    return bits == infinity ? std::ldexp(1.0, (1 << (15 - fraction)) - 1 - bias) : value_of(bits, fraction, bias);
  };
  std::uint32_t low = 0, high = infinity;
  while (low < high) {  // the largest that is not above
    const std::uint32_t middle = (low + high + 1) / 2;
    if (at(middle) <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  if (low == infinity) return sign | infinity;
  const double below = magnitude - at(low), above = at(low + 1) - magnitude;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

TEST_CASE("floats round to nearest even in both 16-bit types: ties, subnormals, infinities, NaN") {
  const std::vector<float> inputs = float_inputs();
  for (const bool fp16 : {true, false}) {
    const int fraction = fp16 ? 10 : 7, bias = fp16 ? 15 : 127;
    Words rounded, packed;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      rounded.push_back(nearest(double(inputs[i]), fraction, bias));
      packed.push_back(nearest(double(inputs[i]), fraction, bias) |
                       nearest(double(inputs[inputs.size() - 1 - i]), fraction, bias) << 16);
    }
    require_same(fp16 ? "round to fp16" : "round to bf16", rounded);
    require_same(fp16 ? "pack fp16" : "pack bf16", packed);
  }
}

TEST_CASE("all 65536 values of both 16-bit types widen exactly") {
  for (const bool fp16 : {true, false}) {
    const Words& words = simulated().at(fp16 ? "widen fp16" : "widen bf16");
    REQUIRE(words.size() == 65536);
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double expected = value_of(bits, fp16 ? 10 : 7, fp16 ? 15 : 127);
      const float actual = std::bit_cast<float>(words[bits]);
      const bool same = std::isnan(expected)
                            ? std::isnan(actual)
                            : double(actual) == expected && std::signbit(actual) == std::signbit(expected);
      wrong += !same;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("float arithmetic is IEEE 754's, and maximum and minimum pass a NaN over") {
  const std::vector<float> x = float_inputs();
  const std::size_t count = x.size();
  const Words& words = simulated().at("arithmetic");
  REQUIRE(words.size() == 6 * count);
  const auto same = [&](std::size_t row, std::size_t i, float expected) {
    const float actual = std::bit_cast<float>(words[row * count + i]);
    if (std::isnan(expected) ? std::isnan(actual) : std::memcmp(&actual, &expected, 4) == 0) return true;
    FAIL_CHECK("operation " << row << ", element " << i << ": " << actual << ", expected " << expected);
    return false;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const float a = x[i], b = x[count - 1 - i], c = x[(i * 7 + 5) % count];
    const float larger = std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
    const float smaller = std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
    if (!same(0, i, larger) || !same(1, i, smaller) || !same(2, i, std::fma(a, b, c)) || !same(3, i, a + b) ||
        !same(4, i, a * b) || !same(5, i, a / b)) {
      return;
    }
  }
}

/// Units in the last place between two floats; 0 for two NaN.
double ulps(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? 0.0 : INFINITY;
  const auto order = [](float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return double(bits < 0 ? std::int32_t(0x80000000u - std::uint32_t(bits)) : bits);
  };
  return std::abs(order(a) - order(b));
}

TEST_CASE("2^x is within 2 units in the last place; results below the smallest normal number are 0") {
  const std::vector<float> x = exp2_inputs();
  const Words& words = simulated().at("exp2");
  REQUIRE(words.size() == x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(double(x[i]));
    INFO("2^" << x[i]);
    CHECK(ulps(std::bit_cast<float>(words[i]), exact < 0x1p-126 ? 0.0f : float(exact)) <= 2.0);
  }
}

// -- Products

struct MmaDifference {
  int wrong = 0;       // beyond the bound
  double largest = 0;  // of |d - exact| / sum of |terms|
};

/// Where a warp's d differs from the exact sum by more than `bound` times the sum of the terms' magnitudes.
MmaDifference compare_to_exact(int set, DType dtype, const Words& words, double bound) {
  const std::vector<MmaCase> cases = mma_cases(set, dtype);
  const auto value = [&](std::uint16_t bits) {
    return value_of(bits, dtype == DType::fp16 ? 10 : 7, dtype == DType::fp16 ? 15 : 127);
  };
  MmaDifference result;
  for (std::size_t n = 0; n < cases.size(); ++n) {
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 8; ++col) {
        long double exact = cases[n].c[row][col], magnitude = std::abs(cases[n].c[row][col]);
        for (int k = 0; k < 16; ++k) {
          const long double term = value(cases[n].a[row][k]) * value(cases[n].b[k][col]);
          exact += term;
          magnitude += std::abs(term);
        }
        const std::size_t at = n * 128 + std::size_t(fragment_lane(row, col) * 4 + fragment_register(row, col));
        const double actual = double(std::bit_cast<float>(words[at]));
        const double error = std::abs(double(exact - static_cast<long double>(actual)));
        if (!(error <= bound * double(magnitude) + 0x1p-149)) ++result.wrong;
        if (magnitude > 0) result.largest = std::max(result.largest, error / double(magnitude));
      }
    }
  }
  return result;
}

TEST_CASE("products of small integers are exact") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    const MmaDifference difference =
        compare_to_exact(0, dtype, simulated().at(std::string("mma ") + to_string(dtype) + " integers"), 0.0);
    CHECK(difference.wrong == 0);
  }
}

TEST_CASE("products of random numbers are what the model of Hopper's additions gives, and near the exact sum") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (int set = 0; set < kMmaSetCount; ++set) {
      const std::string name = std::string("mma ") + to_string(dtype) + " " + kMmaSets[set];
      INFO(name);
      const Words& words = simulated().at(name);
      CHECK(compare_to_exact(set, dtype, words, set == 0 ? 0.0 : 0x1p-19).wrong == 0);
      const std::vector<MmaCase> cases = mma_cases(set, dtype);
      int different = 0;
      for (std::size_t n = 0; n < cases.size(); ++n) {
        for (int row = 0; row < 16; ++row) {
          for (int col = 0; col < 8; ++col) {
            std::uint16_t b[16];
            for (int k = 0; k < 16; ++k) b[k] = cases[n].b[k][col];
            const float model = mma_dot(cases[n].a[row], b, 16, cases[n].c[row][col], dtype, kHopper);
            const auto at = n * 128 + std::size_t(fragment_lane(row, col) * 4 + fragment_register(row, col));
            different += std::bit_cast<float>(words[at]) != model;
          }
        }
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("the models of the tensor cores' additions are exact where nothing is cut off, and close elsewhere") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (int set = 0; set < kMmaSetCount; ++set) {
      const std::vector<MmaCase> cases = mma_cases(set, dtype);
      for (const MmaModel& model : mma_models()) {
        Words words(cases.size() * 128);
        for (std::size_t n = 0; n < cases.size(); ++n) {
          for (int row = 0; row < 16; ++row) {
            for (int col = 0; col < 8; ++col) {
              std::uint16_t b[16];
              for (int k = 0; k < 16; ++k) b[k] = cases[n].b[k][col];
              words[n * 128 + std::size_t(fragment_lane(row, col) * 4 + fragment_register(row, col))] =
                  std::bit_cast<std::uint32_t>(mma_dot(cases[n].a[row], b, 16, cases[n].c[row][col], dtype, model));
            }
          }
        }
        INFO(to_string(dtype) << " " << kMmaSets[set] << ", " << model.name());
        CHECK(compare_to_exact(set, dtype, words, set == 0 ? 0.0 : 0x1p-18).wrong == 0);
      }
    }
  }
}

TEST_CASE("the check of the products can fail: a wrong element, a lost term") {
  const std::string name = "mma fp16 normal";
  Words words = simulated().at(name);
  words[777] = std::bit_cast<std::uint32_t>(std::bit_cast<float>(words[777]) * 1.001f);
  CHECK(compare_to_exact(1, DType::fp16, words, 0x1p-19).wrong == 1);
  words[777] = 0x7fc00000u;
  CHECK(compare_to_exact(1, DType::fp16, words, 0x1p-19).wrong == 1);
}

// -- Hardware's results

TEST_CASE("the simulation gives the bits that hardware gave") {
  const std::filesystem::path folder = std::filesystem::path(__FILE__).parent_path() / "data";
  if (!std::filesystem::exists(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    INFO(entry.path().filename().string());
    const std::vector<RecordedOutput> recorded = read_outputs(entry.path().string());
    CHECK(recorded.size() == simulated().size());
    for (const RecordedOutput& output : recorded) {
      INFO(output.name);
      REQUIRE(simulated().count(output.name) == 1);
      const Words& words = simulated().at(output.name);
      REQUIRE(words.size() == output.count);
      REQUIRE(output.words.size() == std::min(output.count, kKeptWords));
      const bool is_float = output.name == "arithmetic" || output.name.rfind("widen", 0) == 0;
      int different = 0;
      for (std::size_t i = 0; i < output.words.size(); ++i) {
        const float a = std::bit_cast<float>(words[i]), b = std::bit_cast<float>(output.words[i]);
        if (output.name == "exp2") {
          different += !(ulps(a, b) <= 2.0);
        } else if (is_float && std::isnan(a) && std::isnan(b)) {
          continue;  // which NaN is not defined
        } else {
          different += words[i] != output.words[i];
        }
      }
      CHECK(different == 0);
      if (output.name != "exp2" && !is_float) CHECK(hash_of(words) == output.hash);
    }
  }
}

TEST_CASE("outputs survive being written and read") {
  const std::string path = (std::filesystem::temp_directory_path() / "flash-conformance-round-trip.txt").string();
  std::vector<Output> outputs = {{"a name with 2 words", {1, 2, 0xffffffffu}}, {"long", Words(5000, 7)}, {"empty", {}}};
  outputs[1].words[4999] = 8;
  write_outputs(path, "nothing", outputs);
  const std::vector<RecordedOutput> read = read_outputs(path);
  std::filesystem::remove(path);
  REQUIRE(read.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(read[i].name == outputs[i].name);
    CHECK(read[i].count == outputs[i].words.size());
    CHECK(read[i].hash == hash_of(outputs[i].words));
  }
  CHECK(read[0].words == outputs[0].words);
  CHECK(read[1].words == Words(kKeptWords, 7));
}

}  // namespace
}  // namespace flash::test
