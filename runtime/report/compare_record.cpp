#include "runtime/report/compare_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/base/errors.hpp"
#include "runtime/config/json_input.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/measure/run_record.hpp"

namespace testbed {
namespace {

constexpr int64_t any = std::numeric_limits<int64_t>::max();

JsonObject object(const JsonObject& parent, const char* key) {
  if (auto child = parent.find_object(key)) return *child;
  parent.fail(key, "is missing");
}
std::string text(const JsonObject& parent, const char* key) {
  if (auto value = parent.find_string(key)) return *value;
  parent.fail(key, "is missing");
}
double number(const JsonObject& parent, const char* key) {
  if (auto value = parent.find_number(key)) return *value;
  parent.fail(key, "is missing");
}
const nlohmann::json& list(const JsonObject& parent, const char* key) {
  const nlohmann::json* value = parent.find(key);
  if (value == nullptr || !value->is_array()) parent.fail(key, "is not a list");
  return *value;
}

class Reader {
 public:
  explicit Reader(const std::string& path)
      : document_(parse_json(read_text_file(path), path)), root_(document_, path) {
    const std::string schema = root_.find_string("schema").value_or("");
    if (schema == "testbed-sweep-1")
      root_.fail("schema", "is a sweep's: its records are in `points`");
    if (schema != RunRecord::schema)
      root_.fail("schema",
                 fmt::format("{} is not {}", in_quotes(schema), in_quotes(RunRecord::schema)));
    record_.path = path;
    const auto simulated = root_.find_bool("simulated");
    if (!simulated) root_.fail("simulated", "is missing");
    record_.simulated = *simulated;
    for (const nlohmann::json& label : list(root_, "labels")) {
      if (!label.is_string()) root_.fail("labels", "is not a list of text");
      record_.labels.push_back(label.get<std::string>());
    }
  }

  ComparedRecord read() {
    read_run();
    read_timing();
    const JsonObject phases = object(root_, "phases");
    for (const auto& [name, value] : phases.value().items())
      read_phase(name, JsonObject(value, phases.where() + ": " + name));
    return std::move(record_);
  }

 private:
  void read_run() {
    FigureGroup& run = record_.groups.emplace_back();
    run.title = "run";
    for (const char* key : {"model", "device", "weight_dtype", "compute_dtype"})
      run.texts.emplace_back(key, text(root_, key));
    for (const char* key : {"layers", "world_size"})
      run.texts.emplace_back(key, std::to_string(root_.get_int(key, 0, any)));
    const JsonObject parallel = object(root_, "parallel");
    std::string split;
    for (const char* axis : {"tp", "pp", "cp", "dp", "ep"})
      split +=
          fmt::format("{}{} {}", split.empty() ? "" : " ", axis, parallel.get_int(axis, 1, any));
    run.texts.emplace_back("split", split);
    for (const char* key : {"cp_placement", "expert_exchange", "tp_comm"})
      if (parallel.has(key)) run.texts.emplace_back(key, text(parallel, key));
    const JsonObject options = object(root_, "options");
    for (const auto& [name, value] : options.value().items())
      run.texts.emplace_back(name, value.is_string() ? value.get<std::string>() : shown(value));
  }

  void read_timing() {
    const JsonObject timing = object(root_, "timing");
    FigureGroup& group = record_.groups.emplace_back();
    group.title = "timing";
    add_repeated(group, timing, "ttft_ms", "TTFT", "ms");
    add_repeated(group, timing, "tpot_ms", "TPOT", "ms");
    add_repeated(group, timing, "prefill_tokens_per_s", "prefill", "tokens/s");
    add_repeated(group, timing, "decode_tokens_per_s", "decode", "tokens/s");
  }

