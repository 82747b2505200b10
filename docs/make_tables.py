#!/usr/bin/env python3
"""Fills the tables of the READMEs from docs/results/*.json, which ./course measure writes.

    docs/make_tables.py            rewrites the files whose tables changed
    docs/make_tables.py --check    changes nothing; exits 1 if a file is out of date or a table has no data

A table stands between two lines of Markdown:

    <!-- table: stages 1,16,16,4096,4096,128,0 -->
    <!-- end table -->

Sizes are b,h,hkv,nq,nk,d,causal; causal and full may stand for 1 and 0. The kinds:

    stages SIZE                              every chapter and variant on one size
    traffic CHAPTER SIZE                     the bytes one chapter moved, beside what was predicted
    conflicts CHAPTER SIZE                   accesses to shared memory and the bank conflicts that the GPU counted
    sweep CHAPTER d=64|128|256 causal=0|1    one chapter over the sequence length, and beside the peers of the same run
    peers d=64|128|256 causal=0|1 [in=RUN]   chapters and peers over the sequence length, TFLOP/s
    against d=64|128|256 causal=0|1 [in=RUN] the same as ratios to the faster of FlashAttention-3 and cuDNN
    timeline [in=RUN]                        where the time of chapter 08's warpgroups goes (docs/timeline.py)

Each results file gives a table of its own, with what it was measured on beneath. Peers come from <gpu>-peers.json, with
in=RUN from <gpu>-RUN-peers.json, and timelines likewise from <gpu>-timeline.json.
While there are no results at all, tables say "not measured yet", which --check accepts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Callable

import timeline

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
MARKER = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end table -->)", re.DOTALL)
NOT_MEASURED = "not measured yet\n"
# The sizes of a sweep: batch·seq and heads·head_dim stay the same.
TOKENS, WIDTH = 16384, 2048

Json = dict[str, Any]


class MarkerError(Exception):
    """A marker that cannot be understood, or for which a results file has no data."""


# -- Numbers ---------------------------------------------------------------------------------------------------------


def fixed(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def megabytes(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 1e10:
        return f"{value / 1e9:.1f} GB"
    return f"{value / 1e6:.1f} MB" if value >= 1e7 else f"{value / 1e6:.2f} MB"


def ratio(value: float | None, of: float | None, digits: int = 2) -> str:
    return "–" if value is None or not of else f"{value / of:.{digits}f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---" if i == 0 else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, rule, *rows])


# -- What was measured -----------------------------------------------------------------------------------------------


def size_of(text: str) -> tuple[Any, ...]:
    words = text.split(",")
    if len(words) != 7 or not all(word.isdigit() for word in words[:6]) or words[6] not in ("0", "1", "full", "causal"):
        raise MarkerError(f"'{text}' is not b,h,hkv,nq,nk,d,causal")
    return (*map(int, words[:6]), words[6] in ("1", "causal"))


def size_of_entry(entry: Json) -> tuple[Any, ...]:
    names = ("batch", "heads", "kv_heads", "seq", "seq_kv", "head_dim", "causal")
    return tuple(entry["problem"][name] for name in names)


def size_words(size: tuple[Any, ...]) -> str:
    batch, heads, kv_heads, seq, seq_kv, dim, causal = size
    heads_text = f"{heads} heads" if heads == kv_heads else f"{heads} heads over {kv_heads}"
    seq_text = f"n = {seq}" if seq == seq_kv else f"{seq} queries over {seq_kv} keys"
    return f"batch {batch}, {heads_text}, {seq_text}, d = {dim}, {'causal' if causal else 'full'}"


def in_sweep(size: tuple[Any, ...], dim: int, causal: bool) -> bool:
    batch, heads, kv_heads, seq, seq_kv, size_dim, size_causal = size
    return (
        (size_dim, size_causal) == (dim, causal)
        and (heads, seq) == (kv_heads, seq_kv)
        and (batch * seq, heads * dim) == (TOKENS, WIDTH)
    )


def tflops(entry: Json) -> float | None:
    return entry["time"]["tflops"] if "time" in entry else None


def hbm(entry: Json) -> float | None:
    return total(entry.get("measured"), "hbm_read", "hbm_written")


def total(values: Json | None, *names: str) -> float | None:
    if values is None or any(values.get(name) is None for name in names):
        return None
    return sum(values[name] for name in names)


def predicted(entry: Json, kind: str) -> float | None:
    return total(entry.get(kind), "read", "written")


def is_chapter(name: str, wanted: str) -> bool:
    return name == wanted or name.split("_")[0] == wanted


def clock_words(report: Json) -> str:
    before, after = (report.get(f"clocks_{when}") or {} for when in ("before", "after"))
    if not before:
        return "clocks unknown"
    words = f"SM clock {before.get('clocks.sm')} before, {after.get('clocks.sm', 'unknown')} after"
    memory = before.get("clocks.mem")
    return words + (f", memory {memory}" if memory else "")


def commit_words(commit: str | None, dirty: bool) -> str:
    if not commit or commit == "unknown":
        return "commit unknown"
    dirty = dirty or commit.endswith("-dirty")
    return f"commit {commit.removesuffix('-dirty')[:12]}" + (" with changes" if dirty else "")


def provenance(report: Json) -> str:
    return (
        f"\n{report['device']}; driver {report['driver']}, CUDA {report['toolkit']}, {report['dtype']}; "
        f"{clock_words(report)}; `{shortened(report['command'])}`, {commit_words(report['commit'], report['dirty'])}, "
        f"{report['date'][:10]}.\n"
    )


def peers_provenance(peers: Json) -> str:
    return (
        f"\n{peers['device']}; driver {peers.get('driver_version', 'unknown')}, PyTorch {peers['torch']} with CUDA "
        f"{peers['cuda']}, {peers['dtype']}; {clock_words(peers)}; `{shortened(peers['command'])}`, "
        f"{commit_words(peers['commit'], False)}, {peers['date'][:10]}. Medians in turn within one run.\n"
    )


def shortened(command: str, limit: int = 80) -> str:
    return command if len(command) <= limit else command[:limit].rsplit(" ", 1)[0] + " …"


# -- The kinds of table ----------------------------------------------------------------------------------------------


def stages(report: Json, peers: Json | None, words: list[str]) -> str | None:
    if len(words) != 1:
        raise MarkerError("use: stages SIZE")
    size = size_of(words[0])
    entries = [entry for entry in report["entries"] if size_of_entry(entry) == size]
    if not entries:
        return None
    header = "chapter,variant,ms,over chapter before,TFLOP/s,HBM,over compulsory,L2 to SMs,over requested,FLOP/byte"
    rows, notes = [], []
    before: Json | None = None
    first: Json | None = None  # the default variant of the chapter at hand
    for entry in entries:
        if first is None or first["chapter"] != entry["chapter"]:
            before, first = first, entry
        median = entry["time"]["median_ms"] if "time" in entry else None
        before_ms = before["time"]["median_ms"] if before and "time" in before else None
        to_sms = total(entry.get("measured"), "l2_to_sm_read", "sm_to_l2_written")
        moved = hbm(entry)
        rows.append(
            [
                entry["chapter"],
                entry["variant"],
                milliseconds(median),
                ratio(before_ms, median),
                fixed(tflops(entry), 1),
                megabytes(moved),
                ratio(moved, predicted(entry, "compulsory")),
                megabytes(to_sms),
                ratio(to_sms, predicted(entry, "requested")),
                fixed(entry["problem"]["flops"] / moved if moved else None, 1),
            ]
        )
        for key in ("skipped", "not_measured"):
            if key in entry:
                notes.append(f"{entry['chapter']} {entry['variant']}: {entry[key]}")
        if not entry.get("check", {}).get("passed", True):
            notes.append(f"{entry['chapter']} {entry['variant']}: the check FAILED")
    text = f"{size_words(size)}; HBM and L2 to SMs: read + written.\n\n" + table(header.split(","), rows)
    return text + "".join(f"\n{note}.\n" for note in notes) + provenance(report)


def traffic(report: Json, peers: Json | None, words: list[str]) -> str | None:
    if len(words) != 2:
        raise MarkerError("use: traffic CHAPTER SIZE")
    size = size_of(words[1])
    entries = [
        entry
        for entry in report["entries"]
        if is_chapter(entry["chapter"], words[0]) and size_of_entry(entry) == size and "measured" in entry
    ]
    if not entries:
        return None
    rows = []
    for entry in entries:
        measured, compulsory, requested = entry["measured"], entry["compulsory"], entry.get("requested")
        asked = {name: measured[f"requested_{name}"] if requested else None for name in ("read", "written")}
        lines = (
            ("HBM", measured["hbm_read"], measured["hbm_written"], compulsory),
            ("asked for by load and store units", asked["read"], asked["written"], requested),
            ("L2 to SMs", measured["l2_to_sm_read"], measured["sm_to_l2_written"], None),
            ("served by L2 itself", measured["lts_bytes"], None, None),
        )
        for name, read, written, prediction in lines:
            guess = prediction or {}
            cells = [megabytes(read), megabytes(guess.get("read")), ratio(read, guess.get("read"), 3)]
            cells += [megabytes(written), megabytes(guess.get("written")), ratio(written, guess.get("written"), 3)]
            rows.append([entry["variant"], name, *cells])
    header = ["variant", "bytes", "read", "predicted", "ratio", "written", "predicted", "ratio"]
    return f"{size_words(size)}.\n\n" + table(header, rows) + provenance(report)


def conflicts(report: Json, peers: Json | None, words: list[str]) -> str | None:
    if len(words) != 2:
        raise MarkerError("use: conflicts CHAPTER SIZE")
    size = size_of(words[1])
    rows = []
    for entry in report["entries"]:
        measured = entry.get("measured", {})
        if not is_chapter(entry["chapter"], words[0]) or size_of_entry(entry) != size or "shared_loads" not in measured:
            continue
        for kind, name in (("loads", "loads"), ("stores", "stores"), ("copies", "cp.async")):
            accesses = measured[f"shared_{kind}"]
            count, extra = accesses["instructions"], accesses["bank_conflicts"]
            if count:
                rows.append([entry["variant"], name, f"{count:.0f}", fixed(extra, 0), ratio(extra, count, 4)])
    if not rows:
        return None
    header = ["variant", "accesses to shared memory", "by warps", "bank conflicts", "for each access"]
    return f"{size_words(size)}.\n\n" + table(header, rows) + provenance(report)


def sweep_arguments(words: list[str], usage: str) -> tuple[int, bool]:
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if set(values) != {"d", "causal"} or len(words) != 2 or values["causal"] not in ("0", "1"):
        raise MarkerError(f"use: {usage}")
    return int(values["d"]), values["causal"] == "1"


def size_of_peers(entry: Json) -> tuple[Any, ...]:
    return tuple(entry[k] for k in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal"))


def sweep(report: Json, peers: Json | None, words: list[str]) -> str | None:
    usage = "sweep CHAPTER d=64|128|256 causal=0|1"
    if not words:
        raise MarkerError(f"use: {usage}")
    dim, causal = sweep_arguments(words[1:], usage)
    by_n: dict[int, list[Json]] = {}
    for entry in report["entries"]:
        size = size_of_entry(entry)
        if is_chapter(entry["chapter"], words[0]) and in_sweep(size, dim, causal):
            by_n.setdefault(size[3], []).append(entry)
    if not by_n:
        return None
    variants = list(dict.fromkeys(entry["variant"] for entries in by_n.values() for entry in entries))
    rivals: dict[int, Json] = {}
    for entry in (peers or {}).get("sizes", []):
        if in_sweep(size_of_peers(entry), dim, causal):
            rivals[entry["seq_q"]] = entry["contestants"]
    names = [
        name
        for name in dict.fromkeys(name for contestants in rivals.values() for name in contestants)
        if "/" not in name and any(rivals[n].get(name, {}).get("tflops") for n in rivals)
    ]
    header = ["n", *(f"{variant}, TFLOP/s" for variant in variants), f"{variants[0]}, of the matrix rate"]
    header += [f"{variants[0]} / {name}" for name in names]
    rows = []
    for n, entries in sorted(by_n.items()):
        of_variant = {entry["variant"]: entry for entry in entries}
        default = of_variant.get(variants[0], {})
        share = default.get("share_of_matrix_ceiling")
        row = [str(n), *(fixed(tflops(of_variant.get(variant, {})), 1) for variant in variants)]
        row.append("–" if share is None else f"{100 * share:.1f} %")
        mine = rivals.get(n, {}).get(f"{entries[0]['chapter']}/{variants[0]}", {}).get("tflops")
        row += [ratio(mine, rivals.get(n, {}).get(name, {}).get("tflops"), 3) for name in names]
        rows.append(row)
    text = f"d = {dim}, {'causal' if causal else 'full'}, batch·n = {TOKENS}, heads·d = {WIDTH}.\n\n"
    text += table(header, rows) + provenance(report)
    return text + ("\nThe ratios: " + peers_provenance(peers).lstrip() if names and peers else "")


def peers_table(report: Json, peers: Json | None, words: list[str]) -> str | None:
    dim, causal = sweep_arguments(words, "peers d=64|128|256 causal=0|1")
    if peers is None:
        return None
    sizes = {
        entry["seq_q"]: entry["contestants"] for entry in peers["sizes"] if in_sweep(size_of_peers(entry), dim, causal)
    }
    if not sizes:
        return None
    names = list(dict.fromkeys(name for contestants in sizes.values() for name in contestants))
    names = [name for name in names if any(sizes[n].get(name, {}).get("tflops") for n in sizes)]
    lengths = sorted(sizes)
    rows = [[name, *(fixed(sizes[n].get(name, {}).get("tflops"), 1) for n in lengths)] for name in names]
    text = f"TFLOP/s; d = {dim}, {'causal' if causal else 'full'}, batch·n = {TOKENS}, heads·d = {WIDTH}.\n\n"
    return text + table(["", *(f"n = {n}" for n in lengths)], rows) + peers_provenance(peers)


def against_table(report: Json, peers: Json | None, words: list[str]) -> str | None:
    dim, causal = sweep_arguments(words, "against d=64|128|256 causal=0|1")
    if peers is None:
        return None
    sizes = {
        entry["seq_q"]: {name: run["tflops"] for name, run in entry["contestants"].items() if run.get("tflops")}
        for entry in peers["sizes"]
        if in_sweep(size_of_peers(entry), dim, causal)
    }
    lengths = sorted(n for n in sizes if sizes[n].keys() & {"flash_attn_3", "cudnn"})
    if not lengths:
        return None
    best = {n: max(sizes[n].get("flash_attn_3", 0.0), sizes[n].get("cudnn", 0.0)) for n in lengths}
    names = list(dict.fromkeys(name for n in lengths for name in sizes[n] if "/" in name))
    rows = [[name, *(ratio(sizes[n].get(name), best[n], 3) for n in lengths)] for name in names]
    rows.append(["the faster of FlashAttention-3 and cuDNN, TFLOP/s", *(fixed(best[n], 1) for n in lengths)])
    text = f"Ratio to the faster of FlashAttention-3 and cuDNN; d = {dim}, {'causal' if causal else 'full'}, "
    text += f"batch·n = {TOKENS}, heads·d = {WIDTH}.\n\n"
    return text + table(["", *(f"n = {n}" for n in lengths)], rows) + peers_provenance(peers)


def timeline_table(trace: Json, peers: Json | None, words: list[str]) -> str | None:
    if words:
        raise MarkerError("use: timeline [in=RUN]")
    if "otherData" not in trace:
        return None
    other = trace["otherData"]
    return table(*timeline.rows(other["whole"])) + f"\n{timeline.caption(other, other['whole'])}.\n"


KINDS: dict[str, Callable[[Json, Json | None, list[str]], str | None]] = {
    "stages": stages,
    "traffic": traffic,
    "conflicts": conflicts,
    "sweep": sweep,
    "peers": peers_table,
    "against": against_table,
    "timeline": timeline_table,
}


# -- Files -----------------------------------------------------------------------------------------------------------


def peers_of(gpu: str, run: str) -> Json | None:
    path = RESULTS / f"{gpu}-{run}-peers.json"
    return json.loads(path.read_text()) if path.exists() else None


def timeline_of(gpu: str, run: list[str]) -> Json:
    path = RESULTS / f"{'-'.join([gpu, *run])}-timeline.json"
    return json.loads(path.read_text()) if path.exists() else {}


def load_results() -> list[tuple[str, Json, Json | None]]:
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem.endswith(("-peers", "-timeline")):
            continue
        peers = path.with_name(f"{path.stem}-peers.json")
        loaded = json.loads(path.read_text())
        results.append((path.stem, loaded, json.loads(peers.read_text()) if peers.exists() else None))
    return results


def make(marker: str, results: list[tuple[str, Json, Json | None]]) -> tuple[str, bool]:
    """The table, and whether there was data for it (or could not be, for want of any results)."""
    kind, *words = marker.split()
    if kind not in KINDS:
        raise MarkerError(f"there is no table '{kind}': use {', '.join(KINDS)}")
    run = [word.removeprefix("in=") for word in words if word.startswith("in=")]
    words = [word for word in words if not word.startswith("in=")]
    if kind == "timeline":
        results = [(gpu, timeline_of(gpu, run[:1]), None) for gpu, _, _ in results]
    elif run:
        results = [(gpu, report, peers_of(gpu, run[0])) for gpu, report, _ in results]
    texts = [text for _, report, peers in results if (text := KINDS[kind](report, peers, words))]
    if texts:
        return "\n".join(texts), True
    if not results:
        KINDS[kind]({"entries": []}, None, words)  # a malformed marker is an error all the same
    measurable = bool(results) and (kind not in ("peers", "against") or any(peers for _, _, peers in results))
    return NOT_MEASURED, not measurable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something would change")
    arguments = parser.parse_args()
    results = load_results()
    problems: list[str] = []
    tables = 0
    for path in [ROOT / "README.md", *sorted(ROOT.glob("chapters/*/README.md")), *sorted(ROOT.glob("docs/pages/*.md"))]:
        if not path.exists():
            continue
        name = path.relative_to(ROOT)
        text = path.read_text()

        def fill(match: re.Match[str]) -> str:
            nonlocal tables
            tables += 1
            try:
                made, has_data = make(match[2], results)
            except MarkerError as error:
                problems.append(f"{name}: table '{match[2]}': {error}")
                return match[0]
            if not has_data:
                problems.append(f"{name}: table '{match[2]}': docs/results has no data for it")
            return f"{match[1]}\n{made}\n{match[4]}"

        filled = MARKER.sub(fill, text)
        if text.count("<!-- table: ") != len(MARKER.findall(text)):
            problems.append(f"{name}: a table's marker has no '<!-- end table -->'")
        if filled != text:
            if arguments.check:
                problems.append(f"{name}: out of date, run docs/make_tables.py")
            else:
                path.write_text(filled)
                print(f"{name}: written")
    for problem in problems:
        print(f"make_tables.py: {problem}", file=sys.stderr)
    print(f"{tables} tables from {len(results)} results files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
