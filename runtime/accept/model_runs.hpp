// Which model an acceptance runs in which split: the configured one at the largest degree that is
// legal for it and the job's ranks, else the smallest preset that can be split so.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "parallel/mesh.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/accept/context.hpp"
#include "runtime/config/commands.hpp"

namespace testbed {

// brief: the first layers, short prompts, few tokens; what --quick always runs.
enum class RunLength : uint8_t { whole, brief };

struct SplitRun {
  RunConfig config;  // device left to who runs it
  Mesh mesh;
  // For model_key (figure_keys.hpp): figures of different work are not held against one another.
  std::string model;  // "llama3-8b", with the layers if they are not all: "llama3-8b 4 layers"
  std::string split;  // "tp 8", with dp if it is not 1, and "brief" if it is
  int64_t weight_bytes = 0;            // of the model as it runs, as stored
  std::optional<std::string> instead;  // why it is not the configured model
  std::optional<std::string> skip;     // why there is none to run

  std::string text() const { return model + " " + split; }
};

// axis: tp, pp, cp or ep; dp is the rest. Reads presets; no communication. Throws ConfigError for a
// model that cannot be read.
SplitRun split_run(const AcceptConfig& accept, Axis axis, int world_size, RunLength length);

// What such a run takes, roughly: loading, and all its generations, on ranks of one host.
double estimated_seconds(const SplitRun& run, int world_size);

// Has all ranks do their part of such a run, on the kind of device at hand; all call it together.
// What cannot run here (too large for the memory, ...) makes a skipped case: every rank knows of it
// before any begins. Logits that are not one rank's (RunConfig::check) make one that failed.
void carry_out(const AcceptContext& context,
               RunConfig config,
               CaseResult& result,
               const std::function<void(const RankContext&)>& part);

// How much slower than its peers, or than before, is out of line: as the profile says. Processors
// are shared with whatever else runs, and ranks with one another: there half as long again.
double time_tolerance(const AcceptContext& context);

}  // namespace testbed
