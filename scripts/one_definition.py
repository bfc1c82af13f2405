#!/usr/bin/env python3
"""No type of a namespace is defined in two files: std::vector of either would be one function for the linker, which takes
whichever it meets first, with the other's size (C++'s one-definition rule, of which no compiler complains).

    python3 scripts/one_definition.py [FOLDER...]        default: kernels parallel runtime launch

Reads the text as clang-format leaves it: a namespace's types begin at the first column. Unnamed namespaces are free."""
import collections
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPEN = re.compile(r"(?:inline )?namespace ?([\w:]*) ?\{")
CLOSE = re.compile(r"\}  // namespace")
TYPE = re.compile(r"(?:struct|class|union|enum class|enum) (?:alignas\([^)]*\) )?(\w+)(?: final)?(?: : [^{;]*)?\s*\{")


def types_of(lines):
    """Qualified names of what the lines define outside unnamed namespaces."""
    namespaces = []
    for line in lines:
        if match := OPEN.match(line):
            namespaces.append(match[1])
        elif CLOSE.match(line):
            namespaces.pop()
        elif (match := TYPE.match(line)) and "" not in namespaces:
            yield "::".join([*namespaces, match[1]])


def sources(folders):
    for folder in folders:
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            yield from (os.path.join(path, name) for name in names if name.endswith((".cpp", ".hpp", ".cu", ".cuh")))


def main():
    defined = collections.defaultdict(set)
    for path in sources(sys.argv[1:] or ["kernels", "parallel", "runtime", "launch"]):
        with open(path, encoding="utf-8") as file:
            for name in types_of(file):
                defined[name].add(os.path.relpath(path, ROOT))
    twice = {name: sorted(paths) for name, paths in defined.items() if len(paths) > 1}
    for name, paths in sorted(twice.items()):
        print(f"{name} is defined in {' and in '.join(paths)}: error: the linker takes one for the other")
    if not defined:
        sys.exit("one_definition: no types found")
    sys.exit(1 if twice else 0)


if __name__ == "__main__":
    main()
