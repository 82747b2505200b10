#include "tests/support/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>
#include <tuple>

#include "common/base/error.hpp"
#include "common/device/prediction.hpp"
#include "reference/check.hpp"

namespace flash::test {

namespace {

constexpr std::uint16_t kPoison = 0xffff;  // NaN in fp16 and bf16, and twice over in fp32
constexpr std::int64_t kGuard = 128;       // elements before and behind the tensors of an image: 256 bytes
constexpr std::int64_t kSector = 32 / 2;   // elements of a sector

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Strides for one tensor on its own; `which` makes the gaps of Q, K, V and O differ.
void set_strides(TensorRef& t, Placement placement, std::int64_t which) {
  switch (placement) {
    case Placement::contiguous:
    case Placement::packed:
      t.head_stride = t.cols;
      t.row_stride = t.heads * t.cols;
      t.batch_stride = t.rows * t.row_stride;
      break;
    case Placement::padded:
      t.head_stride = t.cols + 8 * (1 + which);
      t.row_stride = t.heads * t.head_stride + 8 * (2 * which + 1);
      t.batch_stride = t.rows * t.row_stride + 8 * (5 - which);
      break;
    case Placement::heads_first:
      t.row_stride = t.cols;
      t.head_stride = t.rows * t.cols;
      t.batch_stride = t.heads * t.head_stride;
      break;
    case Placement::sequence_first:
      t.head_stride = t.cols;
      t.batch_stride = t.heads * t.cols;
      t.row_stride = t.batch * t.batch_stride;
      break;
  }
}

template <typename Body>  // body(batch, row, head, offset of the row's first element from the tensor's)
void for_each_row(const TensorRef& t, const Body& body) {
  for (std::int64_t b = 0; b < t.batch; ++b) {
    for (std::int64_t r = 0; r < t.rows; ++r) {
      for (std::int64_t h = 0; h < t.heads; ++h) {
        body(b, r, h, b * t.batch_stride + h * t.head_stride + r * t.row_stride);
      }
    }
  }
}

/// SplitMix64 as a small generator of shapes.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return std::int64_t(next() % std::uint64_t(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  /// From 1 to `most`, each order of magnitude as likely as the others.
  std::int64_t extent(std::int64_t most) {
    const double uniform = double(next() >> 11) * 0x1p-53;
    return std::clamp<std::int64_t>(std::int64_t(std::exp(uniform * std::log(double(most) + 1))), 1, most);
  }

 private:
  std::uint64_t state_;
};

}  // namespace

const char* to_string(Placement placement) {
  constexpr const char* kNames[] = {"contiguous", "padded", "heads first", "sequence first", "packed"};
  return kNames[int(placement)];
}

const char* to_string(Scores scores) {
  constexpr const char* kNames[] = {"normal",
                                    "outliers",
                                    "equal",
                                    "zero",
                                    "growing",
                                    "falling",
                                    "huge last",
                                    "huge first",
                                    "huge middle",
                                    "minus inf all",
                                    "minus inf first",
                                    "minus inf last",
                                    "minus inf every 2nd",
                                    "slowly growing",
                                    "slowly falling",
                                    "all 133120",
                                    "largest",
                                    "far below",
                                    "huge negative",
                                    "huge one row",
                                    "huge doubling",
                                    "huge and minus inf",
                                    "huge alternating",
                                    "huge maxima in turn",
                                    "huge ties",
                                    "huge and small",
                                    "subnormal"};
  return kNames[int(scores)];
}

std::string Case::describe() const {
  return fmt::format("{}, {}, {} scores, seed {}", problem.describe(), to_string(placement), to_string(scores), seed);
}

namespace {

/// Sets every element of a row.
void fill_row(HostTensor& tensor, std::int64_t b, std::int64_t r, std::int64_t h, float value) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d) tensor.set(b, r, h, d, value);
}

