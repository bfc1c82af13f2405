"""What went wrong in one layer of .ci/run, in few lines for the end of its log.

  ci_failures.py LOG LINES [JUNIT]   LOG: what the layer printed; JUNIT: ctest's file of it, if it ran tests

With failed tests: their names, and the end of each one's output. Else the lines of LOG that name an error in the words of
compilers, clang-tidy, CMake, ninja or apt; else the end of LOG. Never more than LINES lines.
"""

import os
import re
import sys
import xml.etree.ElementTree as ET

FINDING = re.compile(
    r"\berror: |^FAILED: |^CMake Error|^E: |command not found|NO TESTS FOUND|^tests in no layer|^lint: (?!findings)"
)
WIDTH = 240


def failed_tests(path):
    """(name, lines of output) of each test that did not pass."""
    failed = []
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            output = (case.findtext("system-out") or "").splitlines()
            failed.append((case.get("name"), [line for line in output if line.strip()]))
    return failed


def of_tests(failed, limit):
    """A line for each name, and what is left of the limit shared among the ends of their outputs."""
    shown = failed[: max(limit - 1, 1)]
    lines = []
    left = limit - len(failed)
    for i, (name, output) in enumerate(shown):
        share = max(left // (len(shown) - i), 0)
        tail = output[len(output) - min(share, len(output)) :]
        left -= len(tail)
        lines += [f"test {name}"] + [f"  {line}" for line in tail]
    if len(shown) < len(failed):
        lines.append(f"and {len(failed) - len(shown)} more tests")
    return lines


def of_log(path, limit):
    with open(path, errors="replace") as file:
        lines = [line.rstrip() for line in file if line.strip()]
    findings = list(dict.fromkeys(line for line in lines if FINDING.search(line)))
    if not findings:
        return lines[-limit:]
    if len(findings) <= limit:
        return findings
    return findings[: limit - 1] + [f"and {len(findings) - limit + 1} more"]


def main(log, limit, junit=None):
    failed = failed_tests(junit) if junit and os.path.exists(junit) else []
    for line in of_tests(failed, int(limit)) if failed else of_log(log, int(limit)):
        print(line[:WIDTH])


if __name__ == "__main__":
    main(*sys.argv[1:])
