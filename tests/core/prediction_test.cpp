// What was counted beside what was predicted: each difference is found, by tensor and by kind of access.
#include "common/device/prediction.hpp"
#include "tests/catch.hpp"

using namespace flash;

TEST_CASE("bank conflicts are compared by kind of access: sums could hide two errors", "[prediction]") {
  sim::Counters counted;
  CHECK(differences(counted, BankConflicts{}).empty());
  counted.shared_of(sim::SharedAccess::load).bank_conflicts = 5;
  counted.shared_of(sim::SharedAccess::ldmatrix).bank_conflicts = 7;
  BankConflicts predicted;
  predicted.loads = 7;
  predicted.ldmatrix = 5;
  CHECK(predicted.total() == counted.bank_conflicts());
  CHECK(differences(counted, predicted) ==
        std::vector<std::string>{"bank conflicts of loads: counted 5, predicted 7",
                                 "bank conflicts of ldmatrix: counted 7, predicted 5"});
  predicted.loads = 5;
  predicted.ldmatrix = 7;
  CHECK(differences(counted, predicted).empty());
  for (const sim::SharedAccess kind : {sim::SharedAccess::load, sim::SharedAccess::store, sim::SharedAccess::ldmatrix,
                                       sim::SharedAccess::stmatrix, sim::SharedAccess::cp_async}) {
    sim::Counters one_more = counted;
    ++one_more.shared_of(kind).bank_conflicts;
    CHECK(differences(one_more, predicted).size() == 1);
  }
}

TEST_CASE("a tensor that was touched and not predicted is a difference, by atomics too", "[prediction]") {
  sim::Counters counted;
  Traffic predicted;
  predicted.add("Q", 64, 0);
  counted.tensors[std::size_t(sim::tensor_slot("Q"))].read_sectors = 2;
  CHECK(differences(counted, predicted).empty());
  sim::Counters read = counted, updated = counted;
  read.tensors[std::size_t(sim::tensor_slot("elsewhere"))].read_sectors = 1;
  CHECK(differences(read, predicted) == std::vector<std::string>{"elsewhere read: counted 32 B, predicted 0 B"});
  updated.tensors[std::size_t(sim::tensor_slot("elsewhere"))].atomic_sectors = 1;
  CHECK(differences(updated, predicted) ==
        std::vector<std::string>{"elsewhere: counted atomic operations, predicted no access"});
}
