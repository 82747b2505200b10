// Chapter 01: the bytes that naive attention should move.
//
// Compulsory: each tensor once. S and P have Nq·Nk elements of 2 bytes for each head and are each written and read:
// four trips, 8·Nq·Nk bytes, beside which the 2·(2·Nq + 2·Nk)·d bytes of Q, K, V and O are small. Causal: the kernels
// write all of S and P and read the half that the rows see.
//
// Requested, as the three kernels ask for it (sectors of 32 bytes):
//  scores   a warp computes one row against 32 keys. For each 8 columns it asks for 1 sector of Q (all lanes want the
//           same 16 bytes) and one sector of K for each visible key, of which it uses half. It writes 64 bytes of S.
//  softmax  reads the visible part of each row three times, writes the whole row once.
//  output   a warp computes 64 columns of one row: for each 8 keys 1 sector of P, for each key 128 bytes of V.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::naive {

inline std::vector<TensorRef> workspace(const Problem& p, const LaunchOptions&) {
  const std::int64_t cols = (p.seq_kv + 7) / 8 * 8;  // whole vectors of 16 bytes
  return {workspace_tensor("S", p.batch, p.heads, p.seq_q, cols, 2),
          workspace_tensor("P", p.batch, p.heads, p.seq_q, cols, 2)};
}

inline std::optional<Traffic> requested(const AttentionCall& call, const LaunchOptions& options) {
  if (options.variant == "cublas") return std::nullopt;
  const Problem& p = call.problem;
  const std::int64_t group = p.heads / p.kv_heads;
  const bool rows_share_sectors = call.k.row_stride * 2 < 32;  // K rows of 16 bytes, two in a sector
  std::int64_t q = 0, k = 0, v = 0, s_read = 0, s_written = 0, p_read = 0, p_written = 0, o = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      // Sectors of V's first n rows, in pieces of 64 columns: prefix sums.
      std::vector<std::int64_t> v_rows(std::size_t(p.seq_kv) + 1, 0);
      for (std::int64_t key = 0; key < p.seq_kv; ++key) {
        v_rows[std::size_t(key) + 1] = v_rows[std::size_t(key)] + chunked_row_sectors(call.v, batch, head / group, key);
      }
      for (std::int64_t row = 0; row < p.seq_q; ++row) {
        const std::int64_t visible = p.visible_keys(row);
        for (std::int64_t key = 0; key < p.seq_kv; key += 32) {
          const std::int64_t in_block = std::min<std::int64_t>(32, p.seq_kv - key);
          const std::int64_t active = std::clamp<std::int64_t>(visible - key, 0, in_block);
          if (active > 0) {
            q += p.head_dim / 8;
            if (rows_share_sectors) {
              k += sectors(byte_offset(call.k, batch, head / group, key, 0), 16 * active);
            } else {
              k += p.head_dim / 8 * active;
            }
          }
          s_written += sectors(key * 2, in_block * 2);
        }
        // A warp's 32 lanes take 8 keys each, so every 256 keys begin a new access; S rows start at a sector.
        s_read += 3 * sectors(0, (visible + 7) / 8 * 16);
        p_written += sectors(0, (p.seq_kv + 7) / 8 * 16);
        p_read += (p.head_dim + 63) / 64 * ((visible + 7) / 8);
        v += v_rows[std::size_t(visible)];
        o += chunked_row_sectors(call.o, batch, head, row);
      }
    }
  }
  Traffic traffic;
  traffic.add("Q", 32 * q, 0);
  traffic.add("K", 32 * k, 0);
  traffic.add("V", 32 * v, 0);
  traffic.add("S", 32 * s_read, 32 * s_written);
  traffic.add("P", 32 * p_read, 32 * p_written);
  traffic.add("O", 0, 32 * o);
  traffic.add("LSE", 0, 32 * p.batch * p.heads * p.seq_q);  // 4 bytes a row, each a store of its own
  return traffic;
}

inline Traffic compulsory(const AttentionCall& call, const LaunchOptions& options) {
  const Problem& p = call.problem;
  const std::int64_t elements = p.batch * p.heads * p.seq_q * workspace(p, options)[0].cols;
  std::int64_t visible = 0;  // elements that some row sees: of S and P the kernels read only these
  for (std::int64_t row = 0; row < p.seq_q; ++row) visible += p.batch * p.heads * p.visible_keys(row);
  const bool library = options.variant == "cublas";  // its product reads all of P
  Traffic traffic = compulsory_traffic(call, {});
  traffic.add("S", 2 * visible, 2 * elements);
  traffic.add("P", 2 * (library ? elements : visible), 2 * elements);
  return traffic;
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "naive attention: S and P go through HBM";
  chapter.variants = {{"simt", "three kernels, products thread by thread"},
                      {"cublas", "products by cuBLAS, softmax by a kernel: what frameworks did", true}};
  chapter.refusal = [](const Problem&, const LaunchOptions&) { return std::string(); };
  chapter.workspace = workspace;
  chapter.requested = requested;
  chapter.compulsory = compulsory;
  chapter.requested_formula =
      "b·h·Nq·Nk·(d/8·32·(1 + 1/32) [scores: K, Q] + 2·d [V] + 3·2 + 2 [S] + 2 + 32/8·ceil(d/64) [P]) + 2·b·h·Nq·d "
      "[O] + 32·b·h·Nq [LSE]";
  chapter.compulsory_formula =
      "b·h·8·Nq·Nk [S, P written and read; causal reads half] + 4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V] + 4·b·h·Nq "
      "[LSE]";
  chapter.lse_from_rounded_scores = true;
  return chapter;
}

}  // namespace flash::naive
