"""The whole engine on the 1 B model for docs/performance.md: decode and prefill beside llama.cpp, MBU beside the read
loop, what batch, tokens per pass and fewer bytes per weight gain, and tp 2 beside the bandwidth of two cores."""
import array
import json
import os
import statistics
import struct
import subprocess
import tempfile

from bench_shapes import BLOCKS, SHAPE, gguf_path, step_weight_bytes
from ratio_page import Row, Section
from testbed_run import LAUNCHER, record_of

THREADS = 2
PROMPT_TOKENS = 512
CHECKED_ROWS, CHECKED_STEPS = 16, 8  # whose logits are compared: of the prompt, and decoded
KINDS = {"bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}
MBU = {"bf16": (0.85, 0.95), "q8_0": (0.85, 0.95), "q4_0": (0.75, 0.9)}
DECODE = {"bf16": (1.05, 1.2), "q8_0": (1.2, 1.4), "q4_0": (1.2, 1.5)}
PREFILL = {"bf16": (1.3, 1.7), "q8_0": (1.5, 3.0), "q4_0": (None, None)}
# Relative distance of logits (root mean square) up to which two programs are held to have done the same work. A product
# rounds its inputs by 2^-9 (bf16) or 1/254 of a group's largest (int8; about 0.0048 of the standard deviation of 32
# normal numbers); some 100 of them in a row add up, as independent errors, to ten times one: 1.1 % and 4.8 %. Three
# times that for what is not independent.
SAME_LOGITS = {"bf16": 0.033, "q8_0": 0.144, "q4_0": 0.144}


class Llama:
    """llama_peer.py with one model."""

    def __init__(self, python, path, kv_type="f16"):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_peer.py")
        self.process = subprocess.Popen([python, script, path, str(THREADS), kv_type], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.about = json.loads(self.process.stdout.readline())

    def ask(self, **task):
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def one_process(setup, options):
    """One rank on all cores; a launcher would bind it to one."""
    return record_of([setup.program, "--device", "cpu", "--threads", str(THREADS), "--check", "off", *options])


def one_thread_each(setup, ranks, options):
    """Each rank bound to a core of its own by mpirun."""
    return record_of([LAUNCHER, "600", str(ranks), setup.program, "--device", "cpu", "--threads", "1", "--check", "off",
                      "--tp", str(ranks), *options])


def model_options(setup, kind):
    return ["--model", gguf_path(setup.models, kind), "--ignore-eos"]


def decode(record):
    return record["phases"]["decode"]


def step_s(record, phase="decode"):
    return record["phases"][phase]["step_ms"] * 1e-3


def fault_of_bytes(record, kind):
    """Of a run on one rank: whether it read what the file holds."""
    read, held = decode(record)["weight_bytes"], step_weight_bytes(kind)
    return "" if read == held else f"expanded: reads {read / 1e9:.3f} GB a step, the file holds {held / 1e9:.3f}"


def prompt_ids(n):
    return [(7919 * (i + 1)) % SHAPE["vocab_size"] for i in range(n)]


class OurLogits:
    """What --logits wrote of one request: the rows of the prompt, then those of the decode steps."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            header_bytes, = struct.unpack("<Q", file.read(8))
            self.tensors = json.loads(file.read(header_bytes))
        self.begin = 8 + header_bytes

    def values(self, name, kind, first, n):
        with open(self.path, "rb") as file:
            file.seek(self.begin + self.tensors[name]["data_offsets"][0] + 4 * first)
            return array.array(kind, file.read(4 * n))

    def steps(self):
        return self.tensors["request0.greedy_ids"]["shape"][0]

    def forced_ids(self, prompt):
        """The prompt, and what the decode steps took."""
        return [*prompt, *self.values("request0.greedy_ids", "i", 0, self.steps() - 1)]

    def row(self, position, n_prompt):
        """Row n_prompt - 1 is both the prompt's last and the first that chose a token."""
        width = self.tensors["request0.prompt_logits"]["shape"][1]
        if position < n_prompt:
            return self.values("request0.prompt_logits", "f", position * width, width)
        return self.values("request0.greedy_logits", "f", (position - n_prompt + 1) * width, width)


def row_of(path, position, width):
    with open(path, "rb") as file:
        file.seek(4 * position * width)
        return array.array("f", file.read(4 * width))


def same_work(setup, kind, compute):
    """Our logits and llama.cpp's of the prompt that is timed, and of decode steps on the tokens that ours chose:
    (relative distance, rows whose largest logit is the same token, rows). compute: None is the default, which is what
    is timed."""
    prompt = prompt_ids(PROMPT_TOKENS)
    options = [*model_options(setup, kind), "--prompt-ids", ",".join(map(str, prompt)), "--warmup", "0",
               "--gen-tokens", str(CHECKED_STEPS + 1), "--repeats", "1",
               *(["--compute-dtype", compute] if compute else [])]
    every = PROMPT_TOKENS // CHECKED_ROWS
    positions = [*range(every - 1, PROMPT_TOKENS, every), *range(PROMPT_TOKENS, PROMPT_TOKENS + CHECKED_STEPS)]
    distance = size = agree = 0
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = (os.path.join(folder, name) for name in ("ours.safetensors", "peer.bin"))
        one_process(setup, [*options, "--logits", ours])
        logits = OurLogits(ours)
        with Llama(setup.llama, gguf_path(setup.models, kind), *(["f32"] if compute == "f32" else [])) as llama:
            llama.ask(ids=logits.forced_ids(prompt), prompt_tokens=len(prompt), logits=peer)
        for position in positions:
            a = logits.row(position, len(prompt))
            b = row_of(peer, position, len(a))
            distance += sum((x - y) ** 2 for x, y in zip(a, b))
            size += sum(x * x for x in a)
            agree += max(range(len(a)), key=a.__getitem__) == max(range(len(b)), key=b.__getitem__)
    return (distance / size) ** 0.5, agree, len(positions)


def same_work_row(setup, kind, compute):
    distance, agree, n = same_work(setup, kind, compute)
    return Row(f"logits' distance from llama.cpp's, {kind}, computed in {compute or 'bf16 as timed'}", [distance],
               SAME_LOGITS[kind], at_most=True,
               note=f"same work: {CHECKED_ROWS} rows of the prompt of {PROMPT_TOKENS} and {CHECKED_STEPS} decode "
                    f"steps; largest logit the same in {agree} of {n}")


def alternate_with_llama(setup, kind):
    """Of each round: our record, and llama.cpp's answer (none if it is not built)."""
    repeats, gen_tokens = (1, 9) if setup.quick else (3, 33)
    options = [*model_options(setup, kind), "--prompt-tokens", str(PROMPT_TOKENS), "--gen-tokens", str(gen_tokens),
               "--warmup", "1", "--repeats", str(repeats)]
    ours, peers = [], []
    if not setup.llama:
        return [one_process(setup, options) for _ in range(setup.rounds)], []
    with Llama(setup.llama, gguf_path(setup.models, kind)) as llama:
        task = {"ids": prompt_ids(PROMPT_TOKENS), "gen_tokens": gen_tokens}
        for _ in range(setup.rounds):
            llama.ask(**task)
            peers.append([llama.ask(**task) for _ in range(repeats)])
            ours.append(one_process(setup, options))
    return ours, peers


def peer_prefill_s(answers):
    return statistics.median(answer["prefill_s"] for answer in answers)


def peer_step_s(answers):
    return statistics.median(step for answer in answers for step in answer["step_s"])


def engine_section(setup):
    rows, work = [], []
    for kind, weights in KINDS.items():
        ours, peers = alternate_with_llama(setup, kind)
        fault = fault_of_bytes(ours[0], kind)
        rates = f"{1 / statistics.median(map(step_s, ours)):.1f} tokens/s"
        rows.append(Row(f"decode MBU, {weights} ({kind})", [decode(r)["mbu"] for r in ours], *MBU[kind], fault=fault,
                        note=f"1 rank x {THREADS} threads, {PROMPT_TOKENS} tokens cached; {rates}"))
        missing = "" if peers else setup.no_llama
        if peers:
            rates += f" to {1 / statistics.median(map(peer_step_s, peers)):.1f}"
        rows.append(Row(f"decode to llama.cpp, {kind}", [peer_step_s(p) / step_s(r) for r, p in zip(ours, peers)],
                        *DECODE[kind], fault=missing or fault, note=f"both {THREADS} threads; {rates}"))
        prefill = [peer_prefill_s(p) / (r["timing"]["ttft_ms"] * 1e-3) for r, p in zip(ours, peers)]
        ttft = f"{statistics.median(r['timing']['ttft_ms'] for r in ours):.0f} ms"
        if peers:
            ttft += f" to {1e3 * statistics.median(map(peer_prefill_s, peers)):.0f} ms"
        rows.append(Row(f"prefill {PROMPT_TOKENS} to llama.cpp, {kind}", prefill, *PREFILL[kind],
                        fault=missing or fault, note=ttft))
        if peers:
            rows += [same_work_row(setup, kind, compute) for compute in (None, "f32")]
    text = "MBU is the record's: bytes of weights and KV a step over the time and the read loop, which runs between "\
           "the repeats. llama.cpp's time is of `llama_decode` alone, ours of whole steps with the choice of the token."
    return Section("Decode and prefill, 1 B model", rows, text)


def with_head_s(setup, options, phase):
    """(record, seconds of a step's head and of choosing its tokens): the median of the traced steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        record = one_process(setup, [*options, "--trace", path])
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    of_step = {}
    for event in events:
        where = event.get("args", {})
        if event.get("cat") == phase and where.get("site") == "head":
            step = where["repeat"], where["step"]
            of_step[step] = of_step.get(step, 0.0) + event["dur"] * 1e-6
    return record, statistics.median(of_step.values())


def gain_section(setup):
    repeats = 2 if setup.quick else 5
    context = ["--context", str(PROMPT_TOKENS), "--warmup", "1"]
    steps = [*context, "--prompt-tokens", "1", "--gen-tokens", "17", "--repeats", str(repeats)]
    passes = [*context, "--prompt-tokens", "4", "--gen-tokens", "1", "--repeats", str(8 * repeats)]
    batch, rows4, heads, int4 = [], [], [], []
    for _ in range(setup.rounds):
        one = one_process(setup, [*model_options(setup, "bf16"), *steps])
        four, head_of_four = with_head_s(setup, [*model_options(setup, "bf16"), *steps, "--batch", "4"], "decode")
        verify, head_of_one = with_head_s(setup, [*model_options(setup, "bf16"), *passes], "prefill")
        small = one_process(setup, [*model_options(setup, "q4_0"), *steps])
        batch.append(4 * step_s(one) / step_s(four) / 4)
        heads.append(head_of_four - head_of_one)
        rows4.append(4 * step_s(one) / (step_s(verify, "prefill") + heads[-1]) / 4)
        block, block_bytes = BLOCKS["q4_0"]
        int4.append(step_s(one) / step_s(small) / (2 / (block_bytes / block)))
    fault = fault_of_bytes(small, "q4_0")
    cached = f"{PROMPT_TOKENS} synthetic tokens cached, 1 rank x {THREADS} threads"
    return Section("Gain over batch 1 in bf16", [
        Row("batch 4 ÷ 4", batch, 0.8, 0.95, note=f"tokens/s of --batch 4 to --batch 1; {cached}"),
        Row("4 tokens a pass ÷ 4", rows4, 0.8, 0.95,
            note="a step of 4 rows of one sequence (`--context 512 --prompt-tokens 4 --gen-tokens 1`) to a decode step; "
                 "it computes the head for the last row only, so what the head of `--batch 4` takes longer in traced "
                 f"steps is added: {1e3 * statistics.median(heads):+.2f} ms"),
        Row("int4 ÷ (2 ÷ 0.5625 bytes a weight)", int4, 0.8, 0.95, fault=fault, note=f"q4_0; {cached}")])


def bandwidth(record):
    return record["peaks"][0]["read_bytes_per_s"]


def wall_section(setup):
    options = ["--prompt-tokens", "16", "--gen-tokens", "17", "--warmup", "1", "--repeats", "3" if setup.quick else "7"]
    rows = []
    for kind in ("bf16", "q8_0", "q4_0"):
        ratios, speed_ups, bandwidths = [], [], []
        for _ in range(setup.rounds):
            one, two = (one_thread_each(setup, n, [*model_options(setup, kind), *options]) for n in (1, 2))
            speed_ups.append(step_s(one) / step_s(two))
            bandwidths.append(bandwidth(two) / bandwidth(one))
            ratios.append(speed_ups[-1] / bandwidths[-1])
        bounds = (0.9, 0.97) if kind == "bf16" else (None, None)
        rows.append(Row(f"tp 2 speed-up ÷ bandwidth speed-up, {kind}", ratios, *bounds, fault=fault_of_bytes(one, kind),
                        note=f"steps {statistics.median(speed_ups):.2f} x, read loop {statistics.median(bandwidths):.2f} x"))
    return Section("The wall on this machine: tp 1 → 2", rows,
                   "One thread a rank, each bound to a core; the read loop of 1 and of both cores runs between the repeats "
                   "of the same process.")

