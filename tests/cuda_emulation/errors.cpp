// Names and texts of errors, as the real runtime words them.
#include <cuda_runtime_api.h>

#include <array>

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
#define ERROR_TEXT(code, text) \
  ErrorText { code, #code, text }
constexpr std::array error_texts{
    ERROR_TEXT(cudaSuccess, "no error"),
    ERROR_TEXT(cudaErrorInvalidValue, "invalid argument"),
    ERROR_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    ERROR_TEXT(cudaErrorInitializationError, "initialization error"),
    ERROR_TEXT(cudaErrorCudartUnloading, "driver shutting down"),
    ERROR_TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR_TEXT(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR_TEXT(cudaErrorInsufficientDriver,
               "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR_TEXT(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    ERROR_TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR_TEXT(cudaErrorNotReady, "device not ready"),
    ERROR_TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR_TEXT(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR_TEXT(cudaErrorPeerAccessUnsupported,
               "peer access is not supported between these two devices"),
    ERROR_TEXT(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR_TEXT(cudaErrorHostMemoryAlreadyRegistered,
               "part or all of the requested memory range is already mapped"),
    ERROR_TEXT(cudaErrorHostMemoryNotRegistered,
               "pointer does not correspond to a registered memory region"),
    ERROR_TEXT(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    ERROR_TEXT(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR_TEXT(cudaErrorNotSupported, "operation not supported"),
    ERROR_TEXT(cudaErrorStreamCaptureUnsupported,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(cudaErrorStreamCaptureInvalidated,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(cudaErrorStreamCaptureMerge,
               "operation would result in a merge of separate capture sequences"),
    ERROR_TEXT(cudaErrorStreamCaptureUnmatched,
               "capture was not ended in the same stream as it began"),
    ERROR_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR_TEXT(cudaErrorStreamCaptureIsolation,
               "dependency created on uncaptured work in another stream"),
    ERROR_TEXT(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR_TEXT(cudaErrorCapturedEvent,
               "operation not permitted on an event last recorded in a capturing stream"),
    ERROR_TEXT(cudaErrorStreamCaptureWrongThread,
               "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR_TEXT(cudaErrorGraphExecUpdateFailure,
               "the graph update was not performed because it included changes which violated "
               "constraints specific to instantiated graph update"),
    ERROR_TEXT(cudaErrorUnknown, "unknown error"),
};
#undef ERROR_TEXT

}  // namespace

const char* cudaGetErrorName(cudaError_t code) {
  for (const ErrorText& error : error_texts) {
    if (error.code == code) return error.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t code) {
  for (const ErrorText& error : error_texts) {
    if (error.code == code) return error.text;
  }
  return "unrecognized error code";
}
