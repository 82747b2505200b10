// The C interface on the simulated GPU, through the shared library as another program loads it.
#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/base/chapter.hpp"
#include "common/base/host_tensor.hpp"
#include "common/device/device.hpp"
#include "common/program/flash_chapters.h"
#include "reference/check.hpp"
#include "tests/catch.hpp"

namespace flash::test {
namespace {

/// The library's functions, looked up by name: not those of this program's own copy of the chapters.
class Library {
 public:
  Library() : handle_(dlopen(FLASH_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    find(chapter_count, "flash_chapter_count");
    find(chapter_name, "flash_chapter_name");
    find(variant_name, "flash_variant_name");
    find(variant_gpu_only, "flash_variant_gpu_only");
    find(supports, "flash_supports");
    find(forward, "flash_attention_forward");
    find(last_error, "flash_last_error");
  }
  decltype(&flash_chapter_count) chapter_count;
  decltype(&flash_chapter_name) chapter_name;
  decltype(&flash_variant_name) variant_name;
  decltype(&flash_variant_gpu_only) variant_gpu_only;
  decltype(&flash_supports) supports;
  decltype(&flash_attention_forward) forward;
  decltype(&flash_last_error) last_error;

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) throw std::runtime_error(std::string("no ") + name);
  }
  void* handle_;
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

/// Memory of 16-bit elements at a multiple of 64 bytes, all NaN at first.
class Memory {
 public:
  explicit Memory(std::size_t elements) : blocks_((elements + 31) / 32) {
    std::memset(static_cast<void*>(blocks_.data()), 0xff, blocks_.size() * sizeof(Block));
  }
  std::uint16_t* data() { return blocks_.data()->elements; }
  std::uint16_t& operator[](std::size_t i) { return data()[i]; }

 private:
  struct alignas(64) Block {
    std::uint16_t elements[32];
  };
  std::vector<Block> blocks_;
};

/// A problem with its tensors in host memory; `gap` elements lie unused behind each head, row and batch.
struct Call {
  Problem problem;
  HostTensor q, k, v;
  Memory q_memory, k_memory, v_memory, o_memory;
  std::vector<float> lse;
  flash_attention c{};

  explicit Call(const Problem& p, std::int64_t gap = 0)
      : problem(p),
        q(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim),
        k(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim),
        v(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim),
        q_memory(elements(p.seq_q, p.heads, gap)),
        k_memory(elements(p.seq_kv, p.kv_heads, gap)),
        v_memory(elements(p.seq_kv, p.kv_heads, gap)),
        o_memory(elements(p.seq_q, p.heads, gap)),
        lse(std::size_t(p.batch * p.heads * p.seq_q), std::nanf("")) {
    fill_random(q, Distribution::normal, 1, 0, 1);
    fill_random(k, Distribution::normal, 1, 1, 1);
    fill_random(v, Distribution::normal, 1, 2, 1);
    c.batch = p.batch;
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.seq_q = p.seq_q;
    c.seq_kv = p.seq_kv;
    c.head_dim = p.head_dim;
    c.causal = p.causal;
    c.dtype = p.dtype == DType::fp16 ? FLASH_FP16 : FLASH_BF16;
    c.q = place(q_memory, p.seq_q, p.heads, gap);
    c.k = place(k_memory, p.seq_kv, p.kv_heads, gap);
    c.v = place(v_memory, p.seq_kv, p.kv_heads, gap);
    c.o = place(o_memory, p.seq_q, p.heads, gap);
    c.lse = lse.data();
    copy(q, c.q);
    copy(k, c.k);
    copy(v, c.v);
  }
  Call(const Call&) = delete;

  std::size_t elements(std::int64_t rows, std::int64_t heads, std::int64_t gap) const {
    return std::size_t(problem.batch * ((rows * (heads * (problem.head_dim + gap) + gap)) + gap));
  }
  flash_tensor place(Memory& memory, std::int64_t rows, std::int64_t heads, std::int64_t gap) const {
    const std::int64_t head = problem.head_dim + gap, row = heads * head + gap;
    return {memory.data(), rows * row + gap, row, head};
  }
  static void copy(const HostTensor& from, const flash_tensor& to) {
    for (std::int64_t b = 0; b < from.batch(); ++b)
      for (std::int64_t s = 0; s < from.seq(); ++s)
        for (std::int64_t h = 0; h < from.heads(); ++h)
          for (std::int64_t d = 0; d < from.dim(); ++d) at(to, b, s, h, d) = from.bits()[from.index(b, s, h, d)];
  }
  static std::uint16_t& at(const flash_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
    return static_cast<std::uint16_t*>(t.data)[b * t.batch_stride + s * t.row_stride + h * t.head_stride + d];
  }