/// The scores from all_133120 on: Q and K as a whole.
void set_huge_scores(const Case& c, Input& input) {
  const Problem& p = c.problem;
  const bool fp16 = p.dtype == DType::fp16;
  const float minus_inf = -std::numeric_limits<float>::infinity();
  // One column makes the score of key `key` x times the unit, or each column its share: a sum of 16-bit products of one
  // column is exact in fp32, so the order of scores is too.
  const float unit_q = fp16 ? 32768.0f : 0x1p50f, unit_k = fp16 ? 2048.0f : 0x1p40f;
  const auto in_one_column = [&](std::int64_t key) -> float {
    switch (c.scores) {
      case Scores::huge_negative:
        return -1.0f - float(key % 64 * 37 % 64) / 64;
      case Scores::huge_doubling:
        return std::ldexp(key % 2 == 0 ? 1.0f : -1.0f, int(key % 19) - 14);
      case Scores::huge_and_minus_inf:
        return key % 2 == 1 ? minus_inf : float(key % 7);
      case Scores::huge_alternating:
        return key % 2 == 0 ? 16.0f : -16.0f;
      case Scores::huge_maxima_in_turn:
        return key % 16 != 3 ? -1.0f : key / 16 % 2 == 0 ? 8.0f + float(key / 16) / 8 : 4.0f - float(key / 16) / 8;
      case Scores::huge_ties:
        return key % 3 == 0 ? 1.0f : fp16 ? 1.0f - 0x1p-11f : 1.0f - 0x1p-8f;
      default:
        return 16.0f;  // huge_and_small
    }
  };
  for_each_row(input.q.ref("Q"), [&](std::int64_t b, std::int64_t r, std::int64_t h, std::int64_t) {
    switch (c.scores) {
      case Scores::all_133120:
        return fill_row(input.q, b, r, h, fp16 ? 30000.0f : 133120.0f);
      case Scores::largest:
        return fill_row(input.q, b, r, h, fp16 ? 65504.0f : 0x1.fep127f);
      case Scores::far_below:
        for (std::int64_t d = 0; d < p.head_dim; ++d) input.q.set(b, r, h, d, 448.0f + 2.0f * float((r + d) % 3 - 1));
        return;
      case Scores::huge_one_row:
        if (r != p.seq_q / 2) return;
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          input.q.set(b, r, h, d, input.q.at(b, r, h, d) * (fp16 ? 0x1p13f : 0x1p100f));
        }
        return;
      case Scores::subnormal:
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          input.q.set(b, r, h, d, input.q.at(b, r, h, d) * (fp16 ? 0x1p-17f : 0x1p-129f));
        }
        return;
      default:
        if (c.scores != Scores::huge_and_small) fill_row(input.q, b, r, h, 0.0f);
        input.q.set(b, r, h, 0, unit_q);
    }
  });
  for_each_row(input.k.ref("K"), [&](std::int64_t b, std::int64_t key, std::int64_t h, std::int64_t) {
    switch (c.scores) {
      case Scores::all_133120:
        if (!fp16) fill_row(input.v, b, key, h, 133120.0f);
        return fill_row(input.k, b, key, h, fp16 ? 30000.0f : 133120.0f);
      case Scores::largest:
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          input.k.set(b, key, h, d, fp16 ? 65504.0f : input.k.at(b, key, h, d) * 0x1p-126f);
        }
        return;
      case Scores::far_below:
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          input.k.set(b, key, h, d, -1880.0f + 8.0f * float((key * 11 + d * 3 + key * d) % 3 - 1));
        }
        return;
      case Scores::huge_one_row:
        return;
      case Scores::subnormal:
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          input.k.set(b, key, h, d, input.k.at(b, key, h, d) * (fp16 ? 0x1p-17f : 0x1p-129f));
        }
        return;
      default:
        if (c.scores != Scores::huge_and_small) fill_row(input.k, b, key, h, 0.0f);
        input.k.set(b, key, h, 0, in_one_column(key) * unit_k);
    }
  });
}

}  // namespace

