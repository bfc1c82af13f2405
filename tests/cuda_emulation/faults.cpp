// An address that faults in a kernel: which thread of which kernel, before the process dies. Under
// the address sanitizer that says more itself.
#include <signal.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/memory.hpp"

namespace emulation {

#ifdef __SANITIZE_ADDRESS__

void report_faults(const char* /*kernel*/) {}

#else

namespace {

const char* running_kernel = nullptr;
std::array<struct sigaction, NSIG> others{};

// Where the address lies. Not safe in a handler by the letter; nothing else comes after it.
void describe(const void* address) {
  const FaultPlace place = place_of(address);
  if (place.start == nullptr) {
    std::fprintf(stderr, "in no allocation\n");
  } else {
    std::fprintf(stderr,
                 "%td bytes after the start of the %zu bytes at %p\n",
                 static_cast<const std::byte*>(address) - place.start,
                 place.n_bytes,
                 static_cast<const void*>(place.start));
  }
}

void report(int signal, siginfo_t* info, void* /*context*/) {
  if (running_kernel != nullptr) {
    std::fprintf(stderr,
                 "emulation: kernel %s, thread (%u, %u, %u) of block (%u, %u, %u) accessed %p, ",
                 running_kernel,
                 threadIdx.x,
                 threadIdx.y,
                 threadIdx.z,
                 blockIdx.x,
                 blockIdx.y,
                 blockIdx.z,
                 info->si_addr);
    describe(info->si_addr);
  }
  sigaction(signal, &others[static_cast<size_t>(signal)], nullptr);  // it faults again
}

void install() {
  constexpr size_t n_bytes = size_t{64} << 10;
  static std::array<char, n_bytes> stack_bytes;  // a fibre's stack may be what faulted
  stack_t stack{};
  stack.ss_sp = stack_bytes.data();
  stack.ss_size = n_bytes;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = &report;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS}) {
    sigaction(signal, &action, &others[static_cast<size_t>(signal)]);
  }
}

}  // namespace

void report_faults(const char* kernel) {
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  running_kernel = kernel;
}

#endif

}  // namespace emulation
