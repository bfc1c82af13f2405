// A fibre that runs one function which never returns; resumed by a scheduler, suspended by itself.
// Each switch keeps the handle of the other side and is announced to the address sanitizer.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>

namespace emulation {

class Fibre {
 public:
  explicit Fibre(void (*function)());
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // From the scheduler: until the fibre suspends itself.
  void resume();
  // From the fibre that runs: back to who resumed it.
  static void suspend();

 private:
  struct Side {  // of a switch, as the sanitizers know it
    const void* stack = nullptr;
    size_t n_bytes = 0;
    void* fake_stack = nullptr;
    void* thread = nullptr;
  };
  static void leave(Side& from, const Side& to);
  static void arrive(Side& at, Side* from);

  boost::context::fiber handle_;
  boost::context::fiber resumer_;
  Side own_;
  Side other_;
};

}  // namespace emulation