Input make_case_input(const Case& c) {
  const Problem& p = c.problem;
  Options options;
  options.seed = c.seed;
  if (c.scores == Scores::outliers) options.distribution = Distribution::outliers;
  Input input = make_input(options, p);
  if (c.scores == Scores::normal || c.scores == Scores::outliers) return input;
  if (c.scores >= Scores::all_133120) {
    set_huge_scores(c, input);
    return input;
  }

  // Column 0 decides the scores: Q holds 8 there, K what the score shall be over 8 times the scale. The other columns
  // keep their random values, small ones where the order of the scores matters.
  constexpr float kQuery = 8.0f;
  const float unit = 1.0f / (kQuery * p.scale());
  for_each_row(input.q.ref("Q"), [&](std::int64_t b, std::int64_t r, std::int64_t h, std::int64_t) {
    input.q.set(b, r, h, 0, kQuery);
    if (c.scores != Scores::zero) return;
    for (std::int64_t d = 0; d < p.head_dim; ++d) input.q.set(b, r, h, d, 0.0f);
  });
  const float minus_inf = -std::numeric_limits<float>::infinity();
  for_each_row(input.k.ref("K"), [&](std::int64_t b, std::int64_t key, std::int64_t h, std::int64_t) {
    const bool first_half = 2 * key < p.seq_kv;
    float score = 0.0f;
    switch (c.scores) {
      case Scores::growing:
      case Scores::falling:
        for (std::int64_t d = 1; d < p.head_dim; ++d) input.k.set(b, key, h, d, input.k.at(b, key, h, d) / 32);
        score = 0.5f * float(c.scores == Scores::growing ? key : p.seq_kv - 1 - key);
        break;
      case Scores::slowly_growing:
      case Scores::slowly_falling:
        score = 0.1f * float(c.scores == Scores::slowly_growing ? key : p.seq_kv - 1 - key);
        break;
      case Scores::equal:
        for (std::int64_t d = 1; d < p.head_dim; ++d) input.k.set(b, key, h, d, input.k.at(b, 0, h, d));
        break;
      case Scores::huge_first:
        score = key == 0 ? 700.0f : 0.0f;
        break;
      case Scores::huge_last:
        score = key == p.seq_kv - 1 ? 700.0f : 0.0f;
        break;
      case Scores::huge_middle:
        score = key == p.seq_kv / 2 ? 700.0f : key == p.seq_kv / 2 + 1 ? -700.0f : 0.0f;
        break;
      case Scores::minus_inf_all:
        score = minus_inf;
        break;
      case Scores::minus_inf_first:
        score = first_half ? minus_inf : 0.0f;
        break;
      case Scores::minus_inf_last:
        score = first_half ? 0.0f : minus_inf;
        break;
      case Scores::minus_inf_every_2nd:
        score = key % 2 == 1 ? minus_inf : 0.0f;
        break;
      default:
        break;
    }
    input.k.set(b, key, h, 0, score * unit);
  });
  return input;
}

// -- Chapters

std::vector<const Chapter*> chapters_under_test() {
  const char* only = std::getenv("FLASH_TEST_CHAPTER");
  std::vector<const Chapter*> list;
  for (const Chapter& chapter : chapters()) {
    if (only == nullptr || chapter.name == only) list.push_back(&chapter);
  }
  if (list.empty()) throw std::runtime_error(fmt::format("FLASH_TEST_CHAPTER is {}: there is no such chapter", only));
  return list;
}

std::vector<LaunchOptions> variants_for(const Chapter& chapter, DeviceKind kind) {
  std::vector<LaunchOptions> list;
  for (const Variant& variant : chapter.info.variants) {
    if (!variant.gpu_only || kind == DeviceKind::gpu) list.push_back({variant.name});
  }
  return list;
}

std::string describe(const Chapter& chapter, const LaunchOptions& options) {
  std::string text = chapter.name + " " + options.variant;
  if (options.block_q != 0) text += fmt::format(" {}x{}", options.block_q, options.block_kv);
  return text;
}

LaunchFunction launch_of(const Chapter& chapter, const Device& device) {
  const LaunchFunction launch = device.kind() == DeviceKind::gpu ? chapter.launch_gpu : chapter.launch_sim;
  if (launch == nullptr) throw std::runtime_error(chapter.name + " was built without its GPU side");
  return launch;
}

// -- Tensors

PlacedTensors::Image& PlacedTensors::add_image(const std::string& name, std::int64_t elements) {
  images_.push_back(std::make_unique<Image>());
  Image& image = *images_.back();
  image.name = name;
  image.bits.assign(std::size_t(elements + 2 * kGuard), kPoison);
  image.buffer = DeviceBuffer(device_, image.bits.size() * sizeof(std::uint16_t));
  return image;
}

void PlacedTensors::fill(Image& image, TensorRef& tensor, const HostTensor& values, std::int64_t first) {
  std::uint16_t* const data = image.bits.data() + kGuard + first;
  for_each_row(tensor, [&](std::int64_t b, std::int64_t r, std::int64_t h, std::int64_t offset) {
    std::memcpy(data + offset, values.bits() + values.index(b, r, h, 0), std::size_t(tensor.cols) * 2);
  });
  tensor.data = static_cast<std::uint16_t*>(image.buffer.data()) + kGuard + first;
}

