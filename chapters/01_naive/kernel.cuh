// Chapter 01, naive attention: S = scale·Q K^T, P = softmax(S), O = P V, one kernel each. S and P are [seq_q, seq_kv]
// for every head and go through HBM: S is written and read, P is written and read.
//
// Variants: `simt` computes the two products thread by thread; `cublas` hands them to the library, as frameworks did
// before fused attention, and keeps only the softmax kernel.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/kernel.hpp"

namespace flash::MACHINE::naive {

constexpr int Threads = 128;
constexpr int Warps = Threads / 32;

/// Where the calling warp works: `rows` numbers groups of Warps query rows, over all heads and batches.
struct Place {
  int batch, head, row;
  __device__ __forceinline__ Place(const AttentionShape& shape, int rows) {
    const int q_blocks = ceil_div(shape.seq_q, Warps);
    row = rows % q_blocks * Warps + int(threadIdx.x) / 32;
    batch = rows / q_blocks / shape.heads;
    head = rows / q_blocks % shape.heads;
  }
};

// -- S = scale·Q K^T: a warp computes one query row against 32 keys, a lane each

template <typename Element>
__global__ void __launch_bounds__(Threads) scores_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k,
                                                         GlobalTensor<Element> s, AttentionShape shape) {
  const int key_blocks = ceil_div(shape.seq_kv, 32);
  const Place at(shape, int(blockIdx.x) / key_blocks);
  const int row = at.row;
  const int key = int(blockIdx.x) % key_blocks * 32 + int(threadIdx.x) % 32;
  if (row >= shape.seq_q || key >= shape.seq_kv) return;

  const auto Q = q.head(at.batch, at.head);                            // [seq_q, head_dim]
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]
  const auto S = s.head(at.batch, at.head);                            // [seq_q, seq_kv]

  float score = -infinity();
  if (key < shape.visible_keys(row)) {
    float dot = 0.0f;
    for (int dim = 0; dim < shape.head_dim; dim += 8) {
      const auto q8 = load_vector<8>(Q, row, dim);
      const auto k8 = load_vector<8>(K, key, dim);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += to_float(q8[i]) * to_float(k8[i]);
    }
    score = shape.scale * dot;
  }
  S.store(row, key, from_float<Element>(score));
}

// -- P = softmax(S): a block for each row, three passes over it

struct SoftmaxStorage {
  SharedVector<float, Warps> of_warp;  // each warp's maximum or sum
  SHARED_MEMBERS(of_warp);
};

/// Combines the warps' values; `reduce` combines the lanes of a warp.
template <typename Reduce>
__device__ __forceinline__ float block_reduce(float value, float neutral, SoftmaxStorage& shared, Reduce reduce) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  value = reduce(value);
  __syncthreads();  // the values of the last reduction have been read
  if (lane == 0) shared.of_warp.store(warp, value);
  __syncthreads();
  return reduce(lane < Warps ? shared.of_warp.load(lane) : neutral);
}

template <typename Element>
__global__ void __launch_bounds__(Threads) softmax_kernel(GlobalTensor<const Element> s, GlobalTensor<Element> p,
                                                          GlobalTensor<float> lse, AttentionShape shape) {
  auto& shared = shared_storage<SoftmaxStorage>();
  const int row = int(blockIdx.x) % shape.seq_q;
  const int batch = int(blockIdx.x) / shape.seq_q / shape.heads, head = int(blockIdx.x) / shape.seq_q % shape.heads;
  const auto S = s.head(batch, head);  // [seq_q, seq_kv], rows padded to whole sectors
  const auto P = p.head(batch, head);  // the same shape
  const int visible = shape.visible_keys(row);
  const int first = 8 * int(threadIdx.x);

  float m = -infinity();
  for (int key = first; key < visible; key += 8 * Threads) {
    const auto s8 = load_vector<8>(S, row, key);
#pragma unroll
    for (int i = 0; i < 8; ++i) m = fmaxf(m, key + i < visible ? to_float(s8[i]) : -infinity());
  }
  m = block_reduce(m, -infinity(), shared, [](float value) { return warp_max(value); });
  if (m == -infinity()) m = 0.0f;  // nothing to attend to: every exponential below is 0

  float l = 0.0f;
  for (int key = first; key < visible; key += 8 * Threads) {
    const auto s8 = load_vector<8>(S, row, key);
#pragma unroll
    for (int i = 0; i < 8; ++i) l += key + i < visible ? exp_approx(to_float(s8[i]) - m) : 0.0f;
  }
  l = block_reduce(l, 0.0f, shared, [](float value) { return warp_sum(value); });
  const float normalizer = l == 0.0f ? 0.0f : 1.0f / l;

  for (int key = first; key < shape.seq_kv; key += 8 * Threads) {
    Vector<Element, 8> p8;
    if (key < visible) {
      const auto s8 = load_vector<8>(S, row, key);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        p8[i] = from_float<Element>(key + i < visible ? exp_approx(to_float(s8[i]) - m) * normalizer : 0.0f);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) p8[i] = from_float<Element>(0.0f);
    }
    P.store_vector(row, key, p8);
  }
  if (threadIdx.x == 0) lse.vector(batch, head).store(row, l == 0.0f ? -infinity() : m + log_approx(l));
}