  HostTensor o() const {
    HostTensor tensor(problem.dtype, problem.batch, problem.seq_q, problem.heads, problem.head_dim);
    for (std::int64_t b = 0; b < tensor.batch(); ++b)
      for (std::int64_t s = 0; s < tensor.seq(); ++s)
        for (std::int64_t h = 0; h < tensor.heads(); ++h)
          for (std::int64_t d = 0; d < tensor.dim(); ++d) tensor.bits()[tensor.index(b, s, h, d)] = at(c.o, b, s, h, d);
    return tensor;
  }

  /// "" if O and LSE are right.
  std::string failure(const Chapter& chapter) const {
    return check_attention(problem, q, k, v, o(), lse, all_rows(problem), chapter.info.lse_from_rounded_scores)
        .first_failure;
  }
  int run(const char* chapter, const char* variant = nullptr) {
    return library().forward(FLASH_DEVICE_SIM, chapter, variant, &c, nullptr);
  }
};

Problem small_problem() {
  Problem p;
  p.batch = 2;
  p.heads = 4;
  p.kv_heads = 2;
  p.seq_q = 9;
  p.seq_kv = 21;
  p.head_dim = 64;
  return p;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Whether a result came back as it is after an error or a fault: the library must stay usable.
void require_usable() {
  Call call(small_problem());
  REQUIRE(call.run("02_online_softmax") == FLASH_OK);
  REQUIRE(std::string(library().last_error()).empty());
  REQUIRE(call.failure(chapters().back()).empty());
}

TEST_CASE("the library lists the chapters and their variants as the programs have them") {
  REQUIRE(library().chapter_count() == int(chapters().size()));
  for (std::size_t i = 0; i < chapters().size(); ++i) {
    const Chapter& chapter = chapters()[i];
    REQUIRE(library().chapter_name(int(i)) == chapter.name);
    const auto& variants = chapter.info.variants;
    for (std::size_t j = 0; j < variants.size(); ++j) {
      REQUIRE(library().variant_name(chapter.name.c_str(), int(j)) == variants[j].name);
      CHECK(library().variant_gpu_only(chapter.name.c_str(), variants[j].name.c_str()) == int(variants[j].gpu_only));
    }
    CHECK(library().variant_name(chapter.name.c_str(), int(variants.size())) == nullptr);
    CHECK(library().variant_name(chapter.name.c_str(), -1) == nullptr);
  }
  CHECK(library().chapter_name(int(chapters().size())) == nullptr);
  CHECK(library().chapter_name(-1) == nullptr);
  CHECK(library().variant_name("99_unknown", 0) == nullptr);
  CHECK(library().variant_name(nullptr, 0) == nullptr);
  CHECK(library().variant_gpu_only("01_naive", "unknown") == -1);
  CHECK(library().variant_gpu_only("01_naive", nullptr) == -1);
  CHECK(library().variant_gpu_only("unknown", "simt") == -1);
}

TEST_CASE("every chapter and variant gives the reference's result, for any strides, in both types") {
  for (const Chapter& chapter : chapters()) {
    for (const Variant& variant : chapter.info.variants) {
      if (variant.gpu_only) continue;
      for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const std::int64_t gap : {0, 8, 24}) {
          Problem p = small_problem();
          p.dtype = dtype;
          p.causal = gap != 8;
          Call call(p, gap);
          INFO(chapter.name << " " << variant.name << ", " << p.describe() << ", gap " << gap);
          CHECK(call.run(chapter.name.c_str(), variant.name.c_str()) == FLASH_OK);
          CHECK(std::string(library().last_error()).empty());
          CHECK(call.failure(chapter) == "");
          // Between heads, rows and batches nothing is written.
          std::size_t untouched = 0;
          const std::size_t all = call.elements(p.seq_q, p.heads, gap);
          for (std::size_t i = 0; i < all; ++i) untouched += call.o_memory[i] == 0xffffu;
          CHECK(untouched == all - std::size_t(p.batch * p.seq_q * p.heads * p.head_dim));
        }
      }
    }
  }
}

TEST_CASE("a tensor that is the same for all batches or heads may have a stride of 0") {
  Problem p = small_problem();
  for (const Chapter& chapter : chapters()) {
    Call call(p);
    call.c.k.batch_stride = call.c.v.batch_stride = 0;
    call.c.k.head_stride = 0;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t s = 0; s < p.seq_kv; ++s)
        for (std::int64_t h = 0; h < p.kv_heads; ++h)
          for (std::int64_t d = 0; d < p.head_dim; ++d) {
            call.k.bits()[call.k.index(b, s, h, d)] = call.k.bits()[call.k.index(0, s, 0, d)];
            call.v.bits()[call.v.index(b, s, h, d)] = call.v.bits()[call.v.index(0, s, h, d)];
          }
    INFO(chapter.name);
    CHECK(call.run(chapter.name.c_str()) == FLASH_OK);
    CHECK(call.failure(chapter) == "");
  }
}

