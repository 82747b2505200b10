// The bytes that a GPU's counters show beside the predictions.
#include <fmt/format.h>

#include <algorithm>

#include "common/program/run.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"
#include "tests/support/skip.hpp"

using namespace flash;
using namespace flash::test;

namespace {

bool within(double measured, double predicted, double below, double above) {
  return measured >= predicted * (1 - below) && measured <= predicted * (1 + above);
}

}  // namespace

TEST_CASE("the bytes that a GPU asks for and moves are the predicted ones", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  for (const Problem& p :
       {Problem{1, 16, 16, 4096, 4096, 128, false, DType::fp16}, Problem{1, 16, 16, 4096, 4096, 128, true, DType::fp16},
        Problem{2, 16, 16, 8192, 8192, 128, false, DType::fp16}}) {
    const Input input = make_case_input({p});
    DeviceTensors tensors(*device, input);
    for (const Chapter* chapter : chapters_under_test()) {
      for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
        const LaunchOptions options = resolve(*chapter, p, variant);
        const AttentionCall call = tensors.call(chapter->info.workspace(p, options));
        tensors.poison();
        std::string why_not;
        const auto reading =
            device->read_traffic([&] { launch_of(*chapter, *device)(call, options, *device); }, &why_not);
        if (!reading) return skip(why_not);

        // HBM. What was written last may stay in L2: of tensors that are not many times larger, less is seen written.
        const Traffic compulsory = chapter->info.compulsory(call, options);
        const double hbm = reading->dram_read + reading->dram_written, all = double(compulsory.total());
        const double in_l2 = std::min(double(compulsory.written()), 60e6);
        INFO(describe(*chapter, options) << ": " << p.describe());
        INFO(fmt::format("HBM {:.2f} MB read and {:.2f} MB written, compulsory {:.2f} and {:.2f} MB",
                         reading->dram_read / 1e6, reading->dram_written / 1e6, double(compulsory.read()) / 1e6,
                         double(compulsory.written()) / 1e6));
        const auto requested = chapter->info.requested(call, options);
        CHECK(hbm >= 0.9 * all - (all < 500e6 ? in_l2 : 0.0));
        CHECK(hbm <= (chapter->info.rereads_hbm ? 1.05 * double(requested->total()) : 1.1 * all));

        // What the SMs asked for. Loads and stores show in the sectors of the load and store units, of which L1 absorbs
        // some; asynchronous copies bypass both and show between L2 and the SMs.
        fmt::print("{}, {}: HBM {:.3f} of compulsory", describe(*chapter, options), p.describe(), hbm / all);
        if (requested) {
          const double read = std::max(32 * reading->lsu_global_load_sectors, reading->l2_to_sm_read);
          const double written = std::max(32 * reading->lsu_global_store_sectors, reading->sm_to_l2_written);
          INFO(fmt::format("asked for {:.2f} MB, predicted {:.2f} MB; handed over {:.2f} MB, predicted {:.2f} MB",
                           read / 1e6, double(requested->read()) / 1e6, written / 1e6,
                           double(requested->written()) / 1e6));
          CHECK(within(read, double(requested->read()), 0.05, 0.05));
          CHECK(within(written, double(requested->written()), 0.05, 0.05));
          fmt::print(", asked for {:.3f} of requested, handed over {:.3f}", read / double(requested->read()),
                     written / double(requested->written()));
        }
        fmt::print("\n");
      }
    }
  }
}
