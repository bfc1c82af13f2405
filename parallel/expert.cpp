#include "parallel/expert.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "parallel/shard.hpp"

namespace testbed {
namespace {

// The (token, slot) pairs of the experts held here, sorted by expert, then token.
struct ChosenPairs {
  std::vector<int64_t> first_row;  // [held + 1]
  std::vector<int64_t> tokens;     // [n_pairs]
  std::vector<int64_t> row_of;     // [m * top_k] row of the pair, -1: not held
};

ChosenPairs sort_by_expert(std::span<const int32_t> ids, int64_t top_k, IndexRange held) {
  ChosenPairs pairs;
  pairs.first_row.assign(static_cast<size_t>(held.size()) + 1, 0);
  for (const int32_t id : ids) {
    if (held.contains(id)) ++pairs.first_row[static_cast<size_t>(id - held.begin) + 1];
  }
  std::partial_sum(pairs.first_row.begin(), pairs.first_row.end(), pairs.first_row.begin());
  pairs.tokens.resize(static_cast<size_t>(pairs.first_row.back()));
  pairs.row_of.assign(ids.size(), -1);
  std::vector<int64_t> next(pairs.first_row.begin(), pairs.first_row.end() - 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!held.contains(ids[i])) continue;
    const int64_t row = next[static_cast<size_t>(ids[i] - held.begin)]++;
    pairs.row_of[i] = row;
    pairs.tokens[static_cast<size_t>(row)] = static_cast<int64_t>(i) / top_k;
  }
  return pairs;
}

// The weighted sums of each token over its pairs, in order of weight.
struct TokenSums {
  std::vector<int64_t> first{0};
  std::vector<int64_t> rows;
  std::vector<float> weights;
  WeightedRows view() const { return {first, rows, weights}; }
};

TokenSums sums_of(const ChosenPairs& pairs, std::span<const float> weights, int64_t m) {
  TokenSums sums;
  const size_t top_k = m == 0 ? 0 : pairs.row_of.size() / static_cast<size_t>(m);
  sums.first.reserve(static_cast<size_t>(m) + 1);
  sums.rows.reserve(pairs.tokens.size());
  sums.weights.reserve(pairs.tokens.size());
  for (size_t token = 0; token < static_cast<size_t>(m); ++token) {
    for (size_t i = token * top_k; i < (token + 1) * top_k; ++i) {
      if (pairs.row_of[i] < 0) continue;
      sums.rows.push_back(pairs.row_of[i]);
      sums.weights.push_back(weights[i]);
    }
    sums.first.push_back(static_cast<int64_t>(sums.rows.size()));
  }
  return sums;
}

// Which tokens go to each rank, in order of rank, then token.
struct Dispatch {
  std::vector<int64_t> n_rows;  // [ep]
  std::vector<int64_t> tokens;  // [sum of n_rows]
  // [n_nodes] tokens that go to any rank of a node: what a fabric needs to carry once.
  std::vector<int64_t> node_rows;
};

Dispatch dispatch_of(std::span<const int32_t> ids,
                     int64_t m,
                     int64_t n_experts,
                     const GroupInfo& group) {
  Dispatch dispatch;
  dispatch.node_rows.assign(static_cast<size_t>(group.n_nodes()), 0);
  std::vector<int> last_node(static_cast<size_t>(m), -1);  // ranks of a node follow one another
  const size_t top_k = m == 0 ? 0 : ids.size() / static_cast<size_t>(m);
  for (int rank = 0; rank < group.size; ++rank) {
    const IndexRange held = experts_of_rank(n_experts, group.size, rank);
    const int node = group.node(rank);
    const size_t before = dispatch.tokens.size();
    for (int64_t token = 0; token < m; ++token) {
      const auto chosen = ids.subspan(static_cast<size_t>(token) * top_k, top_k);
      const bool goes =
          std::any_of(chosen.begin(), chosen.end(), [&](int32_t id) { return held.contains(id); });
      if (!goes) continue;
      dispatch.tokens.push_back(token);
      if (std::exchange(last_node[static_cast<size_t>(token)], node) != node) {
        ++dispatch.node_rows[static_cast<size_t>(node)];
      }
    }
    dispatch.n_rows.push_back(static_cast<int64_t>(dispatch.tokens.size() - before));
  }
  return dispatch;
}

int64_t total(std::span<const int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// How many rows each rank will send me.
std::vector<int64_t> exchange_counts(Communicator& ep, const std::vector<int64_t>& n_rows) {
  const auto n = static_cast<int64_t>(n_rows.size());
  const Tensor mine(DType::I32, {n});
  const Tensor all(DType::I32, {n, n});
  for (size_t r = 0; r < n_rows.size(); ++r) {
    mine.as<int32_t>()[r] = static_cast<int32_t>(n_rows[r]);
  }
  ep.all_gather(mine, all);
  std::vector<int64_t> incoming;
  incoming.reserve(n_rows.size());
  for (int64_t source = 0; source < n; ++source) {
    incoming.push_back(all.as<int32_t>()[source * n + ep.rank()]);
  }
  return incoming;
}

// A token's choices as they travel: top_k ids, the bits of top_k weights, and whether it is a copy.
constexpr int64_t routing_words(int64_t top_k) { return 2 * top_k + 1; }

bool is_copy(const RoutedRows& routed, int64_t token) {
  return !routed.copies.empty() && routed.copies[static_cast<size_t>(token)] != 0;
}

// I32 [rows, routing_words].
Tensor pack_routing(const Dispatch& dispatch, const RoutedRows& routed, int64_t top_k) {
  Tensor rows(DType::I32, {static_cast<int64_t>(dispatch.tokens.size()), routing_words(top_k)});
  auto* out = rows.as<int32_t>();
  for (const int64_t token : dispatch.tokens) {
    for (int64_t k = 0; k < top_k; ++k) {
      const auto from = static_cast<size_t>(token * top_k + k);
      out[k] = routed.ids[from];
      out[top_k + k] = std::bit_cast<int32_t>(routed.weights[from]);
    }
    out[2 * top_k] = is_copy(routed, token) ? 1 : 0;
    out += routing_words(top_k);
  }
  return rows;
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint8_t> copies;
  RoutedRows view() const { return {ids, weights, copies}; }
};

Routing unpack_routing(const Tensor& rows, int64_t top_k) {
  Routing routing;
  const int64_t n_rows = rows.shape()[0];
  routing.ids.reserve(static_cast<size_t>(n_rows * top_k));
  routing.weights.reserve(static_cast<size_t>(n_rows * top_k));
  const auto* in = rows.as<int32_t>();
  routing.copies.reserve(static_cast<size_t>(n_rows));
  for (int64_t row = 0; row < n_rows; ++row, in += routing_words(top_k)) {
    for (int64_t k = 0; k < top_k; ++k) {
      routing.ids.push_back(in[k]);
      routing.weights.push_back(std::bit_cast<float>(in[top_k + k]));
    }
    routing.copies.push_back(static_cast<uint8_t>(in[2 * top_k]));
  }
  return routing;
}

// out[t] = the rows that came back for token t, in order of rank.
TokenSums returned_sums(const Dispatch& dispatch, int64_t m) {
  TokenSums sums;
  sums.first.assign(static_cast<size_t>(m) + 1, 0);
  for (const int64_t token : dispatch.tokens) ++sums.first[static_cast<size_t>(token) + 1];
  std::partial_sum(sums.first.begin(), sums.first.end(), sums.first.begin());
  std::vector<int64_t> next(sums.first.begin(), sums.first.end() - 1);
  sums.rows.resize(dispatch.tokens.size());
  for (size_t row = 0; row < dispatch.tokens.size(); ++row) {
    int64_t& place = next[static_cast<size_t>(dispatch.tokens[row])];
    sums.rows[static_cast<size_t>(place++)] = static_cast<int64_t>(row);
  }
  sums.weights.assign(sums.rows.size(), 1.0F);
  return sums;
}

}  // namespace

IndexRange experts_of_rank(int64_t n_experts, int ep, int ep_rank) {
  return split_range(n_experts, ep, ep_rank);
}

void LocalExperts::forward(Device& device,
                           Workspace& workspace,
                           TensorView x,
                           const RoutedRows& routed,
                           TensorView out) const {
  const Workspace::Frame frame(workspace);
  const int64_t m = x.n_rows();
  const DType dtype = device.compute_dtype();
  CHECK(static_cast<int64_t>(routed.ids.size()) == m * top_k);
  const ChosenPairs pairs = sort_by_expert(routed.ids, top_k, held);
  const auto n_pairs = static_cast<int64_t>(pairs.tokens.size());
  const int64_t n_model_rows =
      std::count_if(pairs.tokens.begin(), pairs.tokens.end(), [&](int64_t token) {
        return !is_copy(routed, token);
      });
  const int64_t d_model = x.shape()[1];
  const ExpertRows rows{pairs.first_row};

  const TensorView chosen = workspace.take(dtype, {n_pairs, d_model});
  const TensorView done = workspace.take(dtype, {n_pairs, d_model});
  if (n_pairs > 0) {
    const int64_t two_d_ff = gate_up.front().n_rows();
    device.gather_rows(x, pairs.tokens, chosen);
    const TensorView hidden = workspace.take(dtype, {n_pairs, two_d_ff});
    device.expert_linear(chosen, rows, gate_up, gate_up_bias, hidden, n_model_rows);
    const TensorView act = workspace.take(dtype, {n_pairs, two_d_ff / 2});
    device.gated_activation(activation, hidden, act);
    device.expert_linear(act, rows, down, down_bias, done, n_model_rows);
  }
  device.combine_rows(done, sums_of(pairs, routed.weights, m).view(), out);
}

ExchangeBytes exchange_with_experts(Device& device,
                                    const ExpertGroup& ep,
                                    Workspace& workspace,
                                    const LocalExperts& experts,
                                    int64_t n_experts,
                                    TensorView x,
                                    const RoutedRows& routed,
                                    TensorView out) {
  const Workspace::Frame frame(workspace);
  const int64_t m = x.shape()[0];
  const int64_t d_model = x.shape()[1];
  const DType dtype = device.compute_dtype();
  const Dispatch dispatch = dispatch_of(routed.ids, m, n_experts, ep.rows.group());
  const std::vector<int64_t> incoming = exchange_counts(ep.host, dispatch.n_rows);
  // All ranks of the group choose equally many experts, but one without tokens cannot tell.
  const int64_t n_sent = total(dispatch.n_rows);
  const int64_t n_received = total(incoming);
  const int64_t top_k = experts.top_k;

  const TensorView leaving = workspace.take(dtype, {n_sent, d_model});
  device.gather_rows(x, dispatch.tokens, leaving);
  const TensorView arrived = workspace.take(dtype, {n_received, d_model});
  ep.rows.all_to_all(leaving,
                     dispatch.n_rows,
                     arrived,
                     incoming,
                     {RowExchange::Kind::dispatch, dispatch.node_rows});
  const Tensor my_routing = pack_routing(dispatch, routed, top_k);
  const Tensor their_routing(DType::I32, {n_received, routing_words(top_k)});
  ep.host.all_to_all(my_routing, dispatch.n_rows, their_routing, incoming);

  const Routing routing = unpack_routing(their_routing, top_k);
  const TensorView results = workspace.take(dtype, {n_received, d_model});
  experts.forward(device, workspace, arrived, routing.view(), results);
  const TensorView returned = workspace.take(dtype, {n_sent, d_model});
  ep.rows.all_to_all(results,
                     incoming,
                     returned,
                     dispatch.n_rows,
                     {RowExchange::Kind::combine, dispatch.node_rows});
  device.combine_rows(returned, returned_sums(dispatch, m).view(), out);

  ExchangeBytes bytes;
  const int64_t row_bytes = dtype_bytes(dtype, d_model);
  const int64_t routing_bytes = dtype_bytes(DType::I32, routing_words(top_k));
  for (size_t r = 0; r < incoming.size(); ++r) {
    bytes.sent.push_back(dispatch.n_rows[r] * (row_bytes + routing_bytes) +
                         incoming[r] * row_bytes);
  }
  return bytes;
}

}  // namespace testbed