TEST_CASE("where there is one batch its stride may be 0 for each tensor") {
  Problem p = small_problem();
  p.batch = 1;
  for (const Chapter& chapter : chapters()) {
    Call call(p);
    for (flash_tensor* t : {&call.c.q, &call.c.k, &call.c.v, &call.c.o}) t->batch_stride = 0;
    INFO(chapter.name);
    CHECK(call.run(chapter.name.c_str()) == FLASH_OK);
    CHECK(call.failure(chapter) == "");
  }
}

TEST_CASE("pointers and strides that 16-byte copies cannot take are refused by every chapter before it runs") {
  struct Tensor {
    const char* name;
    flash_tensor flash_attention::*at;
  };
  for (const Chapter& chapter : chapters()) {
    const auto refused = [&](const Tensor& tensor, auto change, const std::string& text) {
      Call call(small_problem());
      change(call.c.*tensor.at);
      CHECK(call.run(chapter.name.c_str()) == FLASH_INVALID);
      const std::string error = library().last_error();
      INFO(chapter.name << ": " << error);
      CHECK(contains(error, text));
      CHECK(error.find('\n') == std::string::npos);
      const std::size_t all = call.elements(call.problem.seq_q, call.problem.heads, 0);
      std::size_t untouched = 0;
      for (std::size_t i = 0; i < all; ++i) untouched += call.o_memory[i] == 0xffffu;
      CHECK(untouched == all);
      for (const float value : call.lse) CHECK(std::isnan(value));
    };
    for (const Tensor& tensor : {Tensor{"Q", &flash_attention::q}, Tensor{"K", &flash_attention::k},
                                 Tensor{"V", &flash_attention::v}, Tensor{"O", &flash_attention::o}}) {
      const std::string name = tensor.name, stride = name + ": stride ";
      refused(
          tensor, [](flash_tensor& t) { t.row_stride += 1; }, stride);
      refused(
          tensor, [](flash_tensor& t) { t.head_stride += 4; }, stride);
      refused(
          tensor, [](flash_tensor& t) { t.batch_stride += 2; }, stride);
      refused(
          tensor, [](flash_tensor& t) { t.row_stride = -t.row_stride; }, stride + "-");
      refused(
          tensor, [](flash_tensor& t) { t.head_stride = -t.head_stride; }, stride + "-");
      refused(
          tensor, [](flash_tensor& t) { t.batch_stride = -t.batch_stride; }, stride + "-");
      refused(
          tensor, [](flash_tensor& t) { t.data = static_cast<char*>(t.data) + 8; },
          name + ": the pointer is not a multiple of 16 bytes");
      // Beyond what a tensor map can say; the other chapters would go there.
      if (!chapter.info.needs.exactly) continue;
      refused(
          tensor, [](flash_tensor& t) { t.batch_stride = std::int64_t(1) << 39; },
          "TMA cannot copy " + name + ": the stride of dimension 4 is 1099511627776 bytes");
    }
  }
}

TEST_CASE("a null variant is the default one, and results do not depend on what was called before") {
  for (const Chapter& chapter : chapters()) {
    Call by_default(small_problem()), by_name(small_problem());
    Problem larger = small_problem();
    larger.seq_q = larger.seq_kv = 90;  // the scratch memory grows
    Call between(larger);
    REQUIRE(by_default.run(chapter.name.c_str()) == FLASH_OK);
    REQUIRE(between.run(chapter.name.c_str()) == FLASH_OK);
    CHECK(between.failure(chapter) == "");
    REQUIRE(by_name.run(chapter.name.c_str(), chapter.info.variants[0].name.c_str()) == FLASH_OK);
    const HostTensor a = by_default.o(), b = by_name.o();
    CHECK(std::memcmp(a.bits(), b.bits(), a.bytes()) == 0);
    CHECK(by_default.lse == by_name.lse);
  }
}