void PlacedTensors::place_output(TensorRef& tensor) {
  Image& image = add_image(tensor.name, round_up(tensor.span_bytes(), 2) / 2);
  tensor.data = static_cast<std::uint16_t*>(image.buffer.data()) + kGuard;
  const int pieces = tensor.element_bytes / 2;  // of an element
  image.writable.assign(image.bits.size(), false);
  for_each_row(tensor, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t offset) {
    const auto begin = image.writable.begin() + kGuard + offset * pieces;
    std::fill(begin, begin + tensor.cols * pieces, true);
  });
}

PlacedTensors::PlacedTensors(Device& device, const Input& input, Placement placement,
                             const std::vector<TensorRef>& workspace)
    : device_(device), call_(contiguous_call(input.problem)) {
  const Problem& p = input.problem;
  set_strides(call_.q, placement, 0);
  set_strides(call_.k, placement, 1);
  set_strides(call_.v, placement, 2);
  set_strides(call_.o, placement, 3);
  if (placement == Placement::packed) {
    const bool with_q = p.seq_q == p.seq_kv;
    const std::int64_t q_cols = with_q ? round_up(p.heads * p.head_dim, kSector) : 0;
    const std::int64_t kv_cols = round_up(p.kv_heads * p.head_dim, kSector);
    const std::int64_t row = q_cols + 2 * kv_cols;
    Image& image = add_image("packed Q, K and V", p.batch * p.seq_kv * row);
    for (TensorRef* t : {&call_.q, &call_.k, &call_.v}) {
      if (t == &call_.q && !with_q) continue;
      t->row_stride = row;
      t->batch_stride = p.seq_kv * row;
    }
    if (with_q) {
      fill(image, call_.q, input.q, 0);
    } else {
      fill(add_image("Q", call_.q.span_bytes() / 2), call_.q, input.q, 0);
    }
    fill(image, call_.k, input.k, q_cols);
    fill(image, call_.v, input.v, q_cols + kv_cols);
  } else {
    fill(add_image("Q", call_.q.span_bytes() / 2), call_.q, input.q, 0);
    fill(add_image("K", call_.k.span_bytes() / 2), call_.k, input.k, 0);
    fill(add_image("V", call_.v.span_bytes() / 2), call_.v, input.v, 0);
  }
  place_output(call_.o);
  o_ = images_.back().get();
  place_output(call_.lse);
  lse_ = images_.back().get();
  call_.workspace = workspace;
  for (TensorRef& t : call_.workspace) {
    place_output(t);
    // Padding of a workspace belongs to the chapter, which may write it.
    Image& image = *images_.back();
    std::fill(image.writable.begin() + kGuard, image.writable.end() - kGuard, true);
  }
  for (const auto& image : images_) {
    device_.upload(image->buffer.data(), image->bits.data(), image->bits.size() * sizeof(std::uint16_t));
  }
}

void PlacedTensors::poison() {
  for (const auto& image : images_) {
    if (!image->writable.empty()) device_.fill_bytes(image->buffer.data(), 0xff, image->buffer.bytes());
  }
}

HostTensor PlacedTensors::download_o() {
  const Problem& p = call_.problem;
  std::vector<std::uint16_t> bits(o_->bits.size());
  device_.download(bits.data(), o_->buffer.data(), bits.size() * sizeof(std::uint16_t));
  HostTensor o(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim);
  for_each_row(call_.o, [&](std::int64_t b, std::int64_t r, std::int64_t h, std::int64_t offset) {
    std::memcpy(o.bits() + o.index(b, r, h, 0), bits.data() + kGuard + offset, std::size_t(p.head_dim) * 2);
  });
  return o;
}

std::vector<float> PlacedTensors::download_lse() {
  const Problem& p = call_.problem;
  std::vector<float> lse(std::size_t(p.batch * p.heads * p.seq_q));
  device_.download(lse.data(), call_.lse.data, lse.size() * sizeof(float));
  return lse;
}

std::string PlacedTensors::stray_writes() {
  std::vector<std::uint16_t> now;
  for (const auto& image : images_) {
    now.resize(image->bits.size());
    device_.download(now.data(), image->buffer.data(), now.size() * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] == image->bits[i] || (!image->writable.empty() && image->writable[i])) continue;
      return fmt::format("{}: the 16 bits at element {} were overwritten with {:#06x}", image->name,
                         std::int64_t(i) - kGuard, now[i]);
    }
  }
  return "";
}

