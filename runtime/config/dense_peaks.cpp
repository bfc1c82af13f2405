// Dense FLOP per SM and clock, and what follows from them.
#include "runtime/config/dense_peaks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

constexpr double tolerance = 0.20;

// Dense FLOP per SM and clock (a multiply-add is 2), tensor cores where they do the type, f32
// accumulation; 0: the architecture lacks the type.
struct DenseRates {
  std::string_view architecture;
  std::array<double, 8> flop_per_clock;  // f64, f32, tf32, f16, bf16, fp8, int8, fp4
};

// Source: NVIDIA's whitepapers on Pascal GP100, Volta GV100, Ampere GA100, Ada, Hopper and RTX
// Blackwell (rates per SM); Blackwell B200 from its datasheet (dense peak / (148 SMs x 1.86 GHz)).
// On GeForce, 16-bit and 8-bit floating point with f32 accumulation runs at half rate.
constexpr std::array<DenseRates, 8> dense_rates{{
    {"sm_60", {64, 128, 0, 256, 0, 0, 0, 0}},
    {"sm_70", {64, 128, 0, 1024, 0, 0, 0, 0}},
    {"sm_80", {128, 128, 1024, 2048, 2048, 0, 4096, 0}},
    {"sm_89", {4, 256, 512, 1024, 1024, 2048, 2048, 0}},
    {"sm_89-geforce", {4, 256, 256, 512, 512, 1024, 2048, 0}},
    {"sm_90", {256, 256, 2048, 4096, 4096, 8192, 8192, 0}},
    {"sm_100", {128, 256, 4096, 8192, 8192, 16384, 16384, 32768}},
    {"sm_120", {4, 256, 512, 1024, 1024, 2048, 2048, 4096}},
}};

bool is_close(double value, double expected) {
  return std::abs(value - expected) <= tolerance * expected;
}

// A figure near twice the dense one is the datasheet's "with sparsity".
std::string verdict(MathType type, double peak, double dense) {
  return fmt::format("{} = {:.6g} TFLOP/s is {}",
                     math_name(type),
                     peak * 1e-12,
                     is_close(peak, 2 * dense) ? "the sparse figure" : "not the dense peak");
}

std::string chip_error(const ChipSpec& chip, MathType type, double peak) {
  const auto* row =
      std::find_if(dense_rates.begin(), dense_rates.end(), [&](const DenseRates& rates) {
        return rates.architecture == chip.architecture;
      });
  if (row == dense_rates.end()) {
    std::vector<std::string_view> known;
    known.reserve(dense_rates.size());
    for (const DenseRates& rates : dense_rates) known.push_back(rates.architecture);
    return fmt::format("architecture {} is not one of {}, by which peaks are judged",
                       in_quotes(chip.architecture),
                       fmt::join(known, ", "));
  }
  const double rate = row->flop_per_clock.at(static_cast<size_t>(type));
  if (rate == 0) return fmt::format("{} has no {}", chip.architecture, math_name(type));
  const double dense = static_cast<double>(chip.n_sm) * rate * chip.boost_hz;
  if (is_close(peak, dense)) return "";
  return fmt::format("{}: {} SMs x {:.0f} dense FLOP per SM and clock x {:.0f} MHz = {:.4g}",
                     verdict(type, peak, dense),
                     chip.n_sm,
                     rate,
                     chip.boost_hz * 1e-6,
                     dense * 1e-12);
}

// How many times the 16-bit tensor rate; no value for types outside of the tensor cores.
std::optional<double> tensor_ratio(MathType type) {
  switch (type) {
    case MathType::tf32:
      return 0.5;
    case MathType::f16:
    case MathType::bf16:
      return 1.0;
    case MathType::fp8:
    case MathType::int8:
      return 2.0;
    case MathType::fp4:
      return 4.0;
    default:
      return std::nullopt;
  }
}

// Types that only tensor cores have: a CPU's measured peaks follow no ratio.
bool has_tensor_cores(const std::map<MathType, double>& peaks) {
  return peaks.contains(MathType::tf32) || peaks.contains(MathType::fp8) ||
         peaks.contains(MathType::fp4);
}

std::string ratio_error(const std::map<MathType, double>& peaks, MathType type) {
  const std::optional<double> ratio = tensor_ratio(type);
  const auto bf16 = peaks.find(MathType::bf16);
  const auto base = bf16 != peaks.end() ? bf16 : peaks.find(MathType::f16);
  if (!ratio || base == peaks.end() || !has_tensor_cores(peaks)) return "";
  const double dense = *ratio * base->second;
  if (is_close(peaks.at(type), dense)) return "";
  return fmt::format("{}: dense, it is {} x {} = {:.4g}",
                     verdict(type, peaks.at(type), dense),
                     *ratio,
                     math_name(base->first),
                     dense * 1e-12);
}

}  // namespace

std::map<MathType, double> dense_peaks(const ChipSpec& chip) {
  std::map<MathType, double> peaks;
  for (const DenseRates& rates : dense_rates) {
    if (rates.architecture != chip.architecture) continue;
    for (size_t type = 0; type < rates.flop_per_clock.size(); ++type) {
      if (rates.flop_per_clock[type] == 0) continue;
      peaks[static_cast<MathType>(type)] =
          rates.flop_per_clock[type] * static_cast<double>(chip.n_sm) * chip.boost_hz;
    }
  }
  return peaks;
}

std::string dense_peak_error(const ChipSpec& chip,
                             const std::map<MathType, double>& peaks,
                             MathType type) {
  return chip.n_sm > 0 ? chip_error(chip, type, peaks.at(type)) : ratio_error(peaks, type);
}

}  // namespace testbed
