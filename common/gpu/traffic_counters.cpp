#include "common/gpu/traffic_counters.hpp"

#include <cuda_runtime_api.h>

#include "common/base/error.hpp"

// The range profiler came with CUDA 12.6's CUPTI; an older toolkit, or one without CUPTI, builds a program that says
// so.
#if __has_include(<cupti_range_profiler.h>) && __has_include(<cupti_profiler_host.h>)

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/gpu/check.hpp"
#include "common/gpu/dynamic_library.hpp"

namespace flash {
namespace {

constexpr const char* kDramRead = "dram__bytes_read.sum";
constexpr const char* kDramWritten = "dram__bytes_write.sum";
constexpr const char* kL2ToSm = "l1tex__m_xbar2l1tex_read_bytes.sum";
constexpr const char* kSmToL2 = "l1tex__m_l1tex2xbar_write_bytes.sum";
constexpr const char* kLtsBytes = "lts__t_bytes.sum";
constexpr const char* kLoadSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kStoreSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum";
// With at least one lane on: ptxas puts loads that no lane executes in front of many a cp.async.
constexpr const char* kSharedLoads[] = {"smsp__inst_executed_op_shared_ld_pred_on_any.sum",
                                        "smsp__inst_executed_op_ldsm_pred_on_any.sum"};
constexpr const char* kSharedStores = "smsp__inst_executed_op_shared_st_pred_on_any.sum";
constexpr const char* kSharedCopies = "smsp__inst_executed_op_ldgsts_pred_on_any.sum";
constexpr const char* kLoadConflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum";
constexpr const char* kStoreConflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum";
constexpr const char* kCopyConflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum";
constexpr const char* kAllConflicts = "l1tex__data_bank_conflicts_pipe_lsu.sum";
constexpr const char* kMetrics[] = {kDramRead,     kDramWritten,   kL2ToSm,         kSmToL2,         kLtsBytes,
                                    kLoadSectors,  kStoreSectors,  kSharedLoads[0], kSharedLoads[1], kSharedStores,
                                    kSharedCopies, kLoadConflicts, kStoreConflicts, kCopyConflicts,  kAllConflicts};

/// A parameter structure of CUPTI, zeroed and with its size set: FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Start_Params,
/// start);
#define FLASH_CUPTI_PARAMS(type, name) \
  type name = {};                      \
  name.structSize = type##_STRUCT_SIZE

#define FLASH_CUPTI_FUNCTIONS(X)                  \
  X(cuptiGetResultString)                         \
  X(cuptiProfilerInitialize)                      \
  X(cuptiProfilerDeInitialize)                    \
  X(cuptiProfilerGetCounterAvailability)          \
  X(cuptiDeviceGetChipName)                       \
  X(cuptiProfilerHostInitialize)                  \
  X(cuptiProfilerHostDeinitialize)                \
  X(cuptiProfilerHostGetMetricProperties)         \
  X(cuptiProfilerHostConfigAddMetrics)            \
  X(cuptiProfilerHostGetConfigImageSize)          \
  X(cuptiProfilerHostGetConfigImage)              \
  X(cuptiProfilerHostGetNumOfPasses)              \
  X(cuptiProfilerHostEvaluateToGpuValues)         \
  X(cuptiRangeProfilerEnable)                     \
  X(cuptiRangeProfilerDisable)                    \
  X(cuptiRangeProfilerSetConfig)                  \
  X(cuptiRangeProfilerStart)                      \
  X(cuptiRangeProfilerStop)                       \
  X(cuptiRangeProfilerPushRange)                  \
  X(cuptiRangeProfilerPopRange)                   \
  X(cuptiRangeProfilerDecodeData)                 \
  X(cuptiRangeProfilerGetCounterDataSize)         \
  X(cuptiRangeProfilerCounterDataImageInitialize) \
  X(cuptiRangeProfilerGetCounterDataInfo)

/// CUPTI's functions, loaded once for the process, and the driver's one that is needed beside them.
struct Cupti {
#define FLASH_MEMBER(function) decltype(&::function) function = nullptr;
  FLASH_CUPTI_FUNCTIONS(FLASH_MEMBER)
#undef FLASH_MEMBER
  CUresult (*get_current_context)(CUcontext*) = nullptr;
  std::string why_not;  // empty if everything is there

