// One chapter on one problem, with everything around the tensors watched: what the tests of all chapters share, on both
// machines.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/chapter.hpp"
#include "common/device/counters.hpp"
#include "common/device/device.hpp"
#include "common/program/input.hpp"

namespace flash::test {

/// How Q, K, V and O lie in memory. Strides are multiples of 8 elements, each tensor starts at a multiple of 32 bytes.
enum class Placement {
  contiguous,      // [batch, seq, heads, dim]
  padded,          // the same with gaps between heads, rows and batches, other gaps for each tensor
  heads_first,     // [batch, heads, seq, dim]
  sequence_first,  // [seq, batch, heads, dim]
  packed           // Q, K and V side by side in each row of one tensor; only K and V where seq_q and seq_kv differ
};
inline constexpr Placement kPlacements[] = {Placement::contiguous, Placement::padded, Placement::heads_first,
                                            Placement::sequence_first, Placement::packed};
const char* to_string(Placement placement);

/// What the scores look like.
enum class Scores {
  normal,
  outliers,         // normal with a few large elements
  equal,            // every key alike
  zero,             // Q = 0
  growing,          // each key's score is above the one before
  falling,          // each below
  huge_last,        // one score of about 700 at the last key, which the last row alone sees when causal
  huge_first,       //                    at the first key
  huge_middle,      //                    in the middle, and one of about -700 after it
  minus_inf_all,    // every score is -inf
  minus_inf_first,  // the scores of the first half of the keys are -inf
  minus_inf_last,   // of the second half
  minus_inf_every_2nd,
  slowly_growing,  // by 0.1 a key: 9 in base 2 over 64 keys
  slowly_falling,
  // Beyond where neighbouring fp32 numbers are 1 apart. Sizes go by the type: in bf16 near the end of fp32.
  all_133120,           // Q, K and V, in fp16 30000 for Q and K and V normal: every key alike
  largest,              // fp16: Q and K 65504, every key alike; bf16: Q the largest number there is and K tiny
  far_below,            // each score about -9.5e6
  huge_negative,        // each a large negative number, all distinct
  huge_one_row,         // of one row, of which one key has nearly all weight
  huge_doubling,        // each score twice the one before, with the signs of powers of -2
  huge_and_minus_inf,   // -inf at each 2nd key, of which the others take turns in being huge and less
  huge_alternating,     // +x and -x
  huge_maxima_in_turn,  // the largest of 16 keys rise and fall from one 16 to the next
  huge_ties,            // each 3rd key has the largest score, the others the next below that 16 bits can make
  huge_and_small,       // a huge part that all share and normal differences, which fp32 cannot hold
  subnormal             // Q and K subnormal
};
inline constexpr Scores kSpecialScores[] = {Scores::outliers,
                                            Scores::equal,
                                            Scores::zero,
                                            Scores::growing,
                                            Scores::falling,
                                            Scores::huge_last,
                                            Scores::huge_first,
                                            Scores::huge_middle,
                                            Scores::minus_inf_all,
                                            Scores::minus_inf_first,
                                            Scores::minus_inf_last,
                                            Scores::minus_inf_every_2nd,
                                            Scores::slowly_growing,
                                            Scores::slowly_falling,
                                            Scores::all_133120,
                                            Scores::largest,
                                            Scores::far_below,
                                            Scores::huge_negative,
                                            Scores::huge_one_row,
                                            Scores::huge_doubling,
                                            Scores::huge_and_minus_inf,
                                            Scores::huge_alternating,
                                            Scores::huge_maxima_in_turn,
                                            Scores::huge_ties,
                                            Scores::huge_and_small,
                                            Scores::subnormal};
const char* to_string(Scores scores);

struct Case {
  Problem problem;
  Placement placement = Placement::contiguous;
  Scores scores = Scores::normal;
  std::uint64_t seed = 0;
  std::string describe() const;
};

Input make_case_input(const Case& c);

/// The chapters that this run of the program tests: the one that the environment variable FLASH_TEST_CHAPTER names,
/// else all.
std::vector<const Chapter*> chapters_under_test();

/// The variants that a machine can run.
std::vector<LaunchOptions> variants_for(const Chapter& chapter, DeviceKind kind);

/// "02_online_softmax safe", with the tile if one is chosen.
std::string describe(const Chapter& chapter, const LaunchOptions& options);

/// Q, K, V, O, LSE and the workspace on a device. All memory that belongs to no tensor, between rows and around, holds
/// NaN.
class PlacedTensors {
 public:
  PlacedTensors(Device& device, const Input& input, Placement placement, const std::vector<TensorRef>& workspace = {});

