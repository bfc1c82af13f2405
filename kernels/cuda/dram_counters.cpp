#include "kernels/cuda/dram_counters.hpp"

#include <stdexcept>

#if __has_include(<cupti_range_profiler.h>)
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace testbed {
namespace {

std::array metrics{"dram__bytes_read.sum", "dram__bytes_write.sum"};

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* reason = dlerror();  // names the file
      throw std::runtime_error(reason == nullptr ? path + ": cannot be opened" : reason);
    }
  }
  // It stays open: CUPTI has hooks in the driver.
  template <typename Function>
  Function* function(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(fmt::format("CUPTI: there is no {}", name));
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* handle_;
};

CUcontext current_context(const Library& driver) {
  CUcontext context = nullptr;
  const auto get = driver.function<CUresult(CUcontext*)>("cuCtxGetCurrent");
  if (const CUresult code = get(&context); code != CUDA_SUCCESS || context == nullptr) {
    throw std::runtime_error(
        fmt::format("cuCtxGetCurrent: no context (code {})", static_cast<int>(code)));
  }
  return context;
}

}  // namespace

// CUPTI's calls all take one structure that begins with its own size.
struct DramCounters::State {
  explicit State(const Libraries& libraries) : cupti(libraries.cupti) {}

  template <typename Params>
  void call(const char* name, Params& params, size_t size) const {
    params.structSize = size;
    const CUptiResult code = cupti.function<CUptiResult(Params*)>(name)(&params);
    if (code == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    cupti.function<CUptiResult(CUptiResult, const char**)>("cuptiGetResultString")(code, &text);
    throw std::runtime_error(fmt::format(
        "{}: {} (code {})", name, text == nullptr ? "unknown" : text, static_cast<int>(code)));
  }

  void make_config(int device);
  void enable(CUcontext context);
  void disable() const;
  void initialise_image();

  Library cupti;
  CUpti_Profiler_Host_Object* host = nullptr;
  CUpti_RangeProfiler_Object* profiler = nullptr;
  std::vector<uint8_t> config;  // which counters, compiled for the chip
  std::vector<uint8_t> image;   // what they said
};

void DramCounters::State::make_config(int device) {
  CUpti_Profiler_Initialize_Params initialise{};
  call("cuptiProfilerInitialize", initialise, CUpti_Profiler_Initialize_Params_STRUCT_SIZE);
  CUpti_Device_GetChipName_Params chip{};
  chip.deviceIndex = static_cast<size_t>(device);
  call("cuptiDeviceGetChipName", chip, CUpti_Device_GetChipName_Params_STRUCT_SIZE);
  CUpti_Profiler_Host_Initialize_Params host_side{};
  host_side.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  host_side.pChipName = chip.pChipName;
  call("cuptiProfilerHostInitialize", host_side, CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE);
  host = host_side.pHostObject;
  CUpti_Profiler_Host_ConfigAddMetrics_Params add{};
  add.pHostObject = host;
  add.ppMetricNames = metrics.data();
  add.numMetrics = metrics.size();
  call("cuptiProfilerHostConfigAddMetrics",
       add,
       CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE);
  CUpti_Profiler_Host_GetConfigImageSize_Params size{};
  size.pHostObject = host;
  call("cuptiProfilerHostGetConfigImageSize",
       size,
       CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE);
  config.resize(size.configImageSize);
  CUpti_Profiler_Host_GetConfigImage_Params get{};
  get.pHostObject = host;
  get.configImageSize = config.size();
  get.pConfigImage = config.data();
  call("cuptiProfilerHostGetConfigImage",
       get,
       CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE);
  CUpti_Profiler_Host_GetNumOfPasses_Params passes{};
  passes.configImageSize = config.size();
  passes.pConfigImage = config.data();
  call("cuptiProfilerHostGetNumOfPasses",
       passes,
       CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE);
  if (passes.numOfPasses != 1) {  // the work would have to run again for each
    throw std::runtime_error(
        fmt::format("CUPTI: DRAM's counters take {} passes here", passes.numOfPasses));
  }
}

void DramCounters::State::enable(CUcontext context) {
  CUpti_RangeProfiler_Enable_Params enabling{};
  enabling.ctx = context;
  call("cuptiRangeProfilerEnable", enabling, CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE);
  profiler = enabling.pRangeProfilerObject;
  CUpti_RangeProfiler_GetCounterDataSize_Params size{};
  size.pRangeProfilerObject = profiler;
  size.pMetricNames = metrics.data();
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  call("cuptiRangeProfilerGetCounterDataSize",
       size,
       CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE);
  image.resize(size.counterDataSize);
}

void DramCounters::State::disable() const {
  if (profiler != nullptr) {
    CUpti_RangeProfiler_Disable_Params disabling{};
    disabling.pRangeProfilerObject = profiler;
    call("cuptiRangeProfilerDisable", disabling, CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE);
  }
  if (host != nullptr) {
    CUpti_Profiler_Host_Deinitialize_Params ending{};
    ending.pHostObject = host;
    call("cuptiProfilerHostDeinitialize",
         ending,
         CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE);
  }
}

void DramCounters::State::initialise_image() {
  CUpti_RangeProfiler_CounterDataImage_Initialize_Params empty{};
  empty.pRangeProfilerObject = profiler;
  empty.counterDataSize = image.size();
  empty.pCounterData = image.data();
  call("cuptiRangeProfilerCounterDataImageInitialize",
       empty,
       CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE);
}

DramCounters::DramCounters(int device, const Libraries& libraries)
    : state_(std::make_unique<State>(libraries)) {
  const CUcontext context = current_context(Library(libraries.driver));
  try {
    state_->make_config(device);
    state_->enable(context);
  } catch (const std::runtime_error&) {
    try {
      state_->disable();
    } catch (const std::runtime_error&) {  // the first error is the one to tell
    }
    throw;
  }
}

DramCounters::~DramCounters() {
  try {
    state_->disable();
  } catch (const std::exception&) {  // nothing is asked of it any more
  }
}

void DramCounters::begin() {
  State& s = *state_;
  s.initialise_image();
  CUpti_RangeProfiler_SetConfig_Params set{};
  set.pRangeProfilerObject = s.profiler;
  set.configSize = s.config.size();
  set.pConfig = s.config.data();
  set.counterDataImageSize = s.image.size();
  set.pCounterDataImage = s.image.data();
  set.range = CUPTI_UserRange;
  set.replayMode = CUPTI_UserReplay;
  set.maxRangesPerPass = 1;
  set.numNestingLevels = 1;
  set.minNestingLevel = 1;
  set.targetNestingLevel = 1;
  s.call("cuptiRangeProfilerSetConfig", set, CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE);
  CUpti_RangeProfiler_Start_Params start{};
  start.pRangeProfilerObject = s.profiler;
  s.call("cuptiRangeProfilerStart", start, CUpti_RangeProfiler_Start_Params_STRUCT_SIZE);
  CUpti_RangeProfiler_PushRange_Params push{};
  push.pRangeProfilerObject = s.profiler;
  push.pRangeName = "generation";
  s.call("cuptiRangeProfilerPushRange", push, CUpti_RangeProfiler_PushRange_Params_STRUCT_SIZE);
}

DramBytes DramCounters::end() {
  State& s = *state_;
  CUpti_RangeProfiler_PopRange_Params pop{};
  pop.pRangeProfilerObject = s.profiler;
  s.call("cuptiRangeProfilerPopRange", pop, CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE);
  CUpti_RangeProfiler_Stop_Params stop{};
  stop.pRangeProfilerObject = s.profiler;
  s.call("cuptiRangeProfilerStop", stop, CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE);
  CUpti_RangeProfiler_DecodeData_Params decode{};
  decode.pRangeProfilerObject = s.profiler;
  s.call("cuptiRangeProfilerDecodeData", decode, CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE);
  if (stop.isAllPassSubmitted == 0 || decode.numOfRangeDropped != 0) {
    throw std::runtime_error("CUPTI: DRAM's counters were not all collected");
  }
  std::array<double, metrics.size()> values{};
  CUpti_Profiler_Host_EvaluateToGpuValues_Params evaluate{};
  evaluate.pHostObject = s.host;
  evaluate.pCounterDataImage = s.image.data();
  evaluate.counterDataImageSize = s.image.size();
  evaluate.ppMetricNames = metrics.data();
  evaluate.numMetrics = metrics.size();
  evaluate.pMetricValues = values.data();
  s.call("cuptiProfilerHostEvaluateToGpuValues",
         evaluate,
         CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE);
  return {static_cast<int64_t>(values[0]), static_cast<int64_t>(values[1])};
}

}  // namespace testbed

#else

namespace testbed {

struct DramCounters::State {};

DramCounters::DramCounters(int /*device*/, const Libraries& /*libraries*/) {
  throw std::runtime_error("this program was built without CUPTI's headers");
}
DramCounters::~DramCounters() = default;
void DramCounters::begin() {}
DramBytes DramCounters::end() { return {}; }

}  // namespace testbed

#endif
