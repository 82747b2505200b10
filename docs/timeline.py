#!/usr/bin/env python3
"""Reads the trace that `08_fa3_pipeline --timeline trace.json` writes: prints where the time goes, and draws it.

    docs/timeline.py trace.json                                     a table of the first block
    docs/timeline.py trace.json --svg out.svg                       draws a few key blocks of one tile of Q
    docs/timeline.py trace.json --svg out.svg --show change         draws the change from a tile of Q to the next
    docs/timeline.py trace.json --svg out.svg --from 40000 --clocks 5000 --block 2
    docs/timeline.py trace.json --keep nvidia-h200 --how TEXT       what the lesson shows, from this trace: d = 128

The unit is that of the trace: a clock of the SM, or an event of the simulated block. The table has for each warpgroup:

    share        of the time, from its first note until the first consumer's last one
    key block    mean over the key blocks; one lasts from the start of a softmax to the start of the next
    change       the same where a tile of Q ends in between: its output is written

A producer's is what it does during those of consumer 0. A consumer has the turn from the end of its wait for it until
it issues no more.

--keep writes docs/results/NAME-timeline.json (a window around the first change of tile, and the table of the whole
trace), and the lesson's figures and tables as docs/make_figures.py and docs/make_tables.py do.

Exits 2 where there is nothing to read or to draw.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from drawing import GREY, INK, Drawing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
# What the figures of the lesson are drawn from: the file in docs/results, and what it shows.
LESSON = {
    "timeline_steady": ("nvidia-h200-timeline.json", "steady"),
    "timeline_change": ("nvidia-h200-timeline.json", "change"),
}

Json = dict[str, Any]

TURN, WITHIN_TURN = "waits for its turn", ("issues products", "waits for tiles")
KEY_BLOCK, TILE_ENDS = "softmax", "writes output"  # the notes that begin a key block, and that end a tile of Q
# In key blocks: what the drawings show unless --clocks says otherwise, and what is kept around a change of tile.
SHOWN = {"steady": 2.2, "change": 3.0}
KEPT_BEFORE, KEPT_AFTER = 5.7, 2.2

# What a warpgroup does is in full colour, what it waits for in a pale one; each apart for colour-blind readers.
WORK = ["#e69f00", "#d55e00", "#0072b2", "#009e73", "#8c5aa0", "#555555"]
WAIT = ["#f7dfb0", "#d9d9d9", "#bcdcf2", "#bfe5d6", "#eccfe0", "#f3eda6"]


class TraceError(Exception):
    """What is wrong with a trace, or with what is asked of it."""


class Doing(NamedTuple):
    begin: int
    end: int
    name: str


class Track(NamedTuple):
    name: str
    doings: list[Doing]


class Trace(NamedTuple):
    other: Json
    blocks: dict[int, list[Track]]


# -- Reading ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Trace:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    names: dict[tuple[int, int], str] = {}
    doings: dict[tuple[int, int], list[Doing]] = {}
    try:
        for event in loaded["traceEvents"]:
            track = (int(event["pid"]), int(event["tid"]))
            if event["ph"] == "M" and event["name"] == "thread_name":
                names[track] = str(event["args"]["name"])
            elif event["ph"] == "X":
                begin = round(1000 * event["ts"])  # the format counts in microseconds
                end = begin + round(1000 * event["dur"])
                doings.setdefault(track, []).append(Doing(begin, end, str(event["name"])))
        other = dict(loaded["otherData"])
        for key in ("chapter", "variant", "problem", "device", "nanosecond"):
            if not isinstance(other[key], str):
                raise TypeError(f"{key} is no text")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: not a trace that --timeline wrote ({error!r})") from error
    if not doings:
        raise TraceError(f"{path}: no warpgroup notes anything")
    blocks: dict[int, list[Track]] = {}
    for block, track in sorted(doings):
        name = names.get((block, track), f"warpgroup {track}")
        blocks.setdefault(block, []).append(Track(name, sorted(doings[block, track])))
    return Trace(other, blocks)


def block_of(trace: Trace, block: int | None) -> tuple[int, list[Track]]:
    chosen = min(trace.blocks) if block is None else block
    if chosen not in trace.blocks:
        raise TraceError(f"no block {chosen} in the trace, only {', '.join(map(str, sorted(trace.blocks)))}")
    return chosen, trace.blocks[chosen]


def units(other: Json) -> str:
    """"one clock of the SM" in the plural."""
    first, *rest = other["nanosecond"].removeprefix("one ").split()
    return " ".join([first + "s", *rest])


# -- Where the time goes ---------------------------------------------------------------------------------------------


def periods(track: Track) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """From each start of a softmax to the next: those within a tile of Q, and those with a change."""
    starts = [doing.begin for doing in track.doings if doing.name == KEY_BLOCK]
    ends = [doing.begin for doing in track.doings if doing.name == TILE_ENDS]
    within, changes = [], []
    for begin, end in zip(starts, starts[1:]):
        (changes if any(begin <= at < end for at in ends) else within).append((begin, end))
    return within, changes


def turns(tracks: list[Track], until: int) -> float:
    """For which share of the time some consumer has the turn: from the end of its wait until it issues no more."""
    had = []
    for track in tracks:
        begin = None
        for doing in track.doings:
            if doing.name == TURN:
                begin = doing.end
            elif begin is not None and doing.name not in WITHIN_TURN:
                had.append((begin, doing.begin))
                begin = None
    time = last = 0
    for begin, end in sorted(had):
        time += max(min(end, until) - max(begin, last), 0)
        last = max(last, end)
    return round(time / until, 4)


def spent(track: Track, during: list[tuple[int, int]]) -> dict[str, int]:
    """The time for each activity in sorted stretches of time."""
    result: Counter[str] = Counter()
    first = 0
    for doing in track.doings:
        while first < len(during) and during[first][1] <= doing.begin:
            first += 1
        for begin, end in during[first:]:
            if begin >= doing.end:
                break
            result[doing.name] += min(end, doing.end) - max(begin, doing.begin)
    return dict(result)


def summary(tracks: list[Track]) -> Json:
    """The table of a block: for each warpgroup the share of each activity, and its mean time for a key block."""
    consumers = [track for track in tracks if len(periods(track)[0]) > 0]
    if not consumers:
        raise TraceError(f"no warpgroup notes '{KEY_BLOCK}' twice within a tile of Q")
    until = min(track.doings[-1].end for track in consumers)
    shortest = min(doing.end - doing.begin for track in tracks for doing in track.doings)
    warpgroups = []
    for track in tracks:
        within, changes = periods(track if track in consumers else consumers[0])
        whole = spent(track, [(track.doings[0].begin, until)])
        total = sum(whole.values())
        warpgroups.append(
            {
                "name": track.name,
                "share": {name: round(time / total, 4) for name, time in whole.items()},
                "key_block": {name: round(time / len(within)) for name, time in spent(track, within).items()},
                "change": {name: round(time / len(changes)) for name, time in spent(track, changes).items()},
            }
        )
    within, changes = periods(consumers[0])
    return {
        "until": until,
        "key_blocks": len(within),
        "changes": len(changes),
        "shortest": shortest,
        "turns": turns(consumers, until),
        "warpgroups": warpgroups,
    }


def summary_of(trace: Trace, block: int | None) -> Json:
    """Of the trace, or what a kept piece says of the trace that it was cut from."""
    if "whole" in trace.other and block in (None, min(trace.blocks)):
        return trace.other["whole"]
    return summary(block_of(trace, block)[1])


def rows(table: Json) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table: a line for each activity, the largest first, and the sum."""
    warpgroups = table["warpgroups"]
    weight: Counter[str] = Counter()
    for warpgroup in warpgroups:
        for name, share in warpgroup["share"].items():
            weight[name] += share
    header = [""]
    for warpgroup in warpgroups:
        header += [f"{warpgroup['name']}: share", "key block", "change"]
    cells = []
    for name in sorted(weight, key=lambda name: (-weight[name], name)):
        row = [name]
        for warpgroup in warpgroups:
            share = warpgroup["share"].get(name)
            row.append("" if share is None else f"{100 * share:.1f} %")
            row += [str(warpgroup[column].get(name, "")) for column in ("key_block", "change")]
        cells.append(row)
    last = ["together"]
    for warpgroup in warpgroups:
        last += ["", *(str(sum(warpgroup[column].values()) or "") for column in ("key_block", "change"))]
    return header, [*cells, last]


