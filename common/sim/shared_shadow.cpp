#include "common/sim/shared_shadow.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace flash::sim {

// -- Clocks

Stamp Clock::of(int thread) const {
  Stamp known = of_warp_[thread / 32];
  for (const Lanes& lanes : single_) {
    if (lanes.warp == thread / 32) known = std::max(known, lanes.of_lane[thread % 32]);
  }
  return known;
}

Clock::Lanes& Clock::lanes_of(int warp) {
  for (Lanes& lanes : single_) {
    if (lanes.warp == warp) return lanes;
  }
  return single_.emplace_back(Lanes{warp, {}});
}

void Clock::tidy() {
  std::erase_if(single_, [&](const Lanes& lanes) {
    const auto [least, most] = std::minmax_element(std::begin(lanes.of_lane), std::end(lanes.of_lane));
    of_warp_[lanes.warp] = std::max(of_warp_[lanes.warp], *least);
    return *most <= of_warp_[lanes.warp];
  });
}

void Clock::join(const Clock& other) {
  for (int warp = 0; warp < kClockWarps; ++warp) of_warp_[warp] = std::max(of_warp_[warp], other.of_warp_[warp]);
  for (const Lanes& theirs : other.single_) {
    Lanes& mine = lanes_of(theirs.warp);
    for (int lane = 0; lane < 32; ++lane) mine.of_lane[lane] = std::max(mine.of_lane[lane], theirs.of_lane[lane]);
  }
  if (!single_.empty()) tidy();
}

void Clock::raise_warp(int warp, Stamp to) {
  of_warp_[warp] = std::max(of_warp_[warp], to);
  if (!single_.empty()) tidy();
}

void Clock::raise_thread(int thread, Stamp to) {
  Stamp& known = lanes_of(thread / 32).of_lane[thread % 32];
  known = std::max(known, to);
  tidy();
}

void Clock::raise_lanes(int warp, std::uint32_t lanes, Stamp to) {
  Lanes& known = lanes_of(warp);
  for (; lanes != 0; lanes &= lanes - 1) {
    Stamp& of_lane = known.of_lane[std::countr_zero(lanes)];
    of_lane = std::max(of_lane, to);
  }
  tidy();
}

// -- Order

void SharedShadow::begin_block(int bytes, int threads) {
  const std::size_t count = std::size_t(bytes + kGranule - 1) / kGranule;
  // Times before block_start_ count as "never", so nothing needs clearing from one block to the next.
  if (now_ > (Stamp(1) << 31)) {
    now_ = 1;
    granules_.clear();
    splits_.clear();
  }
  if (granules_.size() < count) granules_.resize(count);
  free_lists_.resize(access_lists_.size());
  for (std::size_t i = 0; i < free_lists_.size(); ++i) free_lists_[i] = std::uint32_t(i);
  threads_ = threads;
  block_start_ = ++now_;
  proxy_fences_.clear();
  for (int warp = 0; warp * 32 < threads; ++warp) {
    clocks_[warp] = {};
    own_clock_[warp] = 0;
    single_lanes_[warp] = false;
  }
}

bool SharedShadow::known_for_longer(int thread, int earlier_thread, Stamp when) const {
  const int warp = thread / 32;
  if (clocks_[warp].of(earlier_thread) > when) return true;
  return (own_clock_[warp] >> thread % 32 & 1u) && lane_clocks_[std::size_t(thread)].of(earlier_thread) > when;
}

std::uint32_t SharedShadow::unordered_lanes(int thread, const Accesses& accesses) const {
  if (clocks_[thread / 32].of_warp(accesses.warp) > accesses.when) return 0;
  std::uint32_t lanes = accesses.lanes;
  if (accesses.warp == thread / 32) lanes &= ~(1u << thread % 32);  // its own accesses are in program order
  if (!single_lanes_[thread / 32]) return lanes;
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (known_for_longer(thread, accesses.warp * 32 + lane, accesses.when)) lanes &= ~(1u << lane);
  }
  return lanes;
}

void SharedShadow::release(int warp, std::uint32_t lanes, Clock& into) {
  into.join(clocks_[warp]);
  for (std::uint32_t left = lanes & own_clock_[warp]; left != 0; left &= left - 1) {
    into.join(lane_clocks_[std::size_t(warp * 32 + std::countr_zero(left))]);
  }
  ++now_;
  if (const std::uint32_t all = lanes_of_warp(warp); (lanes & all) == all) {
    into.raise_warp(warp, now_);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) into.raise_thread(warp * 32 + std::countr_zero(lanes), now_);
  }
}

