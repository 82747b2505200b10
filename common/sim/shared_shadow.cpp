#include "common/sim/shared_shadow.hpp"

#include <algorithm>

namespace flash::sim {

void SharedShadow::begin_block(int bytes, int warps) {
  const std::size_t count = std::size_t(bytes + kPiece - 1) / kPiece;
  // Times before block_start_ count as "never", so nothing needs clearing from one block to the next.
  if (now_ > (Stamp(1) << 31)) {
    now_ = 1;
    pieces_.assign(pieces_.size(), {});
    reads_of_.assign(reads_of_.size(), 0);
  }
  if (pieces_.size() < count) pieces_.resize(count);
  if (reads_of_.size() < count * kMaxWarps && warps > 1) reads_of_.resize(count * kMaxWarps);
  warps_ = warps;
  block_start_ = ++now_;
  std::fill(std::begin(clocks_), std::end(clocks_), Clock{});
  std::fill(std::begin(lanes_ordered_), std::end(lanes_ordered_), Stamp(0));
}

bool SharedShadow::ordered(int thread, int earlier_thread, Stamp when) const {
  if (thread == earlier_thread) return true;
  const int warp = thread / 32, earlier_warp = earlier_thread / 32;
  if (warp == earlier_warp) return lanes_ordered_[warp] > when;
  return clocks_[warp].of_warp[earlier_warp] > when;
}

Conflict SharedShadow::on_read(int thread, int offset, int bytes, SiteId site) {
  const int end = offset + bytes;
  for (int at = offset / kPiece * kPiece; at < end; at += kPiece) {
    const std::size_t index = std::size_t(at / kPiece);
    Piece& piece = pieces_[index];
    if (piece.copier != 0 && piece.written >= block_start_) {
      return {Conflict::copy_in_flight, piece.copier - 1, piece.write_site, at};
    }
    if (piece.written < block_start_) return {Conflict::unwritten, thread, 0, at};
    if (!ordered(thread, piece.writer, piece.written)) {
      return {Conflict::race_with_write, piece.writer, piece.write_site, at};
    }
    const bool first = piece.read < piece.written;
    if (first || piece.reader == thread || (!piece.several_readers && ordered(thread, piece.reader, piece.read))) {
      if (first) piece.several_readers = 0;
      if (piece.several_readers) reads_of_[index * kMaxWarps + std::size_t(thread / 32)] = now_;
      piece.read = now_;
      piece.reader = std::uint16_t(thread);
      piece.read_site = site;
      continue;
    }
    // Readers that are not ordered among each other: keep the last read of each warp.
    Stamp* reads = &reads_of_[0];
    if (warps_ > 1) {
      reads += index * kMaxWarps;
      if (!piece.several_readers) {
        std::fill(reads, reads + warps_, Stamp(0));
        reads[piece.reader / 32] = piece.read;
      }
      reads[thread / 32] = now_;
    }
    piece.several_readers = 1;
    piece.read = now_;
    piece.reader = std::uint16_t(thread);
    piece.read_site = site;
  }
  return {};
}

Conflict SharedShadow::check_write(Piece& piece, std::size_t index, int thread, int offset) {
  if (piece.written < block_start_) return {};
  if (piece.copier != 0) return {Conflict::copy_in_flight, piece.copier - 1, piece.write_site, offset};
  if (!ordered(thread, piece.writer, piece.written)) {
    return {Conflict::race_with_write, piece.writer, piece.write_site, offset};
  }
  if (piece.read < piece.written) return {};
  if (!piece.several_readers) {
    if (ordered(thread, piece.reader, piece.read)) return {};
    return {Conflict::race_with_read, piece.reader, piece.read_site, offset};
  }
  const int warp = thread / 32;
  for (int other = 0; other < warps_; ++other) {
    const Stamp when = warps_ > 1 ? reads_of_[index * kMaxWarps + std::size_t(other)] : piece.read;
    // Several lanes of one warp read: the writer must be ordered after all of them, itself included.
    const Stamp known = other == warp ? lanes_ordered_[warp] : clocks_[warp].of_warp[other];
    if (when >= piece.written && known <= when) {
      const bool last = piece.reader / 32 == other;
      return {Conflict::race_with_read, last ? piece.reader : other * 32, piece.read_site, offset};
    }
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

}  // namespace flash::sim
