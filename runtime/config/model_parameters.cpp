// Parameter counts, layer by layer, from shapes alone.
#include "runtime/config/model_config.hpp"

namespace testbed {
namespace {

// Multi-head latent attention: q by way of its own latent or directly, the KV latent with the
// shared rotated key, and what expands it per head.
int64_t mla_parameters(const ModelConfig& c) {
  const MlaConfig& mla = *c.mla;
  const int64_t q_width = c.n_heads * mla.qk_dim();
  int64_t n = mla.q_lora_rank == 0
                  ? c.d_model * q_width
                  : c.d_model * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * q_width;
  n += c.d_model * mla.cached_dim() + mla.kv_lora_rank;
  n += mla.kv_lora_rank * c.n_heads * (mla.nope_dim + mla.v_dim);
  return n + c.n_heads * mla.v_dim * c.d_model;
}

int64_t attention_parameters(const ModelConfig& c, const LayerShape& layer, bool owns_kv) {
  if (c.mla) return mla_parameters(c);
  const int64_t q_width = c.n_heads * layer.head_dim;
  const int64_t n_kv_matrices = layer.key_is_value ? 1 : 2;
  const int64_t kv_width = owns_kv ? n_kv_matrices * layer.n_kv_heads * layer.head_dim : 0;
  int64_t n = c.d_model * (q_width + kv_width) + q_width * c.d_model;  // q, k, v; o
  if (c.qkv_bias) n += q_width + kv_width;
  if (c.output_bias) n += c.d_model;
  if (c.qk_norm) n += owns_kv ? 2 * layer.head_dim : layer.head_dim;
  if (c.attention_sinks) n += c.n_heads;
  return n;
}

int64_t mlp_parameters(const ModelConfig& c, int64_t d_ff) {
  if (d_ff == 0) return 0;
  return 3 * c.d_model * d_ff + (c.mlp_bias ? 2 * d_ff + c.d_model : 0);  // gate, up, down
}

int64_t expert_parameters(const ModelConfig& c) {
  const int64_t d_ff = c.moe->d_ff;
  return 3 * c.d_model * d_ff + (c.moe->expert_bias ? 2 * d_ff + c.d_model : 0);
}

// The router, the shared experts, and n_experts of the others.
int64_t moe_parameters(const ModelConfig& c, int64_t n_experts) {
  const MoeConfig& moe = *c.moe;
  int64_t n = moe.n_experts * c.d_model;
  if (moe.router_bias) n += moe.n_experts;
  if (moe.selection_bias) n += moe.n_experts;
  if (moe.beside_mlp) n += c.d_model + moe.n_experts;  // scales of the router's input, of experts
  n += 3 * c.d_model * moe.shared_d_ff;
  return n + n_experts * expert_parameters(c);
}

int64_t norm_parameters(const ModelConfig& c, bool experts_beside_mlp) {
  const int64_t n_norms =
      (c.norms == NormPlacement::sandwich ? 4 : 2) + (experts_beside_mlp ? 3 : 0);
  return n_norms * c.d_model;
}

int64_t parameters_of_layer(const ModelConfig& c, int64_t index, int64_t n_experts) {
  const LayerShape layer = c.layer(index);
  int64_t n = attention_parameters(c, layer, layer.kv_layer == index);
  n += mlp_parameters(c, layer.d_ff);
  if (layer.has_experts) n += moe_parameters(c, n_experts);
  n += norm_parameters(c, layer.has_experts && c.moe->beside_mlp);
  if (c.per_layer_input) n += 2 * c.d_model * c.per_layer_input->dim + c.d_model;
  return n + (c.layer_scalars ? 1 : 0);
}

// What is neither in a layer nor a table of embeddings, the head included.
int64_t parameters_behind_tables(const ModelConfig& c) {
  int64_t n = c.d_model + c.vocab_size * c.d_model;  // final norm, head
  if (c.per_layer_input)
    n += c.n_layers * c.per_layer_input->dim * c.d_model + c.per_layer_input->dim;
  return n;
}

int64_t parameters_of_layers(const ModelConfig& c, int64_t n_experts) {
  int64_t n = 0;
  for (int64_t layer = 0; layer < c.n_layers; ++layer)
    n += parameters_of_layer(c, layer, n_experts);
  return n;
}

}  // namespace

int64_t ModelConfig::layer_parameters(int64_t index) const {
  return parameters_of_layer(*this, index, moe ? moe->n_experts : 0);
}

int64_t ModelConfig::n_parameters() const {
  int64_t n = parameters_of_layers(*this, moe ? moe->n_experts : 0);
  n += parameters_behind_tables(*this);
  if (!tied_embeddings) n += vocab_size * d_model;
  if (per_layer_input) n += per_layer_input->vocab_size * n_layers * per_layer_input->dim;
  return n;
}

int64_t ModelConfig::n_active_parameters() const {
  return parameters_of_layers(*this, moe ? moe->routing.top_k : 0) +
         parameters_behind_tables(*this);
}

}  // namespace testbed