// -- Runs

std::string difference(const Outcome& a, const Outcome& b) {
  for (std::int64_t i = 0; i < a.o.elements(); ++i) {
    if (a.o.bits()[i] != b.o.bits()[i]) {
      return fmt::format("element {} of O is {:#06x} and {:#06x}", i, a.o.bits()[i], b.o.bits()[i]);
    }
  }
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    if (std::memcmp(&a.lse[i], &b.lse[i], sizeof(float)) != 0) {
      return fmt::format("element {} of LSE is {} and {}", i, a.lse[i], b.lse[i]);
    }
  }
  return "";
}

std::string difference(const sim::Counters& a, const sim::Counters& b) {
  std::string what;
  const auto compare = [&](const std::string& name, std::int64_t x, std::int64_t y) {
    if (x != y && what.empty()) what = fmt::format("{}: {} and {}", name, x, y);
  };
  for (int slot = 0; slot < sim::tensor_slots(); ++slot) {
    const sim::TensorCounters &x = a.tensors[std::size_t(slot)], &y = b.tensors[std::size_t(slot)];
    const std::string name = sim::tensor_name(slot);
    compare(name + " read sectors", x.read_sectors, y.read_sectors);
    compare(name + " written sectors", x.written_sectors, y.written_sectors);
    compare(name + " atomic sectors", x.atomic_sectors, y.atomic_sectors);
    compare(name + " read requests", x.read_requests, y.read_requests);
    compare(name + " written requests", x.written_requests, y.written_requests);
    compare(name + " useful bytes read", x.useful_bytes_read, y.useful_bytes_read);
    compare(name + " useful bytes written", x.useful_bytes_written, y.useful_bytes_written);
  }
  for (std::size_t kind = 0; kind < a.shared.size(); ++kind) {
    const std::string name = fmt::format("shared accesses of kind {}", kind);
    compare(name, a.shared[kind].accesses, b.shared[kind].accesses);
    compare(name + ", bytes", a.shared[kind].bytes, b.shared[kind].bytes);
    compare(name + ", bank conflicts", a.shared[kind].bank_conflicts, b.shared[kind].bank_conflicts);
  }
  compare("matrix FLOPs", a.matrix_flops, b.matrix_flops);
  compare("exponentials", a.exponentials, b.exponentials);
  compare("barriers", a.barriers, b.barriers);
  compare("blocks", a.blocks, b.blocks);
  compare("threads", a.threads, b.threads);
  return what;
}

std::string difference(const sim::Counters& counted, const Traffic& predicted) {
  const std::vector<std::string> list = differences(counted, predicted);
  return list.empty() ? "" : list.front();
}

std::string difference(const sim::Counters& counted, const BankConflicts& predicted) {
  const std::vector<std::string> list = differences(counted, predicted);
  return list.empty() ? "" : list.front();
}

Outcome run_case(const Chapter& chapter, LaunchFunction launch, const LaunchOptions& options, Device& device,
                 const Input& input, Placement placement, const Expectations& expected) {
  const Problem& p = input.problem;
  PlacedTensors tensors(device, input, placement, chapter.info.workspace(p, options));
  tensors.poison();
  device.reset_counted();
  launch(tensors.call(), options, device);
  device.synchronize();
  Outcome outcome;
  if (device.counted() != nullptr) outcome.counted = *device.counted();
  outcome.o = tensors.download_o();
  outcome.lse = tensors.download_lse();

  outcome.failure = tensors.stray_writes();
  if (outcome.failure.empty() && expected.check) {
    const std::vector<RowId> rows = device.kind() == DeviceKind::sim ? all_rows(p) : sample_rows(p);
    outcome.failure = check_attention(p, input.q, input.k, input.v, outcome.o, outcome.lse, rows,
                                      chapter.info.lse_from_rounded_scores)
                          .first_failure;
  }
  if (outcome.failure.empty() && expected.traffic && outcome.counted) {
    const std::optional<Traffic> predicted = chapter.info.requested(tensors.call(), options);
    outcome.failure = predicted ? difference(*outcome.counted, *predicted) : "no prediction of the requested bytes";
  }
  if (outcome.failure.empty() && expected.conflicts && outcome.counted) {
    outcome.failure = difference(*outcome.counted, predicted_bank_conflicts(chapter.info, p, options));
  }
  return outcome;
}

