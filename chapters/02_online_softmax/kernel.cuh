// Chapter 02, online softmax: one pass over the keys with the recurrence of Milakov and Gimelshein (arXiv 1805.02867,
// algorithm 3), extended to the output as FlashAttention does. For each key with score s and value v:
//
//     m' = max(m, s)     l' = l·exp(m − m') + exp(s − m')     o' = o·exp(m − m') + exp(s − m')·v
//
// and O = o / l at the end. Nothing of size seq_q·seq_kv exists anywhere, but every row asks for all of K and V again.
//
// Variants: `online` as above; `safe` keeps the three passes of the textbook softmax (maximum, sum, output) and
// computes each score anew in each pass.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/kernel.hpp"

namespace flash::MACHINE::online_softmax {

constexpr int Threads = 128;
constexpr int Warps = Threads / 32;

/// One query row, spread over the lanes of a warp: lane i holds columns 64c + 2i and the next, for each chunk c.
template <typename Element, int Chunks>
struct Row {
  float value[Chunks][2];

  __device__ __forceinline__ static int column(int chunk) { return chunk * 64 + int(threadIdx.x) % 32 * 2; }

  __device__ __forceinline__ static Row zero() {
    Row row;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) row.value[c][0] = row.value[c][1] = 0.0f;
    return row;
  }

  /// Row `index` of a [rows, head_dim] matrix; columns past head_dim are 0.
  __device__ __forceinline__ static Row load(const GlobalMatrix<const Element>& matrix, int index) {
    Row row = zero();
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (column(c) < matrix.cols()) {
        const auto pair = load_vector<2>(matrix, index, column(c));
        row.value[c][0] = to_float(pair[0]);
        row.value[c][1] = to_float(pair[1]);
      }
    }
    return row;
  }

  __device__ __forceinline__ void store(const GlobalMatrix<Element>& matrix, int index, float factor) const {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (column(c) < matrix.cols()) {
        matrix.store_vector(
            index, column(c),
            Vector<Element, 2>{from_float<Element>(factor * value[c][0]), from_float<Element>(factor * value[c][1])});
      }
    }
  }

  /// The dot product with another row, in every lane.
  __device__ __forceinline__ float dot(const Row& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) sum += value[c][0] * other.value[c][0] + value[c][1] * other.value[c][1];
    return warp_sum(sum);
  }

  /// this = factor·this + weight·other
  __device__ __forceinline__ void scale_and_add(float factor, float weight, const Row& other) {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      value[c][0] = factor * value[c][0] + weight * other.value[c][0];
      value[c][1] = factor * value[c][1] + weight * other.value[c][1];
    }
  }
};

/// Where the calling warp works: warps take one query row each.
struct Place {
  int batch, head, row;
  __device__ __forceinline__ explicit Place(const AttentionShape& shape) {
    const int q_blocks = ceil_div(shape.seq_q, Warps);
    row = int(blockIdx.x % q_blocks) * Warps + int(threadIdx.x) / 32;
    batch = int(blockIdx.x / q_blocks) / shape.heads;
    head = int(blockIdx.x / q_blocks) % shape.heads;
  }
};

/// scale·q·k, in every lane. Rounded as the maximum of such scores is: were the product fused with the subtraction of
/// the maximum, that would leave the rounding error of the maximum, which grows with the scores and is then
/// exponentiated.
template <typename Values>
__device__ __forceinline__ float score(const AttentionShape& shape, const Values& query, const Values& key) {
  return multiply_rounded(query.dot(key), shape.scale);
}

/// A maximum that can be subtracted: −inf (every score so far was −inf) would give NaN, 0 gives exponentials of 0.
__device__ __forceinline__ float finite_maximum(float m) { return m == -infinity() ? 0.0f : m; }

// -- One pass

template <typename Element, int Chunks>
__global__ void __launch_bounds__(Threads)
    online_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
                  GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape) {
  using Values = Row<Element, Chunks>;
  const Place at(shape);
  if (at.row >= shape.seq_q) return;                                   // the whole warp
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]

  const Values query = Values::load(q.head(at.batch, at.head), at.row);
  Values output = Values::zero();
  float m = -infinity(), l = 0.0f;
  const int visible = shape.visible_keys(at.row);
  for (int key = 0; key < visible; ++key) {
    const float s = score(shape, query, Values::load(K, key));
    const float m_new = fmaxf(m, s);
    const float rescale = exp_approx(m - finite_maximum(m_new));
    const float p = exp_approx(s - finite_maximum(m_new));
    l = l * rescale + p;
    output.scale_and_add(rescale, p, Values::load(V, key));
    m = m_new;
  }
  output.store(o.head(at.batch, at.head), at.row, l == 0.0f ? 0.0f : 1.0f / l);
  if (threadIdx.x % 32 == 0) {
    lse.vector(at.batch, at.head).store(at.row, l == 0.0f ? -infinity() : finite_maximum(m) + log_approx(l));
  }
}

// -- Three passes

template <typename Element, int Chunks>
__global__ void __launch_bounds__(Threads)
    safe_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
                GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape) {
  using Values = Row<Element, Chunks>;
  const Place at(shape);
  if (at.row >= shape.seq_q) return;
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]

  const Values query = Values::load(q.head(at.batch, at.head), at.row);
  const int visible = shape.visible_keys(at.row);

  float m = -infinity();
  for (int key = 0; key < visible; ++key) m = fmaxf(m, score(shape, query, Values::load(K, key)));

  float l = 0.0f;
  for (int key = 0; key < visible; ++key) {
    l += exp_approx(score(shape, query, Values::load(K, key)) - finite_maximum(m));
  }

  Values output = Values::zero();
  for (int key = 0; key < visible; ++key) {
    const float p = exp_approx(score(shape, query, Values::load(K, key)) - finite_maximum(m));
    output.scale_and_add(1.0f, p, Values::load(V, key));
  }
  output.store(o.head(at.batch, at.head), at.row, l == 0.0f ? 0.0f : 1.0f / l);
  if (threadIdx.x % 32 == 0) {
    lse.vector(at.batch, at.head).store(at.row, l == 0.0f ? -infinity() : finite_maximum(m) + log_approx(l));
  }
}

// -- Launch

template <typename Element, int Chunks>
void launch_chunks(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const AttentionShape shape(call.problem);
  const bool online = options.variant == "online";
  machine.launch(
      {online ? "online" : "safe", {call.problem.batch * call.problem.heads * ceil_div(shape.seq_q, Warps)}, Threads},
      online ? online_kernel<Element, Chunks> : safe_kernel<Element, Chunks>, GlobalTensor<const Element>(call.q),
      GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v), GlobalTensor<Element>(call.o),
      GlobalTensor<float>(call.lse), shape);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const std::int64_t head_dim = call.problem.head_dim;
  if (head_dim <= 64) return launch_chunks<Element, 1>(call, options, machine);
  if (head_dim <= 128) return launch_chunks<Element, 2>(call, options, machine);
  if (head_dim <= 256) return launch_chunks<Element, 4>(call, options, machine);
  launch_chunks<Element, 8>(call, options, machine);  // up to 512: traffic.hpp refuses more
}

}  // namespace flash::MACHINE::online_softmax
