#!/usr/bin/env python3
"""Counts the machine instructions of compiled kernels, in all and in the innermost loop with the most products.

    docs/count_instructions.py OBJECT PATTERN [INSTRUCTION...]

OBJECT is what nvcc compiled, a chapter's object in build/*/CMakeFiles for example; functions whose name matches the regular
expression PATTERN are listed, a line each, with the counts of the named instructions in that loop (HMMA LDSM ... without
their suffixes). Needs cuobjdump, which comes with the CUDA toolkit.

Exits 0, or 2 for bad arguments or without cuobjdump.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from typing import Iterator

DEFAULT = "HMMA HGMMA LDSM LDGSTS UTMALDG SYNCS BAR R2UR".split()


def functions(sass: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Each function's name and its instructions: address and text."""
    name, code = "", []
    for line in sass.splitlines():
        if start := re.search(r"Function : (\S+)", line):
            if name:
                yield name, code
            name, code = start[1], []
        elif found := re.search(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", line):
            code.append((int(found[1], 16), found[2].strip()))
    if name:
        yield name, code


def opcode(text: str) -> str:
    return re.sub(r"^@!?U?P[0-9T]+ ", "", text).split()[0].split(".")[0]


def main_loop(code: list[tuple[int, str]]) -> list[str]:
    """The instructions of the shortest loop with the most products."""
    best: list[str] = []
    for address, text in code:
        jump = re.search(r"BRA(?:\.\w+)* .*?0x([0-9a-f]+)", text)
        if not jump or int(jump[1], 16) >= address:
            continue
        body = [opcode(t) for a, t in code if int(jump[1], 16) <= a <= address]
        products = sum(op.endswith("MMA") for op in body)
        most = sum(op.endswith("MMA") for op in best)
        if products and (not best or products > most or (products == most and len(body) < len(best))):
            if not best or len(body) < 2 * len(best):
                best = body
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("object")
    parser.add_argument("pattern")
    parser.add_argument("instructions", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    try:
        sass = subprocess.run(["cuobjdump", "-sass", arguments.object], capture_output=True, text=True, check=True).stdout
        wanted = re.compile(arguments.pattern)
    except (OSError, subprocess.CalledProcessError, re.error) as error:
        print(f"count_instructions.py: {error}", file=sys.stderr)
        return 2
    for name, code in functions(sass):
        if wanted.search(name):
            loop = main_loop(code)
            counts = Counter(loop)
            listed = ", ".join(f"{counts[op]} {op}" for op in arguments.instructions)
            print(f"{wanted.search(name)[0]}: {len(code)} in all; {len(loop)} in the loop: {listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
