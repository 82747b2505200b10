#include "tests/conformance/primitives.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace flash::test {

namespace {

double uniform(std::uint64_t stream, std::uint64_t i) { return double(hash(stream, i) >> 11) * 0x1p-53; }

std::uint16_t encode(float value, DType dtype) {
  return dtype == DType::fp16 ? to_float16(value).bits : to_bfloat16(value).bits;
}

float decode(std::uint16_t bits, DType dtype) {
  return dtype == DType::fp16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
}

/// ±(1 + m) 2^e with e from -range to range.
float wide(std::uint64_t stream, std::uint64_t i, int range) {
  const int exponent = int(hash(stream, 2 * i) % std::uint64_t(2 * range + 1)) - range;
  const float magnitude = std::ldexp(float(1.0 + uniform(stream, 2 * i + 1)), exponent);
  return hash(stream + 1, i) % 2 == 0 ? magnitude : -magnitude;
}

}  // namespace

float normal(std::uint64_t stream, std::uint64_t i) {
  double sum = -6.0;
  for (std::uint64_t j = 0; j < 12; ++j) sum += uniform(stream, 12 * i + j);
  return float(sum);
}

std::vector<float> float_inputs() {
  std::vector<float> values = {0.0f,           -0.0f,    1.0f,       -1.0f,    INFINITY,  -INFINITY, std::nanf(""),
                               -std::nanf(""), 65504.0f, 65519.99f,  65520.0f, 65536.0f,  1e38f,     -3.4e38f,
                               0x1p-24f,       0x1p-25f, 0x1.8p-25f, 0x1p-14f, 0x1p-126f, 0x1p-149f};
  const auto bits = [&](std::uint32_t b) { values.push_back(std::bit_cast<float>(b)); };
  bits(0x7f800001u);  // NaN with other payloads
  bits(0xffbfffffu);
  bits(0x7fc12345u);
  // Halfway between neighbours of both types, just below and just above, even and odd neighbours, both signs.
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint32_t sign = std::uint32_t(i % 2) << 31;
    const std::uint32_t half = std::uint32_t(112 + hash(3, i) % 30) << 23 | std::uint32_t(hash(4, i) % 1024) << 13;
    const std::uint32_t brain = std::uint32_t(hash(5, i) % 0x7f80u) << 16;
    for (const std::uint32_t off : {0xfffu, 0x1000u, 0x1001u}) bits(sign | (half + off));
    for (const std::uint32_t off : {0x7fffu, 0x8000u, 0x8001u}) bits(sign | (brain + off));
    // Subnormal fp16 results: multiples of 2^-25, odd ones are ties.
    values.push_back((i % 2 ? -1.0f : 1.0f) * float(hash(6, i) % 4096) * 0x1p-25f);
  }
  for (std::uint64_t i = 0; i < 1000; ++i) bits(std::uint32_t(hash(7, i)));
  for (std::uint64_t i = 0; i < 500; ++i) values.push_back(normal(8, i));
  return values;
}

std::vector<float> exp2_inputs() {
  std::vector<float> values = {0.0f,   -0.0f,   1.0f,     -1.0f,   0.5f,    -INFINITY, INFINITY,  127.0f,   127.99f,
                               128.0f, -126.0f, -126.01f, -127.5f, -149.0f, -150.0f,   0x1p-149f, 0x1p-30f, -0x1p-30f};
  for (std::uint64_t i = 0; i < 600; ++i) values.push_back(-float(uniform(9, i)) * 20.0f);
  for (std::uint64_t i = 0; i < 400; ++i) values.push_back(float(uniform(10, i) - 0.5) * 240.0f);
  return values;
}

