// One collective of one group, again and again: gives it its values, calls it, and looks at every
// element that came out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"
#include "runtime/accept/collective_blame.hpp"
#include "runtime/accept/collective_values.hpp"

namespace testbed {

// The elements of a payload of about n_bytes: whole shares for each of n ranks, none if there are
// too few.
int64_t payload_elements(int64_t n_bytes, DType dtype, int n);

// Bytes of device memory that a trial of payloads up to most_bytes holds.
int64_t trial_bytes(CommOp op, int64_t most_bytes);

class CollectiveTrial {
 public:
  // Payloads of up to most_bytes. The device, the group and the values outlive it.
  CollectiveTrial(Device& device,
                  Communicator& group,
                  CommOp op,
                  const CollectiveValues& values,
                  int64_t most_bytes);

  // Calls of a payload that can be made one after another, each on values of its own, where there
  // is room for payloads of most_bytes.
  static int64_t most_calls(int64_t most_bytes, int64_t n_bytes);

  // Fills the inputs of calls first_call, first_call + 1, ...
  void prepare(int64_t n_elements, int64_t first_call, int64_t n_calls);
  // The next of them: nothing but the collective.
  void call();
  // Compares what the calls gave with what they should have, bit by bit.
  void check();

  // Who is told of the calls from now on; nullptr: nobody.
  void set_sink(CommSink* sink) { group_.set_sink(sink); }

  // Of the first calls with wrong values; and how many calls were checked.
  const std::vector<WrongCall>& wrong_calls() const { return wrong_calls_; }
  int64_t n_checked() const { return n_checked_; }

 private:
  // What lies one after another in a rank's result: the elements [first, first + n) of a payload,
  // of one rank's or of the sum.
  struct Segment {
    int rank;  // -1: the sum
    int64_t first;
    int64_t n;
  };
  std::vector<Segment> segments(int64_t call) const;
  TensorView input(int64_t slot) const;
  TensorView output(int64_t slot) const;
  int64_t share() const { return n_elements_ / group_.size(); }
  void put(TensorView target, int64_t call, int64_t first);
  void compare(
      const Segment& segment, int64_t call, TensorView there, int64_t at, WrongCall& wrong);
  Tensor allocate(int64_t n_elements) const;

  Device& device_;
  Communicator& group_;
  CommOp op_;
  const CollectiveValues& values_;
  Tensor in_;   // slots of whole payloads
  Tensor out_;  // of operations that do not work in place
  Tensor staging_;
  int64_t n_elements_ = 0;  // of the payload at hand
  int64_t first_call_ = 0;
  int64_t n_calls_ = 0;
  int64_t next_ = 0;
  std::vector<WrongCall> wrong_calls_;
  int64_t n_checked_ = 0;
};

}  // namespace testbed