// -- O = P V: a warp computes 64 columns of one row, two columns a lane

template <typename Element>
__global__ void __launch_bounds__(Threads) output_kernel(GlobalTensor<const Element> p, GlobalTensor<const Element> v,
                                                         GlobalTensor<Element> o, AttentionShape shape) {
  const int chunks = ceil_div(shape.head_dim, 64);
  const Place at(shape, int(blockIdx.x) / chunks);  // the chunks of a row run at the same time: P comes from HBM once
  const int row = at.row;
  const int dim = int(blockIdx.x) % chunks * 64 + int(threadIdx.x) % 32 * 2;
  if (row >= shape.seq_q || dim >= shape.head_dim) return;

  const auto P = p.head(at.batch, at.head);                            // [seq_q, seq_kv]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, head_dim]
  const auto O = o.head(at.batch, at.head);                            // [seq_q, head_dim]

  const int visible = shape.visible_keys(row);  // a key that the row does not see must not reach it, NaN least of all
  float sum[2] = {0.0f, 0.0f};
  for (int key = 0; key < visible; key += 8) {
    const auto p8 = load_vector<8>(P, row, key);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (key + i < visible) {
        const auto v2 = load_vector<2>(V, key + i, dim);
        sum[0] += to_float(p8[i]) * to_float(v2[0]);
        sum[1] += to_float(p8[i]) * to_float(v2[1]);
      }
    }
  }
  O.store_vector(row, dim, Vector<Element, 2>{from_float<Element>(sum[0]), from_float<Element>(sum[1])});
}

// -- Launch

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const AttentionShape shape(call.problem);
  const TensorRef &s = call.workspace[0], &p = call.workspace[1];
  const std::int64_t rows = call.problem.batch * call.problem.heads * shape.seq_q;
  const std::int64_t row_blocks = call.problem.batch * call.problem.heads * ceil_div(shape.seq_q, Warps);
  const bool library = options.variant == "cublas";

  if (library) {
    machine.batched_product(Product::q_times_k_transposed, shape.scale, call.q, call.k, s, call.problem);
  } else {
    machine.launch({"scores", {row_blocks * ceil_div(shape.seq_kv, 32)}, Threads}, scores_kernel<Element>,
                   GlobalTensor<const Element>(call.q), GlobalTensor<const Element>(call.k), GlobalTensor<Element>(s),
                   shape);
  }
  machine.launch({"softmax", {rows}, Threads, sizeof(SoftmaxStorage)}, softmax_kernel<Element>,
                 GlobalTensor<const Element>(s), GlobalTensor<Element>(p), GlobalTensor<float>(call.lse), shape);
  if (library) {
    machine.batched_product(Product::p_times_v, 1.0f, p, call.v, call.o, call.problem);
  } else {
    machine.launch({"output", {row_blocks * ceil_div(shape.head_dim, 64)}, Threads}, output_kernel<Element>,
                   GlobalTensor<const Element>(p), GlobalTensor<const Element>(call.v), GlobalTensor<Element>(call.o),
                   shape);
  }
}

}  // namespace flash::MACHINE::naive