std::vector<MmaCase> mma_cases(int set, DType dtype) {
  std::vector<MmaCase> cases(kMmaCases);
  for (int index = 0; index < kMmaCases; ++index) {
    MmaCase& one = cases[std::size_t(index)];
    const std::uint64_t stream = 1000u + std::uint64_t(set) * 16u + (dtype == DType::fp16 ? 0u : 8u);
    const auto at = [index](int i) { return std::uint64_t(index) * 1024u + std::uint64_t(i); };
    const auto small_integer = [&](std::uint64_t s, int i, int limit) {
      return float(int(hash(s, at(i)) % std::uint64_t(2 * limit + 1)) - limit);
    };
    for (int i = 0; i < 16 * 16; ++i) {
      const int row = i / 16, k = i % 16;
      float a = 0, b = 0;
      const bool in_b = row < 8;  // b[k][row]: as many elements as half of a
      switch (set) {
        case 0:
          a = small_integer(stream, i, 15);
          b = small_integer(stream + 1, i, 15);
          break;
        case 1:
          a = normal(stream, at(i));
          b = normal(stream + 1, at(i));
          break;
        case 2:  // a row of P: e^-x, most of it tiny
          a = float(std::exp2(-12.0 * uniform(stream, at(i))));
          b = normal(stream + 1, at(i));
          break;
        case 3:
          a = wide(stream, at(i), 7);
          b = wide(stream + 2, at(i), 7);
          break;
        case 4:  // each odd product is nearly the negative of the one before
          a = normal(stream, at(i / 2));
          b = normal(stream + 1, at(i / 2));
          if (k % 2 == 1) a = -a * (1.0f + 0.01f * normal(stream + 2, at(i)));
          break;
        case 5:
          a = hash(stream, at(i)) % 4 == 0 ? wide(stream + 1, at(i), 6) : 0.0f;
          b = hash(stream + 3, at(i)) % 4 != 0 ? wide(stream + 4, at(i), 6) : 0.0f;
          break;
        case 6: {
          // Elements below the smallest normal number of the type, and among them some large ones.
          const float tiny = dtype == DType::fp16 ? 0x1p-16f : 0x1p-128f;
          a = normal(stream, at(i)) * (hash(stream + 2, at(i)) % 3 == 0 ? 1.0f : tiny);
          b = normal(stream + 1, at(i)) * (hash(stream + 3, at(i)) % 3 == 0 ? 1.0f : tiny);
          break;
        }
        default:
          throw std::invalid_argument("no such set");
      }
      one.a[row][k] = encode(a, dtype);
      if (in_b) one.b[k][row] = encode(b, dtype);
    }
    for (int i = 0; i < 16 * 8; ++i) {
      float& c = one.c[i / 8][i % 8];
      switch (set) {
        case 0:
          c = small_integer(stream + 5, i, 1000);
          break;
        case 1:
          c = index % 4 == 0 ? 0.0f : 4.0f * normal(stream + 5, at(i));
          break;
        case 2:
          c = index % 4 == 0 ? 0.0f : normal(stream + 5, at(i)) * float(1 << index % 12);
          break;
        case 3:
          c = wide(stream + 5, at(i), 14);
          break;
        case 4: {  // about the negative of the product
          double sum = 0;
          for (int k = 0; k < 16; ++k) {
            sum += double(decode(one.a[i / 8][k], dtype)) * double(decode(one.b[k][i % 8], dtype));
          }
          c = float(-sum * (1.0 + 1e-3 * double(normal(stream + 5, at(i)))));
          break;
        }
        case 5:
          c = index % 2 == 0 ? 0.0f : wide(stream + 5, at(i), 20);
          break;
        case 6:
          c = index % 2 == 0 ? 0.0f : wide(stream + 5, at(i), 30);
          break;
      }
    }
  }
  return cases;
}

Fragments to_fragments(const MmaCase& one) {
  Fragments f{};
  const auto pair = [](std::uint16_t low, std::uint16_t high) {
    return std::uint32_t(low) | std::uint32_t(high) << 16;
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, col = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, k = col + i / 2 * 8;
      f.a[lane][i] = pair(one.a[row][k], one.a[row][k + 1]);
      f.c[lane][i] = one.c[group + i / 2 * 8][col + i % 2];
    }
    for (int i = 0; i < 2; ++i) f.b[lane][i] = pair(one.b[col + i * 8][group], one.b[col + i * 8 + 1][group]);
  }
  return f;
}

std::uint64_t hash_of(const std::vector<std::uint32_t>& words) {  // FNV-1a over the words
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const std::uint32_t word : words) h = (h ^ word) * 0x100000001b3u;
  return h;
}

void write_outputs(const std::string& path, const std::string& device, const std::vector<Output>& outputs) {
  std::ofstream file(path);
  file << "# What the primitives of tests/conformance left on: " << device << "\n"
       << "# Each output: 'name' words hash, then its first words, hexadecimal.\n";
  for (const Output& output : outputs) {
    file << "'" << output.name << "' " << output.words.size() << " " << std::hex << hash_of(output.words) << "\n";
    const std::size_t kept = std::min(output.words.size(), kKeptWords);
    for (std::size_t i = 0; i < kept; ++i) {
      file << output.words[i] << (i % 16 == 15 || i + 1 == kept ? "\n" : " ");
    }
    file << std::dec;
  }
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

std::vector<RecordedOutput> read_outputs(const std::string& path) {
  std::ifstream file(path);
  std::vector<RecordedOutput> outputs;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '\'') {
      const std::size_t end = line.rfind('\'');
      RecordedOutput output;
      output.name = line.substr(1, end - 1);
      std::istringstream(line.substr(end + 1)) >> std::dec >> output.count >> std::hex >> output.hash;
      outputs.push_back(output);
      continue;
    }
    if (outputs.empty()) throw std::runtime_error(path + " does not begin with an output's name");
    std::istringstream words(line);
    for (std::uint32_t word; words >> std::hex >> word;) outputs.back().words.push_back(word);
  }
  if (outputs.empty()) throw std::runtime_error(path + " cannot be read or is empty");
  return outputs;
}

}  // namespace flash::test