  Cupti() {
    // CUPTI asks for the nvperf libraries, which lie beside it, by their names alone.
    void* cupti = load_library({"libcupti.so.13", "libcupti.so.12", "libcupti.so"},
                               {"libnvperf_host.so", "libnvperf_target.so"}, &why_not);
    if (cupti == nullptr) {
      why_not += "; it comes with the CUDA toolkit: set LD_LIBRARY_PATH or CUDA_HOME to where it is";
      return;
    }
    void* driver = load_library({"libcuda.so.1"}, {}, &why_not);
    if (driver == nullptr) return;
    const auto find = [&](void* library, auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && why_not.empty()) {
        why_not = std::string("the CUPTI found lacks ") + name + "; CUDA 12.6 and later have it";
      }
    };
#define FLASH_FIND(function) find(cupti, function, #function);
    FLASH_CUPTI_FUNCTIONS(FLASH_FIND)
#undef FLASH_FIND
    find(driver, get_current_context, "cuCtxGetCurrent");
  }

  static const Cupti& get() {
    static const Cupti cupti;
    return cupti;
  }
};

/// One line for a failed call, with what helps where that is known.
std::string explain(CUptiResult result, const char* call) {
  const char* name = nullptr;
  if (Cupti::get().cuptiGetResultString(result, &name) != CUPTI_SUCCESS || name == nullptr) name = "an unknown error";
  const std::string failure = std::string(call) + " failed: " + name;
  switch (result) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      return "the driver lets only administrators read performance counters; run as root (in a container with "
             "--cap-add=SYS_ADMIN) or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0 (" +
             failure + ")";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "the hypervisor does not let this virtual GPU read performance counters; enable profiling for it there (" +
             failure + ")";
    case CUPTI_ERROR_HARDWARE_BUSY:
      return "another profiler holds the performance counters (Nsight, DCGM); stop it (" + failure + ")";
    default:
      return failure;
  }
}

void check(CUptiResult result, const char* call, int line) {
  if (result != CUPTI_SUCCESS) throw DeviceError(explain(result, call) + " at " + source_position(__FILE__, line));
}

#define FLASH_CUPTI(function, params) check(Cupti::get().function(&(params)), #function, __LINE__)

/// Knows a chip's metrics: turns their names into a plan for the hardware and raw counters into values.
class MetricHost {
 public:
  MetricHost(const std::string& chip, const std::vector<std::uint8_t>& availability) {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_Initialize_Params, params);
    params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    params.pChipName = chip.c_str();
    params.pCounterAvailabilityImage = availability.data();
    FLASH_CUPTI(cuptiProfilerHostInitialize, params);
    host_ = params.pHostObject;
  }
  ~MetricHost() {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, params);
    params.pHostObject = host_;
    Cupti::get().cuptiProfilerHostDeinitialize(&params);
  }
  MetricHost(const MetricHost&) = delete;
  MetricHost& operator=(const MetricHost&) = delete;

  bool knows(const char* metric) const {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_GetMetricProperties_Params, params);
    params.pHostObject = host_;
    params.pMetricName = metric;
    return Cupti::get().cuptiProfilerHostGetMetricProperties(&params) == CUPTI_SUCCESS;
  }

  /// All in one call: CUPTI packs metrics that it sees together into fewer passes.
  bool add(std::vector<const char*>& metrics) {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, params);
    params.pHostObject = host_;
    params.ppMetricNames = metrics.data();
    params.numMetrics = metrics.size();
    return Cupti::get().cuptiProfilerHostConfigAddMetrics(&params) == CUPTI_SUCCESS;
  }

  /// Which counters each pass collects.
  std::vector<std::uint8_t> config_image() const {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = host_;
    FLASH_CUPTI(cuptiProfilerHostGetConfigImageSize, size);
    std::vector<std::uint8_t> image(size.configImageSize);
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, params);
    params.pHostObject = host_;
    params.configImageSize = image.size();
    params.pConfigImage = image.data();
    FLASH_CUPTI(cuptiProfilerHostGetConfigImage, params);
    return image;
  }

  std::vector<double> evaluate(const std::vector<std::uint8_t>& counters, std::vector<const char*>& metrics) const {
    std::vector<double> values(metrics.size(), TrafficReading::kUnknown);
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, params);
    params.pHostObject = host_;
    params.pCounterDataImage = counters.data();
    params.counterDataImageSize = counters.size();
    params.rangeIndex = 0;
    params.ppMetricNames = metrics.data();
    params.numMetrics = metrics.size();
    params.pMetricValues = values.data();
    FLASH_CUPTI(cuptiProfilerHostEvaluateToGpuValues, params);
    return values;
  }

 private:
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

