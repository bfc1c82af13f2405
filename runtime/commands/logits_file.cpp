#include "runtime/commands/logits_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/byte_stream.hpp"
#include "runtime/report/atomic_file.hpp"

namespace testbed {
namespace {

// A safetensors file in the making: JSON header, then the tensors one behind the other.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const std::vector<int32_t>& ids) {
    const auto n = static_cast<int64_t>(ids.size());
    add(name, "I32", {n}, ids.data(), ids.size() * sizeof(int32_t));
  }
  void add(const std::string& name, const std::vector<int32_t>& rows, int64_t n_columns) {
    const auto n_rows = static_cast<int64_t>(rows.size()) / n_columns;
    add(name, "I32", {n_rows, n_columns}, rows.data(), rows.size() * sizeof(int32_t));
  }
  void add(const std::string& name, const std::vector<float>& rows, int64_t n_columns) {
    const auto n_rows = static_cast<int64_t>(rows.size()) / n_columns;
    add(name, "F32", {n_rows, n_columns}, rows.data(), rows.size() * sizeof(float));
  }
  std::string take() {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    return file + text + data_;
  }

 private:
  void add(const std::string& name,
           const char* dtype,
           std::vector<int64_t> shape,
           const void* data,
           size_t n_bytes) {
    const size_t begin = data_.size();
    if (n_bytes > 0) data_.append(static_cast<const char*>(data), n_bytes);
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, begin + n_bytes}}};
  }
  nlohmann::ordered_json header_ = nlohmann::ordered_json::object();
  std::string data_;
};

std::vector<CapturedRow> gather_rows(ControlChannel& control,
                                     const std::vector<CapturedRow>& rows) {
  ByteWriter out;
  for (const CapturedRow& row : rows) {
    out.put(row.row);
    out.put(row.logits);
  }
  std::vector<CapturedRow> all;
  for (const Bytes& bytes : control.gather(out.take(), 0)) {
    ByteReader in(bytes);
    while (!in.at_end()) {
      CapturedRow& row = all.emplace_back();
      in.get(row.row);
      in.get(row.logits);
    }
  }
  return all;
}

// [request, layer][position] -> ids.
using RouteTable = std::map<std::pair<int32_t, int32_t>, std::map<int64_t, std::vector<int32_t>>>;

RouteTable gather_routes(ControlChannel& control, const std::vector<CapturedRoute>& routes) {
  ByteWriter out;
  for (const CapturedRoute& route : routes) {
    out.put(route.request);
    out.put(route.layer);
    out.put(route.position);
    out.put(route.ids);
  }
  RouteTable table;
  for (const Bytes& bytes : control.gather(out.take(), 0)) {
    ByteReader in(bytes);
    while (!in.at_end()) {
      CapturedRoute route;
      in.get(route.request);
      in.get(route.layer);
      in.get(route.position);
      in.get(route.ids);
      table[{route.request, route.layer}][route.position] = std::move(route.ids);
    }
  }
  return table;
}

void add_routes(const RouteTable& table,
                int32_t request,
                const std::string& name,
                SafetensorsWriter& writer) {
  for (auto it = table.lower_bound({request, 0}); it != table.end() && it->first.first == request;
       ++it) {
    std::vector<int32_t> ids;
    for (const auto& [position, chosen] : it->second) {
      ids.insert(ids.end(), chosen.begin(), chosen.end());
    }
    const auto top_k = static_cast<int64_t>(it->second.begin()->second.size());
    writer.add(fmt::format("{}layer{}.router_ids", name, it->first.second), ids, top_k);
  }
}

}  // namespace

void write_logits(ControlChannel& control,
                  const std::string& path,
                  const std::vector<Request>& requests,
                  const CapturedRun& captured,
                  int64_t vocab_size) {
  std::map<std::pair<int32_t, int64_t>, CapturedRow> by_position;
  for (CapturedRow& row : gather_rows(control, captured.rows)) {
    by_position[{row.row.request, row.row.position}] = std::move(row);
  }
  const RouteTable routes = gather_routes(control, captured.routes);
  if (control.rank() != 0) return;
  SafetensorsWriter writer;
  for (const Request& request : requests) {
    const int64_t prompt_end =
        request.cached_tokens + static_cast<int64_t>(request.prompt_ids.size());
    std::vector<float> prompt;
    std::vector<float> greedy;
    std::vector<int32_t> greedy_ids;
    for (auto it = by_position.lower_bound({request.index, 0});
         it != by_position.end() && it->first.first == request.index;
         ++it) {
      const auto& [row, logits] = it->second;
      if (row.position < prompt_end) prompt.insert(prompt.end(), logits.begin(), logits.end());
      if (!row.sample) continue;
      greedy.insert(greedy.end(), logits.begin(), logits.end());
      greedy_ids.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    const std::string name = fmt::format("request{}.", request.index);
    writer.add(name + "prompt_ids", request.prompt_ids);
    writer.add(name + "prompt_logits", prompt, vocab_size);
    writer.add(name + "greedy_ids", greedy_ids);
    writer.add(name + "greedy_logits", greedy, vocab_size);
    add_routes(routes, request.index, name, writer);
  }
  write_file(path, writer.take());
}

}  // namespace testbed