  const AttentionCall& call() const { return call_; }
  /// Fills O, LSE and the workspace with NaN.
  void poison();
  HostTensor download_o();
  std::vector<float> download_lse();
  /// Whether memory has changed that no kernel may write: the inputs and what lies outside the tensors. Empty if not.
  std::string stray_writes();

 private:
  /// Host copy of a piece of device memory, with guards before and behind the tensors in it.
  struct Image {
    std::string name;
    std::vector<std::uint16_t> bits;
    std::vector<bool> writable;  // elements that kernels may write; empty: none
    DeviceBuffer buffer;
  };
  Image& add_image(const std::string& name, std::int64_t elements);
  void place_output(TensorRef& tensor);
  void fill(Image& image, TensorRef& tensor, const HostTensor& values, std::int64_t first);

  Device& device_;
  AttentionCall call_;
  std::vector<std::unique_ptr<Image>> images_;
  Image *o_ = nullptr, *lse_ = nullptr;
};

/// One launch and what it left behind.
struct Outcome {
  HostTensor o;
  std::vector<float> lse;
  std::optional<sim::Counters> counted;  // simulation
  /// What is wrong, one line, or empty.
  std::string failure;
};

struct Expectations {
  bool check = true;      // O and LSE against the reference, all rows of a small problem
  bool traffic = true;    // simulation: counted = requested for each tensor
  bool conflicts = true;  // simulation: bank conflicts as predicted for each kind of access
};

/// Launches on poisoned outputs and holds the result to the expectations. `options` must be resolved. A Fault or
/// another exception of the launch goes through.
Outcome run_case(const Chapter& chapter, LaunchFunction launch, const LaunchOptions& options, Device& device,
                 const Input& input, Placement placement, const Expectations& expected = {});

/// Runs the chapter `launches` times on the same input, with poisoned outputs each time, and says how often O or LSE
/// differed from the first in a bit.
int launches_that_differ(const Chapter& chapter, const LaunchOptions& options, const Input& input, Device& device,
                         int launches);

/// The launch function of the chapter for the device.
LaunchFunction launch_of(const Chapter& chapter, const Device& device);

/// "" if the outputs have the same bits, else where they differ.
std::string difference(const Outcome& a, const Outcome& b);

/// "" if everything counted is the same, else what differs.
std::string difference(const sim::Counters& a, const sim::Counters& b);

/// Where the counted bytes of a tensor, or the bank conflicts, are not the predicted ones; "" if all are.
std::string difference(const sim::Counters& counted, const Traffic& predicted);
std::string difference(const sim::Counters& counted, const BankConflicts& predicted);

/// One compiled kernel on one case.
struct MatrixRun {
  const Chapter* chapter;
  LaunchOptions options;
  const Case* c;
};

/// A variant with all cases, each for the tile that the chapter takes for it, and with a part of them, another one each
/// time, for each other tile.
std::vector<MatrixRun> matrix_runs(const Chapter& chapter, const LaunchOptions& variant,
                                   const std::vector<Case>& cases);

/// Everything that run_case looks at, and with a `second` device (which may be the first again; or null) that a run
/// there gives the same bits. A problem that the chapter does not take must be refused in one line. "" if all is well,
/// else what is not.
std::string matrix_failure(const MatrixRun& run, Device& first, Device* second);

/// run_case on one device, where nothing may be refused. "" if all is well, else what is not.
std::string run_failure(const MatrixRun& run, Device& device);

/// The cases of the shape matrix: edges picked by hand and shapes drawn by a fixed seed.
std::vector<Case> matrix_cases();

/// Shapes at the edges of a tile, for the smallest head dimension that the chapter takes with it. A tile has edges for
/// Nq, for Nk and, where causal, for what its first row sees, Nk - Nq + 1 keys: each pair of these is at, one before or
/// one behind an edge of the tile's or of 16, the smallest product's, together.
std::vector<Case> tile_cases(const Chapter& chapter, const LaunchOptions& tile);

/// The chapter's compiled tiles with a variant that takes them.
std::vector<LaunchOptions> tiles_for(const Chapter& chapter, const LaunchOptions& variant);

/// Few rows and many tiles of keys: precision that is lost a little at each tile adds up.
std::vector<Case> long_cases();

/// More tiles of queries than a GPU holds blocks at a time, in rounds that are not all of one size (BlockOrder,
/// common/kernel/block_order.hpp), for tiles of `block_q` queries.
std::vector<Case> order_cases(int block_q);

/// Cases for the numerics of softmax.
std::vector<Case> score_cases();

}  // namespace flash::test