void SharedShadow::acquire(int warp, std::uint32_t lanes, const Clock& from) {
  if (const std::uint32_t all = lanes_of_warp(warp); (lanes & all) == all) {
    clocks_[warp].join(from);
    single_lanes_[warp] |= clocks_[warp].knows_single_lanes();
    return;
  }
  if (lane_clocks_.size() < std::size_t(threads_)) lane_clocks_.resize(std::size_t(threads_));
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    Clock& clock = lane_clocks_[std::size_t(warp * 32 + lane)];
    if (!(own_clock_[warp] >> lane & 1u)) clock = {};
    own_clock_[warp] |= 1u << lane;
    clock.join(from);
  }
  single_lanes_[warp] = true;
}

void SharedShadow::order_lanes(int warp, std::uint32_t lanes) {
  if (const std::uint32_t all = lanes_of_warp(warp); (lanes & all) != all) {
    Clock clock;
    release(warp, lanes, clock);
    acquire(warp, lanes, clock);
    return;
  }
  // From now on all know the same.
  for (std::uint32_t left = own_clock_[warp]; left != 0; left &= left - 1) {
    clocks_[warp].join(lane_clocks_[std::size_t(warp * 32 + std::countr_zero(left))]);
  }
  own_clock_[warp] = 0;
  clocks_[warp].raise_warp(warp, ++now_);
  single_lanes_[warp] = clocks_[warp].knows_single_lanes();
}

// -- Records

template <typename Visit>
Conflict SharedShadow::each_record(int offset, int bytes, Visit visit) {
  for (const int end = offset + bytes; offset < end;) {
    Granule& granule = granules_[std::size_t(offset / kGranule)];
    const int first = offset % kGranule, last = std::min(kGranule, first + end - offset);
    const int width = std::countr_zero(unsigned(first | last));  // log2 of the pieces that the access consists of
    if (granule.level > width) split(granule, width);
    if (granule.level == kWhole) {
      if (const Conflict conflict = visit(granule.whole, offset, kGranule); conflict.kind != Conflict::none) {
        return conflict;
      }
    } else {
      const int step = 1 << granule.level;
      for (int i = first; i < last; i += step) {
        Record& record = splits_[granule.split - 1].records[i];
        if (const Conflict conflict = visit(record, offset + i - first, step); conflict.kind != Conflict::none) {
          return conflict;
        }
      }
    }
    offset += last - first;
  }
  return {};
}

void SharedShadow::split(Granule& granule, int level) {
  if (granule.split == 0) {
    splits_.emplace_back();
    granule.split = std::uint32_t(splits_.size());
  }
  Record* const records = splits_[granule.split - 1].records;
  if (granule.level == kWhole) records[0] = granule.whole;
  const int step = 1 << level;
  for (int from = 0; from < kGranule; from += 1 << granule.level) {
    for (int i = from + step; i < from + (1 << granule.level); i += step) {
      Record& copy = records[i] = records[from];
      if (copy.written < block_start_ || copy.accesses == 0) continue;
      const std::uint32_t source = copy.accesses - 1;
      copy.accesses = 0;
      std::vector<Accesses>& list = list_of(copy);
      list = access_lists_[source];
    }
  }
  granule.level = level;
}

std::vector<SharedShadow::Accesses>& SharedShadow::list_of(Record& record) {
  if (record.accesses == 0) {
    if (free_lists_.empty()) {
      free_lists_.push_back(std::uint32_t(access_lists_.size()));
      access_lists_.emplace_back();
    }
    record.accesses = free_lists_.back() + 1;
    free_lists_.pop_back();
    access_lists_[record.accesses - 1].clear();
  }
  return access_lists_[record.accesses - 1];
}

void SharedShadow::forget_accesses(Record& record) {
  if (record.accesses != 0 && record.written >= block_start_) free_lists_.push_back(record.accesses - 1);
  record.accesses = 0;
}

