#include "kernels/cuda/nvml_library.hpp"

#include <dlfcn.h>

namespace testbed {
namespace {

// A function that this library lacks stays nullptr. Of several names the first it has.
template <typename Function, typename... Names>
void load(void* library, Function& function, Names... names) {
  for (const char* name : {names...}) {
    if (function == nullptr) function = reinterpret_cast<Function>(dlsym(library, name));
  }
}

void load_device_functions(void* library, nvml_abi::Functions& f) {
  load(library, f.by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  load(library, f.name, "nvmlDeviceGetName");
  load(library, f.uuid, "nvmlDeviceGetUUID");
  load(library, f.serial, "nvmlDeviceGetSerial");
  load(library, f.clock, "nvmlDeviceGetClockInfo");
  load(library, f.max_clock, "nvmlDeviceGetMaxClockInfo");
  load(library,
       f.throttle_reasons,
       "nvmlDeviceGetCurrentClocksEventReasons",  // the newer name
       "nvmlDeviceGetCurrentClocksThrottleReasons");
  load(library, f.violation, "nvmlDeviceGetViolationStatus");
  load(library, f.temperature, "nvmlDeviceGetTemperature");
  load(library, f.power, "nvmlDeviceGetPowerUsage");
  load(library, f.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  load(library, f.energy, "nvmlDeviceGetTotalEnergyConsumption");
  load(library, f.ecc_mode, "nvmlDeviceGetEccMode");
  load(library, f.ecc_errors, "nvmlDeviceGetTotalEccErrors");
  load(library, f.mig_mode, "nvmlDeviceGetMigMode");
}

void load_link_functions(void* library, nvml_abi::Functions& f) {
  load(library, f.nvlink_state, "nvmlDeviceGetNvLinkState");
  load(library, f.nvlink_version, "nvmlDeviceGetNvLinkVersion");
  load(library, f.nvlink_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  load(library, f.nvlink_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  load(library, f.field_values, "nvmlDeviceGetFieldValues");
  load(library, f.pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
  load(library, f.pcie_width, "nvmlDeviceGetCurrPcieLinkWidth");
  load(library, f.max_pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
  load(library, f.max_pcie_width, "nvmlDeviceGetMaxPcieLinkWidth");
  load(library, f.create_events, "nvmlEventSetCreate");
  load(library, f.register_events, "nvmlDeviceRegisterEvents");
  load(library, f.wait_event, "nvmlEventSetWait_v2");
  load(library, f.free_events, "nvmlEventSetFree");
}

}  // namespace

std::shared_ptr<const NvmlLibrary> NvmlLibrary::open(const std::string& path,
                                                     std::string& why_not) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // names the file
    why_not = reason == nullptr ? path + ": cannot be opened" : reason;
    return nullptr;
  }
  nvml_abi::Functions functions;
  load(handle, functions.init, "nvmlInit_v2");
  load(handle, functions.shutdown, "nvmlShutdown");
  load(handle, functions.error_string, "nvmlErrorString");
  load(handle, functions.driver_version, "nvmlSystemGetDriverVersion");
  load_device_functions(handle, functions);
  load_link_functions(handle, functions);
  if (functions.init == nullptr) {
    why_not = path + ": has no nvmlInit_v2";
    dlclose(handle);
    return nullptr;
  }
  if (const nvml_abi::Return code = functions.init(); code != nvml_abi::success) {
    why_not = path + ": nvmlInit_v2: ";
    why_not += functions.error_string == nullptr ? "failed" : functions.error_string(code);
    why_not += " (code " + std::to_string(code) + ")";
    dlclose(handle);
    return nullptr;
  }
  return std::shared_ptr<const NvmlLibrary>(new NvmlLibrary(handle, functions));
}

NvmlLibrary::~NvmlLibrary() {
  if (functions_.shutdown != nullptr) functions_.shutdown();
  dlclose(handle_);
}

}  // namespace testbed
