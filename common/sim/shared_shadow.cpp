#include "common/sim/shared_shadow.hpp"

#include <algorithm>
#include <bit>

namespace flash::sim {

void SharedShadow::begin_block(int bytes, int warps) {
  const std::size_t count = std::size_t(bytes + kPiece - 1) / kPiece;
  // Times before block_start_ count as "never", so nothing needs clearing from one block to the next.
  if (now_ > (Stamp(1) << 31)) {
    now_ = 1;
    pieces_.assign(pieces_.size(), {});
    readers_.assign(readers_.size(), {});
    some_lanes_ordered_.assign(some_lanes_ordered_.size(), 0);
  }
  if (pieces_.size() < count) pieces_.resize(count);
  if (readers_.size() < count * std::size_t(warps)) readers_.resize(count * std::size_t(warps));
  warps_ = warps;
  block_start_ = ++now_;
  std::fill(std::begin(clocks_), std::end(clocks_), Clock{});
  std::fill(std::begin(lanes_ordered_), std::end(lanes_ordered_), Stamp(0));
  std::fill(std::begin(some_ordered_), std::end(some_ordered_), false);
}

std::uint32_t SharedShadow::unordered_lanes(int thread, std::uint32_t lanes, Stamp when) const {
  lanes &= ~(1u << thread % 32);  // its own accesses are in program order
  if (lanes == 0 || lanes_ordered_[thread / 32] > when) return 0;
  if (some_ordered_[thread / 32]) {
    const Stamp* known = &some_lanes_ordered_[std::size_t(thread) * 32];
    for (int lane = 0; lane < 32; ++lane) {
      if (known[lane] > when) lanes &= ~(1u << lane);
    }
  }
  return lanes;
}

bool SharedShadow::ordered(int thread, int earlier_thread, Stamp when) const {
  const int warp = thread / 32, earlier_warp = earlier_thread / 32;
  if (warp == earlier_warp) return unordered_lanes(thread, 1u << earlier_thread % 32, when) == 0;
  return clocks_[warp].of_warp[earlier_warp] > when;
}

void SharedShadow::add_reader(Piece& piece, std::size_t index, int thread) {
  Readers* of_warp = &readers_[index * std::size_t(warps_)];
  if (!piece.several_readers) {
    std::fill(of_warp, of_warp + warps_, Readers{});
    of_warp[piece.reader / 32] = {piece.read, 1u << piece.reader % 32};
    piece.several_readers = 1;
  }
  Readers& mine = of_warp[thread / 32];
  mine.lanes = unordered_lanes(thread, mine.lanes, mine.when) | 1u << thread % 32;
  mine.when = now_;
}

Conflict SharedShadow::on_read(int thread, int offset, int bytes, SiteId site) {
  const int end = offset + bytes;
  for (int at = offset / kPiece * kPiece; at < end; at += kPiece) {
    const std::size_t index = std::size_t(at / kPiece);
    Piece& piece = pieces_[index];
    if (piece.written < block_start_) return {Conflict::unwritten, thread, 0, at};
    if (piece.copier != 0) return {Conflict::copy_in_flight, piece.copier - 1, piece.write_site, at};
    if (!ordered(thread, piece.writer, piece.written)) {
      return {Conflict::race_with_write, piece.writer, piece.write_site, at};
    }
    // One reader stands for all where each read comes after the one before it.
    const bool first = piece.read == 0;
    if (!first && (piece.several_readers || !ordered(thread, piece.reader, piece.read))) {
      add_reader(piece, index, thread);
    }
    piece.read = now_;
    piece.reader = std::uint16_t(thread);
    piece.read_site = site;
  }
  return {};
}

Conflict SharedShadow::check_write(const Piece& piece, std::size_t index, int thread, int offset) const {
  if (piece.written < block_start_) return {};
  if (piece.copier != 0) return {Conflict::copy_in_flight, piece.copier - 1, piece.write_site, offset};
  if (!ordered(thread, piece.writer, piece.written)) {
    return {Conflict::race_with_write, piece.writer, piece.write_site, offset};
  }
  if (piece.read == 0) return {};
  if (!piece.several_readers) {
    if (ordered(thread, piece.reader, piece.read)) return {};
    return {Conflict::race_with_read, piece.reader, piece.read_site, offset};
  }
  const int warp = thread / 32;
  for (int other = 0; other < warps_; ++other) {
    const Readers& readers = readers_[index * std::size_t(warps_) + std::size_t(other)];
    if (readers.lanes == 0) continue;
    std::uint32_t unordered = readers.lanes;
    if (other == warp) {
      unordered = unordered_lanes(thread, readers.lanes, readers.when);
    } else if (clocks_[warp].of_warp[other] > readers.when) {
      unordered = 0;
    }
    if (unordered == 0) continue;
    const bool last = piece.reader / 32 == other && (unordered >> piece.reader % 32 & 1u);
    return {Conflict::race_with_read, last ? piece.reader : other * 32 + std::countr_zero(unordered), piece.read_site,
            offset};
  }
  return {};
}

Conflict SharedShadow::on_write(int thread, int offset, int bytes, SiteId site) {
  const int end = offset + bytes;
  for (int at = offset / kPiece * kPiece; at < end; at += kPiece) {
    const std::size_t index = std::size_t(at / kPiece);
    Piece& piece = pieces_[index];
    if (const Conflict conflict = check_write(piece, index, thread, at); conflict.kind != Conflict::none) {
      return conflict;
    }
    piece = {now_, std::uint16_t(thread), site, 0, 0, 0, 0, 0};
  }
  return {};
}

Conflict SharedShadow::begin_copy(int thread, int offset, int bytes, SiteId site) {
  if (const Conflict conflict = on_write(thread, offset, bytes, site); conflict.kind != Conflict::none) return conflict;
  for (int at = offset / kPiece * kPiece; at < offset + bytes; at += kPiece) {
    pieces_[std::size_t(at / kPiece)].copier = std::uint16_t(thread + 1);
  }
  return {};
}

void SharedShadow::end_copy(int thread, int offset, int bytes, SiteId site) {
  for (int at = offset / kPiece * kPiece; at < offset + bytes; at += kPiece) {
    pieces_[std::size_t(at / kPiece)] = {now_, std::uint16_t(thread), site, 0, 0, 0, 0, 0};
  }
}

void SharedShadow::release(int warp, Clock& into) {
  for (int other = 0; other < warps_; ++other) {
    into.of_warp[other] = std::max(into.of_warp[other], clocks_[warp].of_warp[other]);
  }
  into.of_warp[warp] = ++now_;
}

void SharedShadow::acquire(int warp, const Clock& from) {
  for (int other = 0; other < warps_; ++other) {
    clocks_[warp].of_warp[other] = std::max(clocks_[warp].of_warp[other], from.of_warp[other]);
  }
}

void SharedShadow::order_lanes(int warp) { lanes_ordered_[warp] = ++now_; }

void SharedShadow::order_some_lanes(int warp, std::uint32_t mask) {
  ++now_;
  if (some_lanes_ordered_.empty()) some_lanes_ordered_.resize(std::size_t(kMaxWarps) * 32 * 32);
  Stamp* const of_warp = &some_lanes_ordered_[std::size_t(warp) * 32 * 32];
  if (!some_ordered_[warp]) std::fill(of_warp, of_warp + 32 * 32, Stamp(0));
  some_ordered_[warp] = true;
  // What one lane of the mask knew, each knows now.
  Stamp known[32] = {};
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    for (int other = 0; other < 32; ++other) known[other] = std::max(known[other], of_warp[lane * 32 + other]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) known[lane] = now_;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) std::copy(known, known + 32, of_warp + lane * 32);
  }
}

}  // namespace flash::sim