void SharedShadow::add_reader(Record& record, int thread, SiteId site) {
  const bool had_one = record.accesses == 0 && record.read != 0;
  std::vector<Accesses>& list = list_of(record);
  if (had_one) {
    list.push_back({record.read, 1u << record.reader % 32, std::uint16_t(record.reader / 32), record.read_site, false});
  }
  const std::uint32_t bit = 1u << thread % 32;
  const auto warp = std::uint16_t(thread / 32);
  bool joined = false, emptied = false;
  for (Accesses& other : list) {
    if (other.warp != warp || other.wrote) continue;
    if (other.when == now_ && other.site == site) {
      other.lanes |= bit;
      joined = true;
    } else {  // what comes after this read comes after the thread's earlier ones
      other.lanes &= ~bit;
      emptied |= other.lanes == 0;
    }
  }
  if (joined && !emptied) return;
  std::erase_if(list, [&](Accesses& other) {
    // So it does after those that come before this read. Writes stay: the next reader must come after them too.
    if (!joined && !other.wrote) other.lanes = unordered_lanes(thread, other);
    return other.lanes == 0;
  });
  if (!joined) list.push_back({now_, bit, warp, site, false});
}

Conflict SharedShadow::on_read(int thread, int offset, int bytes, SiteId site) {
  return each_record(offset, bytes, [&](Record& record, int at, int) -> Conflict {
    if (record.written < block_start_) return {Conflict::unwritten, thread, 0, at};
    if (record.copier != 0) return {Conflict::copy_in_flight, record.copier - 1, record.write_site, at};
    if (!ordered(thread, record.writer, record.written)) {
      return {Conflict::race_with_write, record.writer, record.write_site, at};
    }
    if (record.accesses != 0) {  // who wrote the same as the last writer, wrote too
      for (const Accesses& accesses : access_lists_[record.accesses - 1]) {
        const std::uint32_t lanes = accesses.wrote ? unordered_lanes(thread, accesses) : 0;
        if (lanes != 0) {
          return {Conflict::race_with_write, accesses.warp * 32 + std::countr_zero(lanes), accesses.site, at};
        }
      }
    }
    // One reader stands for all where each read comes after the one before it.
    if (record.accesses != 0 || (record.read != 0 && !ordered(thread, record.reader, record.read))) {
      add_reader(record, thread, site);
    } else {
      record.read = now_;
      record.reader = std::uint16_t(thread);
      record.read_site = site;
    }
    return {};
  });
}

Conflict SharedShadow::check_write(const Record& record, int at, int bytes, const Writing& writing,
                                   bool& repeats) const {
  const int thread = writing.thread;
  repeats = false;
  if (record.written < block_start_) return {};
  if (record.copier != 0) return {Conflict::copy_in_flight, record.copier - 1, record.write_site, at};
  if (record.operand != 0) return {Conflict::operand_in_use, thread, writing.site, at};
  const auto repeated = [&](int warp, SiteId site) {
    const int begin = at - writing.offset;
    return writing.values != nullptr && warp == thread / 32 && site == writing.site &&
           std::memcmp(writing.memory + begin, writing.values + begin, std::size_t(bytes)) == 0;
  };
  if (!ordered(thread, record.writer, record.written)) {
    repeats = repeated(record.writer / 32, record.write_site);
    if (!repeats) return {Conflict::race_with_write, record.writer, record.write_site, at};
  }
  if (record.accesses == 0) {
    if (record.read == 0 || ordered(thread, record.reader, record.read)) return {};
    return {Conflict::race_with_read, record.reader, record.read_site, at};
  }
  for (const Accesses& accesses : access_lists_[record.accesses - 1]) {
    const std::uint32_t lanes = unordered_lanes(thread, accesses);
    if (lanes == 0) continue;
    if (accesses.wrote && repeated(accesses.warp, accesses.site)) {
      repeats = true;
      continue;
    }
    return {accesses.wrote ? Conflict::race_with_write : Conflict::race_with_read,
            accesses.warp * 32 + std::countr_zero(lanes), accesses.site, at};
  }
  return {};
}

