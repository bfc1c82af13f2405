// The parts of NVML's documented binary interface that are used; nvml.h comes with drivers'
// development packages, not with the toolkit. Names and layouts are NVIDIA's ("NVML API Reference
// Guide"), without their prefix.
#pragma once

#include <climits>
#include <cstdint>

namespace testbed::nvml_abi {

using Return = int;  // nvmlReturn_t
constexpr Return success = 0;
constexpr Return error_timeout = 10;

using Device = struct nvmlDevice_st*;
using EventSet = struct nvmlEventSet_st*;

enum ClockType : int { clock_graphics = 0, clock_sm = 1, clock_memory = 2 };
constexpr int temperature_gpu = 0;
enum EccError : int { ecc_corrected = 0, ecc_uncorrected = 1 };
enum EccCounter : int { ecc_volatile = 0, ecc_aggregate = 1 };
enum NvLinkRemote : int { remote_gpu = 0, remote_ibm_npu = 1, remote_switch = 2 };
constexpr unsigned nvlink_max_links = 18;
constexpr unsigned long long event_xid = 0x8;  // nvmlEventTypeXidCriticalError

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

enum ValueType : int {
  value_double = 0,
  value_unsigned_int = 1,
  value_unsigned_long = 2,
  value_unsigned_long_long = 3,
  value_signed_long_long = 4,
  value_signed_int = 5
};
union Value {  // nvmlValue_t
  double d;
  int si;
  unsigned ui;
  unsigned long ul;
  unsigned long long ull;
  long long sll;
};
struct FieldValue {  // nvmlFieldValue_t
  unsigned field_id;
  unsigned scope_id;
  long long timestamp_us;
  long long latency_us;
  int value_type;
  Return status;
  Value value;
};
static_assert(sizeof(FieldValue) == 40);
constexpr unsigned all_links = UINT_MAX;  // as a scope: the sum over a device's NVLinks

// NVML_FI_DEV_*: counters since the driver was loaded.
constexpr unsigned field_nvlink_data_tx_kib = 138;  // NVLINK_THROUGHPUT_DATA_TX, payload
constexpr unsigned field_nvlink_data_rx_kib = 139;
constexpr unsigned field_pcie_tx_bytes = 197;  // PCIE_COUNT_TX_BYTES, may wrap
constexpr unsigned field_pcie_rx_bytes = 198;
constexpr unsigned field_nvlink5_tx_bytes = 202;  // NVLINK_COUNT_XMIT_BYTES, from NVLink 5 on
constexpr unsigned field_nvlink5_rx_bytes = 204;

struct EventData {  // nvmlEventData_t
  Device device;
  unsigned long long event_type;
  unsigned long long event_data;  // of an Xid event: its number
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};
static_assert(sizeof(EventData) == 32);

enum PerfPolicy : int { policy_power = 0, policy_thermal = 1 };  // nvmlPerfPolicyType_t
struct ViolationTime {                                           // nvmlViolationTime_t
  unsigned long long reference_us;
  unsigned long long violation_ns;  // clocks were held down for so long, since the driver's start
};

// What is called; nullptr: this library has no such function.
struct Functions {
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*driver_version)(char*, unsigned) = nullptr;
  Return (*by_pci_bus_id)(const char*, Device*) = nullptr;
  Return (*name)(Device, char*, unsigned) = nullptr;
  Return (*uuid)(Device, char*, unsigned) = nullptr;
  Return (*serial)(Device, char*, unsigned) = nullptr;
  Return (*clock)(Device, ClockType, unsigned*) = nullptr;      // MHz
  Return (*max_clock)(Device, ClockType, unsigned*) = nullptr;  // MHz
  Return (*throttle_reasons)(Device, unsigned long long*) = nullptr;
  Return (*violation)(Device, PerfPolicy, ViolationTime*) = nullptr;
  Return (*temperature)(Device, int, unsigned*) = nullptr;  // degrees Celsius
  Return (*power)(Device, unsigned*) = nullptr;             // mW
  Return (*power_limit)(Device, unsigned*) = nullptr;       // mW, as enforced
  Return (*energy)(Device, unsigned long long*) = nullptr;  // mJ since the driver's start
  Return (*ecc_mode)(Device, int*, int*) = nullptr;         // now, after the next reboot
  Return (*ecc_errors)(Device, EccError, EccCounter, unsigned long long*) = nullptr;
  Return (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;  // now, after a reset
  Return (*nvlink_state)(Device, unsigned, int*) = nullptr;    // 1: active
  Return (*nvlink_version)(Device, unsigned, unsigned*) = nullptr;
  Return (*nvlink_remote)(Device, unsigned, PciInfo*) = nullptr;
  Return (*nvlink_remote_type)(Device, unsigned, int*) = nullptr;
  Return (*field_values)(Device, int, FieldValue*) = nullptr;
  Return (*pcie_generation)(Device, unsigned*) = nullptr;  // now: idle devices lower it
  Return (*pcie_width)(Device, unsigned*) = nullptr;       // lanes
  Return (*max_pcie_generation)(Device, unsigned*) = nullptr;
  Return (*max_pcie_width)(Device, unsigned*) = nullptr;
  Return (*create_events)(EventSet*) = nullptr;
  Return (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  Return (*wait_event)(EventSet, EventData*, unsigned) = nullptr;  // time-out in ms
  Return (*free_events)(EventSet) = nullptr;
};

}  // namespace testbed::nvml_abi
