"""A program in the place of testbed, for what starts it: writes the verdict that it is told to, and ends as told."""
import json
import os
import sys

SCRIPT = """#!{python}
import os, sys
args, text = sys.argv[1:], {text!r}
if text is not None and os.environ.get("SLURM_PROCID", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
    with open(os.path.join(args[args.index("--output") + 1], "verdict.json"), "w") as file:
        file.write(text)
sys.stdout.flush()
{end}
"""


def verdict(name, finished=True):
    return json.dumps({"schema": "testbed-acceptance-1", "verdict": name, "finished": finished})


def fake_testbed(folder, text, code=0, end=None):
    """Path of a program that writes `text` as verdict.json into its --output (None: nothing) and exits with `code`; `end` is
    Python to run instead of exiting."""
    path = os.path.join(folder, f"fake-testbed-{len(os.listdir(folder))}")
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o755)) as file:
        file.write(SCRIPT.format(python=sys.executable, text=text, end=end or f"sys.exit({code})"))
    return path