TEST_CASE("a call that cannot be is refused with a code and one line that says why") {
  const auto refused = [](auto change, const std::string& text, const char* chapter = "02_online_softmax",
                          const char* variant = nullptr, int device = FLASH_DEVICE_SIM, int code = FLASH_INVALID) {
    INFO(text);
    Call call(small_problem());
    change(call.c);
    CHECK(library().forward(device, chapter, variant, &call.c, nullptr) == code);
    const std::string error = library().last_error();
    INFO(error);
    CHECK(contains(error, text));
    CHECK(error.find('\n') == std::string::npos);
    for (const float value : call.lse) CHECK(std::isnan(value));  // nothing was written
    require_usable();
  };
  const auto nothing = [](flash_attention&) {};
  refused(nothing, "no chapter '99_unknown'", "99_unknown");
  refused(nothing, "no chapter ''", nullptr);
  refused(nothing, "no variant 'unknown'", "01_naive", "unknown");
  refused(nothing, "device 7", "01_naive", nullptr, 7);
  refused(nothing, "cuBLAS", "01_naive", "cublas", FLASH_DEVICE_SIM, FLASH_DEVICE);
  refused([](auto& c) { c.q.data = nullptr; }, "Q: the pointer is null");
  refused([](auto& c) { c.k.data = nullptr; }, "K: the pointer is null");
  refused([](auto& c) { c.v.data = nullptr; }, "V: the pointer is null");
  refused([](auto& c) { c.o.data = nullptr; }, "O: the pointer is null");
  refused([](auto& c) { c.lse = nullptr; }, "LSE: the pointer is null");
  refused([](auto& c) { c.lse = reinterpret_cast<float*>(reinterpret_cast<char*>(c.lse) + 2); }, "LSE: the pointer");
  refused([](auto& c) { c.k.data = static_cast<char*>(c.k.data) + 8; }, "K: the pointer is not a multiple of 16 bytes");
  refused([](auto& c) { c.v.row_stride += 4; }, "V: stride 132");
  refused([](auto& c) { c.o.head_stride = -40; }, "O: stride -40");
  refused([](auto& c) { c.q.batch_stride = std::numeric_limits<std::int64_t>::max() / 8 * 8; }, "Q: ");
  refused([](auto& c) { c.o.batch_stride = 0; }, "O: ");
  refused([](auto& c) { c.o.head_stride = 8; }, "O: ");
  refused([](auto& c) { c.dtype = 2; }, "dtype 2");
  refused([](auto& c) { c.causal = 2; }, "causal 2");
  refused([](auto& c) { c.head_dim = 63; }, "head-dim 63");
  refused([](auto& c) { c.head_dim = 1024; }, "head-dim 1024");
  refused([](auto& c) { c.kv_heads = 3; }, "heads 4 is not a multiple of kv-heads 3");
  refused([](auto& c) { c.batch = 0; }, "batch is 0");
  refused([](auto& c) { c.seq_q = -5; }, "seq is -5");
  refused([](auto& c) { c.seq_kv = std::numeric_limits<std::int64_t>::max(); }, "2^62");
  CHECK(library().forward(FLASH_DEVICE_SIM, "01_naive", nullptr, nullptr, nullptr) == FLASH_INVALID);
  CHECK(contains(library().last_error(), "the call is null"));
  std::string why;
  if (!gpu_available(&why)) {
    refused(nothing, "no GPU", "02_online_softmax", nullptr, FLASH_DEVICE_GPU, FLASH_DEVICE);
  }
}

TEST_CASE("flash_supports looks at the shape alone") {
  flash_attention shape{};
  shape.batch = 2;
  shape.heads = 6;
  shape.kv_heads = 3;
  shape.seq_q = 1;
  shape.seq_kv = 1000000;
  shape.head_dim = 128;
  for (const Chapter& chapter : chapters()) {
    CHECK(library().supports(chapter.name.c_str(), nullptr, &shape) == FLASH_OK);
    CHECK(std::string(library().last_error()).empty());
  }
  shape.head_dim = 100;
  CHECK(library().supports("01_naive", nullptr, &shape) == FLASH_INVALID);
  CHECK(contains(library().last_error(), "head-dim 100"));
  shape.head_dim = 1024;
  CHECK(library().supports("02_online_softmax", "safe", &shape) == FLASH_INVALID);
  CHECK(library().supports("01_naive", "no such", &shape) == FLASH_INVALID);
  CHECK(library().supports("no such", nullptr, &shape) == FLASH_INVALID);
  CHECK(library().supports("01_naive", nullptr, nullptr) == FLASH_INVALID);
}

TEST_CASE("errors belong to the thread that made them, and several threads may call at once") {
  CHECK(library().supports("no such", nullptr, nullptr) == FLASH_INVALID);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&failures, i] {
      failures += !std::string(library().last_error()).empty();
      for (int round = 0; round < 3; ++round) {
        Call call(small_problem());
        if (i == 0) call.c.head_dim = 63;
        failures += call.run(i % 2 == 0 ? "01_naive" : "02_online_softmax") != (i == 0 ? FLASH_INVALID : FLASH_OK);
        failures += std::string(library().last_error()).empty() != (i != 0);
        if (i != 0) failures += !call.failure(chapters()[std::size_t(i % 2)]).empty();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(contains(library().last_error(), "call is null"));
}

}  // namespace
}  // namespace flash::test
