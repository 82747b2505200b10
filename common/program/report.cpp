#include "common/program/report.hpp"

#include <fmt/format.h>

#include <cmath>

#include "common/base/quote.hpp"
#include "common/program/file.hpp"

namespace flash {

namespace {

using nlohmann::json;

/// "  name           text" with continuation lines under the text.
void line(std::string& report, const std::string& name, const std::string& text) {
  report += fmt::format("  {:<14} {}\n", name, text);
}

std::string ratio_text(double value, double of) {
  if (!(of > 0)) return "-";
  return fmt::format("{:.3f}", value / of);
}

/// A number for JSON: NaN has no form there.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

double counted_read(const sim::Counters& counters) {
  double bytes = 0;
  for (const sim::TensorCounters& tensor : counters.tensors) bytes += double(tensor.bytes_read());
  return bytes;
}

double counted_written(const sim::Counters& counters) {
  double bytes = 0;
  for (const sim::TensorCounters& tensor : counters.tensors) bytes += double(tensor.bytes_written());
  return bytes;
}

constexpr const char* kSharedNames[sim::kSharedAccessKinds] = {"loads",    "stores",    "ldmatrix",   "stmatrix",
                                                               "cp.async", "TMA loads", "TMA stores", "wgmma"};

void add_check(std::string& report, const ChapterRun& run) {
  if (!run.check) return line(report, "check", "off");
  const CheckResult& check = *run.check;
  line(report, "check",
       fmt::format("{}: O error {:.2e} (limit {:.2e}), LSE error {:.2e} (limit {:.2e}), {} of {} rows",
                   check.passed ? "passed" : "FAILED", check.max_error_o, check.limit_o, check.max_error_lse,
                   check.limit_lse, check.rows_checked, check.rows_total));
  if (!check.passed) line(report, "", check.first_failure);
}

void add_counted(std::string& report, const ChapterRun& run) {
  const sim::Counters& counted = *run.counted;
  line(report, "requested",
       fmt::format("{:<8} {:>13} {:>13} {:>13} {:>13}", "tensor", "read", "predicted", "written", "predicted"));
  const auto row = [&](const std::string& name, double read, double read_predicted, double written,
                       double written_predicted) {
    line(report, "",
         fmt::format("{:<8} {:>13} {:>13} {:>13} {:>13}", name, bytes_text(read), bytes_text(read_predicted),
                     bytes_text(written), bytes_text(written_predicted)));
  };
  for (const TensorTraffic& tensor : run.requested->tensors) {
    const sim::TensorCounters* counters = counted.of_tensor(tensor.tensor);
    row(tensor.tensor, counters ? double(counters->bytes_read()) : 0, double(tensor.read),
        counters ? double(counters->bytes_written()) : 0, double(tensor.written));
  }
  const double read = counted_read(counted), written = counted_written(counted);
  row("all", read, double(run.requested->read()), written, double(run.requested->written()));
  const std::vector<std::string> differences = prediction_differences(run);
  if (differences.empty()) line(report, "", "counted = predicted, to the byte");
  for (const std::string& difference : differences) line(report, "", "counted and predicted DIFFER: " + difference);
  std::string shared;
  const BankConflicts& conflicts = run.bank_conflicts;
  const std::int64_t predicted[] = {conflicts.loads, conflicts.stores, conflicts.ldmatrix, conflicts.stmatrix,
                                    conflicts.cp_async};
  for (int kind = 0; kind < sim::kSharedAccessKinds; ++kind) {
    const sim::SharedCounters& counters = counted.shared[std::size_t(kind)];
    if (counters.accesses == 0) continue;
    shared += fmt::format("{}{} {} ({}", shared.empty() ? "" : "; ", counters.accesses, kSharedNames[kind],
                          bytes_text(double(counters.bytes)));
    // What TMA and wgmma do has no lanes that could meet in a bank.
    shared += std::size_t(kind) >= std::size(predicted)
                  ? ")"
                  : fmt::format(", {} bank conflicts, predicted {})", counters.bank_conflicts, predicted[kind]);
  }
  line(report, "shared memory", shared.empty() ? "not used" : shared);
  line(report, "operations",
       fmt::format("{} matrix FLOPs, {} exponentials, {} barriers; {} blocks, {} threads", counted.matrix_flops,
                   counted.exponentials, counted.barriers, counted.blocks, counted.threads));
}

void add_shared(std::string& report, const TrafficReading& m) {
  std::string text;
  const auto add = [&](const char* kind, const TrafficReading::SharedAccesses& a) {
    if (!(a.instructions > 0)) return;  // none, or not known
    text += fmt::format("{}{:.0f} {} ({:.0f} bank conflicts, {:.3f} each)", text.empty() ? "" : "; ", a.instructions,
                        kind, a.bank_conflicts, a.bank_conflicts / a.instructions);
  };
  add("loads", m.shared_loads);
  add("stores", m.shared_stores);
  add("cp.async", m.shared_copies);
  if (!text.empty()) line(report, "shared memory", text);
}

void add_measured(std::string& report, const ChapterRun& run) {
  if (!run.measured) {
    line(report, "traffic", run.not_measured.empty() ? "off" : run.not_measured);
    return;
  }
  const TrafficReading& m = *run.measured;
  const double hbm_predicted = double(run.compulsory.total());
  line(report, "HBM",
       fmt::format("read {}, written {}; compulsory {} and {}; measured/predicted {}", bytes_text(m.dram_read),
                   bytes_text(m.dram_written), bytes_text(double(run.compulsory.read())),
                   bytes_text(double(run.compulsory.written())),
                   ratio_text(m.dram_read + m.dram_written, hbm_predicted)));
  line(report, "L2 to SMs",
       fmt::format("read {}, written {} (L2 itself served {})", bytes_text(m.l2_to_sm_read),
                   bytes_text(m.sm_to_l2_written), bytes_text(m.lts_bytes)));
  if (run.requested) {
    const double read = 32 * m.lsu_global_load_sectors, written = 32 * m.lsu_global_store_sectors;
    line(report, "requested",
         fmt::format("load and store units read {}, wrote {}; predicted {} and {}; measured/predicted {} and {}",
                     bytes_text(read), bytes_text(written), bytes_text(double(run.requested->read())),
                     bytes_text(double(run.requested->written())), ratio_text(read, double(run.requested->read())),
                     ratio_text(written, double(run.requested->written()))));
    line(report, "", fmt::format("L1 absorbed {:.1f} % of the bytes read", 100 * (1 - m.l2_to_sm_read / read)));
  } else {
    line(report, "requested", "the library issues the accesses: no prediction");
  }
  add_shared(report, m);
}

void add_roofline(std::string& report, const ChapterRun& run, const std::optional<Ceilings>& ceilings) {
  const double moved =
      run.measured ? run.measured->dram_read + run.measured->dram_written : double(run.compulsory.total());
  const double intensity = run.problem.flops() / moved;
  if (!ceilings || !run.timing) {
    line(report, "intensity",
         fmt::format("{:.1f} FLOP per compulsory byte", run.problem.flops() / double(run.compulsory.total())));
    return;
  }
  const double bandwidth = ceilings->copy_bytes_per_second, matrix = ceilings->matrix_flops_per_second;
  const double memory_bound = intensity * bandwidth;
  const bool by_memory = std::isfinite(matrix) ? memory_bound < matrix : true;
  const double roof = by_memory ? memory_bound : matrix;
  line(report, "roofline",
       fmt::format("{:.1f} FLOP per HBM byte; roof {:.0f} TFLOP/s set by {}; reached {:.1f} %", intensity, roof / 1e12,
                   by_memory ? "memory" : "the matrix rate", 100 * *run.flops_per_second() / roof));
  line(report, "ceilings",
       fmt::format("copy {:.2f} TB/s (read + written), matrix {}", bandwidth / 1e12,
                   std::isfinite(matrix)
                       ? fmt::format("{:.0f} TFLOP/s (cuBLAS, fp16, {}³)", matrix / 1e12, ceilings->matrix_size)
                       : ceilings->matrix_missing));
}

std::string variant_text(const ChapterRun& run) {
  return run.options.block_q == 0
             ? run.options.variant
             : fmt::format("{} {}x{}", run.options.variant, run.options.block_q, run.options.block_kv);
}

}  // namespace

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return "unknown";
  if (bytes < 1e4) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.2f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.2f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

std::string text_report(const Chapter& chapter, const ChapterRun& run, const std::string& input,
                        const std::optional<Ceilings>& ceilings, const ChapterRun* before) {
  std::string report = fmt::format("{}: {}\n", chapter.name, chapter.info.title);
  line(report, "device", run.device);
  line(report, "problem", run.problem.describe());
  line(report, "input", escaped(input));
  line(report, "variant", variant_text(run));
  add_check(report, run);
  if (run.timing) {
    const double flops = *run.flops_per_second();
    std::string share;
    if (ceilings && std::isfinite(ceilings->matrix_flops_per_second)) {
      share = fmt::format(", {:.1f} % of the matrix ceiling", 100 * flops / ceilings->matrix_flops_per_second);
    }
    line(report, "time",
         fmt::format("median {:.4f} ms, min {:.4f}, max {:.4f} ({} runs, L2 flushed): {:.2f} TFLOP/s{}",
                     run.timing->median_ms, run.timing->min_ms, run.timing->max_ms, run.timing->runs, flops / 1e12,
                     share));
  } else if (run.device_kind == DeviceKind::sim) {
    line(report, "time", "none: the simulation counts, it does not time");
  }
  if (run.counted && run.requested) add_counted(report, run);
  if (run.device_kind == DeviceKind::gpu) add_measured(report, run);
  line(report, "formula", "requested  = " + chapter.info.requested_formula);
  line(report, "", "compulsory = " + chapter.info.compulsory_formula);
  line(report, "compulsory",
       fmt::format("read {}, written {}", bytes_text(double(run.compulsory.read())),
                   bytes_text(double(run.compulsory.written()))));
  add_roofline(report, run, ceilings);
  for (const KernelResources& kernel : run.kernels) {
    line(report, "kernel " + kernel.name,
         fmt::format("{} threads, {} registers, {} B local, {} B shared, {} blocks per SM", kernel.threads,
                     kernel.registers, kernel.local_bytes, kernel.shared_bytes, kernel.blocks_per_sm));
  }
  if (before != nullptr) {
    if (run.timing && before->timing) {
      line(report, "before",
           fmt::format("{:.2f} times the speed of {} ({} {:.4f} ms)", before->timing->median_ms / run.timing->median_ms,
                       before->chapter, variant_text(*before), before->timing->median_ms));
    } else if (run.requested && before->requested) {
      line(report, "before",
           fmt::format("requests {} times the bytes of {} ({}), compulsory {} times",
                       ratio_text(double(run.requested->total()), double(before->requested->total())), before->chapter,
                       variant_text(*before),
                       ratio_text(double(run.compulsory.total()), double(before->compulsory.total()))));
    }
  }
  return report;
}

std::string text_comparison(const std::vector<ChapterRun>& runs, const std::optional<Ceilings>& ceilings) {
  if (runs.empty()) return "";
  int width = 17;  // of the variants with their tiles
  for (const ChapterRun& run : runs) width = std::max(width, int(variant_text(run).size()));
  std::string report = fmt::format("comparison on {}\n  {}\n", runs.front().device, runs.front().problem.describe());
  if (ceilings) {
    report += fmt::format("  ceilings: copy {:.2f} TB/s, matrix {:.0f} TFLOP/s\n",
                          ceilings->copy_bytes_per_second / 1e12, ceilings->matrix_flops_per_second / 1e12);
  }
  if (runs.front().device_kind == DeviceKind::sim) {
    report +=
        fmt::format("\n  {:<24} {:<{}} {:<6} {:>13} {:>10} {:>13} {:>11} {:>12} {:>12}\n", "chapter", "variant", width,
                    "check", "requested", "/predicted", "compulsory", "FLOP/byte", "exponentials", "conflicts");
    for (const ChapterRun& run : runs) {
      const double requested = counted_read(*run.counted) + counted_written(*run.counted);
      report += fmt::format(
          "  {:<24} {:<{}} {:<6} {:>13} {:>10} {:>13} {:>11.1f} {:>12} {:>12}\n", run.chapter, variant_text(run), width,
          !run.check          ? "off"
          : run.check->passed ? "passed"
                              : "FAILED",
          bytes_text(requested), ratio_text(requested, double(run.requested->total())),
          bytes_text(double(run.compulsory.total())), run.problem.flops() / double(run.compulsory.total()),
          run.counted->exponentials, run.counted->bank_conflicts());
    }
    report += "\n  requested: bytes that the SMs ask for, counted; compulsory: each tensor kept in HBM once.\n";
    return report;
  }
  report += fmt::format("\n  {:<24} {:<{}} {:<6} {:>10} {:>9} {:>9} {:>11} {:>11} {:>11} {:>10} {:>9}\n", "chapter",
                        "variant", width, "check", "median ms", "speed-up", "TFLOP/s", "HBM", "/compulsory",
                        "L2 to SMs", "/requested", "FLOP/byte");
  const ChapterRun* chapter_before = nullptr;  // the default variant of the chapter before
  const ChapterRun* chapter_now = nullptr;
  for (const ChapterRun& run : runs) {
    if (chapter_now == nullptr || chapter_now->chapter != run.chapter) {
      chapter_before = chapter_now;
      chapter_now = &run;
    }
    const double hbm = run.measured ? run.measured->dram_read + run.measured->dram_written : NAN;
    const double l2 = run.measured ? run.measured->l2_to_sm_read + run.measured->sm_to_l2_written : NAN;
    report += fmt::format(
        "  {:<24} {:<{}} {:<6} {:>10.4f} {:>9} {:>9.2f} {:>11} {:>11} {:>11} {:>10} {:>9}\n", run.chapter,
        variant_text(run), width,
        !run.check          ? "off"
        : run.check->passed ? "passed"
                            : "FAILED",
        run.timing->median_ms,
        chapter_before ? fmt::format("{:.2f}", chapter_before->timing->median_ms / run.timing->median_ms) : "-",
        *run.flops_per_second() / 1e12, bytes_text(hbm), ratio_text(hbm, double(run.compulsory.total())),
        bytes_text(l2), run.requested ? ratio_text(l2, double(run.requested->total())) : "-",
        std::isfinite(hbm) ? fmt::format("{:.1f}", run.problem.flops() / hbm) : "-");
  }
  report +=
      "\n  speed-up: over the default variant of the chapter before. HBM: measured, and over the compulsory bytes.\n"
      "  L2 to SMs: measured, and over the requested bytes (L1 absorbs the rest). FLOP/byte: per measured HBM byte.\n";
  for (const ChapterRun& run : runs) {
    if (!run.not_measured.empty()) return report + "  no byte counters: " + run.not_measured + "\n";
  }
  return report;
}

json to_json(const Problem& p) {
  return {{"batch", p.batch},   {"heads", p.heads},       {"kv_heads", p.kv_heads}, {"seq", p.seq_q},
          {"seq_kv", p.seq_kv}, {"head_dim", p.head_dim}, {"causal", p.causal},     {"dtype", to_string(p.dtype)},
          {"flops", p.flops()}};
}

json to_json(const Ceilings& c) {
  return {{"copy_bytes_per_second", number(c.copy_bytes_per_second)},
          {"matrix_flops_per_second", number(c.matrix_flops_per_second)},
          {"matrix_size", c.matrix_size}};
}

namespace {

json to_json(const Traffic& traffic) {
  json tensors = json::object();
  for (const TensorTraffic& t : traffic.tensors) tensors[t.tensor] = {{"read", t.read}, {"written", t.written}};
  return {{"read", traffic.read()}, {"written", traffic.written()}, {"tensors", tensors}};
}

json to_json(const BankConflicts& c) {
  return {{"loads", c.loads},
          {"stores", c.stores},
          {"ldmatrix", c.ldmatrix},
          {"stmatrix", c.stmatrix},
          {"cp.async", c.cp_async}};
}

json to_json(const TrafficReading::SharedAccesses& a) {
  return {{"instructions", number(a.instructions)}, {"bank_conflicts", number(a.bank_conflicts)}};
}

json to_json(const sim::Counters& counters) {
  json tensors = json::object();
  for (int slot = 0; slot < sim::tensor_slots(); ++slot) {
    const sim::TensorCounters& t = counters.tensors[std::size_t(slot)];
    if (t.read_requests == 0 && t.written_requests == 0 && t.atomic_sectors == 0) continue;
    tensors[sim::tensor_name(slot)] = {{"read", t.bytes_read()},
                                       {"written", t.bytes_written()},
                                       {"read_requests", t.read_requests},
                                       {"written_requests", t.written_requests},
                                       {"useful_bytes_read", t.useful_bytes_read},
                                       {"useful_bytes_written", t.useful_bytes_written},
                                       {"atomic_sectors", t.atomic_sectors}};
  }
  json shared = json::object();
  for (int kind = 0; kind < sim::kSharedAccessKinds; ++kind) {
    const sim::SharedCounters& s = counters.shared[std::size_t(kind)];
    shared[kSharedNames[kind]] = {{"accesses", s.accesses}, {"bytes", s.bytes}, {"bank_conflicts", s.bank_conflicts}};
  }
  return {{"tensors", tensors},
          {"shared", shared},
          {"matrix_flops", counters.matrix_flops},
          {"exponentials", counters.exponentials},
          {"barriers", counters.barriers},
          {"blocks", counters.blocks},
          {"threads", counters.threads}};
}

}  // namespace

json to_json(const ChapterRun& run) {
  json out = {{"chapter", run.chapter},
              {"variant", run.options.variant},
              {"block_q", run.options.block_q},
              {"block_kv", run.options.block_kv},
              {"problem", to_json(run.problem)},
              {"device", run.device},
              {"simulated", run.device_kind == DeviceKind::sim},
              {"passed", run.passed()},
              {"compulsory", to_json(run.compulsory)}};
  if (run.requested) {
    out["requested"] = to_json(*run.requested);
    out["bank_conflicts"] = to_json(run.bank_conflicts);
  }
  if (run.check) {
    out["check"] = {{"passed", run.check->passed},
                    {"max_error_o", number(run.check->max_error_o)},
                    {"limit_o", number(run.check->limit_o)},
                    {"max_error_lse", number(run.check->max_error_lse)},
                    {"limit_lse", number(run.check->limit_lse)},
                    {"rows_checked", run.check->rows_checked},
                    {"rows_total", run.check->rows_total}};
    if (!run.check->passed) out["check"]["first_failure"] = run.check->first_failure;
  }
  if (run.timing) {
    out["time"] = {{"median_ms", run.timing->median_ms},
                   {"min_ms", run.timing->min_ms},
                   {"max_ms", run.timing->max_ms},
                   {"runs", run.timing->runs},
                   {"tflops", *run.flops_per_second() / 1e12}};
  }
  if (run.measured) {
    const TrafficReading& m = *run.measured;
    out["measured"] = {{"hbm_read", number(m.dram_read)},
                       {"hbm_written", number(m.dram_written)},
                       {"l2_to_sm_read", number(m.l2_to_sm_read)},
                       {"sm_to_l2_written", number(m.sm_to_l2_written)},
                       {"lts_bytes", number(m.lts_bytes)},
                       {"requested_read", number(32 * m.lsu_global_load_sectors)},
                       {"requested_written", number(32 * m.lsu_global_store_sectors)},
                       {"shared_loads", to_json(m.shared_loads)},
                       {"shared_stores", to_json(m.shared_stores)},
                       {"shared_copies", to_json(m.shared_copies)},
                       {"lsu_bank_conflicts", number(m.lsu_bank_conflicts)}};
  } else if (!run.not_measured.empty()) {
    out["not_measured"] = run.not_measured;
  }
  if (run.counted) out["counted"] = to_json(*run.counted);
  if (run.counted && run.requested) out["counted_as_predicted"] = prediction_differences(run).empty();
  for (const KernelResources& k : run.kernels) {
    out["kernels"].push_back({{"name", k.name},
                              {"threads", k.threads},
                              {"registers", k.registers},
                              {"local_bytes", k.local_bytes},
                              {"shared_bytes", k.shared_bytes},
                              {"blocks_per_sm", k.blocks_per_sm}});
  }
  return out;
}

void write_json(const std::string& path, const json& value) {
  // JSON is UTF-8; an argument that is not (a path may be anything) has U+FFFD in its place.
  const std::string text = value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  write_file(path, {std::as_bytes(std::span(text))});
}

}  // namespace flash
