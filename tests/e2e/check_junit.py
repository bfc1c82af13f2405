"""Strict reader of junit.xml: python3 check_junit.py junit.xml [...]. Valid by junit.xsd (xmllint), every count that of what
it counts, times that sum. Exit code 1 says what is wrong. read_junit() is for other tests."""
import os
import subprocess
import sys
import xml.etree.ElementTree as xml

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "junit.xsd")
OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}


class Wrong(Exception):
    pass


def check_counts(node, cases):
    counted = {"tests": len(cases)}
    for count, outcome in OUTCOMES.items():
        counted[count] = sum(case.find(outcome) is not None for case in cases)
    for name, value in counted.items():
        if name in node.attrib and int(node.get(name)) != value:
            raise Wrong(f"{node.get('name')}: {name} is {node.get(name)}, and there are {value}")
    total_s = sum(float(case.get("time")) for case in cases)
    # Each time is rounded to 1 ms: half a millisecond a case, and one for the sum.
    if abs(float(node.get("time")) - total_s) > 0.0005 * (len(cases) + 1) + 1e-9:
        raise Wrong(f"{node.get('name')}: time is {node.get('time')}, its cases' {total_s}")


def read_junit(path):
    """The root of a file that is right in all that is checked here; raises Wrong."""
    done = subprocess.run(["xmllint", "--noout", "--nonet", "--schema", SCHEMA, path], capture_output=True, check=False)
    if done.returncode != 0:
        raise Wrong(done.stderr.decode(errors="replace").strip())
    root = xml.parse(path).getroot()
    check_counts(root, root.findall("testsuite/testcase"))
    for suite in root.findall("testsuite"):
        check_counts(suite, suite.findall("testcase"))
    return root


def main(paths):
    for path in paths:
        try:
            read_junit(path)
        except (Wrong, OSError, ValueError, xml.ParseError) as error:
            print(f"{path}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