void SharedShadow::write(Record& record, int thread, SiteId site, bool repeats) {
  if (repeats) {  // the next write must come after the one that this one repeats, too
    std::vector<Accesses>& list = list_of(record);
    std::erase_if(list, [&](Accesses& accesses) {
      accesses.lanes &= ~(1u << thread % 32);
      return !accesses.wrote || accesses.lanes == 0;
    });
    if (record.writer != thread) {
      const std::uint32_t bit = 1u << record.writer % 32;
      const auto same = std::find_if(list.begin(), list.end(), [&](const Accesses& accesses) {
        return accesses.when == record.written && accesses.site == record.write_site;
      });
      if (same != list.end()) {
        same->lanes |= bit;
      } else {
        list.push_back({record.written, bit, std::uint16_t(record.writer / 32), record.write_site, true});
      }
    }
  } else {
    forget_accesses(record);
  }
  record = {now_, std::uint16_t(thread), site, 0, 0, 0, 0, 0, record.accesses};
}

Conflict SharedShadow::on_write(int thread, int offset, int bytes, SiteId site, const std::byte* memory,
                                const std::byte* values) {
  const Writing writing{thread, offset, site, memory, values};
  if (bytes == kGranule && offset % kGranule == 0) {
    // One record for all of it, which is one again if it was split.
    Granule& granule = granules_[std::size_t(offset / kGranule)];
    bool any_repeats = false;
    const Conflict conflict = each_record(offset, bytes, [&](Record& record, int at, int size) {
      bool repeats;
      const Conflict found = check_write(record, at, size, writing, repeats);
      any_repeats |= repeats;
      return found;
    });
    if (conflict.kind != Conflict::none) return conflict;
    if (!any_repeats) {
      if (granule.level != kWhole) {
        each_record(offset, bytes, [&](Record& record, int, int) {
          forget_accesses(record);
          return Conflict{};
        });
        granule.level = kWhole;
        granule.whole = {};
      }
      write(granule.whole, thread, site, false);
      return {};
    }
  }
  return each_record(offset, bytes, [&](Record& record, int at, int size) {
    bool repeats;
    const Conflict conflict = check_write(record, at, size, writing, repeats);
    if (conflict.kind == Conflict::none) write(record, thread, site, repeats);
    return conflict;
  });
}

Conflict SharedShadow::begin_copy(int thread, int offset, int bytes, SiteId site) {
  if (const Conflict conflict = on_write(thread, offset, bytes, site); conflict.kind != Conflict::none) return conflict;
  return each_record(offset, bytes, [&](Record& record, int, int) {
    record.copier = std::uint16_t(thread + 1);
    return Conflict{};
  });
}

void SharedShadow::end_copy(int thread, int offset, int bytes, SiteId site) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    record.copier = 0;
    write(record, thread, site, false);
    return Conflict{};
  });
}

void SharedShadow::copy_arrived(int engine, int offset, int bytes) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    record.written = now_;
    record.writer = std::uint16_t(engine);
    return Conflict{};
  });
}

void SharedShadow::copy_seen(int offset, int bytes) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    record.copier = 0;
    return Conflict{};
  });
}

// -- The async proxy

void SharedShadow::fence_proxy(int thread) {
  if (proxy_fences_.empty()) proxy_fences_.resize(std::size_t(threads_));
  ProxyFences& fences = proxy_fences_[std::size_t(thread)];
  fences.times.push_back(++now_);
  fences.knew = issuer(thread).knows;
}

Issuer SharedShadow::issuer(int thread) const {
  Issuer issuer{thread, thread, clocks_[thread / 32], {}};
  if (own_clock_[thread / 32] >> thread % 32 & 1u) issuer.knows.join(lane_clocks_[std::size_t(thread)]);
  if (!proxy_fences_.empty()) issuer.fenced = proxy_fences_[std::size_t(thread)].knew;
  return issuer;
}

Issuer SharedShadow::issuer_of_warp(int warp) const {
  const int first = warp * 32, last = std::min(first + 32, threads_) - 1;
  Issuer issuer{first, last, clocks_[warp], {}};
  for (std::uint32_t left = own_clock_[warp]; left != 0; left &= left - 1) {
    issuer.knows.join(lane_clocks_[std::size_t(first + std::countr_zero(left))]);
  }
  for (int thread = first; thread <= last && !proxy_fences_.empty(); ++thread) {
    if (!proxy_fences_[std::size_t(thread)].times.empty()) issuer.fenced.join(proxy_fences_[std::size_t(thread)].knew);
  }
  return issuer;
}

