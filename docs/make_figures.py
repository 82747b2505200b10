#!/usr/bin/env python3
"""Draws docs/figures/*.svg: those of docs/pages/swizzle_and_wgmma.md from what build/default/layouts prints, and those
of chapter 08's timeline from the traces in docs/results (docs/timeline.py, which draws any trace).

    docs/make_figures.py                      rewrites the figures that changed
    docs/make_figures.py --check              changes nothing; exits 1 if a figure is out of date
    docs/make_figures.py --program PROGRAM    takes what another build's `layouts` prints

Colours, labels and numbers of layouts come from the program's tables (docs/figures/layouts.cpp); what stands here is
how they are drawn. Exits 2 where the program, which ./course test builds, or a trace is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import timeline
from drawing import GREY, INK, STRONG, Drawing

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"

Json = dict[str, Any]

# Eight light colours that stay apart for colour-blind readers; each cell has its number too.
COLOURS = ["#f4c98b", "#a9d8f0", "#8fd6bf", "#f5ee9e", "#9dbfdd", "#eeaf8f", "#e3bcd3", "#cfcfcf"]
PALE = "#f2f2f2"
PIECE, ROW = 16, 128  # bytes


def banks(byte: int) -> str:
    return f"{byte % ROW // 4}–{byte % ROW // 4 + 3}"


def piece_at(table: list[list[int]]) -> dict[int, tuple[int, int]]:
    """Which 16-byte piece (row, number in the row) lies at a byte, from the bytes of all elements."""
    return {line[8 * piece]: (row, piece) for row, line in enumerate(table) for piece in range(len(line) // 8)}


# -- The figures -----------------------------------------------------------------------------------------------------


def swizzle_atom(tables: Json) -> Drawing:
    """Banks of the 16-byte pieces of 8 rows, without and with the swizzle; and the same from memory's side."""
    drawing = Drawing(1060, 325)
    width, height, top, marked = 38, 24, 70, 2
    for panel, (name, words) in enumerate((("plain", "Panels128: row after row"), ("swizzled", "Swizzle128"))):
        left = 50 + panel * 340
        drawing.title(left, 22, words)
        drawing.text(left, 42, "the tile's pieces, and the byte of each")
        for piece in range(8):
            drawing.text(left + piece * width + width // 2, 62, f"c={piece}", 11, "middle")
        for row, bytes_of_row in enumerate(tables["atom"][name]):
            drawing.text(left - 6, top + row * height + 16, f"r={row}", 11, "end")
            for piece, byte in enumerate(bytes_of_row):
                x, y = left + piece * width, top + row * height
                drawing.cell(x, y, width, height, COLOURS[byte % ROW // PIECE], str(byte))
        drawing.box(left + marked * width, top, width, 8 * height, edge=STRONG, line=3)
        hit = sorted({line[marked] % ROW for line in tables["atom"][name]})
        words = "all 32 banks" if len(hit) == 8 else f"only banks {', '.join(banks(byte) for byte in hit)}"
        drawing.text(left, top + 8 * height + 20, f"eight rows of piece {marked}: {words}", fill=STRONG)
    left = 50 + 2 * 340
    at = {byte: (row, piece) for row, line in enumerate(tables["atom"]["swizzled"]) for piece, byte in enumerate(line)}
    drawing.title(left, 22, "Swizzle128, as it lies in shared memory")
    drawing.text(left, 42, "a line is 128 bytes; which piece is where")
    for place in range(8):
        drawing.text(left + place * width + width // 2, 62, banks(place * PIECE), 11, "middle")
    for line in range(8):
        drawing.text(left - 6, top + line * height + 16, str(line * ROW), 11, "end")
        for place in range(8):
            row, piece = at[line * ROW + place * PIECE]
            x, y = left + place * width, top + line * height
            drawing.cell(x, y, width, height, COLOURS[place], f"{row},{piece}")
    for line in range(8):
        for place in range(8):
            if at[line * ROW + place * PIECE][1] == marked:
                drawing.box(left + place * width, top + line * height, width, height, edge=STRONG, line=3)
    drawing.text(left, top + 8 * height + 20, f"row,piece; piece {marked} of each row is marked", fill=STRONG)
    drawing.text(50, top + 8 * height + 50, "Colours are banks:")
    for place in range(8):
        drawing.cell(170 + place * 50, top + 8 * height + 36, 46, 18, COLOURS[place], banks(place * PIECE))
    return drawing


def tile_panels(tables: Json) -> Drawing:
    """A tile of 64 rows by 128 columns, and where its 8-row pieces lie after a copy."""
    table = tables["copied"]
    drawing = Drawing(820, 440)
    height, top = 42, 60
    atoms = {}
    for row in range(0, 64, 8):
        for col in range(0, 128, 64):
            inside = [byte for line in table[row : row + 8] for byte in line[col : col + 64]]
            if sorted(inside) != list(range(min(inside), min(inside) + 1024, 2)):
                raise ValueError(f"rows {row} to {row + 7} of a panel are not 1024 bytes in one piece")
            atoms[min(inside)] = (row, col)
    left = 80
    drawing.title(left, 22, "The tile: 64 rows by 128 columns of 16 bits")
    drawing.title(520, 22, "Shared memory")
    for byte, (row, col) in atoms.items():
        colour = COLOURS[0 if col == 0 else 1] if row // 8 % 2 == 0 else COLOURS[3 if col == 0 else 4]
        drawing.cell(left + col * 3, top + row // 8 * height, 192, height, colour, f"bytes {byte} to {byte + 1023}")
        drawing.cell(520, 40 + byte // 1024 * 24, 240, 24, colour, f"rows {row}–{row + 7}, columns {col}–{col + 63}")
        drawing.text(514, 40 + byte // 1024 * 24 + 16, str(byte), 11, "end")
        if col == 0:
            drawing.text(left - 6, top + row // 8 * height + 26, f"rows {row}–{row + 7}", 11, "end")
    for col in (0, 64):
        drawing.text(left + col * 3 + 96, 52, f"columns {col}–{col + 63}", 12, "middle")
        panel = min(byte for byte, (_, first) in atoms.items() if first == col)
        drawing.box(left + col * 3, top, 192, 8 * height, edge=STRONG, line=2)
        drawing.box(520, 40 + panel // 1024 * 24, 240, 8 * 24, edge=STRONG, line=2)
    drawing.text(left, top + 8 * height + 24, "A red frame is a panel: 64 rows of 128 bytes.")
    return drawing


def memory_panels(drawing: Drawing, top: int, rows: int, draw: Callable[[int, int, int], None]) -> tuple[int, int, int]:
    """The first rows of the two panels of a tile, side by side, 128 bytes a line; draw(byte, x, y) draws a piece.
    Returns the left edges of the panels and the height of a line."""
    width, height, lefts = 46, 18, (70, 70 + 8 * 46 + 90)
    for panel, left in enumerate(lefts):
        drawing.title(left, top - 24, f"panel {panel}: columns {64 * panel} to {64 * panel + 63}")
        for place in range(8):
            drawing.text(left + place * width + width // 2, top - 6, f"+{place * PIECE}", 10, "middle", GREY)
        for row in range(rows):
            line = panel * 64 * ROW + row * ROW
            drawing.text(left - 6, top + row * height + 13, str(line), 10, "end", GREY)
            for place in range(8):
                draw(line + place * PIECE, left + place * width, top + row * height)
        for row in range(0, rows, 8):
            drawing.box(left, top + row * height, 8 * width, 8 * height, edge=INK, line=2)
    return (*lefts, height)


def keys_steps(tables: Json) -> Drawing:
    """Which bytes each k16 step of Q·Kᵀ reads of K."""
    table, top, rows, marked = tables["keys"], 60, 16, 1
    at = piece_at(table)
    drawing = Drawing(960, 420)
    outlined = []

    def draw(byte: int, x: int, y: int) -> None:
        row, piece = at[byte]
        step = 8 * piece // 16
        drawing.cell(x, y, 46, 18, COLOURS[step], f"{row}: s{step}", 10)
        if step == marked:
            outlined.append((x, y))

    memory_panels(drawing, top, rows, draw)
    for x, y in outlined:
        drawing.box(x, y, 46, 18, edge=STRONG, line=2)
    below = top + rows * 18 + 22
    starts = ", ".join(f"s{step} {table[0][16 * step]}" for step in range(8))
    columns = f"{16 * marked} to {16 * marked + 15}"
    words = "A cell is 16 bytes of shared memory: the key (row of K) that lies there, and the step that reads it."
    drawing.text(70, below, words)
    words = f"Where the steps start (key 0), in bytes: {starts}. Keys 16 to 63 lie below in the same way."
    drawing.text(70, below + 20, words)
    drawing.text(70, below + 40, f"Framed: what step s{marked} reads, columns {columns} of every key.", fill=STRONG)
    return drawing


def values_steps(tables: Json) -> Drawing:
    """Which bytes each k16 step of P·V reads of V, and what the two offsets are."""
    table, top, rows = tables["values"], 60, 24
    at = piece_at(table)
    descriptor = tables["descriptors"]["values"]
    drawing = Drawing(960, 610)

    def draw(byte: int, x: int, y: int) -> None:
        row, piece = at[byte]
        step = row // 16
        colour = COLOURS[piece % 8] if step == 0 else PALE
        drawing.cell(x, y, 46, 18, colour, f"{8 * piece}–{8 * piece + 7}", 9)

    left, right, height = memory_panels(drawing, top, rows, draw)
    width = 8 * 46
    for x in (left, right):
        drawing.box(x, top, width, 16 * height, edge=STRONG, line=3)
    between = left + width + 14
    if (table[0][64] - table[0][0], table[8][0] - table[0][0]) != (descriptor["leading"], descriptor["stride"]):
        raise ValueError("the descriptor of V does not say what the product reads")
    drawing.distance(between, top, between, top + 8 * height)
    drawing.text(between + 8, top + 60, "stride", 11, fill=STRONG)
    drawing.text(between + 8, top + 74, str(descriptor["stride"]), 11, fill=STRONG)
    below = top + rows * height + 20
    drawing.distance(left, below, right, below)
    words = f"leading offset: {descriptor['leading']} bytes from a panel to the next"
    drawing.text((left + right) // 2, below + 18, words, 12, "middle", STRONG)
    starts = ", ".join(f"s{step} {table[16 * step][0]}" for step in range(4))
    words = "A line is a key (row of V), a cell 16 bytes of shared memory: the 8 columns of the key that lie there."
    drawing.text(left, below + 42, words)
    words = f"Where the steps start, in bytes: {starts}. Keys 24 to 63 lie below in the same way."
    drawing.text(left, below + 62, words)
    words = "Framed: what step s0 reads, all columns of keys 0 to 15. Grey: step s1."
    drawing.text(left, below + 82, words, fill=STRONG)
    return drawing


def fragments(tables: Json) -> Drawing:
    """Who holds what of the sums, and of the register operand."""
    drawing = Drawing(1090, 470)
    width, height, top, marked = 62, 22, 78, 5
    names: list[dict[tuple[int, int], tuple[int, str]]] = [{}, {}]
    for thread in range(128):
        for i in range(0, 8, 2):  # of the first 16 columns
            first, second = tables["sums"][thread][i], tables["sums"][thread][i + 1]
            names[0][tuple(first)] = (thread, f"d{i} d{i + 1}")
            if second != [first[0], first[1] + 1]:
                raise ValueError("two sums of a thread are not neighbours")
        for register in range(4):
            lower, upper = tables["operand"][thread][register]
            names[1][tuple(lower)] = (thread, f"a{register}")
            if upper != [lower[0], lower[1] + 1]:
                raise ValueError("the halves of an operand register are not neighbours")
    titles = ("Sums of m64nN: rows 0 to 15, columns 0 to 15", "Register operand A of m64nNk16: rows 0 to 15")
    contents = ("thread: its two fp32 registers", "thread: its register, which holds two 16-bit elements")
    for panel, cells in enumerate(names):
        left = 40 + panel * 540
        drawing.title(left, 22, titles[panel])
        drawing.text(left, 42, contents[panel])
        for pair in range(8):
            drawing.text(left + pair * width + width // 2, 68, f"{2 * pair}, {2 * pair + 1}", 11, "middle", GREY)
        for row in range(16):
            drawing.text(left - 6, top + row * height + 15, str(row), 11, "end", GREY)
            for pair in range(8):
                thread, name = cells[(row, 2 * pair)]
                x, y = left + pair * width, top + row * height
                drawing.cell(x, y, width, height, COLOURS[thread % 4 + (4 if row % 2 else 0)], f"{thread}: {name}", 10)
        for (row, col), (thread, _) in sorted(cells.items()):
            if thread == marked:
                drawing.box(left + col // 2 * width, top + row * height, width, height, edge=STRONG, line=3)
    below = top + 16 * height + 22
    words = f"Framed: what thread {marked} holds. Warp w has rows 16w to 16w + 15; d8 to d15 are columns 16 to 31."
    drawing.text(40, below, words)
    return drawing


DRAWINGS: list[Callable[[Json], Drawing]] = [swizzle_atom, tile_panels, keys_steps, values_steps, fragments]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a figure is out of date")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "default" / "layouts", metavar="PROGRAM")
    arguments = parser.parse_args()
    if not arguments.program.is_file():
        print(f"make_figures.py: {arguments.program} is not there; ./course test builds it", file=sys.stderr)
        return 2
    tables = json.loads(subprocess.run([arguments.program], check=True, capture_output=True, text=True).stdout)
    try:
        figures = {draw.__name__: draw(tables) for draw in DRAWINGS} | timeline.lesson_figures()
    except timeline.TraceError as error:
        print(f"make_figures.py: {error}", file=sys.stderr)
        return 2
    stale = 0
    for name, figure in figures.items():
        path = FIGURES / f"{name}.svg"
        new = figure.svg()
        if path.is_file() and path.read_text(encoding="utf-8") == new:
            continue
        stale += 1
        if arguments.check:
            print(f"{path.relative_to(ROOT)} is out of date: run docs/make_figures.py", file=sys.stderr)
        else:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))
    if arguments.check and stale == 0:
        print(f"{len(figures)} figures are up to date")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
