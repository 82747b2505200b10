// What a chapter is to the rest of the project: a description, its predictions, and one launch function for each
// machine. CMake generates the list of chapters from the folders (cmake/AddChapter.cmake).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/limits.hpp"
#include "common/base/problem.hpp"

namespace flash {

class Device;

/// What the user chose for one launch.
struct LaunchOptions {
  std::string variant;  // one of the chapter's; never empty once resolved
  int block_q = 0;      // 0: the chapter's default tile
  int block_kv = 0;
  bool timeline = false;  // the kernel that notes what its warpgroups do: see ChapterInfo::timeline
};

/// A variant of a chapter's kernel.
struct Variant {
  std::string name;
  std::string summary;    // one line for --help
  bool gpu_only = false;  // needs a library that the simulation does not have (cuBLAS)
};

/// Bytes that one tensor moves.
struct TensorTraffic {
  std::string tensor;
  std::int64_t read = 0;
  std::int64_t written = 0;
};

/// A prediction for one launch, by tensor in the order of the argument.
struct Traffic {
  std::vector<TensorTraffic> tensors;
  std::int64_t read() const;
  std::int64_t written() const;
  std::int64_t total() const { return read() + written(); }
  /// Adds to the tensor's line, making one if there is none.
  void add(const std::string& tensor, std::int64_t read, std::int64_t written);
};

/// A prediction for one launch: wavefronts beyond what the bytes need, by the kind of access to shared memory.
struct BankConflicts {
  std::int64_t loads = 0, stores = 0, ldmatrix = 0, stmatrix = 0, cp_async = 0;
  std::int64_t total() const { return loads + stores + ldmatrix + stmatrix + cp_async; }
};

/// A compiled tile shape that --block-q and --block-kv choose.
struct TileShape {
  int block_q;
  int block_kv;
};

/// The GPUs that a chapter's kernels run on.
struct Needs {
  int capability = 75;   // compute capability, 10·major + minor: this one or a higher one
  bool exactly = false;  // this one only: Hopper's own instructions exist on no other
  std::string why = {};  // the instructions that need it, for the refusal
};

/// What a kernel notes of its warpgroups when LaunchOptions::timeline is set, in the last tensor of its workspace, as
/// common/base/timeline_notes.hpp has it.
struct Timeline {
  std::vector<std::string> doing;  // by number; empty: the chapter has no timeline
  std::function<std::vector<std::string>(const LaunchOptions&)> tracks = {};  // their names
};

/// A chapter's own description (chapters/NN_name/traffic.hpp).
struct ChapterInfo {
  std::string title;              // one line
  std::vector<Variant> variants;  // the first is the default

  /// Empty if the chapter can run the problem with this variant and tile; otherwise one line that says what it takes.
  std::function<std::string(const Problem&, const LaunchOptions&)> refusal;

  /// Tensors that the chapter keeps in HBM beside its inputs and outputs, without memory behind them.
  std::function<std::vector<TensorRef>(const Problem&, const LaunchOptions&)> workspace;

  /// Bytes that the SMs ask for, in whole 32-byte sectors for each warp-wide access; the simulated GPU must count
  /// exactly this. A function of the call because strides decide which sectors a row touches. No value where the
  /// chapter does not issue the accesses itself (cuBLAS).
  std::function<std::optional<Traffic>(const AttentionCall&, const LaunchOptions&)> requested;

  /// Each tensor that the chapter keeps in HBM, once: what HBM traffic tends to when caches absorb the rest.
  std::function<Traffic(const AttentionCall&, const LaunchOptions&)> compulsory;

  /// The formulas behind the predictions, as the report prints them.
  std::string requested_formula;
  std::string compulsory_formula;

  /// The chapter computes the softmax from scores that it had rounded to 16 bits, as standard attention does; its LSE
  /// is then held to what standard attention in the same precision reaches (reference/check.hpp).
  bool lse_from_rounded_scores = false;

  /// The chapter sends tensors larger than L2 to HBM and back again and again (FlashAttention-1's O): HBM traffic lies
  /// between the compulsory and the requested bytes, not near the compulsory ones.
  bool rereads_hbm = false;

  /// Compiled tiles, the preferred ones first; empty where the chapter has no tiles to choose. The default is the first
  /// that `refusal` lets pass and that the device has the shared memory for.
  std::vector<TileShape> tiles = {};

  /// The tile that is tried before these, where the best one depends on the problem; {0, 0}: none.
  std::function<TileShape(const Problem&)> preferred_tile = {};

  Timeline timeline = {};

  Needs needs = {};

  /// Bank conflicts of all blocks; the simulated GPU must count exactly this, for each kind of access. Without a
  /// function there are none.
  std::function<BankConflicts(const Problem&, const LaunchOptions&)> bank_conflicts = {};

  /// Shared memory of one block, in bytes, of the kernel that takes most of it; without a function none to speak of.
  std::function<std::size_t(const Problem&, const LaunchOptions&)> shared_bytes = {};
};

using LaunchFunction = void (*)(const AttentionCall&, const LaunchOptions&, Device&);

struct Chapter {
  std::string name;  // "01_naive"
  ChapterInfo info;
  LaunchFunction launch_sim = nullptr;
  LaunchFunction launch_gpu = nullptr;  // null in a build without CUDA

  /// Throws UsageError naming the variants there are.
  const Variant& variant(const std::string& name) const;
};

/// The chapters linked into this program, in order (generated).
const std::vector<Chapter>& chapters();

/// Checks problem, variant and tile against the chapter and fills defaults in for a device with these limits. Throws
/// UsageError for what the chapter does not take anywhere, DeviceError, one line with what it needs, for what this
/// device has not.
LaunchOptions resolve(const Chapter& chapter, const Problem& problem, LaunchOptions options,
                      const DeviceLimits& limits = {});

/// "compute capability 8.0 or higher (mma.sync)": what a refusal and --help say.
std::string needs_text(const Needs& needs);

/// Empty if the chapter's kernels run on GPUs of this compute capability; otherwise one line with what they need.
std::string capability_refusal(const Chapter& chapter, const DeviceLimits& limits);

/// Sectors (32 bytes) that `bytes` bytes starting at byte offset `start` touch.
constexpr std::int64_t sectors(std::int64_t start, std::int64_t bytes) {
  return bytes <= 0 ? 0 : (start + bytes - 1) / 32 - start / 32 + 1;
}

}  // namespace flash
