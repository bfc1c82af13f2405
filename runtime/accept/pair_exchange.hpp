// Messages between pairs of ranks, timed, with every byte of every one that arrives looked at.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/accept/context.hpp"
#include "runtime/accept/pair_rounds.hpp"
#include "runtime/accept/pair_samples.hpp"

namespace testbed {

class PairExchange {
 public:
  struct Options {
    int64_t n_bytes = 8;  // of a message: whole elements of the device's compute dtype
    int64_t n_calls = 1;  // of one timing
    bool both_ways = false;
    int repeats = 1;
    double longest_message_s = 2.0;  // one that would take longer is halved, to 1 MiB at least
    uint64_t seed = 0;
  };
  // All ranks together. The context outlives it.
  PairExchange(const AcceptContext& context, const Options& options);

  // All ranks together; rank 0 gets every pair's samples, the others nothing. Where a message does
  // not come, the CommError of either end names the pair; the other ranks wait for them in vain.
  // The pairs of a round at the same time, every repeat over all rounds before the next.
  SamplesOfPairs measure(const std::vector<std::vector<RankPair>>& rounds);
  // One pair after the other, each with its number of repeats: the same on every rank.
  SamplesOfPairs measure_alone(const std::vector<RankPair>& pairs, const std::vector<int>& repeats);

 private:
  // trial: there and back, of which the fastest counts.
  enum class Way : uint8_t { trial, there_and_back, both };
  // One timing of a pair, as its two ranks carry it out.
  struct Timing {
    RankPair pair;
    Way way = Way::there_and_back;
    int64_t n_bytes = 0;
    int64_t n_calls = 1;
    uint64_t number = 0;  // which of the pair's it is: its messages' bytes are their own
  };

  void try_out(const RankPair& pair);
  void sample(const RankPair& pair, bool keep);
  // This rank's part: seconds of a call. It begins with all ranks' if they are to meet.
  double take(const RankPair& pair, Way way, int64_t n_calls);
  void meet() {
    if (together_) context_.control.barrier();
  }
  double timed(const Timing& timing, int partner);
  void exchange(const Timing& timing, int partner, int64_t index);
  uint64_t seed_of(const Timing& timing, int64_t index, int from) const;
  void compare(const Timing& timing, int partner);
  SamplesOfPairs gathered();

  Communicator& way_to(int partner) { return partner > context_.rank ? *upwards_ : *downwards_; }
  Communicator& way_from(int partner) { return partner < context_.rank ? *upwards_ : *downwards_; }
  // Each message of a timing has a place and bytes of its own, or only the last were compared: they
  // lie one behind the other; index n_calls is the handshake's.
  static TensorView message(const Tensor& tensor, const Timing& timing, int64_t index);
  static TensorView all_messages(const Tensor& tensor, const Timing& timing);

  const AcceptContext& context_;
  Options options_;
  // Two groups of all ranks: messages to a higher rank go by one, to a lower by the other. What
  // shares a stream of a GPU is done in the order posted, and neither way is to wait for the other.
  std::unique_ptr<Communicator> upwards_;
  std::unique_ptr<Communicator> downwards_;
  Tensor sent_;                             // the messages of a timing, on the device
  Tensor received_;                         // the same
  Tensor host_;                             // the same, on the host
  std::map<RankPair, uint64_t> n_timings_;  // the same at both ends
  bool together_ = true;
  SamplesOfPairs mine_;
};

}  // namespace testbed
