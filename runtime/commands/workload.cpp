#include "runtime/commands/workload.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/shard.hpp"
#include "runtime/commands/load_tokenizer.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/prompts.hpp"

namespace testbed {
namespace {

std::vector<Request> synthetic_requests(const RunConfig& config, const ModelConfig& model) {
  const WorkloadConfig& workload = config.workload;
  std::vector<Request> requests;
  for (int64_t r = 0; r < workload.batch; ++r) {
    Request request{.index = static_cast<int32_t>(r), .prompt_ids = {}};
    for (int64_t i = 0; i < workload.prompt_tokens; ++i) {
      const uint64_t draw = mix64(mix64(config.sampling.seed ^ static_cast<uint64_t>(r << 32)) ^
                                  static_cast<uint64_t>(i));
      request.prompt_ids.push_back(
          static_cast<int32_t>(draw % static_cast<uint64_t>(model.vocab_size)));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Prompt> prompts_of(const WorkloadConfig& workload) {
  if (workload.prompts_file) return read_prompts(*workload.prompts_file);
  std::vector<Prompt> prompts;
  if (workload.prompt) prompts.push_back({.text = workload.prompt, .ids = {}, .gen_tokens = {}});
  for (const std::vector<int32_t>& ids : workload.prompt_ids) {
    prompts.push_back({.text = {}, .ids = ids, .gen_tokens = {}});
  }
  return prompts;
}

// A tokenizer that cannot be used matters only where text has to be read.
// It comes with the model, or with the weights that were given for a preset.
std::unique_ptr<Tokenizer> tokenizer_for(const std::vector<Prompt>& prompts,
                                         const RunConfig& config) {
  const bool from_weights = config.weights && *config.weights != "random";
  const std::string& source = from_weights ? *config.weights : config.model;
  const bool has_text = std::any_of(
      prompts.begin(), prompts.end(), [](const Prompt& prompt) { return prompt.text.has_value(); });
  try {
    return load_tokenizer(locate_model(source));
  } catch (const Error&) {
    if (has_text) throw;
    return nullptr;
  }
}

std::vector<Request> real_requests(const RunConfig& config,
                                   const std::vector<Prompt>& prompts,
                                   const Tokenizer* tokenizer) {
  std::vector<Request> requests;
  for (const Prompt& prompt : prompts) {
    Request request{.index = static_cast<int32_t>(requests.size()),
                    .prompt_ids = prompt.ids,
                    .max_new_tokens = prompt.gen_tokens.value_or(config.workload.gen_tokens)};
    if (prompt.text) {
      if (tokenizer == nullptr) {
        throw ConfigError(fmt::format(
            "{} comes without a tokenizer this program reads: give --prompt-ids instead of text",
            config.model));
      }
      request.prompt_ids = tokenizer->encode(*prompt.text);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void check_requests(const std::vector<Request>& requests,
                    const ModelConfig& model,
                    const Mesh& mesh) {
  for (const Request& request : requests) {
    if (request.prompt_ids.empty()) {
      throw ConfigError(fmt::format("request {}: the prompt is empty", request.index));
    }
    for (const int32_t id : request.prompt_ids) {
      if (id < 0 || id >= model.vocab_size) {
        throw ConfigError(fmt::format("request {}: token id {} is outside the vocabulary of {}",
                                      request.index,
                                      id,
                                      model.vocab_size));
      }
    }
    const auto n_prompt = static_cast<int64_t>(request.prompt_ids.size());
    const int64_t n_positions = request.cached_tokens + n_prompt + request.max_new_tokens;
    if (n_positions > model.max_positions) {
      throw ConfigError(
          fmt::format("request {}: {} cached + {} prompt + {} generated tokens = {} exceed the {} "
                      "positions of {}",
                      request.index,
                      request.cached_tokens,
                      n_prompt,
                      request.max_new_tokens,
                      n_positions,
                      model.max_positions,
                      model.name));
    }
  }
  if (static_cast<int>(requests.size()) < mesh.dp) {
    throw ConfigError(
        fmt::format("dp {} splits the requests, and there are only {}: --batch {} or more",
                    mesh.dp,
                    requests.size(),
                    mesh.dp));
  }
}

Bytes pack(const std::vector<Request>& requests) {
  ByteWriter out;
  out.put(static_cast<uint64_t>(requests.size()));
  for (const Request& request : requests) {
    out.put(request.index);
    out.put(request.prompt_ids);
    out.put(request.max_new_tokens);
    out.put(request.cached_tokens);
  }
  return out.take();
}

std::vector<Request> unpack(const Bytes& bytes) {
  ByteReader in(bytes);
  uint64_t n = 0;
  in.get(n);
  std::vector<Request> requests(static_cast<size_t>(n));
  for (Request& request : requests) {
    in.get(request.index);
    in.get(request.prompt_ids);
    in.get(request.max_new_tokens);
    in.get(request.cached_tokens);
  }
  return requests;
}

}  // namespace

Workload make_workload(const RunConfig& config,
                       const ModelConfig& model,
                       const Mesh& mesh,
                       ControlChannel& control) {
  Workload workload;
  if (config.workload.is_synthetic()) {
    workload.requests = synthetic_requests(config, model);
    for (Request& request : workload.requests) request.max_new_tokens = config.workload.gen_tokens;
  } else {
    // Files and the tokenizer are read once, on rank 0; a mistake there is every rank's.
    std::optional<std::string> error;
    Bytes packed;
    if (control.rank() == 0) {
      try {
        const std::vector<Prompt> prompts = prompts_of(config.workload);
        workload.tokenizer = tokenizer_for(prompts, config);
        packed = pack(real_requests(config, prompts, workload.tokenizer.get()));
      } catch (const Error& e) {
        error = e.what();
      }
    }
    control.agree_on_mistake(error);
    workload.requests = unpack(control.broadcast(std::move(packed), 0));
  }
  for (Request& request : workload.requests) {
    request.cached_tokens = config.workload.context;
  }
  check_requests(workload.requests, model, mesh);
  return workload;
}

std::vector<Request> requests_of(const Workload& workload, const Mesh& mesh, int dp) {
  const IndexRange range = split_range(static_cast<int64_t>(workload.requests.size()), mesh.dp, dp);
  return {workload.requests.begin() + range.begin, workload.requests.begin() + range.end};
}

}  // namespace testbed
