// Mutants: kernels with a seeded bug, each of which some check must catch. A file NN_name.mutant says where the bug is
// and what must notice it; the build makes a changed copy of the chapter's kernel from it (ApplyMutant.cmake).
//
//     what: the last key that a row sees is dropped           one sentence
//     chapter: 02_online_softmax
//     variant: online
//     expect: check                     the check fails, or
//             traffic                   the counted bytes are not the predicted ones, or
//             conflicts                 the counted bank conflicts are not the predicted ones, or
//             fault: data race          the simulated GPU ends the run with a fault of this kind
//     problem: seq 77, causal           batch, heads, kv-heads, seq, seq-kv, head-dim, block-q, block-kv, schedule-seed
//                                       with a number, processors (of the GPU: as many blocks of a persistent grid go
//                                       from tile to tile), causal, and scores with a kind (growing, "huge last", ...)
//     file: common/kernel/softmax.hpp   where the bug is, if not in the chapter's kernel.cuh: another file of the
//                                       chapter, a kernel part, or common/base/layout.hpp. The mutant has a copy of it,
//                                       other kernels do not
//     --- old
//     text that stands once in the file
//     --- new
//     what stands there instead
//
// Further pairs of --- old and --- new may follow. The kernel as it is must pass on the same problem.
#pragma once

#include <string>
#include <vector>

#include "common/base/chapter.hpp"

namespace flash::test {

struct Mutant {
  std::string file;  // without its ending
  std::string what, chapter, variant, expect, problem;
  std::string not_applied;          // why there is no such kernel; empty if there is one
  LaunchFunction launch = nullptr;  // fp16 on the simulated GPU
};

/// The mutants linked into this program, in no particular order.
inline std::vector<Mutant>& mutants() {
  static std::vector<Mutant> list;
  return list;
}

inline bool add_mutant(const Mutant& mutant) {
  mutants().push_back(mutant);
  return true;
}

}  // namespace flash::test