int launches_that_differ(const Chapter& chapter, const LaunchOptions& options, const Input& input, Device& device,
                         int launches) {
  const LaunchFunction launch = launch_of(chapter, device);
  PlacedTensors tensors(device, input, Placement::contiguous, chapter.info.workspace(input.problem, options));
  const auto run = [&] {
    tensors.poison();
    launch(tensors.call(), options, device);
    device.synchronize();
    return std::pair{tensors.download_o(), tensors.download_lse()};
  };
  const auto [first_o, first_lse] = run();
  int different = 0;
  for (int i = 1; i < launches; ++i) {
    const auto [o, lse] = run();
    different += std::memcmp(o.bits(), first_o.bits(), o.bytes()) != 0 ||
                 std::memcmp(lse.data(), first_lse.data(), lse.size() * sizeof(float)) != 0;
  }
  return different;
}

std::vector<MatrixRun> matrix_runs(const Chapter& chapter, const LaunchOptions& variant,
                                   const std::vector<Case>& cases) {
  std::vector<MatrixRun> runs;
  const std::vector<LaunchOptions> tiles = tiles_for(chapter, variant);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    runs.push_back({&chapter, variant, &cases[i]});
    LaunchOptions taken;
    try {
      taken = resolve(chapter, cases[i].problem, variant);
    } catch (const UsageError&) {
      continue;  // matrix_failure looks at how it is refused
    }
    for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
      const bool same = tiles[tile].block_q == taken.block_q && tiles[tile].block_kv == taken.block_kv;
      if (!same && i % 4 == tile % 4) runs.push_back({&chapter, tiles[tile], &cases[i]});
    }
  }
  return runs;
}

std::vector<LaunchOptions> tiles_for(const Chapter& chapter, const LaunchOptions& variant) {
  std::vector<LaunchOptions> list;
  for (const TileShape& tile : chapter.info.tiles) {
    list.push_back(variant);
    list.back().block_q = tile.block_q;
    list.back().block_kv = tile.block_kv;
  }
  return list;
}

