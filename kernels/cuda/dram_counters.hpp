// What a GPU's DRAM read and wrote in a stretch of time, by the hardware's counters: CUPTI's range
// profiler. It wants the right to profile: root, or NVreg_RestrictProfilingToAdminUsers=0 of the
// driver. The library is opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace testbed {

struct DramBytes {
  int64_t read = 0;
  int64_t written = 0;
};

class DramCounters {
 public:
  struct Libraries {
    std::string cupti = "libcupti.so.13";
    std::string driver = "libcuda.so.1";
  };
  // Of the thread's current device. Throws std::runtime_error where its counters cannot be had,
  // with the call that failed and CUPTI's code.
  DramCounters(int device, const Libraries& libraries);
  ~DramCounters();
  DramCounters(const DramCounters&) = delete;
  DramCounters& operator=(const DramCounters&) = delete;

  // Around the work, the device idle at both. Throw as the constructor does.
  void begin();
  DramBytes end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace testbed
