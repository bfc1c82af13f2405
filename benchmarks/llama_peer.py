#!/usr/bin/env python3
"""llama.cpp as a peer of docs/performance.md: holds one model and does what each line of its standard input asks, one
JSON answer a line, so that its loading and its start are in no time. Runs in the environment that benchmarks/peers.sh
makes, with all of llama.cpp's defaults (weights repacked, flash attention and fusion as it chooses).

  llama_peer.py MODEL.gguf THREADS [KV cache type: f16|bf16|f32]
  {"ids": [...], "gen_tokens": G} -> {"prefill_s": s, "step_s": [s, ...], "ids": [...]}
  {"ids": [...], "prompt_tokens": P, "logits": FILE} -> {}

G - 1 steps of one token follow the prompt, each on the token with the largest logit of the step before. A time is of
llama_decode until its logits are there; choosing the token is not in it. With `logits` the logits of all rows go to
that file, f32 [ids, V] in the machine's order: the first P ids are one batch, each later one a step of its own.
"""
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

MAX_TOKENS = 2048
GGML_TYPES = {"f32": 0, "f16": 1, "bf16": 30}
FLASH_OFF, FLASH_AUTO = 0, -1


class Peer:
    def __init__(self, path, n_threads, kv_type):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = MAX_TOKENS
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = GGML_TYPES[kv_type]
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, batch):
        begin = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        if code != 0:
            raise SystemExit(f"llama_decode returned {code}")
        return time.perf_counter() - begin

    def batch(self, ids):
        """Only the last row has logits."""
        self.ids = (llama_cpp.llama_token * len(ids))(*ids)
        return llama_cpp.llama_batch_get_one(self.ids, len(ids))

    def row(self, index):
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,))

    def generate(self, ids, gen_tokens):
        self.clear()
        answer = {"prefill_s": self.decode(self.batch(ids)), "step_s": [], "ids": [int(self.row(-1).argmax())]}
        for _ in range(gen_tokens - 1):
            answer["step_s"].append(self.decode(self.batch(answer["ids"][-1:])))
            answer["ids"].append(int(self.row(-1).argmax()))
        return answer

    def write_logits(self, ids, prompt_tokens, path):
        self.clear()
        batch = llama_cpp.llama_batch_init(prompt_tokens, 0, 1)
        batch.n_tokens = prompt_tokens
        for i, token in enumerate(ids[:prompt_tokens]):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        self.decode(batch)
        with open(path, "wb") as file:
            for i in range(prompt_tokens):
                self.row(i).tofile(file)
            for token in ids[prompt_tokens:]:
                self.decode(self.batch([token]))
                self.row(-1).tofile(file)
        llama_cpp.llama_batch_free(batch)
        return {}


def main():
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    peer = Peer(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "f16")
    about = {"version": f"llama-cpp-python {llama_cpp.__version__}",
             "system": llama_cpp.llama_print_system_info().decode().strip()}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task.get("logits"):
            answer = peer.write_logits(task["ids"], task["prompt_tokens"], task["logits"])
        else:
            answer = peer.generate(task["ids"], task["gen_tokens"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
