// The ops on rows and elements; attention's are in device_attention.cpp, the experts' in
// device_experts.cpp.
#include "kernels/device.hpp"

#include <algorithm>

#include "kernels/device_counted.hpp"

namespace testbed {

void Device::embed(std::span<const int32_t> ids,
                   const WeightMatrix& table,
                   int64_t first_id,
                   TensorView out) {
  CHECK(out.n_rows() == static_cast<int64_t>(ids.size()) && row_width(out) == table.n_cols());
  counted(
      {OpKind::embed, out.n_rows(), out.dtype()},
      [&] {
        const int64_t n_gathered = std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
          return id >= first_id && id < first_id + table.n_rows();
        });
        return embed_cost(out.n_rows(), n_gathered, table.n_cols(), table.format(), out.dtype());
      },
      [&] { do_embed(ids, table, first_id, out); });
}

void Device::rms_norm(TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(x.n_elements() == out.n_elements() && row_width(x) == weight.n_elements());
  counted(
      {OpKind::norm, x.n_rows(), x.dtype()},
      [&] { return norm_cost(x.n_rows(), row_width(x), false, x.dtype()); },
      [&] { do_rms_norm(x, weight, eps, out); });
}

void Device::add_rms_norm(
    TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(residual.n_elements() == x.n_elements() && out.n_elements() == x.n_elements());
  CHECK(row_width(x) == weight.n_elements());
  counted(
      {OpKind::norm, x.n_rows(), x.dtype()},
      [&] { return norm_cost(x.n_rows(), row_width(x), true, x.dtype()); },
      [&] { do_add_rms_norm(residual, x, weight, eps, out); });
}

void Device::count_add_rms_norm(TensorView residual) {
  counted(
      {OpKind::norm, residual.n_rows(), residual.dtype()},
      [&] { return norm_cost(residual.n_rows(), row_width(residual), true, residual.dtype()); },
      [] {});
}

void Device::add(TensorView residual, TensorView x) {
  CHECK(residual.n_elements() == x.n_elements());
  counted(
      {OpKind::norm, x.n_rows(), x.dtype()},
      [&] { return add_cost(x.n_elements(), x.dtype()); },
      [&] { do_add(residual, x); });
}

void Device::head_norm(TensorView x, TensorView weight, float eps) {
  CHECK(x.shape().rank() == 3 && (weight.empty() || x.shape()[2] == weight.n_elements()));
  counted(
      {OpKind::norm, x.n_rows(), x.dtype()},
      [&] {
        OpCost cost = norm_cost(x.shape()[0] * x.shape()[1], x.shape()[2], false, x.dtype());
        if (weight.empty()) cost.weight_bytes = 0;
        return cost;
      },
      [&] { do_head_norm(x, weight, eps); });
}

void Device::linear(TensorView x,
                    const WeightMatrix& weight,
                    TensorView bias,
                    TensorView y,
                    std::optional<int64_t> n_model_rows) {
  check_product(x, weight, bias, y);
  counted(
      {OpKind::linear,
       x.n_rows(),
       product_operands(x, weight.format()),
       {.m = x.n_rows(), .n = weight.n_rows(), .k = weight.n_cols()}},
      [&] {
        OpCost cost = product_cost(x, weight, bias);
        if (n_model_rows) {
          cost.model_flops = 2 * *n_model_rows * weight.model_rows() * weight.n_cols();
        }
        return cost;
      },
      [&] { do_linear(x, weight, bias, y); });
}

void Device::rope(TensorView x,
                  std::span<const int64_t> positions,
                  const RopeFrequencies& frequencies) {
  CHECK(x.shape().rank() == 3 && x.n_rows() == static_cast<int64_t>(positions.size()));
  CHECK(x.shape()[2] == 2 * static_cast<int64_t>(frequencies.inv_freq.size()));
  counted(
      {OpKind::rope, x.n_rows(), x.dtype()},
      [&] { return rope_cost(x.n_elements(), x.dtype()); },
      [&] { do_rope(x, positions, frequencies); });
}

