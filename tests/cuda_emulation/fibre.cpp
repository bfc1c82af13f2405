#include "tests/cuda_emulation/fibre.hpp"

#include <boost/context/protected_fixedsize_stack.hpp>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace emulation {
namespace {

namespace context = boost::context;

// Kernels' frames are small, but the sanitizers' are not. Pages are taken when touched; below the
// stack lies a page that faults.
constexpr size_t stack_bytes = size_t{256} << 10;

class Stacks {
 public:
  explicit Stacks(context::stack_context* made) : made_(made) {}
  context::stack_context allocate() { return *made_ = stacks_.allocate(); }
  void deallocate(context::stack_context& stack) { stacks_.deallocate(stack); }

 private:
  context::protected_fixedsize_stack stacks_{stack_bytes};
  context::stack_context* made_;
};

Fibre* running = nullptr;

}  // namespace

Fibre::Fibre(void (*function)()) {
  context::stack_context stack;
  handle_ = context::fiber(
      std::allocator_arg, Stacks(&stack), [this, function](context::fiber&& resumer) {
        arrive(own_, &other_);
        resumer_ = std::move(resumer);
        function();
        return std::move(resumer_);
      });
  own_.stack = static_cast<const char*>(stack.sp) - stack.size;
  own_.n_bytes = stack.size;
#ifdef __SANITIZE_THREAD__
  own_.thread = __tsan_create_fiber(0);
#endif
}

void Fibre::resume() {
  running = this;
#ifdef __SANITIZE_THREAD__
  other_.thread = __tsan_get_current_fiber();
#endif
  leave(other_, own_);
  handle_ = std::move(handle_).resume();
  arrive(other_, nullptr);
}

void Fibre::suspend() {
  Fibre& self = *running;
  leave(self.own_, self.other_);
  self.resumer_ = std::move(self.resumer_).resume();
  arrive(self.own_, &self.other_);
}

void Fibre::leave([[maybe_unused]] Side& from, [[maybe_unused]] const Side& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.n_bytes);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.thread, 0);
#endif
}

void Fibre::arrive([[maybe_unused]] Side& at, [[maybe_unused]] Side* from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(at.fake_stack,
                                  from == nullptr ? nullptr : &from->stack,
                                  from == nullptr ? nullptr : &from->n_bytes);
#endif
}

}  // namespace emulation
