#!/usr/bin/env python3
"""Writes the model of docs/performance.md: TinyLlama-1.1B's shapes, seeded random weights, as GGUF in BF16, Q8_0 and Q4_0
(every matrix, embedding and head included, so that all programs read the same bytes) and as a BF16 safetensors folder.
Needs numpy and gguf (benchmarks/peers.sh installs both).

  python3 benchmarks/bench_model.py FOLDER [--layers N]
"""
import argparse
import json
import os
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from bench_shapes import HEAD_DIM, SHAPE, gguf_path, safetensors_path, tensors

STD = 0.02  # of matrices; norms are 1
TYPES = {"bf16": Type.BF16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}


def values(index, shape):
    """f32, rounded to what bf16 holds: all files are made from the same weights."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    plain = np.random.default_rng([0, index]).standard_normal(shape, np.float32) * np.float32(STD)
    bits = plain.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    bits &= 0xFFFF0000
    return plain


def stored(array, kind):
    """The array's bytes in a GGUF of this type; vectors stay f32."""
    if array.ndim == 1:
        return array
    if kind == Type.BF16:
        return (array.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    rows = max(1, (1 << 22) // array.shape[1])
    return np.concatenate([quantize(array[i:i + rows], kind) for i in range(0, len(array), rows)])


def open_gguf(path, kind, n_layers):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("bench-1b")
    writer.add_vocab_size(SHAPE["vocab_size"])
    writer.add_context_length(SHAPE["max_positions"])
    writer.add_embedding_length(SHAPE["d_model"])
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(SHAPE["d_ff"])
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_head_count(SHAPE["n_heads"])
    writer.add_head_count_kv(SHAPE["n_kv_heads"])
    writer.add_layer_norm_rms_eps(SHAPE["norm_eps"])
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_tokenizer_model("no_vocab")
    for name, _, shape in tensors(n_layers):
        if len(shape) == 1:
            writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), 4 * shape[0])
            continue
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = shape[0] * shape[1] // block * block_bytes
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


class Safetensors:
    """A Hugging Face folder with one BF16 file, written tensor by tensor."""

    def __init__(self, folder, n_layers):
        os.makedirs(folder, exist_ok=True)
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": n_layers,
                  "hidden_size": SHAPE["d_model"], "intermediate_size": SHAPE["d_ff"],
                  "num_attention_heads": SHAPE["n_heads"], "num_key_value_heads": SHAPE["n_kv_heads"],
                  "vocab_size": SHAPE["vocab_size"], "max_position_embeddings": SHAPE["max_positions"],
                  "rms_norm_eps": SHAPE["norm_eps"], "rope_theta": SHAPE["rope_theta"], "hidden_act": "silu",
                  "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=1)
        header, offset = {}, 0
        for _, name, shape in tensors(n_layers):
            n_bytes = 2 * int(np.prod(shape))
            header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + n_bytes]}
            offset += n_bytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file = open(os.path.join(folder, "model.safetensors"), "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)

    def write(self, array):
        (array.view(np.uint32) >> 16).astype(np.uint16).tofile(self.file)

    def close(self):
        self.file.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=SHAPE["n_layers"])
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    writers = {kind: open_gguf(gguf_path(args.folder, name), kind, args.layers) for name, kind in TYPES.items()}
    folder = Safetensors(safetensors_path(args.folder), args.layers)
    for index, (_, _, shape) in enumerate(tensors(args.layers)):
        array = values(index, shape)
        for kind, writer in writers.items():
            writer.write_tensor_data(stored(array, kind))
        folder.write(array)
    for writer in writers.values():
        writer.close()
    folder.close()
    with open(os.path.join(args.folder, "complete"), "w", encoding="utf-8") as file:
        json.dump({**SHAPE, "n_layers": args.layers}, file)


if __name__ == "__main__":
    main()
