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
    record_.simulated = root_.get_bool("simulated");
    record_.labels = root_.get_strings("labels");
  }

  ComparedRecord read() {
    read_run();
    read_timing();
    read_energy();
    const JsonObject phases = root_.get_object("phases");
    for (const auto& [name, value] : phases.value().items())
      read_phase(name, JsonObject(value, phases.where() + ": " + name));
    return std::move(record_);
  }

 private:
  void read_run() {
    FigureGroup& run = record_.groups.emplace_back();
    run.title = "run";
    for (const char* key : {"model", "device", "weight_dtype", "compute_dtype"})
      run.texts.emplace_back(key, root_.get_string(key));
    for (const char* key : {"layers", "world_size"})
      run.texts.emplace_back(key, std::to_string(root_.get_int(key, 0, any)));
    const JsonObject parallel = root_.get_object("parallel");
    std::string split;
    for (const char* axis : {"tp", "pp", "cp", "dp", "ep"})
      split +=
          fmt::format("{}{} {}", split.empty() ? "" : " ", axis, parallel.get_int(axis, 1, any));
    run.texts.emplace_back("split", split);
    for (const char* key : {"cp_placement", "expert_exchange", "tp_comm"})
      if (parallel.has(key)) run.texts.emplace_back(key, parallel.get_string(key));
    const JsonObject options = root_.get_object("options");
    for (const auto& [name, value] : options.value().items())
      run.texts.emplace_back(name, value.is_string() ? value.get<std::string>() : shown(value));
  }

  void read_timing() {
    const JsonObject timing = root_.get_object("timing");
    FigureGroup& group = record_.groups.emplace_back();
    group.title = "timing";
    add_repeated(group, timing, "ttft_ms", "TTFT", "ms");
    add_repeated(group, timing, "tpot_ms", "TPOT", "ms");
    add_repeated(group, timing, "prefill_tokens_per_s", "prefill", "tokens/s");
    add_repeated(group, timing, "decode_tokens_per_s", "decode", "tokens/s");
  }

  // A record of devices without counters has none.
  void read_energy() {
    const auto energy = root_.find_object("energy");
    if (!energy) return;
    FigureGroup group{.title = "energy"};
    group.figures.push_back(single("energy", "J", energy->get_number("joules"), false));
    if (const auto per_token = energy->find_number("joules_per_token"))
      group.figures.push_back(single("energy per token", "J", *per_token, false));
    record_.groups.push_back(std::move(group));
  }

  void read_phase(const std::string& name, const JsonObject& phase) {
    FigureGroup group{.title = name};
    group.texts.emplace_back("bound by", phase.get_string("bound_by"));
    const bool repeated = add_repeated(group, phase, "step_ms", "step", "ms");
    add_shares(group, phase, repeated);
    add_utilisation(group, phase, "mfu", "MFU");
    add_utilisation(group, phase, "mbu", "MBU");
    add_exact(group, phase, "weight_bytes", "weights a step", "bytes");
    add_exact(group, phase, "kv_bytes", "KV a step", "bytes");
    add_exact(group, phase, "flops", "FLOPs a step", "");
    record_.groups.push_back(std::move(group));
    const std::string where = phase.where() + ": collectives";
    for (const nlohmann::json& collective : phase.get_list("collectives"))
      read_collective(name, JsonObject(collective, where));
  }

  void read_collective(const std::string& phase, const JsonObject& c) {
    const std::string algorithm = c.get_string("algorithm");
    std::string title = fmt::format("{}: {} over {} at {}",
                                    phase,
                                    c.get_string("op"),
                                    c.get_string("axis"),
                                    c.get_string("site"));
    // The same with another algorithm: each is its own.
    if (std::any_of(record_.groups.begin(), record_.groups.end(), [&](const FigureGroup& g) {
          return g.title == title;
        }))
      title += fmt::format(" ({})", algorithm);
    FigureGroup group{.title = title};
    group.texts.emplace_back("algorithm", algorithm);
    group.texts.emplace_back("transport", c.get_string("transport"));
    add_exact(group, c, "payload_bytes", "payload", "bytes");
    add_exact(group, c, "wire_bytes_per_device", "wire per device", "bytes");
    group.figures.push_back(single("calls a step", "", c.get_number("per_step"), true));
    group.figures.push_back(single(
        "wire, median", "us", c.get_object("wire_us").get_number("median"), record_.simulated));
    group.figures.push_back(
        single("exposed a step", "us", c.get_number("exposed_us"), record_.simulated));
    record_.groups.push_back(std::move(group));
  }

  static ComparedFigure single(const char* name,
                               const char* unit,
                               double value,
                               bool spread_known) {
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
    const JsonObject repeats = from.get_object((key + "_repeats").c_str());
    const bool known = record_.simulated || repeats.get_list("values").size() > 1;
    group.figures.push_back(
        {name, unit, *value, repeats.get_number("min"), repeats.get_number("max"), known});
    return known;
  }

  void add_shares(FigureGroup& group, const JsonObject& phase, bool spread_known) {
    const JsonObject shares = phase.get_object("shares");
    const JsonObject lowest = phase.get_object("shares_min");
    const JsonObject highest = phase.get_object("shares_max");
    constexpr double percent = 100.0;
    for (const char* part :
         {"weights", "kv", "compute", "interconnect", "wait", "bubble", "overhead"})
      group.figures.push_back({fmt::format("share of {}", part),
                               "%",
                               shares.get_number(part) * percent,
                               lowest.get_number(part) * percent,
                               highest.get_number(part) * percent,
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
    const JsonObject repeats = phase.get_object("duration_s_repeats");
    const double work = *value * *duration_s * 100.0;
    group.figures.push_back({name,
                             "%",
                             *value * 100.0,
                             work / repeats.get_number("max"),
                             work / repeats.get_number("min"),
                             record_.simulated || repeats.get_list("values").size() > 1});
  }

  nlohmann::json document_;
  JsonObject root_;
  ComparedRecord record_;
};

}  // namespace

ComparedRecord read_record(const std::string& path) { return Reader(path).read(); }

}  // namespace testbed