  void read_phase(const std::string& name, const JsonObject& phase) {
    FigureGroup group{.title = name};
    group.texts.emplace_back("bound by", text(phase, "bound_by"));
    const bool repeated = add_repeated(group, phase, "step_ms", "step", "ms");
    add_shares(group, phase, repeated);
    add_utilisation(group, phase, "mfu", "MFU");
    add_utilisation(group, phase, "mbu", "MBU");
    add_exact(group, phase, "weight_bytes", "weights a step", "bytes");
    add_exact(group, phase, "kv_bytes", "KV a step", "bytes");
    add_exact(group, phase, "flops", "FLOPs a step", "");
    record_.groups.push_back(std::move(group));
    const std::string where = phase.where() + ": collectives";
    for (const nlohmann::json& collective : list(phase, "collectives"))
      read_collective(name, JsonObject(collective, where));
  }

  void read_collective(const std::string& phase, const JsonObject& c) {
    const std::string algorithm = text(c, "algorithm");
    std::string title =
        fmt::format("{}: {} over {} at {}", phase, text(c, "op"), text(c, "axis"), text(c, "site"));
    // The same with another algorithm: each is its own.
    if (std::any_of(record_.groups.begin(), record_.groups.end(), [&](const FigureGroup& g) {
          return g.title == title;
        }))
      title += fmt::format(" ({})", algorithm);
    FigureGroup group{.title = title};
    group.texts.emplace_back("algorithm", algorithm);
    group.texts.emplace_back("transport", text(c, "transport"));
    add_exact(group, c, "payload_bytes", "payload", "bytes");
    add_exact(group, c, "wire_bytes_per_device", "wire per device", "bytes");
    group.figures.push_back(single("calls a step", "", number(c, "per_step"), true));
    group.figures.push_back(
        single("wire, median", "us", number(object(c, "wire_us"), "median"), record_.simulated));
    group.figures.push_back(
        single("exposed a step", "us", number(c, "exposed_us"), record_.simulated));
    record_.groups.push_back(std::move(group));
  }

  static Figure single(const char* name, const char* unit, double value, bool spread_known) {
    return {name, unit, value, value, value, spread_known};
  }

  static void add_exact(FigureGroup& group,
                        const JsonObject& from,
                        const char* key,
                        const char* name,
                        const char* unit) {
    group.figures.push_back(
        single(name, unit, static_cast<double>(from.get_int(key, 0, any)), true));
  }

  // A null figure is left out. Whether its spread is known.
  bool add_repeated(FigureGroup& group,
                    const JsonObject& from,
                    const std::string& key,
                    const char* name,
                    const char* unit) {
    const auto value = from.find_number(key);
    if (!value) return false;
    const JsonObject repeats = object(from, (key + "_repeats").c_str());
    const bool known = record_.simulated || list(repeats, "values").size() > 1;
    group.figures.push_back(
        {name, unit, *value, number(repeats, "min"), number(repeats, "max"), known});
    return known;
  }

  void add_shares(FigureGroup& group, const JsonObject& phase, bool spread_known) {
    const JsonObject shares = object(phase, "shares");
    const JsonObject lowest = object(phase, "shares_min");
    const JsonObject highest = object(phase, "shares_max");
    constexpr double percent = 100.0;
    for (const char* part :
         {"weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead"})
      group.figures.push_back({fmt::format("share of {}", part),
                               "%",
                               number(shares, part) * percent,
                               number(lowest, part) * percent,
                               number(highest, part) * percent,
                               spread_known});
  }

  // Work / (time x peak): its spread is that of the time.
  void add_utilisation(FigureGroup& group,
                       const JsonObject& phase,
                       const char* key,
                       const char* name) {
    const auto value = phase.find_number(key);
    const auto duration_s = phase.find_number("duration_s");
    if (!value || !duration_s) return;
    const JsonObject repeats = object(phase, "duration_s_repeats");
    const double work = *value * *duration_s * 100.0;
    group.figures.push_back({name,
                             "%",
                             *value * 100.0,
                             work / number(repeats, "max"),
                             work / number(repeats, "min"),
                             record_.simulated || list(repeats, "values").size() > 1});
  }

  nlohmann::json document_;
  JsonObject root_;
  ComparedRecord record_;
};

}  // namespace

ComparedRecord read_record(const std::string& path) { return Reader(path).read(); }

}  // namespace testbed