std::size_t pass_count(std::vector<std::uint8_t>& config) {
  FLASH_CUPTI_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, params);
  params.pConfigImage = config.data();
  params.configImageSize = config.size();
  FLASH_CUPTI(cuptiProfilerHostGetNumOfPasses, params);
  return params.numOfPasses;
}

/// The profiler switched on for a context. Left early, it ends what is open and switches it off.
class RangeProfiler {
 public:
  explicit RangeProfiler(CUcontext context) {
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Enable_Params, params);
    params.ctx = context;
    FLASH_CUPTI(cuptiRangeProfilerEnable, params);
    profiler_ = params.pRangeProfilerObject;
  }
  ~RangeProfiler() {
    if (in_range_) {
      FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_PopRange_Params, pop);
      pop.pRangeProfilerObject = profiler_;
      Cupti::get().cuptiRangeProfilerPopRange(&pop);
    }
    if (started_) {
      FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
      stop.pRangeProfilerObject = profiler_;
      Cupti::get().cuptiRangeProfilerStop(&stop);
    }
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Disable_Params, disable);
    disable.pRangeProfilerObject = profiler_;
    Cupti::get().cuptiRangeProfilerDisable(&disable);
  }
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  /// Plans one range of these metrics; `config` and `counters` must stay where they are.
  void configure(const std::vector<std::uint8_t>& config, std::vector<const char*>& metrics,
                 std::vector<std::uint8_t>& counters) {
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size.pRangeProfilerObject = profiler_;
    size.pMetricNames = metrics.data();
    size.numMetrics = metrics.size();
    size.maxNumOfRanges = 1;
    size.maxNumRangeTreeNodes = 1;
    FLASH_CUPTI(cuptiRangeProfilerGetCounterDataSize, size);
    counters.assign(size.counterDataSize, 0);
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, image);
    image.pRangeProfilerObject = profiler_;
    image.counterDataSize = counters.size();
    image.pCounterData = counters.data();
    FLASH_CUPTI(cuptiRangeProfilerCounterDataImageInitialize, image);
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_SetConfig_Params, params);
    params.pRangeProfilerObject = profiler_;
    params.configSize = config.size();
    params.pConfig = config.data();
    params.counterDataImageSize = counters.size();
    params.pCounterDataImage = counters.data();
    params.range = CUPTI_UserRange;
    params.replayMode = CUPTI_UserReplay;
    params.maxRangesPerPass = 1;
    params.numNestingLevels = 1;
    params.minNestingLevel = 1;
    params.passIndex = 0;
    params.targetNestingLevel = 1;
    FLASH_CUPTI(cuptiRangeProfilerSetConfig, params);
  }

  void begin_pass() {
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Start_Params, start);
    start.pRangeProfilerObject = profiler_;
    FLASH_CUPTI(cuptiRangeProfilerStart, start);
    started_ = true;
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_PushRange_Params, push);
    push.pRangeProfilerObject = profiler_;
    push.pRangeName = "launch";
    FLASH_CUPTI(cuptiRangeProfilerPushRange, push);
    in_range_ = true;
  }

  /// True once every planned pass has run.
  bool end_pass() {
    in_range_ = false;
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_PopRange_Params, pop);
    pop.pRangeProfilerObject = profiler_;
    FLASH_CUPTI(cuptiRangeProfilerPopRange, pop);
    started_ = false;
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = profiler_;
    FLASH_CUPTI(cuptiRangeProfilerStop, stop);
    return stop.isAllPassSubmitted != 0;
  }

  /// Brings the passes' counters into the image that configure was given.
  void decode(const std::vector<std::uint8_t>& counters) {
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_DecodeData_Params, params);
    params.pRangeProfilerObject = profiler_;
    FLASH_CUPTI(cuptiRangeProfilerDecodeData, params);
    FLASH_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info);
    info.pCounterDataImage = counters.data();
    info.counterDataImageSize = counters.size();
    FLASH_CUPTI(cuptiRangeProfilerGetCounterDataInfo, info);
    if (info.numTotalRanges != 1 || params.numOfRangeDropped != 0) {
      throw DeviceError("CUPTI returned " + std::to_string(info.numTotalRanges) + " ranges and dropped " +
                        std::to_string(params.numOfRangeDropped) + " where one was measured");
    }
  }

 private:
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  bool started_ = false, in_range_ = false;
};

