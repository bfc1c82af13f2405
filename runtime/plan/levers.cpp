#include "runtime/plan/levers.hpp"

#include <fmt/format.h>

#include "runtime/config/split.hpp"

namespace testbed::plan {
namespace {

class Levers {
 public:
  Levers(const ModelConfig& model, Split split, StepShape shape, StepFormats formats)
      : model_(model), split_(split), shape_(shape), formats_(formats) {}

  void add(std::string lever,
           std::string change,
           const Split& split,
           const StepShape& shape,
           const StepFormats& formats,
           const DeviceSpec& device) {
    const double seconds = step_roofline(model_, split, shape, formats, device).seconds;
    const double tokens_per_s = static_cast<double>(shape.n_tokens()) / seconds;
    const double gain = lines_.empty() ? 1.0 : tokens_per_s / lines_.front().tokens_per_s;
    lines_.push_back({std::move(lever), std::move(change), seconds, tokens_per_s, gain});
  }

  void bytes_per_weight(const DeviceSpec& device) {
    using namespace weight_formats;
    for (const WeightFormat& held :
         {WeightFormat(DType::F16), WeightFormat(DType::BF16), int8_g32, fp8_row, int4_g32}) {
      const NumberFormat format = number_format(held);
      if (format.bytes_per_value >= formats_.weights.bytes_per_value) continue;
      StepFormats changed = formats_;
      changed.weights = format;
      add("bytes per weight",
          fmt::format("{}, {} B a weight", format.name, format.bytes_per_value),
          split_,
          shape_,
          changed,
          device);
    }
  }

  void tokens_per_pass(const DeviceSpec& device) {
    for (const int64_t times : {2, 8, 64}) {
      StepShape shape = shape_;
      shape.batch *= times;
      add("tokens per pass", fmt::format("batch x {}", times), split_, shape, formats_, device);
    }
    constexpr int64_t drafted = 4;
    StepShape shape = shape_;
    shape.n_new = drafted;
    add("tokens per pass",
        fmt::format("{} tokens a sequence and pass, all accepted", drafted),
        split_,
        shape,
        formats_,
        device);
  }

  void bandwidth(const DeviceSpec& device) {
    DeviceSpec faster = device;
    faster.memory_bytes_per_s *= 2.0;
    add("bandwidth", "memory x 2", split_, shape_, formats_, faster);
    Split doubled = split_;
    doubled.tp *= 2;
    if (!why_illegal_tp(model_, doubled.tp, formats_.weights.column_granularity(), doubled.ep)) {
      add("bandwidth",
          fmt::format("tp {}, links free", doubled.tp),
          doubled,
          shape_,
          formats_,
          device);
    }
  }

  std::vector<Lever> take() { return std::move(lines_); }

 private:
  const ModelConfig& model_;
  Split split_;
  StepShape shape_;
  StepFormats formats_;
  std::vector<Lever> lines_;
};

}  // namespace

std::vector<Lever> levers_of(const ModelConfig& model,
                             const Split& split,
                             const StepShape& decode,
                             const StepFormats& formats,
                             const DeviceSpec& device) {
  Levers levers(model, split, decode, formats);
  levers.add("", "as it is", split, decode, formats, device);
  levers.bytes_per_weight(device);
  levers.tokens_per_pass(device);
  levers.bandwidth(device);
  return levers.take();
}

}  // namespace testbed::plan
