// The partitioning of FlashAttention-1, for comparison (arXiv 2307.08691, section 3.3, figure 3 left): the warps of a
// block split the keys of each tile, not the query rows. Each warp has scores of all BlockQ rows against its own keys;
// the maximum, the sum and O of a row are in pieces, one in each warp, and meet in shared memory for every tile. Tiles,
// copies and swizzle are those of split-q, so the difference in time is the exchange's (and that of the room it takes:
// at d = 128 one block fits on an SM instead of two).
#pragma once

namespace flash::MACHINE::fa2_warp_partitioning {

template <typename C>
struct SplitKStorage {
  Storage<C> tiles;
  SharedTile<float, C::BlockQ, 16, Padded32> O[C::Warps];  // each warp's part of 16 columns of O
  SharedVector<float, C::BlockQ> m_of_warp[C::Warps], l_of_warp[C::Warps];
  SharedVector<float, C::BlockQ> m;
};

template <typename C>
__global__ void __launch_bounds__(C::Threads)
    split_k_kernel(GlobalTensor<const typename C::Element> q, GlobalTensor<const typename C::Element> k,
                   GlobalTensor<const typename C::Element> v, GlobalTensor<typename C::Element> o,
                   GlobalTensor<float> lse, AttentionShape shape, int q_blocks, int heads_at_once) {
  using Element = typename C::Element;
  constexpr int AllRowTiles = C::BlockQ / 16, WarpKeys = C::BlockKV / C::Warps;
  static_assert(WarpKeys == 16, "each warp's keys are the 16 that one mma of the second product sums over");

  SplitKStorage<C>& shared = shared_storage<SplitKStorage<C>>();
  auto& tiles = shared.tiles;
  const Place at(int(blockIdx.x), shape, q_blocks, heads_at_once);
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const int first_row = at.q_block * C::BlockQ;
  const int warp_index = int(threadIdx.x / 32);
  const int warp_row = warp_index * C::WarpRows;  // the rows whose sum this warp collects
  const int warp_key = warp_index * WarpKeys;     // within a tile
  const float scale_log2 = shape.scale * Log2E;
  const int kv_blocks = ceil_div(shape.visible_keys(first_row + C::BlockQ - 1), C::BlockKV);
  const int full_kv_blocks = shape.visible_keys(first_row) / C::BlockKV;
  const int first_row_sees = shape.causal ? first_row + 1 + shape.seq_kv - shape.seq_q : shape.seq_kv;

  WarpState<C> warp;  // of this warp's rows: complete sums
  warp.clear();
  if (threadIdx.x < C::BlockQ) shared.m.store(int(threadIdx.x), NothingSeen);
  static_assert(C::BlockQ <= C::Threads, "one thread for each row");
  copy_async<C::Warps, false>(warp_index, tiles.Q, q.head(at.batch, at.head), first_row);
  if (kv_blocks > 0) {
    copy_async<C::Warps, false>(warp_index, tiles.K[0], K, (kv_blocks - 1) * C::BlockKV);
    copy_async<C::Warps, false>(warp_index, tiles.V[0], V, (kv_blocks - 1) * C::BlockKV);
  }
  cp_async_commit();

  int stage = 0;
  for (int kv_block = kv_blocks - 1; kv_block >= 0; --kv_block, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();
    if (kv_block > 0) {
      copy_async<C::Warps, true>(warp_index, tiles.K[stage ^ 1], K, (kv_block - 1) * C::BlockKV);
      copy_async<C::Warps, true>(warp_index, tiles.V[stage ^ 1], V, (kv_block - 1) * C::BlockKV);
      cp_async_commit();
    }

    // Scores of all rows against this warp's keys
    Accumulator S[AllRowTiles][2];  // [BlockQ, WarpKeys]
#pragma unroll
    for (int r = 0; r < AllRowTiles; ++r) S[r][0].clear(), S[r][1].clear();
#pragma unroll
    for (int d = 0; d < C::HeadDim / 16; ++d) {
      const FragmentB2 keys = load_b_transposed(tiles.K[stage], 0, d * 16, warp_key);
#pragma unroll
      for (int r = 0; r < AllRowTiles; ++r) multiply_add<Element>(S[r], load_a(tiles.Q, r * 16, d * 16), keys);
    }
    if (kv_block >= full_kv_blocks) {
      const int first_key = kv_block * C::BlockKV + warp_key;
      mask_scores(S, first_row_sees - first_key, shape.seq_kv - first_key);
    }

    // Exchange of the maxima
#pragma unroll
    for (int r = 0; r < AllRowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* s[2] = {&S[r][0].value[2 * h], &S[r][1].value[2 * h]};
        const float largest = quad_max(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]))) * scale_log2;
        if (Accumulator::column(0) == 0) {
          shared.m_of_warp[warp_index].store(r * 16 + Accumulator::row(h), largest);
        }
      }
    }
    __syncthreads();

    // P, and exchange of the sums
    const auto new_maximum = [&](int row, float m) {
#pragma unroll
      for (int w = 0; w < C::Warps; ++w) m = fmaxf(m, shared.m_of_warp[w].load(row));
      return m;
    };
    FragmentA P[AllRowTiles];