std::string run_failure(const MatrixRun& run, Device& device) {
  try {
    const LaunchOptions options = resolve(*run.chapter, run.c->problem, run.options);
    const Input input = make_case_input(*run.c);
    return run_case(*run.chapter, launch_of(*run.chapter, device), options, device, input, run.c->placement).failure;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string matrix_failure(const MatrixRun& run, Device& first, Device* second) {
  LaunchOptions options;
  try {
    options = resolve(*run.chapter, run.c->problem, run.options);
  } catch (const UsageError& refused) {
    const std::string line = refused.what();
    return line.empty() || line.find('\n') != std::string::npos ? "refused, but not in one line: " + line : "";
  }
  try {
    const Input input = make_case_input(*run.c);
    const LaunchFunction launch = launch_of(*run.chapter, first);
    const Outcome once = run_case(*run.chapter, launch, options, first, input, run.c->placement);
    if (!once.failure.empty() || second == nullptr) return once.failure;
    const Outcome again = run_case(*run.chapter, launch, options, *second, input, run.c->placement, {false, true});
    if (!again.failure.empty()) return "the second time: " + again.failure;
    const std::string changed = difference(once, again);
    return changed.empty() ? "" : "not the same bits the second time: " + changed;
  } catch (const std::exception& error) {
    return error.what();
  }
}

// -- Cases

std::vector<Case> matrix_cases() {
  const auto fp16 = DType::fp16, bf16 = DType::bf16;
  std::vector<Case> cases;
  // {batch, heads, kv_heads, seq_q, seq_kv, head_dim, causal, dtype}
  for (const Problem& p : {
           Problem{1, 1, 1, 1, 1, 64, false, fp16},
           Problem{1, 1, 1, 1, 1, 8, true, bf16},
           Problem{1, 1, 1, 1, 300, 128, true, bf16},
           Problem{1, 1, 1, 300, 1, 64, false, fp16},
           Problem{1, 1, 1, 300, 1, 64, true, fp16},  // all rows but the last see nothing
           Problem{1, 1, 1, 2, 3, 256, true, fp16},
           Problem{1, 2, 2, 3, 2, 64, true, bf16},
           // At and around the edges of tiles.
           Problem{1, 1, 1, 15, 16, 64, true, fp16},
           Problem{1, 1, 1, 17, 31, 64, false, bf16},
           Problem{1, 1, 1, 33, 32, 128, true, fp16},
           Problem{1, 1, 1, 63, 64, 64, true, bf16},
           Problem{1, 1, 1, 64, 64, 64, false, fp16},
           Problem{1, 1, 1, 64, 64, 128, true, fp16},
           Problem{1, 1, 1, 65, 63, 64, true, fp16},
           Problem{1, 1, 1, 64, 129, 64, true, fp16},
           Problem{1, 1, 1, 127, 65, 64, true, bf16},
           Problem{1, 1, 1, 65, 127, 256, false, fp16},
           Problem{1, 1, 1, 129, 128, 64, true, fp16},
           Problem{1, 1, 1, 128, 129, 128, false, bf16},
           Problem{1, 1, 1, 5, 257, 64, true, fp16},
           Problem{1, 1, 1, 257, 5, 64, true, fp16},
           Problem{1, 1, 1, 299, 111, 64, true, fp16},
           Problem{1, 1, 1, 63, 299, 64, false, fp16},
           // The longest.
           Problem{1, 1, 1, 300, 300, 64, true, fp16},
           Problem{1, 1, 1, 191, 193, 128, true, bf16},
           // Heads over fewer heads.
           Problem{2, 4, 1, 19, 23, 64, true, fp16},
           Problem{1, 6, 2, 21, 19, 64, false, bf16},
           Problem{2, 6, 3, 9, 40, 128, true, fp16},
           Problem{3, 2, 1, 33, 7, 256, true, bf16},
           // A short last Q tile, and statistics that begin within a sector.
           Problem{1, 2, 2, 97, 300, 128, false, fp16},
           Problem{1, 2, 1, 17, 600, 64, false, bf16},
           Problem{1, 9, 3, 17, 17, 64, true, fp16},
           // Head dimensions that are no power of two, where a chapter takes them.
           Problem{1, 2, 1, 40, 41, 8, true, fp16},
           Problem{1, 1, 1, 41, 40, 16, false, bf16},
           Problem{1, 2, 2, 20, 21, 24, true, fp16},
           Problem{1, 1, 1, 30, 31, 40, true, bf16},
           Problem{1, 1, 1, 30, 29, 56, false, fp16},
           Problem{1, 2, 1, 13, 31, 72, true, fp16},
           Problem{1, 1, 1, 21, 22, 120, false, bf16},
           Problem{1, 1, 1, 22, 21, 136, true, fp16},
           Problem{1, 1, 1, 11, 30, 200, true, bf16},
           Problem{1, 1, 1, 19, 12, 248, false, fp16},
           Problem{1, 1, 1, 7, 9, 264, true, fp16},
           Problem{1, 1, 1, 5, 6, 520, false, fp16},
       }) {
    const std::size_t n = cases.size();
    cases.push_back({p, kPlacements[n % std::size(kPlacements)], Scores::normal, n});
  }
  // Every way to lie in memory, with several heads and batches.
  for (const Placement placement : kPlacements) {
    cases.push_back({{2, 4, 2, 37, 37, 64, true, fp16}, placement, Scores::normal, 100});
    cases.push_back({{2, 3, 1, 18, 35, 128, false, bf16}, placement, Scores::normal, 101});
    cases.push_back({{2, 2, 2, 19, 21, 24, true, fp16}, placement, Scores::normal, 102});
  }

  constexpr std::int64_t kHeads[][2] = {{1, 1}, {1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 5}, {6, 2}};
  Random random(20220527);
  while (cases.size() < 110) {
    Problem p;
    const auto& heads = kHeads[random.below(std::size(kHeads))];
    p.heads = heads[0];
    p.kv_heads = heads[1];
    p.batch = random.one_in(3) ? 1 + random.below(3) : 1;
    p.seq_q = random.extent(300);
    p.seq_kv = random.one_in(3) ? p.seq_q : random.extent(300);
    if (random.one_in(2)) p.seq_q |= 1;
    if (random.one_in(2)) p.seq_kv |= 1;
    p.head_dim = random.one_in(3) ? 8 * (1 + random.below(32)) : std::int64_t(64) << random.below(3);
    p.causal = !random.one_in(3);
    p.dtype = random.one_in(2) ? fp16 : bf16;
    const Placement placement = kPlacements[random.below(std::size(kPlacements))];
    const std::uint64_t seed = random.next() % 1000;
    const std::int64_t work = p.batch * p.heads * p.seq_q * p.seq_kv * (1 + p.head_dim / 128);
    if (work > 6000 || (work < 50 && !random.one_in(4))) continue;
    cases.push_back({p, placement, random.one_in(4) ? Scores::outliers : Scores::normal, seed});
  }
  return cases;
}

std::vector<Case> tile_cases(const Chapter& chapter, const LaunchOptions& tile) {
  Problem p;
  for (const std::int64_t head_dim : {256, 128, 64}) {
    Problem other;
    other.head_dim = head_dim;
    if (chapter.info.refusal(other, tile).empty()) p = other;
  }
  if (!chapter.info.refusal(p, tile).empty()) return {};  // a variant for other tiles

  std::vector<std::int64_t> rows, keys, first_sees{0, 1, 2};
  for (const std::int64_t change : {-1, 0, 1}) {
    for (const std::int64_t edge : {16, tile.block_q}) {
      rows.push_back(edge + change);
      first_sees.push_back(-edge + change);  // rows that see nothing
    }
    for (const std::int64_t edge : {16, tile.block_kv}) {
      keys.push_back(edge + change);
      first_sees.push_back(edge + change);
    }
  }
  std::set<std::tuple<std::int64_t, std::int64_t, bool>> shapes;  // Nq, Nk, causal
  for (const std::int64_t n_q : rows) {
    for (const std::int64_t n_k : keys) shapes.insert({n_q, n_k, false});
    for (const std::int64_t sees : first_sees) shapes.insert({n_q, n_q + sees - 1, true});
  }
  for (const std::int64_t n_k : keys) {
    for (const std::int64_t sees : first_sees) shapes.insert({n_k - sees + 1, n_k, true});
  }
  std::vector<Case> cases;
  for (const auto& [n_q, n_k, causal] : shapes) {
    if (n_q < 1 || n_k < 1) continue;
    p.seq_q = n_q;
    p.seq_kv = n_k;
    p.causal = causal;
    p.dtype = cases.size() % 2 == 0 ? DType::fp16 : DType::bf16;
    cases.push_back({p, Placement::contiguous, Scores::normal, cases.size()});
  }
  return cases;
}

std::vector<Case> long_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    cases.push_back({{1, 1, 1, 16, 3000, 64, dtype == DType::bf16, dtype}, Placement::contiguous, Scores::normal, 31});
  }
  return cases;
}

