// The notes of a timeline, between the kernel that writes them (common/kernel/timeline.hpp) and the program that reads
// them (common/program/timeline.cpp).
#pragma once

namespace flash {

/// Of the grid so many blocks keep notes, and each of their warpgroups at most so many: a tensor [1, TimelineBlocks,
/// warpgroups, TimelineNotes] of 32-bit words.
constexpr int TimelineBlocks = 4;
constexpr int TimelineNotes = 4096;

/// A note: in the low bits the time, above them the number of what is done from then on. All ones: no note.
constexpr int TimelineTimeBits = 28;

}  // namespace flash
