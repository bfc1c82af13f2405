"""Results of tests/gpu.sh, as lines "passed|failed|skipped N what".

  results.py junit JUNIT RESULTS        appends what ctest's file says
  results.py gtest LOG CODE RESULTS     appends what a GoogleTest program printed; CODE: its exit code
  results.py total STEM...              prints each STEM.results, then "N passed, N failed, N skipped (why)";
                                        exit code 1 if something failed, or nothing passed
"""
import os
import re
import sys
import xml.etree.ElementTree as ET


def append(path, lines):
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{state} {n} {what}\n" for state, n, what in lines if n > 0)


def junit(path, results):
    if not os.path.exists(path):
        return append(results, [("failed", 1, "ctest wrote no results")])
    passed, lines = 0, []
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.get("status") == "fail":
            lines.append(("failed", 1, case.get("name")))
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            lines.append(("skipped", 1, f"{case.get('name')}: not run"))
        else:
            passed += 1
    if not passed and not lines:
        lines.append(("failed", 1, "ctest found no tests"))
    append(results, [("passed", passed, "tests"), *lines])


def gtest(path, code, results):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    name = os.path.basename(path)
    passed = len(re.findall(r"^\[ {7}OK \]", text, re.M))
    broken = re.findall(r"^\[  FAILED  \] ([^\s,]+),? .*\(\d+ ms\)$", text, re.M)
    lines = [("passed", passed, f"models ({name})"), *(("failed", 1, f"{test} ({name})") for test in broken)]
    if code != "0" and not broken:  # another rank's, a crash, the time limit
        lines.append(("failed", 1, f"{name}: exit code {code}"))
    if not passed and not broken and code == "0":
        lines.append(("failed", 1, f"{name}: no tests were run"))
    append(results, lines)


def total(*stems):
    n_of = {"passed": 0, "failed": 0, "skipped": 0}
    reasons = []
    for stem in stems:
        step = os.path.basename(stem)
        with open(stem + ".results", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(" ", 2) for line in file]
        if not lines:  # the step itself broke off
            lines = [("failed", "1", "said nothing of what it did")]
        for state, n, what in lines:
            n_of[state] += int(n)
            print(f"{step:<6} {state:<8} {n:>4}  {what}")
            if state == "skipped":
                reasons.append(what)
    why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    print(f"{n_of['passed']} passed, {n_of['failed']} failed, {n_of['skipped']} skipped{why}")
    return 1 if n_of["failed"] or not n_of["passed"] else 0


if __name__ == "__main__":
    sys.exit({"junit": junit, "gtest": gtest, "total": total}[sys.argv[1]](*sys.argv[2:]))
