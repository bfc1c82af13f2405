#include "runtime/accept/pair_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/accept/rank_values.hpp"
#include "runtime/probe/timing.hpp"

namespace testbed {
namespace {

constexpr int64_t trial_message_bytes = int64_t{1} << 20;
constexpr int64_t trial_calls = 4;
constexpr int64_t handshake_bytes = 8;

std::span<std::byte> bytes_of(TensorView x) {
  return {static_cast<std::byte*>(x.data()), static_cast<size_t>(x.n_bytes())};
}

std::string link_name(const std::vector<std::string>& hosts, const RankPair& pair) {
  return fmt::format("link {}-{} ({}, {})",
                     pair.low,
                     pair.high,
                     hosts[static_cast<size_t>(pair.low)],
                     hosts[static_cast<size_t>(pair.high)]);
}

// Of the messages of one timing and its handshake.
int64_t most_bytes(const PairExchange::Options& options) {
  return std::max(options.n_calls * options.n_bytes,
                  trial_calls * std::min(options.n_bytes, trial_message_bytes)) +
         handshake_bytes;
}

const RankPair* pair_with(const std::vector<RankPair>& round, int rank) {
  const auto found = std::find_if(
      round.begin(), round.end(), [rank](const RankPair& pair) { return pair.holds(rank); });
  return found == round.end() ? nullptr : &*found;
}

}  // namespace

PairExchange::PairExchange(const AcceptContext& context, const Options& options)
    : context_(context),
      options_(options),
      upwards_(context.make_group(all_ranks(context.size), Axis::world)),
      downwards_(context.make_group(all_ranks(context.size), Axis::world)) {
  const DType dtype = context.device.compute_dtype();
  const int64_t element_bytes = dtype_bytes(dtype, 1);
  CHECK(options.n_bytes >= handshake_bytes && options.n_bytes % element_bytes == 0);
  const Shape shape{most_bytes(options) / element_bytes};
  sent_ = context.device.allocate(dtype, shape);
  received_ = context.device.allocate(dtype, shape);
  host_ = Tensor(dtype, shape);
  context.device.fill_synthetic(sent_);
  context.device.fill_synthetic(received_);
}

TensorView PairExchange::message(const Tensor& tensor, const Timing& timing, int64_t index) {
  const int64_t element_bytes = dtype_bytes(tensor.dtype(), 1);
  const int64_t n_bytes = index == timing.n_calls ? handshake_bytes : timing.n_bytes;
  return tensor.view().rows(index * timing.n_bytes / element_bytes, n_bytes / element_bytes);
}

TensorView PairExchange::all_messages(const Tensor& tensor, const Timing& timing) {
  const int64_t n_bytes = timing.n_calls * timing.n_bytes + handshake_bytes;
  return tensor.view().rows(0, n_bytes / dtype_bytes(tensor.dtype(), 1));
}

SamplesOfPairs PairExchange::measure(const std::vector<std::vector<RankPair>>& rounds) {
  mine_.clear();
  together_ = true;
  const auto over_all = [&](const std::function<void(const RankPair&)>& work, int n_meetings) {
    for (const std::vector<RankPair>& round : rounds) {
      if (const RankPair* pair = pair_with(round, context_.rank)) {
        work(*pair);
      } else {
        for (int i = 0; i < n_meetings; ++i) meet();
      }
    }
  };
  over_all([this](const RankPair& pair) { try_out(pair); }, 1);
  for (int repeat = -1; repeat < options_.repeats; ++repeat) {  // the first is the warm-up
    over_all([&](const RankPair& pair) { sample(pair, repeat >= 0); }, options_.both_ways ? 2 : 1);
  }
  return gathered();
}

SamplesOfPairs PairExchange::measure_alone(const std::vector<RankPair>& pairs,
                                           const std::vector<int>& repeats) {
  mine_.clear();
  together_ = false;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const RankPair& pair = pairs[i];
    const bool is_mine = pair.holds(context_.rank);
    context_.control.barrier();
    if (is_mine) try_out(pair);
    for (int repeat = 0; repeat < repeats[i]; ++repeat) {
      context_.control.barrier();  // or the others would wait for longer than they may
      if (is_mine) sample(pair, true);
    }
  }
  return gathered();
}

void PairExchange::sample(const RankPair& pair, bool keep) {
  const double one_way_s = take(pair, Way::there_and_back, options_.n_calls) / 2.0;
  const double both_s = options_.both_ways ? take(pair, Way::both, options_.n_calls) : 0.0;
  if (!keep) return;
  mine_[pair].one_way_s.push_back(one_way_s);
  if (options_.both_ways) mine_[pair].both_ways_s.push_back(both_s);
}