def caption(other: Json, table: Json) -> str:
    how = f"{other['how']}; " if "how" in other else ""
    return (
        f"{other['device']}; {how}{other['chapter']} {other['variant']}, {other['problem']}; "
        f"means in {units(other)} over "
        f"{table['key_blocks']} key blocks and {table['changes']} changes of tile; the shortest note lasts "
        f"{table['shortest']}, and some consumer has the turn for {100 * table['turns']:.1f} % of the time"
    )


def printed(other: Json, table: Json) -> str:
    header, cells = rows(table)
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    lines = [caption(other, table)]
    for row in [header, *cells]:
        text = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(text).rstrip())
    return "\n".join(lines)


# -- Drawing ---------------------------------------------------------------------------------------------------------


def change_of(tracks: list[Track]) -> int:
    """When the first tile of Q of the first consumer ends that another follows."""
    for track in tracks:
        _, changes = periods(track)
        if changes:
            begin, end = changes[0]
            return next(doing.begin for doing in track.doings if doing.name == TILE_ENDS and begin <= doing.begin < end)
    raise TraceError("no change of tile in this block: choose the window with --from")


def key_blocks(tracks: list[Track], count: float) -> int:
    """About how long so many key blocks last."""
    for track in tracks:
        within, _ = periods(track)
        if within:
            return max(round(count * sum(end - begin for begin, end in within) / len(within) / 100), 1) * 100
    raise TraceError(f"no warpgroup notes '{KEY_BLOCK}' twice within a tile of Q")


