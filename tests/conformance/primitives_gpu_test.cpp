// Every primitive on the GPU against the simulation, bit for bit. With FLASH_RECORD_CONFORMANCE=<file> the GPU's
// results are written to that file; committed under data/, they stand for the hardware where there is none.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>

#include "tests/catch.hpp"
#include "tests/conformance/mma_model.hpp"
#include "tests/conformance/primitives.hpp"

namespace flash::test {
namespace {

using Words = std::vector<std::uint32_t>;

struct BothMachines {
  std::vector<Output> gpu, sim;
  BothMachines() {
    const std::unique_ptr<Device> device = make_gpu(), simulation = make_simulated_gpu(0);
    gpu = run_primitives_gpu(*device);
    sim = run_primitives_sim(*simulation);
    if (const char* path = std::getenv("FLASH_RECORD_CONFORMANCE")) write_outputs(path, device->describe(), gpu);
  }
};

const BothMachines& both() {
  static const BothMachines machines;
  return machines;
}

float as_float(std::uint32_t word) { return std::bit_cast<float>(word); }

bool is_product(const std::string& name) { return name.rfind("mma", 0) == 0; }
bool is_float(const std::string& name) {
  return name == "arithmetic" || name.rfind("widen", 0) == 0 || name.rfind("wgmma", 0) == 0 || is_product(name);
}

TEST_CASE("every primitive leaves the same bits on the GPU and in the simulation") {
  REQUIRE(both().gpu.size() == both().sim.size());
  for (std::size_t i = 0; i < both().gpu.size(); ++i) {
    const Output &gpu = both().gpu[i], &sim = both().sim[i];
    INFO(gpu.name);
    REQUIRE(gpu.name == sim.name);
    REQUIRE(gpu.words.size() == sim.words.size());
    if (gpu.name == "exp2") continue;
    if (is_product(gpu.name) && gpu.name.find("integers") == std::string::npos) continue;  // below
    int different = 0, other_nan = 0;
    std::string first;
    for (std::size_t j = 0; j < gpu.words.size(); ++j) {
      if (gpu.words[j] == sim.words[j]) continue;
      if (is_float(gpu.name) && std::isnan(as_float(gpu.words[j])) && std::isnan(as_float(sim.words[j]))) {
        ++other_nan;  // which NaN is not defined
        continue;
      }
      if (different++ == 0)
        first = fmt::format("word {}: GPU {:08x}, simulation {:08x}", j, gpu.words[j], sim.words[j]);
    }
    INFO(different << " of " << gpu.words.size() << " differ; first " << first);
    CHECK(different == 0);
    if (other_nan > 0) fmt::print("  {}: {} NaN with another payload\n", gpu.name, other_nan);
  }
}

TEST_CASE("2^x on the GPU is within 2 units in the last place of the simulation") {
  const auto find = [](const std::vector<Output>& outputs) {
    return std::find_if(outputs.begin(), outputs.end(), [](const Output& o) { return o.name == "exp2"; })->words;
  };
  const Words gpu = find(both().gpu), sim = find(both().sim);
  const std::vector<float> x = exp2_inputs();
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO("2^" << x[i] << ": GPU " << as_float(gpu[i]) << ", simulation " << as_float(sim[i]));
    // Results are not negative: bits are ordered as the values are.
    const std::int64_t ulps = std::abs(std::int64_t(gpu[i]) - std::int64_t(sim[i]));
    CHECK(ulps <= 2);
    largest = std::max(largest, ulps);
  }
  fmt::print("  exp2: largest difference {} units in the last place over {} arguments\n", largest, x.size());
}

// -- Products of random numbers: which model adds as this GPU does?

struct Difference {
  int different = 0, count = 0;
  double largest = 0;  // difference over the sum of the terms' magnitudes

  void add(float gpu, float model, double magnitude) {
    ++count;
    if (std::bit_cast<std::uint32_t>(gpu) == std::bit_cast<std::uint32_t>(model)) return;
    if (gpu == 0.0f && model == 0.0f) return;  // the sign of a zero
    ++different;
    largest = std::max(largest, std::abs(double(gpu) - double(model)) / std::max(magnitude, 1e-300));
  }
  void add(const Difference& other) {
    different += other.different;
    count += other.count;
    largest = std::max(largest, other.largest);
  }
};

TEST_CASE("products of random numbers: the simulation's bits; and how other models of the additions would fare") {
  struct Candidate {
    MmaModel model;
    Difference all;
    std::vector<Difference> of_set{std::size_t(kMmaSetCount)};
  };
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    std::vector<Candidate> candidates;
    for (const MmaModel& model : mma_models()) {
      candidates.emplace_back();
      candidates.back().model = model;
    }
    Difference simulation;
    std::vector<Difference> simulation_of_set{std::size_t(kMmaSetCount)};
    for (int set = 0; set < kMmaSetCount; ++set) {
      const std::string name = std::string("mma ") + to_string(dtype) + " " + kMmaSets[set];
      const auto find = [&](const std::vector<Output>& outputs) -> const Words& {
        return std::find_if(outputs.begin(), outputs.end(), [&](const Output& o) { return o.name == name; })->words;
      };
      const Words &gpu = find(both().gpu), &sim = find(both().sim);
      const std::vector<MmaCase> cases = mma_cases(set, dtype);
      for (std::size_t n = 0; n < cases.size(); ++n) {
        for (int row = 0; row < 16; ++row) {
          for (int col = 0; col < 8; ++col) {
            const std::size_t at = n * 128 + std::size_t(fragment_lane(row, col) * 4 + fragment_register(row, col));
            std::uint16_t b[16];
            double magnitude = std::abs(double(cases[n].c[row][col]));
            for (int k = 0; k < 16; ++k) {
              b[k] = cases[n].b[k][col];
              const Unpacked x = unpack(cases[n].a[row][k], dtype), y = unpack(b[k], dtype);
              magnitude += std::ldexp(double(std::abs(x.significand * y.significand)),
                                      x.exponent - x.fraction_bits + y.exponent - y.fraction_bits);
            }
            const float actual = as_float(gpu[at]), simulated = as_float(sim[at]);
            simulation_of_set[std::size_t(set)].add(actual, simulated, magnitude);
            for (Candidate& candidate : candidates) {
              const float model = mma_dot(cases[n].a[row], b, 16, cases[n].c[row][col], dtype, candidate.model);
              candidate.of_set[std::size_t(set)].add(actual, model, magnitude);
            }
          }
        }
      }
      INFO(name);
      CHECK(simulation_of_set[std::size_t(set)].different == 0);
      simulation.add(simulation_of_set[std::size_t(set)]);
      for (Candidate& candidate : candidates) candidate.all.add(candidate.of_set[std::size_t(set)]);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.all.different < b.all.different; });
    const auto print = [](const std::string& name, const Difference& all, const std::vector<Difference>& of_set) {
      fmt::print("  {:<44} {:>6} of {} differ, by at most {:.2e} of the terms' sum;", name, all.different, all.count,
                 all.largest);
      for (int set = 0; set < kMmaSetCount; ++set) {
        fmt::print(" {} {}{}", kMmaSets[set], of_set[std::size_t(set)].different, set + 1 < kMmaSetCount ? "," : "\n");
      }
    };
    fmt::print("mma.sync m16n8k16 {}, GPU against\n", to_string(dtype));
    print("the simulation", simulation, simulation_of_set);
    for (std::size_t i = 0; i < 6; ++i) print(candidates[i].model.name(), candidates[i].all, candidates[i].of_set);
  }
}

}  // namespace
}  // namespace flash::test
