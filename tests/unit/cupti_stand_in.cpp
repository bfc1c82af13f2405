// A library with the functions of CUPTI's range profiler that are called, and the driver's of the
// current context, for dram_counters_test.cpp. Signatures are NVIDIA's. It checks that each call
// comes in its turn; environment: STAND_IN_FAILS=NAME, that call fails for want of privileges;
// STAND_IN_PASSES=N.
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

struct CUpti_Profiler_Host_Object {
  int n_metrics = 0;
};
struct CUpti_RangeProfiler_Object {
  std::string state = "enabled";
  unsigned char* image = nullptr;
};

namespace {

constexpr size_t config_bytes = 24;
constexpr size_t image_bytes = 40;
CUpti_Profiler_Host_Object host;
CUpti_RangeProfiler_Object profiler;
int n_live = 0;    // objects that are not given back
int n_ranges = 0;  // counted so far

CUptiResult called(const char* name, bool is_right) {
  const char* fails = std::getenv("STAND_IN_FAILS");
  if (fails != nullptr && std::strcmp(fails, name) == 0) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  return is_right ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

// From one state of the profiler to the next.
CUptiResult turned(const char* name,
                   const CUpti_RangeProfiler_Object* object,
                   std::string_view from,
                   const char* to) {
  const CUptiResult code = called(name, object == &profiler && profiler.state == from);
  if (code == CUPTI_SUCCESS) profiler.state = to;
  return code;
}

bool are_the_metrics(const char* const* names, size_t n) {
  return n == 2 && std::string_view(names[0]) == "dram__bytes_read.sum" &&
         std::string_view(names[1]) == "dram__bytes_write.sum";
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

int stand_in_live() { return n_live; }

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(0x40);
  return CUDA_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult code, const char** text) {
  *text = code == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                      : "CUPTI_ERROR_INVALID_PARAMETER";
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerInitialize(CUpti_Profiler_Initialize_Params* p) {
  return called("cuptiProfilerInitialize", p->structSize == sizeof *p);
}

CUptiResult cuptiDeviceGetChipName(CUpti_Device_GetChipName_Params* p) {
  p->pChipName = "GH100";
  return called("cuptiDeviceGetChipName", p->deviceIndex == 3);
}

CUptiResult cuptiProfilerHostInitialize(CUpti_Profiler_Host_Initialize_Params* p) {
  const CUptiResult code = called("cuptiProfilerHostInitialize",
                                  p->profilerType == CUPTI_PROFILER_TYPE_RANGE_PROFILER &&
                                      std::string_view(p->pChipName) == "GH100");
  if (code != CUPTI_SUCCESS) return code;
  host = {};
  ++n_live;
  p->pHostObject = &host;
  return code;
}

CUptiResult cuptiProfilerHostDeinitialize(CUpti_Profiler_Host_Deinitialize_Params* p) {
  if (p->pHostObject != &host) return CUPTI_ERROR_INVALID_PARAMETER;
  --n_live;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostConfigAddMetrics(CUpti_Profiler_Host_ConfigAddMetrics_Params* p) {
  host.n_metrics = static_cast<int>(p->numMetrics);
  return called("cuptiProfilerHostConfigAddMetrics",
                are_the_metrics(p->ppMetricNames, p->numMetrics));
}

CUptiResult cuptiProfilerHostGetConfigImageSize(CUpti_Profiler_Host_GetConfigImageSize_Params* p) {
  p->configImageSize = config_bytes;
  return called("cuptiProfilerHostGetConfigImageSize", host.n_metrics == 2);
}

CUptiResult cuptiProfilerHostGetConfigImage(CUpti_Profiler_Host_GetConfigImage_Params* p) {
  if (p->configImageSize == config_bytes) std::memset(p->pConfigImage, 7, config_bytes);
  return called("cuptiProfilerHostGetConfigImage", p->configImageSize == config_bytes);
}

CUptiResult cuptiProfilerHostGetNumOfPasses(CUpti_Profiler_Host_GetNumOfPasses_Params* p) {
  const char* passes = std::getenv("STAND_IN_PASSES");
  p->numOfPasses = passes == nullptr ? 1 : std::strtoul(passes, nullptr, 10);
  return called("cuptiProfilerHostGetNumOfPasses", p->pConfigImage[config_bytes - 1] == 7);
}

CUptiResult cuptiRangeProfilerEnable(CUpti_RangeProfiler_Enable_Params* p) {
  const CUptiResult code =
      called("cuptiRangeProfilerEnable", p->ctx == reinterpret_cast<CUcontext>(0x40));
  if (code != CUPTI_SUCCESS) return code;
  profiler = {};
  ++n_live;
  p->pRangeProfilerObject = &profiler;
  return code;
}

CUptiResult cuptiRangeProfilerDisable(CUpti_RangeProfiler_Disable_Params* p) {
  if (p->pRangeProfilerObject != &profiler) return CUPTI_ERROR_INVALID_PARAMETER;
  --n_live;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiRangeProfilerGetCounterDataSize(CUpti_RangeProfiler_GetCounterDataSize_Params* p) {
  p->counterDataSize = image_bytes;
  return called("cuptiRangeProfilerGetCounterDataSize",
                are_the_metrics(p->pMetricNames, p->numMetrics) && p->maxNumOfRanges == 1);
}

CUptiResult cuptiRangeProfilerCounterDataImageInitialize(
    CUpti_RangeProfiler_CounterDataImage_Initialize_Params* p) {
  if (p->counterDataSize == image_bytes) std::memset(p->pCounterData, 0, image_bytes);
  return called("cuptiRangeProfilerCounterDataImageInitialize", p->counterDataSize == image_bytes);
}

CUptiResult cuptiRangeProfilerSetConfig(CUpti_RangeProfiler_SetConfig_Params* p) {
  const bool is_right = p->configSize == config_bytes && p->counterDataImageSize == image_bytes &&
                        p->range == CUPTI_UserRange && p->replayMode == CUPTI_UserReplay &&
                        p->maxRangesPerPass == 1;
  profiler.image = p->pCounterDataImage;
  const CUptiResult code =
      turned("cuptiRangeProfilerSetConfig", p->pRangeProfilerObject, "enabled", "configured");
  return is_right ? code : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiRangeProfilerStart(CUpti_RangeProfiler_Start_Params* p) {
  return turned("cuptiRangeProfilerStart", p->pRangeProfilerObject, "configured", "started");
}

CUptiResult cuptiRangeProfilerPushRange(CUpti_RangeProfiler_PushRange_Params* p) {
  return turned("cuptiRangeProfilerPushRange", p->pRangeProfilerObject, "started", "in a range");
}

CUptiResult cuptiRangeProfilerPopRange(CUpti_RangeProfiler_PopRange_Params* p) {
  return turned("cuptiRangeProfilerPopRange", p->pRangeProfilerObject, "in a range", "popped");
}

CUptiResult cuptiRangeProfilerStop(CUpti_RangeProfiler_Stop_Params* p) {
  p->isAllPassSubmitted = 1;
  return turned("cuptiRangeProfilerStop", p->pRangeProfilerObject, "popped", "stopped");
}

CUptiResult cuptiRangeProfilerDecodeData(CUpti_RangeProfiler_DecodeData_Params* p) {
  const CUptiResult code =
      turned("cuptiRangeProfilerDecodeData", p->pRangeProfilerObject, "stopped", "enabled");
  if (code == CUPTI_SUCCESS) profiler.image[0] = static_cast<unsigned char>(++n_ranges);
  return code;
}

CUptiResult cuptiProfilerHostEvaluateToGpuValues(
    CUpti_Profiler_Host_EvaluateToGpuValues_Params* p) {
  p->pMetricValues[0] = 1e12 + p->pCounterDataImage[0];
  p->pMetricValues[1] = 5.0 * p->pCounterDataImage[0];
  return called("cuptiProfilerHostEvaluateToGpuValues",
                p->counterDataImageSize == image_bytes && p->rangeIndex == 0 &&
                    are_the_metrics(p->ppMetricNames, p->numMetrics));
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