std::vector<Case> order_cases(int block_q) {
  // Two tiles of queries for each of 265 heads are two rounds, of 133 and of 132 heads.
  const Problem p{5, 53, 53, block_q + 1, 2, 64, true, DType::fp16};
  return {{p, Placement::contiguous, Scores::normal, 41}};
}

std::vector<Case> score_cases() {
  std::vector<Case> cases;
  for (const Scores scores : kSpecialScores) {
    const bool other = cases.size() % 4 == 2;
    const DType a = other ? DType::bf16 : DType::fp16, b = other ? DType::fp16 : DType::bf16;
    cases.push_back({{1, 2, 1, 9, 150, 64, false, a}, Placement::contiguous, scores, 7});
    cases.push_back({{1, 1, 1, 70, 67, 64, true, b}, Placement::padded, scores, 8});
  }
  for (const Scores scores : {Scores::growing, Scores::slowly_growing, Scores::slowly_falling}) {
    cases.push_back({{1, 1, 1, 40, 270, 128, true, DType::fp16}, Placement::contiguous, scores, 9});
  }
  // The maximum rises from tile to tile, whichever comes first, in all rows or in one: of each head dimension in both
  // types, over three tiles of up to 128 keys none of which but the last needs a mask.
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const Scores scores : {Scores::growing, Scores::falling, Scores::huge_one_row, Scores::huge_doubling}) {
        cases.push_back(
            {{1, 1, 1, 20, head_dim == 128 ? 270 : 150, head_dim, false, dtype}, Placement::contiguous, scores, 10});
      }
    }
  }
  // As reported against PyTorch (pytorch 121558) and its like in fp16, and from a served model (flashinfer 4267).
  cases.push_back({{1, 1, 1, 1, 1, 64, false, DType::bf16}, Placement::contiguous, Scores::all_133120, 0});
  cases.push_back({{1, 1, 1, 40, 40, 64, false, DType::fp16}, Placement::contiguous, Scores::all_133120, 0});
  cases.push_back({{1, 1, 1, 70, 70, 128, false, DType::bf16}, Placement::contiguous, Scores::far_below, 0});
  return cases;
}

}  // namespace flash::test