// Makes the connection, and settles how long the pair's messages are: the lower rank says.
void PairExchange::try_out(const RankPair& pair) {
  const int64_t n_bytes = std::min(options_.n_bytes, trial_message_bytes);
  int64_t& agreed = mine_[pair].n_bytes;
  agreed = n_bytes;
  const double s_per_byte =
      take(pair, Way::trial, trial_calls) / 2.0 / static_cast<double>(n_bytes);
  if (context_.rank == pair.high) {
    ByteReader(context_.control.receive(pair.low)).get(agreed);
    return;
  }
  agreed = options_.n_bytes;
  while (agreed / 2 >= n_bytes &&
         static_cast<double>(agreed) * s_per_byte > options_.longest_message_s) {
    agreed /= 2;
  }
  ByteWriter out;
  out.put(agreed);
  context_.control.post(out.take(), pair.high);
}

double PairExchange::take(const RankPair& pair, Way way, int64_t n_calls) {
  const Timing timing{pair, way, mine_[pair].n_bytes, n_calls, n_timings_[pair]++};
  const int partner = pair.other(context_.rank);
  for (int64_t i = 0; i <= n_calls; ++i) {
    fill_pattern(bytes_of(message(host_, timing, i)), seed_of(timing, i, context_.rank));
  }
  context_.device.upload(all_messages(host_, timing), all_messages(sent_, timing));
  meet();
  double seconds = 0.0;
  try {
    seconds = timed(timing, partner);
  } catch (const CommError& e) {
    throw CommError(link_name(context_.hosts, pair) + ": " + e.what());
  }
  compare(timing, partner);
  return seconds;
}

// Seconds of a call. A handshake first, so that neither end's way here is counted.
double PairExchange::timed(const Timing& timing, int partner) {
  exchange(timing, partner, timing.n_calls);
  const auto seconds_of = [&](int64_t first, int64_t n_calls) {
    return device_seconds(context_.device, 0, [&] {
      for (int64_t i = first; i < first + n_calls; ++i) exchange(timing, partner, i);
    });
  };
  if (timing.way != Way::trial) {
    return seconds_of(0, timing.n_calls) / static_cast<double>(timing.n_calls);
  }
  double fastest = seconds_of(0, 1);
  for (int64_t i = 1; i < timing.n_calls; ++i) fastest = std::min(fastest, seconds_of(i, 1));
  return fastest;
}

void PairExchange::exchange(const Timing& timing, int partner, int64_t index) {
  const TensorView sent = message(sent_, timing, index);
  const TensorView received = message(received_, timing, index);
  if (timing.way == Way::both && index < timing.n_calls) {
    Pending coming = way_from(partner).recv(received, partner);
    Pending going = way_to(partner).send(sent, partner);
    coming.wait();
    going.wait();
  } else if (context_.rank == timing.pair.low) {
    way_to(partner).send(sent, partner).wait();
    way_from(partner).recv(received, partner).wait();
  } else {
    way_from(partner).recv(received, partner).wait();
    way_to(partner).send(sent, partner).wait();
  }
}

uint64_t PairExchange::seed_of(const Timing& timing, int64_t index, int from) const {
  return pattern_seed({options_.seed,
                       static_cast<uint64_t>(timing.pair.low),
                       static_cast<uint64_t>(timing.pair.high),
                       timing.number,
                       static_cast<uint64_t>(index),
                       static_cast<uint64_t>(from)});
}

void PairExchange::compare(const Timing& timing, int partner) {
  context_.device.download(all_messages(received_, timing), all_messages(host_, timing));
  std::optional<WrongMessage>& first_wrong = mine_[timing.pair].wrong;
  for (int64_t i = 0; i <= timing.n_calls && !first_wrong; ++i) {
    const std::span<std::byte> came = bytes_of(message(host_, timing, i));
    const auto wrong = wrong_bytes(came, seed_of(timing, i, partner));
    if (wrong) {
      first_wrong = {partner, context_.rank, static_cast<int64_t>(came.size()), *wrong};
    }
  }
}

// One way is the lower rank's, which began and ended it; both ways is the slower end's.
SamplesOfPairs PairExchange::gathered() {
  ByteWriter out;
  for (const auto& [pair, samples] : mine_) {
    out.put(pair);
    out.put(samples.n_bytes);
    out.put(samples.one_way_s);
    out.put(samples.both_ways_s);
    out.put(samples.wrong.has_value());
    out.put(samples.wrong.value_or(WrongMessage{}));
  }
  SamplesOfPairs all;
  const std::vector<Bytes> of_ranks = context_.control.gather(out.take(), 0);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    ByteReader in(of_ranks[rank]);
    while (!in.at_end()) {
      RankPair pair;
      PairSamples read;
      bool is_wrong = false;
      WrongMessage wrong;
      in.get(pair);
      in.get(read.n_bytes);
      in.get(read.one_way_s);
      in.get(read.both_ways_s);
      in.get(is_wrong);
      in.get(wrong);
      if (is_wrong) read.wrong = wrong;
      const auto [entry, is_new] = all.try_emplace(pair, read);
      if (is_new) continue;  // the lower rank's, which comes first
      PairSamples& samples = entry->second;
      for (size_t i = 0; i < read.both_ways_s.size(); ++i) {
        samples.both_ways_s[i] = std::max(samples.both_ways_s[i], read.both_ways_s[i]);
      }
      if (!samples.wrong) samples.wrong = read.wrong;
    }
  }
  return all;
}

}  // namespace testbed