void Device::gated_activation(Activation activation, TensorView gate_up, TensorView out) {
  CHECK(gate_up.n_rows() == out.n_rows() && row_width(gate_up) == 2 * row_width(out));
  CHECK(gate_up.dtype() == out.dtype());
  counted(
      {OpKind::activation, out.n_rows(), out.dtype()},
      [&] { return activation_cost(out.n_rows(), row_width(out), out.dtype()); },
      [&] { do_gated_activation(activation, gate_up, out); });
}

void Device::gated_activation(Activation activation,
                              TensorView gate,
                              TensorView up,
                              TensorView out) {
  CHECK(gate.n_elements() == out.n_elements() && up.n_elements() == out.n_elements());
  CHECK(gate.dtype() == out.dtype() && up.dtype() == out.dtype());
  counted(
      {OpKind::activation, out.n_rows(), out.dtype()},
      [&] { return activation_cost(out.n_rows(), row_width(out), out.dtype()); },
      [&] { do_gated_activation(activation, gate, up, out); });
}

void Device::scale(TensorView x, float factor) {
  counted(
      {OpKind::activation, x.n_rows(), x.dtype()},
      [&] { return scale_cost(x.n_elements(), x.dtype()); },
      [&] { do_scale(x, factor); });
}

void Device::softcap(TensorView x, float cap) {
  CHECK(x.dtype() == DType::F32 && cap > 0.0F);
  counted(
      {OpKind::activation, x.n_rows(), x.dtype()},
      [&] { return softcap_cost(x.n_elements(), x.dtype()); },
      [&] { do_softcap(x, cap); });
}

void Device::gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) {
  CHECK(out.n_rows() == static_cast<int64_t>(rows.size()) && row_width(out) == row_width(x));
  CHECK(x.dtype() == out.dtype());
  counted(
      {OpKind::copy, out.n_rows(), x.dtype()},
      [&] {
        const int64_t n_zero = std::count(rows.begin(), rows.end(), int64_t{-1});
        return copy_cost((out.n_rows() - n_zero) * row_width(out), out.n_elements(), x.dtype());
      },
      [&] { do_gather_rows(x, rows, out); });
}

void Device::copy_columns(
    TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) {
  CHECK(x.dtype() == out.dtype() && x.shape().rank() >= 1 && out.shape().rank() >= 1);
  CHECK(x_column >= 0 && n >= 0 && x_column + n <= x.shape()[-1]);
  CHECK(out_column >= 0 && out_column + n <= out.shape()[-1]);
  const bool none = out.n_elements() == 0 || n == 0;
  const int64_t x_rows = none ? 0 : x.n_elements() / x.shape()[-1];
  const int64_t out_rows = none ? 0 : out.n_elements() / out.shape()[-1];
  CHECK(none || (x_rows > 0 && out_rows % x_rows == 0));
  counted(
      {OpKind::copy, out_rows, x.dtype()},
      [&] { return copy_cost(x_rows * n, out_rows * n, x.dtype()); },
      [&] { do_copy_columns(x, x_column, n, out, out_column); });
}

void Device::row_max(TensorView logits, std::span<RowMax> out) {
  CHECK(logits.n_rows() == static_cast<int64_t>(out.size()));
  counted(
      {OpKind::sample, logits.n_rows(), logits.dtype()},
      [&] { return copy_cost(logits.n_elements(), 0, logits.dtype()); },
      [&] { do_row_max(logits, out); });
}

bool Device::all_finite(TensorView x) {
  bool finite = true;
  counted(
      {OpKind::copy, x.n_rows(), x.dtype()},
      [&] { return copy_cost(x.n_elements(), 0, x.dtype()); },
      [&] { finite = do_all_finite(x); });
  return finite;
}

}  // namespace testbed
