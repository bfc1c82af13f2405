// Kernels: checks of a launch, and its blocks, one after another.
#include "tests/cuda_emulation/launch.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>

#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/state.hpp"
#include "tests/cuda_emulation/symbols.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace emulation {
namespace {

constexpr size_t page_bytes = 4096;
constexpr size_t room_for_shared = size_t{256} << 10;

std::byte* dynamic_shared_start = nullptr;
bool a_grid_runs = false;  // and waits for another process, perhaps
std::map<const void*, size_t>& asked_shared_bytes() {
  static std::map<const void*, size_t> asked;
  return asked;
}

size_t shared_limit() { return (compute_capability() == 80 ? size_t{163} : size_t{227}) << 10; }

// Dynamic shared memory ends at a page that faults, and holds NaN at first.
void prepare_dynamic_shared(size_t n_bytes) {
  static std::byte* const end = [] {
    void* p = mmap(nullptr,
                   room_for_shared + page_bytes,
                   PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS,
                   -1,
                   0);
    auto* last = static_cast<std::byte*>(p) + room_for_shared;
    mprotect(last, page_bytes, PROT_NONE);
    return last;
  }();
  dynamic_shared_start = end - (n_bytes + 15) / 16 * 16;
  std::fill(dynamic_shared_start, end, std::byte{0xff});
}

// The kernel's __shared__ variables hold NaN at first, too.
void prepare_static_shared(const KernelSymbols& symbols) {
  for (const std::span<std::byte> variable : symbols.shared) {
    for (std::byte& b : variable) {
#ifdef __SANITIZE_ADDRESS__
      if (__asan_address_is_poisoned(&b) != 0) continue;  // what the sanitizer put behind it
#endif
      b = std::byte{0xff};
    }
  }
}

struct Launch {
  const KernelSymbols& symbols;
  LaunchShape shape;
  void (*run_thread)(const void*);
  struct alignas(16) Unit {
    std::array<std::byte, 16> bytes;
  };
  std::vector<Unit> call;
};

// Of a grid's blocks or a block's threads, i-th in the order of the environment.
void set_positions(std::vector<unsigned>& order, unsigned n) {
  order.resize(n);
  std::iota(order.begin(), order.end(), 0U);
  Order& by = state().order;
  if (by.kind == Order::Kind::reverse) std::reverse(order.begin(), order.end());
  if (by.kind != Order::Kind::random) return;
  for (unsigned i = n; i > 1; --i) std::swap(order[i - 1], order[by.next() % i]);
}

class Grid {
 public:
  explicit Grid(std::shared_ptr<const Launch> launch) : launch_(std::move(launch)) {}

  // false: its threads wait for another process.
  bool run() {
    if (!begun_) {
      if (a_grid_runs) return false;
      if (const auto code = inject("kernel", cudaErrorLaunchFailure)) {
        fail_device("injected");
        return true;
      }
      begin();
    }
    const dim3& grid = launch_->shape.grid;
    const uint64_t n_blocks = uint64_t{grid.x} * grid.y * grid.z;
    for (; next_ < n_blocks; ++next_, in_block_ = false) {
      if (!in_block_) begin_block(n_blocks);
      report_faults(launch_->symbols.name.c_str());
      const Block::Outcome outcome = the_block().run();
      report_faults(nullptr);
      if (outcome == Block::Outcome::polling) return false;
      if (outcome == Block::Outcome::failed) {
        fail_device("kernel " + launch_->symbols.name + ": " + the_block().failure());
        break;
      }
    }
    a_grid_runs = false;
    return true;
  }

 private:
  void begin() {
    begun_ = true;
    a_grid_runs = true;
    gridDim = launch_->shape.grid;
    blockDim = launch_->shape.block;
    the_block().prepare(launch_->shape.block, launch_->run_thread, launch_->call.data());
    const Order& order = state().order;
    the_block().early_copies = order.kind == Order::Kind::reverse ||
                               (order.kind == Order::Kind::random && order.seed % 2 == 1);
    const dim3& block = launch_->shape.block;
    set_positions(order_, block.x * block.y * block.z);
  }
  void begin_block(uint64_t n_blocks) {
    in_block_ = true;
    const bool backwards = state().order.kind == Order::Kind::reverse;
    const uint64_t i = backwards ? n_blocks - 1 - next_ : next_;
    blockIdx = {static_cast<unsigned>(i % gridDim.x),
                static_cast<unsigned>(i / gridDim.x % gridDim.y),
                static_cast<unsigned>(i / gridDim.x / gridDim.y)};
    prepare_dynamic_shared(launch_->shape.shared_bytes);
    prepare_static_shared(launch_->symbols);
    if (state().order.kind == Order::Kind::random) {
      set_positions(order_, static_cast<unsigned>(order_.size()));
    }
    the_block().start(order_);
  }

  std::shared_ptr<const Launch> launch_;
  bool begun_ = false;
  bool in_block_ = false;
  uint64_t next_ = 0;
  std::vector<unsigned> order_;
};

cudaError_t check_shape(const void* kernel, const LaunchShape& shape) {
  const dim3& b = shape.block;
  const dim3& g = shape.grid;
  const uint64_t n_threads = uint64_t{b.x} * b.y * b.z;
  if (n_threads == 0 || n_threads > max_block_threads || b.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  constexpr unsigned most = 65535;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffU || g.y > most || g.z > most) {
    return cudaErrorInvalidConfiguration;
  }
  const auto asked = asked_shared_bytes().find(kernel);
  const size_t limit = asked == asked_shared_bytes().end()
                           ? static_limit_of_shared_bytes
                           : std::max(asked->second, static_limit_of_shared_bytes);
  const size_t n_bytes = shape.shared_bytes + symbols_of(kernel).shared_bytes;
  return n_bytes > limit ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

void* dynamic_shared_memory() { return dynamic_shared_start; }

cudaError_t launch_kernel(const void* kernel,
                          const LaunchShape& shape,
                          void (*run_thread)(const void* call),
                          const void* call,
                          size_t n_bytes,
                          cudaStream_t handle) {
  return entry(
      "cudaLaunchKernel",
      [&] {
        Stream* stream = find_stream(handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (const cudaError_t code = check_shape(kernel, shape); code != cudaSuccess) return code;
        auto launch = std::make_shared<Launch>(Launch{symbols_of(kernel), shape, run_thread, {}});
        launch->call.resize((n_bytes + 15) / 16);
        std::memcpy(static_cast<void*>(launch->call.data()), call, n_bytes);
        return enqueue_work(*stream, {Kind::kernel, [grid = Grid(std::move(launch))]() mutable {
                                        return grid.run();
                                      }});
      },
      WhileCapturing::allowed,
      cudaErrorLaunchOutOfResources);
}

}  // namespace emulation

using emulation::entry;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return entry("cudaFuncSetAttribute", [&] {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > emulation::shared_limit()) {
      return cudaErrorInvalidValue;
    }
    emulation::asked_shared_bytes()[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

// As if only threads and dynamic shared memory bounded it.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n_blocks,
                                                          const void* kernel,
                                                          int block_size,
                                                          size_t shared_bytes) {
  return entry("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    if (n_blocks == nullptr || kernel == nullptr || block_size <= 0) return cudaErrorInvalidValue;
    constexpr int most_threads = 2048;
    constexpr int most_blocks = 32;
    const size_t reserved = shared_bytes + 1024;
    const auto by_shared = static_cast<int>((emulation::shared_limit() + 1024) / reserved);
    *n_blocks = std::min({most_blocks, most_threads / block_size, by_shared});
    return cudaSuccess;
  });
}