def window_of(tracks: list[Track], show: str, clocks: int) -> int:
    """Where a window starts that shows the change of a tile, or key blocks before the producer is there."""
    if show == "change":
        return max(change_of(tracks) - 3 * clocks // 8, 0)  # the first consumer leaves the tile, then the others
    for track in tracks:
        within, changes = periods(track)
        if within:
            before = [period for period in within if not changes or period[1] <= changes[0][0]] or within
            return max(before[-2 if len(before) > 1 else -1][0] - clocks, 0)
    raise TraceError(f"no warpgroup notes '{KEY_BLOCK}' twice within a tile of Q: choose the window with --from")


def colours_of(tracks: list[Track]) -> dict[str, str]:
    names = sorted({doing.name for track in tracks for doing in track.doings})
    waits = [name for name in names if name.startswith("waits")]
    works = [name for name in names if name not in waits]
    colours = {name: WAIT[i % len(WAIT)] for i, name in enumerate(waits)}
    return colours | {name: WORK[i % len(WORK)] for i, name in enumerate(works)}


def step_of(clocks: int) -> int:
    """A round distance of the axis' numbers, for six to fifteen of them."""
    step = 1
    while clocks // step > 14:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step


def draw(trace: Trace, block: int | None, begin: int, clocks: int) -> Drawing:
    """A lane for each warpgroup, in it a box for each thing that it does in the window."""
    number, tracks = block_of(trace, block)
    end = begin + clocks
    if clocks <= 0 or not any(doing.begin < end and doing.end > begin for track in tracks for doing in track.doings):
        raise TraceError(f"block {number} notes nothing from {begin} to {end}")
    colours = colours_of(tracks)
    seen = {doing.name for track in tracks for doing in track.doings if doing.begin < end and doing.end > begin}
    legend = [name for name in colours if name in seen]
    left, right, top, lane, columns = 92, 788, 46, 52, 4
    below = top + lane * len(tracks)
    height = below + 52 + 22 * -(-len(legend) // columns)
    title = f"{trace.other['chapter']}, {trace.other['problem']}: block {number}"
    description = f"What each warpgroup does from {begin} to {end}, in {units(trace.other)}. "
    description += f"Lanes: {', '.join(track.name for track in tracks)}. Boxes: {', '.join(legend)}."
    drawing = Drawing(800, height, title, description)
    drawing.title(12, 20, title)
    drawing.text(12, 37, str(trace.other["device"]), 11, fill=GREY)

    def x_of(time: int) -> int:
        return left + (min(max(time, begin), end) - begin) * (right - left) // clocks

    step = step_of(clocks)
    for time in range(-(-begin // step) * step, end + 1, step):
        drawing.line(x_of(time), top, x_of(time), below + 4, "#dddddd", 1)
        drawing.text(x_of(time), below + 17, str(time), 11, "middle")
    drawing.text(right, below + 34, units(trace.other), 11, "end", GREY)
    for i, track in enumerate(tracks):
        y = top + lane * i
        drawing.text(left - 8, y + lane // 2 + 4, track.name, 12, "end")
        for doing in track.doings:
            if doing.begin >= end or doing.end <= begin or doing.begin == doing.end:
                continue
            x, width = x_of(doing.begin), max(x_of(doing.end) - x_of(doing.begin), 1)
            wait = doing.name.startswith("waits")
            inset = 14 if wait else 6
            drawing.box(x, y + inset, width, lane - 2 * inset, colours[doing.name], "#ffffff" if width > 3 else "none")
            if 6 * len(doing.name) + 6 <= width:
                ink = INK if wait or colours[doing.name] == WORK[0] else "#ffffff"
                drawing.text(x + width // 2, y + lane // 2 + 4, doing.name, 11, "middle", ink)
    for i, name in enumerate(legend):
        x, y = left + i % columns * 174, below + 44 + 22 * (i // columns)
        drawing.box(x, y, 18, 14, colours[name])
        drawing.text(x + 24, y + 11, name)
    return drawing


def show_window(trace: Trace, block: int | None, show: str, begin: int | None, clocks: int | None) -> Drawing:
    _, tracks = block_of(trace, block)
    if clocks is None:
        clocks = key_blocks(tracks, SHOWN[show])
    return draw(trace, block, window_of(tracks, show, clocks) if begin is None else begin, clocks)


def lesson_figures() -> dict[str, Drawing]:
    """The figures of chapter 08's lesson, by the names of their files."""
    return {name: show_window(read(RESULTS / file), None, show, None, None) for name, (file, show) in LESSON.items()}


# -- What is kept ----------------------------------------------------------------------------------------------------


def keep(trace: Trace, block: int | None, how: str | None) -> Json:
    """A window of one block around its first change of tile, and the table of the whole."""
    number, tracks = block_of(trace, block)
    change = change_of(tracks)
    begin, end = change - key_blocks(tracks, KEPT_BEFORE), change + key_blocks(tracks, KEPT_AFTER)
    events: list[Json] = []
    for i, track in enumerate(tracks):
        events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": i, "args": {"name": track.name}})
        for doing in track.doings:
            if doing.begin < end and doing.end > begin:
                stamps = {"ts": doing.begin / 1000, "dur": (doing.end - doing.begin) / 1000}
                events.append({"ph": "X", "name": doing.name, "pid": number, "tid": i, **stamps})
    other = {**trace.other, "kept": f"block {number}, {begin} to {end}", "whole": summary(tracks)}
    if how:
        other["how"] = how
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}


def written(kept: Json) -> str:
    """JSON with a line for each event."""
    head = json.dumps({key: kept[key] for key in ("displayTimeUnit", "otherData")}, indent=1)
    events = ",\n".join(json.dumps(event) for event in kept["traceEvents"])
    return f'{head[:-2]},\n "traceEvents": [\n{events}\n]}}\n'


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise TraceError(f"{message} (--help says more)")


def run() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="trace.json")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to draw")
    parser.add_argument("--show", choices=sorted(SHOWN), default="steady", help="key blocks, or a change of tile")
    parser.add_argument("--from", type=int, dest="begin", metavar="N", help="the window starts here instead")
    parser.add_argument("--clocks", type=int, metavar="M", help="how much the window shows")
    parser.add_argument("--block", type=int, metavar="B", help="of which block; the first one where left out")
    parser.add_argument("--keep", metavar="NAME", help="writes docs/results/NAME-timeline.json and what is made of it")
    parser.add_argument("--how", metavar="TEXT", help="with --keep: driver, toolkit, clocks, command and commit")
    arguments = parser.parse_args()
    trace = read(arguments.trace)
    if arguments.keep:
        path = RESULTS / f"{arguments.keep}-timeline.json"
        path.write_text(written(keep(trace, arguments.block, arguments.how)), encoding="utf-8")
        print(path.relative_to(ROOT))
        for name, figure in lesson_figures().items():
            (ROOT / "docs" / "figures" / f"{name}.svg").write_text(figure.svg(), encoding="utf-8")
            print(f"docs/figures/{name}.svg")
        if subprocess.run([sys.executable, ROOT / "docs" / "make_tables.py"], check=False).returncode:
            raise TraceError("docs/make_tables.py failed")
    elif arguments.svg:
        figure = show_window(trace, arguments.block, arguments.show, arguments.begin, arguments.clocks)
        try:
            arguments.svg.write_text(figure.svg(), encoding="utf-8")
        except OSError as error:
            raise TraceError(f"{arguments.svg}: {error.strerror}") from error
        print(arguments.svg)
    else:
        print(printed(trace.other, summary_of(trace, arguments.block)))


def main() -> int:
    try:
        run()
    except TraceError as error:
        print(f"timeline.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
