// A library with NVML's interface and one GPU whose counters grow by known amounts, for
// nvml_test.cpp. Signatures are NVIDIA's. Compiled with TESTBED_NVML_OLD it lacks what older
// drivers lack.
#include <cstring>

#include "kernels/cuda/nvml_abi.hpp"

namespace {

using namespace testbed::nvml_abi;  // NOLINT: the interface that is stood in for

[[maybe_unused]] constexpr Return not_supported = 3;
constexpr Return not_found = 6;
Device the_device() { return reinterpret_cast<Device>(0x10); }

int n_inits = 0;
int n_event_sets = 0;
int n_xids = 0;
[[maybe_unused]] struct Reads {
  unsigned long long energy = 0;
  unsigned long long violation[2] = {0, 0};
  unsigned field[256] = {};
  unsigned clock = 0;
  unsigned long long reasons = 0;
} reads;

Return text(const char* value, char* out, unsigned size) {
  std::strncpy(out, value, size);
  return success;
}
template <typename T, typename V>
Return number(V value, T* out) {
  *out = static_cast<T>(value);
  return success;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

// What the test asks the stand-in, not NVML's.
int stand_in_inits() { return n_inits; }
int stand_in_event_sets() { return n_event_sets; }
void stand_in_raise_xids(int n) { n_xids = n; }

Return nvmlInit_v2() {
#ifdef TESTBED_NVML_BROKEN
  return 9;  // NVML_ERROR_DRIVER_NOT_LOADED
#else
  ++n_inits;
  return success;
#endif
}
Return nvmlShutdown() {
  --n_inits;
  return success;
}
const char* nvmlErrorString(Return code) { return code == 9 ? "Driver Not Loaded" : "?"; }
Return nvmlSystemGetDriverVersion(char* out, unsigned size) { return text("580.65.06", out, size); }
Return nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
  if (std::strcmp(id, "0000:1b:00.0") != 0) return not_found;
  *device = the_device();
  return success;
}
Return nvmlDeviceGetName(Device, char* out, unsigned size) {
  return text("NVIDIA H100 80GB HBM3", out, size);
}
Return nvmlDeviceGetUUID(Device, char* out, unsigned size) { return text("GPU-1234", out, size); }

#ifndef TESTBED_NVML_OLD
Return nvmlDeviceGetSerial(Device, char* out, unsigned size) { return text("165", out, size); }
Return nvmlDeviceGetClockInfo(Device, ClockType type, unsigned* mhz) {
  return number(type == clock_sm ? 1980 - 15 * reads.clock++ : 2619, mhz);
}
Return nvmlDeviceGetMaxClockInfo(Device, ClockType type, unsigned* mhz) {
  return number(type == clock_sm ? 1980 : 2619, mhz);
}
// Idle at first, then held down by power.
Return nvmlDeviceGetCurrentClocksEventReasons(Device, unsigned long long* reasons) {
  return number(reads.reasons++ == 0 ? 0x1 : 0x4, reasons);
}
Return nvmlDeviceGetViolationStatus(Device, PerfPolicy policy, ViolationTime* time) {
  time->reference_us = 0;
  return number(reads.violation[policy]++ * (policy == policy_power ? 250000000U : 0U),
                &time->violation_ns);
}
Return nvmlDeviceGetTemperature(Device, int, unsigned* c) { return number(61, c); }
Return nvmlDeviceGetPowerUsage(Device, unsigned* mw) { return number(412000, mw); }
Return nvmlDeviceGetEnforcedPowerLimit(Device, unsigned* mw) { return number(700000, mw); }
Return nvmlDeviceGetTotalEnergyConsumption(Device, unsigned long long* mj) {
  return number(1000000 + 824500 * reads.energy++, mj);
}
Return nvmlDeviceGetEccMode(Device, int* now, int* next) {
  *next = 1;
  return number(1, now);
}
Return nvmlDeviceGetTotalEccErrors(Device, EccError error, EccCounter, unsigned long long* n) {
  return number(error == ecc_corrected ? 7 : 0, n);
}
Return nvmlDeviceGetMigMode(Device, unsigned* now, unsigned* next) {
  *next = 0;
  return number(0, now);
}
// Three links: two to a switch, one to a GPU; the rest are not there.
Return nvmlDeviceGetNvLinkState(Device, unsigned link, int* state) {
  if (link >= 4) return not_supported;
  return number(link == 3 ? 0 : 1, state);
}
Return nvmlDeviceGetNvLinkVersion(Device, unsigned, unsigned* version) {
  return number(4, version);
}
Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned link, PciInfo* pci) {
  std::memset(pci, 0, sizeof *pci);
  return text(link == 2 ? "00000000:43:00.0" : "00000000:05:00.0", pci->bus_id, 32);
}
Return nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned link, int* type) {
  return number(link == 2 ? remote_gpu : remote_switch, type);
}
Return nvmlDeviceGetCurrPcieLinkGeneration(Device, unsigned* g) { return number(5, g); }
Return nvmlDeviceGetCurrPcieLinkWidth(Device, unsigned* w) { return number(16, w); }
Return nvmlDeviceGetMaxPcieLinkGeneration(Device, unsigned* g) { return number(5, g); }
Return nvmlDeviceGetMaxPcieLinkWidth(Device, unsigned* w) { return number(16, w); }
// NVLink in KiB, 64 bits: 100 and 200 more each time. PCIe in bytes, 32 bits, about to wrap.
Return nvmlDeviceGetFieldValues(Device, int n_values, FieldValue* values) {
  for (int i = 0; i < n_values; ++i) {
    FieldValue& v = values[i];
    const bool is_nvlink =
        v.field_id == field_nvlink_data_tx_kib || v.field_id == field_nvlink_data_rx_kib;
    const bool is_pcie = v.field_id == field_pcie_tx_bytes || v.field_id == field_pcie_rx_bytes;
    v.status = is_pcie || (is_nvlink && v.scope_id == all_links) ? success : not_supported;
    if (v.status != success) continue;
    const unsigned n = reads.field[v.field_id]++;
    if (is_nvlink) {
      v.value_type = value_unsigned_long_long;
      v.value.ull = 5000000000ULL + (v.field_id == field_nvlink_data_tx_kib ? 100ULL : 200ULL) * n;
    } else {
      v.value_type = value_unsigned_int;
      v.value.ui = 4294967000U + 1000U * n;
    }
  }
  return success;
}
Return nvmlEventSetCreate(EventSet* set) {
  ++n_event_sets;
  *set = reinterpret_cast<EventSet>(0x20);
  return success;
}
Return nvmlDeviceRegisterEvents(Device, unsigned long long types, EventSet set) {
  return types == event_xid && set != nullptr ? success : not_supported;
}
Return nvmlEventSetWait_v2(EventSet, EventData* data, unsigned) {
  if (n_xids == 0) return error_timeout;
  --n_xids;
  *data = {.device = the_device(), .event_type = event_xid, .event_data = 79};
  return success;
}
Return nvmlEventSetFree(EventSet) {
  --n_event_sets;
  return success;
}
#endif

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
