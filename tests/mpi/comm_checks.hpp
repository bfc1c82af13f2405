// What the MPI tests of communicators check with: payloads, the sums that must come out, and the
// bytes that MPI is really given or that others read from shared memory. For the one file of a test
// program.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/comm/mpi_world.hpp"
#include "parallel/comm/shm_hierarchy.hpp"

inline int64_t sent_bytes = 0;
inline int64_t n_sent = 0;
inline int64_t largest_sent = 0;

// Stands before the MPI library's own: what is counted here is what is really sent.
extern "C" int MPI_Isend(const void* data,
                         int count,
                         MPI_Datatype type,
                         int peer,
                         int tag,
                         MPI_Comm comm,
                         MPI_Request* request) {
  int element_bytes = 0;
  MPI_Type_size(type, &element_bytes);
  const int64_t n_bytes = int64_t{count} * element_bytes;
  sent_bytes += n_bytes;
  ++n_sent;
  largest_sent = std::max(largest_sent, n_bytes);
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

namespace testbed {

inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}
template <typename T>
void require_equal(const T& actual, const T& expected, const std::string& what) {
  if (actual == expected) return;
  if constexpr (std::is_arithmetic_v<T>) {
    throw std::runtime_error(what + ": " + std::to_string(actual) + ", expected " +
                             std::to_string(expected));
  } else {
    throw std::runtime_error(what + ": \"" + std::string(actual) + "\", expected \"" +
                             std::string(expected) + "\"");
  }
}

struct Records final : CommSink {
  std::vector<CommRecord> all;
  void on_comm(const CommRecord& record) override { all.push_back(record); }
};

inline std::vector<int> everyone(const MpiWorld& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What this rank has really sent in a group of all ranks: given to MPI, or read by the others from
// the memory they share.
class SentBytes {
 public:
  explicit SentBytes(const Communicator& group)
      : group_(group), sent_before_(sent_bytes), read_before_(read_from()) {}
  // All ranks together.
  int64_t since() const {
    const int64_t sent = sent_bytes - sent_before_;
    std::vector<int64_t> read = read_from();
    for (size_t r = 0; r < read.size(); ++r) read[r] -= read_before_[r];
    std::vector<int64_t> read_by(read.size());
    MPI_Alltoall(read.data(), 1, MPI_INT64_T, read_by.data(), 1, MPI_INT64_T, MPI_COMM_WORLD);
    read_by[static_cast<size_t>(group_.rank())] = 0;
    return std::accumulate(read_by.begin(), read_by.end(), sent);
  }

 private:
  std::vector<int64_t> read_from() const {
    std::vector<int64_t> read(static_cast<size_t>(group_.size()), 0);
    const auto* shared = dynamic_cast<const ShmCommunicator*>(&group_);
    if (const auto* hosts = dynamic_cast<const ShmHierarchy*>(&group_)) shared = hosts->local();
    if (shared == nullptr) return read;
    const std::vector<int64_t> by_local = shared->bytes_read();
    for (size_t l = 0; l < by_local.size(); ++l) {
      read[static_cast<size_t>(shared->group().world_ranks[l])] = by_local[l];
    }
    return read;
  }

  const Communicator& group_;
  int64_t sent_before_;
  std::vector<int64_t> read_before_;
};

// Of any size and sign, so that the order of a sum shows in its last bits.
inline float random_value(int rank, int64_t i) {
  const uint64_t bits = mix64(mix64(static_cast<uint64_t>(rank) + 1) ^ static_cast<uint64_t>(i));
  const double unit = static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
  return static_cast<float>(std::ldexp(unit, static_cast<int>(bits % 16)));
}
inline float whole_value(int rank, int64_t i) { return static_cast<float>(rank + 1 + i % 7); }

using Value = float (*)(int, int64_t);

inline void fill(TensorView x, int rank, Value value) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    if (x.dtype() == DType::F32) {
      x.as<float>()[i] = value(rank, i);
    } else {
      x.as<bf16>()[i] = to_bf16(value(rank, i));
    }
  }
}

inline uint32_t bits_at(TensorView x, int64_t i) {
  return x.dtype() == DType::F32 ? std::bit_cast<uint32_t>(x.as<float>()[i]) : x.as<bf16>()[i].bits;
}

// The sum over ranks 0, 1, ... in this order, taken without communication: equal to it on every
// rank, so equal on all.
inline uint32_t expected_bits(DType dtype, int n_ranks, int64_t i, Value value) {
  float sum = 0;
  for (int r = 0; r < n_ranks; ++r) {
    const float x = dtype == DType::F32 ? value(r, i) : to_f32(to_bf16(value(r, i)));
    sum = r == 0 ? x : sum + x;
  }
  return dtype == DType::F32 ? std::bit_cast<uint32_t>(sum) : to_bf16(sum).bits;
}

inline std::string whole_error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}
// Without where the missing ranks were last seen.
inline std::string error_of(const std::function<void()>& work) {
  const std::string whole = whole_error_of(work);
  return whole.substr(0, whole.find("; rank "));
}

// What names the last rank, under a deadline of 1 s.
inline std::string late_rank(const MpiWorld& world) {
  return "ranks " + std::to_string(world.size() - 1) + " (" + world.host() +
         ") did not arrive within 1 s";
}
inline std::string group_text(const MpiWorld& world) {
  std::string text;
  for (const int r : everyone(world)) text += (r == 0 ? "{" : ",") + std::to_string(r);
  return text + "}";
}

}  // namespace testbed
