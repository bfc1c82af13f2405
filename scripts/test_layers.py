"""Layers of a ctest run. Reads `ctest --show-only=json-v1` (what should run) and ctest's JUnit file (what did).

  test_layers.py check TESTS.json LAYER...         fails if a layer has no test; a layer spelt "golden?" may be empty
  test_layers.py minutes TESTS.json JUNIT LAYER... tests and summed test minutes of each layer
  test_layers.py total JUNIT...                    "N passed, N failed" over all files
"""

import json
import sys
import xml.etree.ElementTree as ET


def labels_by_test(path):
    with open(path) as file:
        tests = json.load(file)["tests"]
    return {
        test["name"]: next((p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), [])
        for test in tests
    }


def check(tests_path, *layers):
    labels = labels_by_test(tests_path)
    ok = True
    for layer in layers:
        name = layer.rstrip("?")
        n = sum(name in of_test for of_test in labels.values())
        if n == 0 and layer.endswith("?"):
            print(f"layer {name}: skipped, it has no tests yet")
        elif n == 0:
            print(f"layer {name}: NO TESTS FOUND")
            ok = False
        else:
            print(f"layer {name}: {n} tests")
    unlabelled = [test for test, of_test in labels.items() if not of_test]
    if unlabelled:
        print(f"tests in no layer (not built?): {', '.join(unlabelled)}")
        ok = False
    return 0 if ok else 1


def minutes(tests_path, junit_path, *layers):
    labels = labels_by_test(tests_path)
    cases = list(ET.parse(junit_path).getroot().iter("testcase"))
    for layer in (layer.rstrip("?") for layer in layers):
        times = [float(c.get("time", 0)) for c in cases if layer in labels.get(c.get("name"), [])]
        if times:
            print(f"layer {layer:<7} {len(times):>5} tests  {sum(times) / 60:6.2f} minutes of test time")
    return 0


def total(*junit_paths):
    passed = failed = 0
    for path in junit_paths:
        suite = ET.parse(path).getroot()
        n_failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        n_not_run = int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
        failed += n_failed
        passed += int(suite.get("tests")) - n_failed - n_not_run
    print(f"{passed} passed, {failed} failed")
    return 0


if __name__ == "__main__":
    sys.exit({"check": check, "minutes": minutes, "total": total}[sys.argv[1]](*sys.argv[2:]))
