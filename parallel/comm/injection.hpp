// Injection: a fault on purpose (--inject), as plain data. inject.hpp carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace testbed {

// Test aid, labelled in every output.
struct Injection {
  enum class Kind : uint8_t {
    delay,      // rank sleeps us before every `every`-th of its all-reduces; all ranks if rank < 0
    flip,       // one bit of what the at-th all-reduce gave the rank
    slow_link,  // messages between rank and peer take at least their bytes at gb_s
    drop_link,  // messages between rank and peer are never sent
    slow_device,  // the rank's ops take factor times as long
    kill,         // rank gets SIGKILL at its at-th collective or message
    stop          // the same with SIGSTOP
  };
  Kind kind = Kind::delay;
  int rank = 0;
  int peer = -1;
  int64_t delay_us = 0;
  int64_t every = 1;
  int64_t at = 1;  // counts from 1
  int bit = -1;    // of an element, 0 the lowest; by the seed if negative
  double gb_s = 0.0;
  double factor = 1.0;
  bool operator==(const Injection&) const = default;

  bool concerns(int world_rank) const {
    return rank < 0 || rank == world_rank || peer == world_rank;
  }
};
inline constexpr std::string_view injection_names[] = {
    "delay", "flip", "slow-link", "drop-link", "slow-device", "kill", "stop"};
constexpr std::string_view injection_name(Injection::Kind kind) {
  return injection_names[static_cast<size_t>(kind)];
}

// For the outputs: "injected: delay of 5000 us on rank 2, every 1".
std::string injection_label(const Injection& injection);
// Why they cannot be done by ranks 0 to world_size - 1; nullopt if they can.
std::optional<std::string> why_no_injection(const std::vector<Injection>& injections,
                                            int world_size);

}  // namespace testbed