/// Whether a fence.proxy.async lies between the write and the issuer's operation: the writer's, which the issuer knows
/// of, or the issuer's own, at which it knew of the write.
bool SharedShadow::fenced(const Issuer& issuer, int writer, Stamp written) const {
  if (writer >= 32 * kMaxWarps) return true;  // the copy engine writes through the async proxy itself
  if (proxy_fences_.empty()) return false;
  const std::vector<Stamp>& times = proxy_fences_[std::size_t(writer)].times;
  const auto next = std::upper_bound(times.begin(), times.end(), written);
  if (next != times.end()) {
    if (writer >= issuer.first_thread && writer <= issuer.last_thread) return true;
    if (issuer.knows.of(writer) > *next) return true;
  }
  return issuer.fenced.of(writer) > written;
}

Conflict SharedShadow::check_operand(const Issuer& issuer, int offset, int bytes) {
  const auto knows = [&](int writer, Stamp when) {
    return issuer.knows.of_warp(writer / 32) > when ||
           (writer >= issuer.first_thread && writer <= issuer.last_thread) || issuer.knows.of(writer) > when;
  };
  return each_record(offset, bytes, [&](Record& record, int at, int) -> Conflict {
    if (record.written < block_start_) return {Conflict::unwritten, issuer.first_thread, 0, at};
    if (record.copier != 0) return {Conflict::copy_in_flight, record.copier - 1, record.write_site, at};
    if (!knows(record.writer, record.written)) {
      return {Conflict::race_with_write, record.writer, record.write_site, at};
    }
    if (!fenced(issuer, record.writer, record.written)) {
      return {Conflict::missing_fence, record.writer, record.write_site, at};
    }
    if (record.accesses == 0) return {};
    for (const Accesses& accesses : access_lists_[record.accesses - 1]) {  // who wrote the same, wrote too
      if (!accesses.wrote) continue;
      for (std::uint32_t lanes = accesses.lanes; lanes != 0; lanes &= lanes - 1) {
        const int writer = accesses.warp * 32 + std::countr_zero(lanes);
        if (!knows(writer, accesses.when)) return {Conflict::race_with_write, writer, accesses.site, at};
        if (!fenced(issuer, writer, accesses.when)) return {Conflict::missing_fence, writer, accesses.site, at};
      }
    }
    return {};
  });
}

Conflict SharedShadow::check_overwrite(const Issuer& issuer, int offset, int bytes) {
  return each_record(offset, bytes, [&](Record& record, int at, int) -> Conflict {
    const bool known = issuer.knows.of(record.writer) > record.written || record.writer == issuer.first_thread;
    if (record.written < block_start_ || record.copier != 0 || !known) return {};
    if (fenced(issuer, record.writer, record.written)) return {};
    return {Conflict::missing_fence, record.writer, record.write_site, at};
  });
}

void SharedShadow::begin_operand(int offset, int bytes) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    record.operand += 1;
    return Conflict{};
  });
}

void SharedShadow::end_operand(int offset, int bytes) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    record.operand -= 1;
    return Conflict{};
  });
}

void SharedShadow::note_read(int warp, std::uint32_t lanes, int offset, int bytes, SiteId site) {
  each_record(offset, bytes, [&](Record& record, int, int) {
    const bool had_one = record.accesses == 0 && record.read != 0;
    std::vector<Accesses>& list = list_of(record);
    if (had_one) {
      list.push_back(
          {record.read, 1u << record.reader % 32, std::uint16_t(record.reader / 32), record.read_site, false});
    }
    std::erase_if(list, [&](Accesses& other) {
      if (other.warp == warp) other.lanes &= ~lanes;  // what comes after this read comes after the earlier ones
      return other.lanes == 0;
    });
    list.push_back({now_, lanes, std::uint16_t(warp), site, false});
    return Conflict{};
  });
}

Conflict SharedShadow::check_read(int thread, int offset, int bytes) {
  return each_record(offset, bytes, [&](Record& record, int at, int) -> Conflict {
    if (record.written < block_start_) return {Conflict::unwritten, thread, 0, at};
    if (record.copier != 0) return {Conflict::copy_in_flight, record.copier - 1, record.write_site, at};
    if (!ordered(thread, record.writer, record.written)) {
      return {Conflict::race_with_write, record.writer, record.write_site, at};
    }
    return {};
  });
}

Stamp SharedShadow::written_at(int offset, int bytes) {
  Stamp written = 0;
  each_record(offset, bytes, [&](Record& record, int, int) {
    written = record.written;
    return Conflict{};
  });
  return written;
}

}  // namespace flash::sim