/// Keeps CUPTI's profiler initialised.
struct ProfilerLibrary {
  ProfilerLibrary() {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_Initialize_Params, params);
    FLASH_CUPTI(cuptiProfilerInitialize, params);
  }
  ~ProfilerLibrary() {
    FLASH_CUPTI_PARAMS(CUpti_Profiler_DeInitialize_Params, params);
    Cupti::get().cuptiProfilerDeInitialize(&params);
  }
  ProfilerLibrary(const ProfilerLibrary&) = delete;
  ProfilerLibrary& operator=(const ProfilerLibrary&) = delete;
};

CUcontext current_context() {
  FLASH_CUDA(cudaFree(nullptr));  // makes the device's context if nothing has yet
  CUcontext context = nullptr;
  if (Cupti::get().get_current_context(&context) != CUDA_SUCCESS || context == nullptr) {
    throw DeviceError("no CUDA context is current");
  }
  return context;
}

std::string chip_name() {
  int device = 0;
  FLASH_CUDA(cudaGetDevice(&device));
  FLASH_CUPTI_PARAMS(CUpti_Device_GetChipName_Params, params);
  params.deviceIndex = std::size_t(device);
  FLASH_CUPTI(cuptiDeviceGetChipName, params);
  return params.pChipName;
}

std::vector<std::uint8_t> counter_availability(CUcontext context) {
  FLASH_CUPTI_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, params);
  params.ctx = context;
  FLASH_CUPTI(cuptiProfilerGetCounterAvailability, params);
  std::vector<std::uint8_t> image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  FLASH_CUPTI(cuptiProfilerGetCounterAvailability, params);
  return image;
}

}  // namespace

struct TrafficCounters::State {
  CUcontext context = current_context();
  ProfilerLibrary library;
  std::unique_ptr<MetricHost> host;
  std::vector<const char*> metrics;  // those of kMetrics that this chip has
  std::vector<std::uint8_t> config;
  std::size_t passes = 0;

  State() {
    const std::string chip = chip_name();
    const std::vector<std::uint8_t> availability = counter_availability(context);
    host = std::make_unique<MetricHost>(chip, availability);
    for (const char* metric : kMetrics) {
      if (host->knows(metric)) metrics.push_back(metric);
    }
    if (metrics.empty() || !host->add(metrics)) {
      // A name that the chip knows can still lack its counters here: keep those that can be planned alone.
      std::vector<const char*> usable;
      for (const char* metric : metrics) {
        std::vector<const char*> one{metric};
        if (MetricHost(chip, availability).add(one)) usable.push_back(metric);
      }
      metrics = usable;
      host = std::make_unique<MetricHost>(chip, availability);
      if (metrics.empty() || !host->add(metrics))
        throw DeviceError("CUPTI has no traffic counters for the chip " + chip);
    }
    config = host->config_image();
    passes = pass_count(config);
    // Whether counters are permitted shows when the profiler is switched on.
    RangeProfiler profiler(context);
    std::vector<std::uint8_t> counters;
    profiler.configure(config, metrics, counters);
  }
};

