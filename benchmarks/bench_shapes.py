"""The model of docs/performance.md, as shapes: TinyLlama-1.1B's. bench_model.py writes it."""
import os

SHAPE = {"n_layers": 22, "d_model": 2048, "d_ff": 5632, "n_heads": 32, "n_kv_heads": 4, "vocab_size": 32000,
         "max_positions": 2048, "norm_eps": 1e-5, "rope_theta": 10000.0}
HEAD_DIM = SHAPE["d_model"] // SHAPE["n_heads"]
BLOCKS = {"bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18)}  # weights, their bytes with scales


def gguf_path(folder, name):
    return os.path.join(folder, f"bench-1b-{name}.gguf")


def safetensors_path(folder):
    return os.path.join(folder, "bench-1b")


def tensors(n_layers):
    """(GGUF name, Hugging Face name, shape) in file order; a vector has one dimension. The rows of q and k stand in the
    order of each format: with random values nobody can tell."""
    d, ff = SHAPE["d_model"], SHAPE["d_ff"]
    kv = SHAPE["n_kv_heads"] * HEAD_DIM
    yield "token_embd", "model.embed_tokens", (SHAPE["vocab_size"], d)
    for i in range(n_layers):
        for name, other, shape in (
                ("attn_norm", "input_layernorm", (d,)), ("attn_q", "self_attn.q_proj", (d, d)),
                ("attn_k", "self_attn.k_proj", (kv, d)), ("attn_v", "self_attn.v_proj", (kv, d)),
                ("attn_output", "self_attn.o_proj", (d, d)), ("ffn_norm", "post_attention_layernorm", (d,)),
                ("ffn_gate", "mlp.gate_proj", (ff, d)), ("ffn_up", "mlp.up_proj", (ff, d)),
                ("ffn_down", "mlp.down_proj", (d, ff))):
            yield f"blk.{i}.{name}", f"model.layers.{i}.{other}", shape
    yield "output_norm", "model.norm", (d,)
    yield "output", "lm_head", (SHAPE["vocab_size"], d)


def step_weight_bytes(kind):
    """What one decode step of one token reads in this type: all matrices and norms, of the embedding one row."""
    block, block_bytes = BLOCKS[kind]
    total = SHAPE["d_model"] // block * block_bytes
    for name, _, shape in tensors(SHAPE["n_layers"]):
        if len(shape) == 1:
            total += 4 * shape[0]
        elif name != "token_embd":
            total += shape[0] * shape[1] // block * block_bytes
    return total


def largest_tensor_bytes(kind):
    """As stored in this type."""
    block, block_bytes = BLOCKS[kind]
    return max(shape[0] * shape[1] // block * block_bytes for _, _, shape in tensors(1) if len(shape) == 2)