#pragma unroll
    for (int r = 0; r < AllRowTiles; ++r) {
      float m[2], l[2] = {0.0f, 0.0f};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = r * 16 + Accumulator::row(h);
        m[h] = new_maximum(row, shared.m.load(row));
      }
      P[r] = exponentiate<C>(S[r], m, l, scale_log2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(l[h]);
        if (Accumulator::column(0) == 0) shared.l_of_warp[warp_index].store(r * 16 + Accumulator::row(h), sum);
      }
    }

    // O in parts of 16 columns: each warp's keys for all rows, then all warps' keys for this warp's rows
#pragma unroll
    for (int n = 0; n < C::HeadDim / 16; ++n) {
      const FragmentB2 values = load_b(tiles.V[stage], 0, n * 16, warp_key);
#pragma unroll
      for (int r = 0; r < AllRowTiles; ++r) {
        Accumulator part[2];
        part[0].clear(), part[1].clear();
        multiply_add<Element>(part, P[r], values);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* sums = &part[i / 2].value[i % 2 * 2];
          shared.O[warp_index].store_vector(r * 16 + Accumulator::row(i % 2), i / 2 * 8 + Accumulator::column(0),
                                            Vector<float, 2>{sums[0], sums[1]});
        }
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = warp_row + r * 16 + Accumulator::row(h);
          if (n == 0) {
            const float m = new_maximum(row, warp.m[r][h]), factor = exp2_approx(warp.m[r][h] - m);
            warp.m[r][h] = m;
            warp.l[r][h] *= factor;
#pragma unroll
            for (int w = 0; w < C::Warps; ++w) warp.l[r][h] += shared.l_of_warp[w].load(row);
            if (Accumulator::column(0) == 0) shared.m.store(row, m);
#pragma unroll
            for (int c = 0; c < C::HeadDim / 8; ++c) warp.O[r][c].scale_row(h, factor);
          }
#pragma unroll
          for (int w = 0; w < C::Warps; ++w) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const auto sums = load_vector<2>(shared.O[w], row, i * 8 + Accumulator::column(0));
              warp.O[r][2 * n + i].value[2 * h] += sums[0];
              warp.O[r][2 * n + i].value[2 * h + 1] += sums[1];
            }
          }
        }
      }
      __syncthreads();  // the parts have been read
    }
  }

  cp_async_wait<0>();
  __syncthreads();
  // write_output adds up the lanes of a quad, each of which has the whole sum here.
#pragma unroll
  for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) warp.l[r][h] *= 0.25f;
  }
  write_output<C>(warp, tiles.Q, warp_row, o.head(at.batch, at.head), lse.vector(at.batch, at.head), first_row);
}

}  // namespace flash::MACHINE::fa2_warp_partitioning
