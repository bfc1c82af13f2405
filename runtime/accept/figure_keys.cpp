#include "runtime/accept/figure_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace testbed {

std::string_view scope_of(const std::vector<std::string>& hosts, const std::vector<int>& ranks) {
  const auto host = [&hosts](int rank) { return hosts[static_cast<size_t>(rank)]; };
  const bool one_host = std::all_of(
      ranks.begin(), ranks.end(), [&](int rank) { return host(rank) == host(ranks.front()); });
  return one_host ? "within-host" : "between-hosts";
}

FigureKey read_key() { return {.figure = "device.read_gb_s"}; }

FigureKey gemm_key(DType dtype) {
  return {.figure = "device.gemm_tflop_s", .dtype = std::string(dtype_name(dtype))};
}

FigureKey link_key(std::string_view figure, int64_t n_bytes, std::string_view scope) {
  return {.figure = std::string(figure), .bytes = n_bytes, .scope = std::string(scope)};
}

FigureKey collective_key(std::string_view figure,
                         CommOp op,
                         int ranks,
                         int64_t n_bytes,
                         std::string_view scope,
                         CommAlgorithm algorithm) {
  return {.figure = std::string(figure),
          .op = std::string(comm_op_name(op)),
          .ranks = ranks,
          .bytes = n_bytes,
          .scope = std::string(scope),
          .algorithm = std::string(algorithm_name(algorithm))};
}

FigureKey model_key(std::string_view figure, std::string_view model, std::string_view split) {
  return {.figure = std::string(figure), .model = fmt::format("{} {}", model, split)};
}

std::string describe(const FigureKey& key) {
  std::string text = key.figure;
  if (key.op) text += " " + *key.op;
  if (key.ranks) text += fmt::format(" {} rank{}", *key.ranks, *key.ranks == 1 ? "" : "s");
  if (key.bytes) text += fmt::format(" {} bytes", *key.bytes);
  if (key.scope) text += " " + *key.scope;
  if (key.algorithm) text += " " + *key.algorithm;
  if (key.dtype) text += " " + *key.dtype;
  if (key.model) text += " " + *key.model;
  return text;
}

}  // namespace testbed
