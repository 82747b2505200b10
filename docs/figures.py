#!/usr/bin/env python3
"""Draws figures from docs/results/*.json, which ./course measure writes, as SVG. Needs matplotlib.

    docs/figures.py                                     the roofline and the bytes at b=1 h=16 n=4096 d=128
    docs/figures.py --size 16,16,16,4096,4096,128,0 --out build/figures

For each results file two figures: every chapter and variant under the roofline of that machine, and the bytes that each
moved, beside its predictions. Exits 1 if there is nothing to draw and 3 without matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import make_tables

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError as error:
    print(f"figures.py: matplotlib is missing ({error}); install it with: pip install matplotlib", file=sys.stderr)
    sys.exit(3)

Json = dict[str, Any]


def label(entry: Json) -> str:
    return f"{entry['chapter'].split('_')[0]} {entry['variant']}"


def roofline(report: Json, entries: list[Json], title: str) -> Any:
    bandwidth = report["ceilings"]["copy_bytes_per_second"]
    matrix = report["ceilings"]["matrix_flops_per_second"]
    figure, axes = plt.subplots(figsize=(7, 4.5))
    points = [(e["problem"]["flops"] / make_tables.hbm(e), make_tables.tflops(e), e) for e in entries]
    low = min(1.0, *(intensity for intensity, _, _ in points)) / 2
    high = 4 * max(matrix / bandwidth if matrix else 0, *(intensity for intensity, _, _ in points))
    corner = matrix / bandwidth if matrix else high
    axes.plot([low, corner, high], [low * bandwidth / 1e12, corner * bandwidth / 1e12, corner * bandwidth / 1e12], "k-")
    for intensity, rate, entry in points:
        axes.plot(intensity, rate, "o")
        axes.annotate(label(entry), (intensity, rate), textcoords="offset points", xytext=(6, 4))
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each HBM byte, measured", ylabel="TFLOP/s", title=title)
    axes.grid(True, which="both", alpha=0.3)
    return figure


def moved_bytes(entries: list[Json], title: str) -> Any:
    bars = {
        "requested, predicted": [make_tables.predicted(entry, "requested") for entry in entries],
        "L2 to SMs, measured": [
            make_tables.total(entry["measured"], "l2_to_sm_read", "sm_to_l2_written") for entry in entries
        ],
        "HBM, measured": [make_tables.hbm(entry) for entry in entries],
        "compulsory, predicted": [make_tables.predicted(entry, "compulsory") for entry in entries],
    }
    figure, axes = plt.subplots(figsize=(7, 4.5))
    width = 0.8 / len(bars)
    for i, (name, values) in enumerate(bars.items()):
        places = [x + (i - (len(bars) - 1) / 2) * width for x in range(len(entries))]
        axes.bar(places, [(value or 0) / 1e6 for value in values], width, label=name)
    axes.set_xticks(range(len(entries)), [label(entry) for entry in entries])
    axes.set(yscale="log", ylabel="MB, read and written", title=title)
    axes.legend(fontsize="small")
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1,16,16,4096,4096,128,0", metavar="b,h,hkv,nq,nk,d,causal")
    parser.add_argument("--out", type=Path, default=make_tables.ROOT / "docs" / "figures", metavar="FOLDER")
    arguments = parser.parse_args()
    try:
        size = make_tables.size_of(arguments.size)
    except make_tables.MarkerError as error:
        parser.error(str(error))
    drawn = 0
    for stem, report, _ in make_tables.load_results():
        entries = [
            entry
            for entry in report["entries"]
            if make_tables.size_of_entry(entry) == size and "time" in entry and make_tables.hbm(entry)
        ]
        if not entries:
            continue
        title = f"{report['gpu']}: {make_tables.size_words(size)}, {report['dtype']}"
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, figure in (("roofline", roofline(report, entries, title)), ("bytes", moved_bytes(entries, title))):
            path = arguments.out / f"{stem}-{name}.svg"
            figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            print(path)
            drawn += 1
    if drawn == 0:
        print(f"figures.py: docs/results has no traffic for {arguments.size}", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