std::unique_ptr<TrafficCounters> TrafficCounters::open(std::string* why_not) {
  std::string reason = Cupti::get().why_not;
  if (reason.empty()) {
    try {
      return std::unique_ptr<TrafficCounters>(new TrafficCounters(std::make_unique<State>()));
    } catch (const DeviceError& error) {
      reason = error.what();
    }
  }
  if (why_not) *why_not = reason;
  return nullptr;
}

TrafficCounters::TrafficCounters(std::unique_ptr<State> state) : state_(std::move(state)) {}

TrafficCounters::~TrafficCounters() = default;

TrafficReading TrafficCounters::measure(const std::function<void()>& launch, CUstream_st* stream,
                                        const std::function<void()>& prepare) {
  const auto run = [&] {
    launch();
    FLASH_CUDA(cudaGetLastError());
    FLASH_CUDA(cudaStreamSynchronize(stream));
  };
  // A first launch also loads code and allocates workspace, which is no traffic of the kernels.
  if (prepare) prepare();
  run();

  TrafficReading reading;
  std::vector<std::uint8_t> counters;
  {
    RangeProfiler profiler(state_->context);
    profiler.configure(state_->config, state_->metrics, counters);
    for (bool done = false; !done; ++reading.passes) {
      if (std::size_t(reading.passes) > 2 * state_->passes + 8) {
        throw DeviceError("CUPTI asks for more passes than the " + std::to_string(state_->passes) + " it planned");
      }
      if (prepare) prepare();
      FLASH_CUDA(cudaDeviceSynchronize());
      profiler.begin_pass();
      run();
      done = profiler.end_pass();
    }
    profiler.decode(counters);
  }
  const std::vector<double> values = state_->host->evaluate(counters, state_->metrics);
  for (std::size_t i = 0; i < values.size(); ++i) reading.raw[state_->metrics[i]] = values[i];

  const auto value = [&](const char* metric) {
    const auto found = reading.raw.find(metric);
    return found == reading.raw.end() ? TrafficReading::kUnknown : found->second;
  };
  reading.dram_read = value(kDramRead);
  reading.dram_written = value(kDramWritten);
  reading.l2_to_sm_read = value(kL2ToSm);
  reading.sm_to_l2_written = value(kSmToL2);
  reading.lts_bytes = value(kLtsBytes);
  reading.lsu_global_load_sectors = value(kLoadSectors);
  reading.lsu_global_store_sectors = value(kStoreSectors);
  reading.shared_loads = {value(kSharedLoads[0]) + value(kSharedLoads[1]), value(kLoadConflicts)};
  reading.shared_stores = {value(kSharedStores), value(kStoreConflicts)};
  reading.shared_copies = {value(kSharedCopies), value(kCopyConflicts)};
  reading.lsu_bank_conflicts = value(kAllConflicts);
  return reading;
}

}  // namespace flash

#else

namespace flash {

struct TrafficCounters::State {};

std::unique_ptr<TrafficCounters> TrafficCounters::open(std::string* why_not) {
  if (why_not) {
    *why_not = "this program was built without CUPTI's range profiler; build it with CUDA 12.6 or later and its CUPTI";
  }
  return nullptr;
}

TrafficCounters::TrafficCounters(std::unique_ptr<State> state) : state_(std::move(state)) {}

TrafficCounters::~TrafficCounters() = default;

TrafficReading TrafficCounters::measure(const std::function<void()>&, CUstream_st*, const std::function<void()>&) {
  throw DeviceError("no traffic counters in this program");
}

}  // namespace flash

#endif
