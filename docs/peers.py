#!/usr/bin/env python3
"""Times every chapter and variant beside the attention kernels that a PyTorch user has, on the same tensors.

    docs/peers.py                                    a few small sizes
    docs/peers.py --preset anchors --json peers.json
    docs/peers.py --sizes 1,16,16,4096,4096,128,full 2,32,8,1024,4096,64,causal --dtype bf16
    docs/peers.py --device sim                       the simulated GPU on host tensors: checks only, no times
    docs/peers.py --before OTHER/libflash_chapters.so --peers    what a change of a kernel is worth: two builds in turn

The chapters come from libflash_chapters.so (common/program/flash_chapters.h), loaded into this process. "unfused" is standard
attention in four calls, the counterpart of chapter 01; flash_attn_3 is FlashAttention-3 (flash_attn_interface). Each
repeat runs every contestant once, in turn, so that a change of clocks meets all of them; L2 is overwritten before each.
Times are medians of CUDA events. TFLOP/s counts 4*b*h*nq*nk*d, half of that when causal. Sampled rows are checked
against fp64: they may be off by twice what standard attention with each step in the same dtype is, plus 1e-5.

Exits 0 when every chapter was right, 1 when one was wrong, 2 for bad arguments, 3 without PyTorch, GPU or library.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import functools
import importlib
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any, Callable, NoReturn

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError as error:
    print(f"peers.py: PyTorch 2.5 or newer is missing ({error}); install it with: pip install torch", file=sys.stderr)
    sys.exit(3)

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = REPOSITORY / "build/default/libflash_chapters.so"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LSE_LIMIT = 1e-3
LEAST_REPEATS = 3
L2_FLUSH_BYTES = 256 << 20
# Writing the flush buffer four times keeps the GPU busy for longer than the host needs to queue the contestant behind
# it, so that the time between the events is the kernel's and not the launch's.
L2_FLUSH_WRITES = 4

Run = Callable[[], Any]  # one forward; returns O [batch, seq, heads, head_dim], or O and LSE [batch, heads, seq]


class ChapterError(Exception):
    """A chapter that should have run and did not. All else that a contestant raises means 'not available here'."""


def stop(code: int, message: str) -> NoReturn:
    print(f"peers.py: {message}", file=sys.stderr)
    sys.exit(code)


@dataclasses.dataclass(frozen=True)
class Size:
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool

    @staticmethod
    def parse(text: str) -> Size:
        match = re.fullmatch(r"([1-9]\d*,){6}(full|causal|0|1)", text)
        *numbers, mask = text.split(",")
        if not match or int(numbers[1]) % int(numbers[2]):
            raise argparse.ArgumentTypeError(f"'{text}' is not b,h,hkv,nq,nk,d,full or ..,causal with hkv dividing h")
        values: list[Any] = [*map(int, numbers), mask in ("causal", "1")]
        return Size(*values)

    def scores(self) -> int:
        return self.batch * self.heads * self.seq_q * self.seq_kv


def square(batch: int, heads: int, seq: int, head_dim: int) -> list[Size]:
    return [Size(batch, heads, heads, seq, seq, head_dim, causal) for causal in (False, True)]


ANCHORS = [(d, n) for d in (64, 128) for n in (512, 1024, 2048, 4096, 8192, 16384)]
PRESETS = {
    "tiny": [Size(1, 2, 1, 128, 128, 64, True), Size(1, 2, 2, 96, 160, 64, False), Size(2, 4, 2, 65, 33, 64, True)],
    "small": [*square(2, 16, 1024, 64), *square(2, 16, 1024, 128)],
    "issue": [*square(1, 16, 1024, 128), *square(1, 16, 4096, 128)],
    "anchors": [size for d, n in ANCHORS for size in square(16384 // n, 2048 // d, n, d)],
}


def seen(size: Size, rows: torch.Tensor) -> torch.Tensor:
    """Which keys each query row sees when causal, aligned bottom-right: [rows, seq_kv]."""
    return torch.arange(size.seq_kv, device=rows.device) <= rows[:, None] + size.seq_kv - size.seq_q


@dataclasses.dataclass
class Problem:
    """The tensors of one size, [batch, seq, heads, head_dim], and what results are held against in the checked rows."""

    size: Size
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def __post_init__(self) -> None:
        wanted = [0, self.size.seq_q - 1, *(edge for tile in (64, 128, 176, 192) for edge in (tile - 1, tile))]
        wanted += [self.size.seq_q * i // 16 for i in range(16)]
        self.rows = torch.tensor(sorted({row for row in wanted if row < self.size.seq_q}), device=self.q.device)
        self.expected, self.expected_lse = self.three_steps(torch.float64)
        standard, _ = self.three_steps(self.q.dtype)
        self.limit = 2 * (standard.double() - self.expected).abs().max().item() + 1e-5

    def three_steps(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """O [batch, rows, heads, head_dim] and LSE [batch, heads, rows], the result of each step in `dtype`."""
        outs, lses = [], []
        for q, k, v in zip(self.q, self.k, self.v):  # one batch entry at a time, for memory
            queries = q[self.rows].to(dtype).unflatten(1, (self.size.kv_heads, -1))  # [rows, kv_heads, group, d]
            keys, values = k.to(dtype).permute(1, 2, 0), v.to(dtype).transpose(0, 1)  # [kv_heads, d, n] and [.., n, d]
            scores = torch.matmul(queries.permute(2, 1, 0, 3), keys) * self.size.head_dim**-0.5
            if self.size.causal:
                scores = scores.masked_fill(~seen(self.size, self.rows), -torch.inf)
            out = torch.matmul(scores.softmax(-1).nan_to_num(0.0), values)  # a row that sees nothing has NaN in P
            outs.append(out.permute(2, 1, 0, 3).flatten(1, 2))
            lses.append(scores.logsumexp(-1).transpose(0, 1).flatten(0, 1))
        return torch.stack(outs), torch.stack(lses)

    def views(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as [batch, heads, seq, head_dim], as PyTorch's own functions want them: views, not copies."""
        return self.q.transpose(1, 2), self.k.transpose(1, 2), self.v.transpose(1, 2)

    def require_memory(self, bytes_per_score: int) -> None:
        """For contestants that keep N x N intermediates: half of what is free, so that the others find room too."""
        needed = bytes_per_score * self.size.scores()
        if self.q.is_cuda:
            free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > free / 2:
            raise RuntimeError(f"N x N takes {needed / 2**30:.0f} GiB, more than half of {free / 2**30:.0f} GiB free")

    def verdict(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> tuple[float, str]:
        """The error of O, and 'ok' or what is wrong. Written so that NaN fails."""
        error = (out[:, self.rows].double() - self.expected).abs().max().item()
        if not torch.isfinite(out).all():
            return error, "FAILED: NaN or Inf in O"
        if not error <= self.limit:
            return error, f"FAILED: limit {self.limit:.1e}"
        if lse is not None:
            difference = (lse[:, :, self.rows].double() - self.expected_lse).abs()
            if not ((lse[:, :, self.rows] == self.expected_lse) | (difference <= LSE_LIMIT)).all():  # -inf equals -inf
                return error, "FAILED: LSE"
        return error, "ok"


def make_problem(size: Size, dtype: torch.dtype, device: str) -> Problem:
    torch.manual_seed(0)
    shapes = (size.seq_q, size.heads), (size.seq_kv, size.kv_heads), (size.seq_kv, size.kv_heads)
    return Problem(size, *(torch.randn(size.batch, *shape, size.head_dim, device=device).to(dtype) for shape in shapes))


class TensorArgument(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((f"{name}_stride", ctypes.c_int64) for name in ("batch", "row", "head"))]


class AttentionCall(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")),
        *((name, ctypes.c_int) for name in ("causal", "dtype")),
        *((name, TensorArgument) for name in ("q", "k", "v", "o")),
        ("lse", ctypes.c_void_p),
    ]


class Library:
    """libflash_chapters.so; the constants are those of common/program/flash_chapters.h."""

    OK = 0
    DEVICES = {"cuda": 0, "cpu": 1}
    DTYPES = {torch.float16: 0, torch.bfloat16: 1}

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        name, call = ctypes.c_char_p, ctypes.POINTER(AttentionCall)
        self.c.flash_chapter_name.restype = self.c.flash_variant_name.restype = self.c.flash_last_error.restype = name
        self.c.flash_variant_name.argtypes = [name, ctypes.c_int]
        self.c.flash_variant_gpu_only.argtypes = [name, name]
        self.c.flash_supports.argtypes = [name, name, call]
        self.c.flash_attention_forward.argtypes = [ctypes.c_int, name, name, call, ctypes.c_void_p]

    def variants(self) -> list[tuple[str, str]]:
        found = []
        for chapter in map(self.c.flash_chapter_name, range(self.c.flash_chapter_count())):
            index = 0
            while (variant := self.c.flash_variant_name(chapter, index)) is not None:
                found.append((chapter.decode(), variant.decode()))
                index += 1
        return found

    def prepare(self, names: tuple[str, str], problem: Problem) -> Run:
        """One variant, named by its chapter and itself. Its outputs hold NaN before the first run."""
        size, q = problem.size, problem.q
        chapter, variant = (name.encode() for name in names)
        if not q.is_cuda and self.c.flash_variant_gpu_only(chapter, variant):
            raise RuntimeError("needs a GPU")
        out = torch.full_like(q, torch.nan)
        lse = torch.full((size.batch, size.heads, size.seq_q), torch.nan, dtype=torch.float32, device=q.device)
        tensors = (TensorArgument(x.data_ptr(), *x.stride()[:3]) for x in (q, problem.k, problem.v, out))
        call = AttentionCall(*dataclasses.astuple(size), self.DTYPES[q.dtype], *tensors, lse.data_ptr())
        if self.c.flash_supports(chapter, variant, call) != self.OK:
            raise RuntimeError(self.c.flash_last_error().decode())

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else None
            if self.c.flash_attention_forward(self.DEVICES[q.device.type], chapter, variant, call, stream) != self.OK:
                message = self.c.flash_last_error().decode()
                # What this GPU has not is left out; anything else is an error of the chapter.
                lacks = ("out of memory", "needs a GPU of", "of shared memory for a block")
                raise (RuntimeError if any(part in message for part in lacks) else ChapterError)(message)
            return out, lse

        return run


BOTTOM_RIGHT_BACKENDS = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION  # the others need a mask in memory


def sdpa(backend: SDPBackend) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        size, (q, k, v) = problem.size, problem.views()
        mask: Any = None
        grouped = size.heads != size.kv_heads
        if size.causal and (size.seq_q == size.seq_kv or backend in BOTTOM_RIGHT_BACKENDS):
            mask = causal_lower_right(size.seq_q, size.seq_kv)
        elif size.causal:
            mask = seen(size, torch.arange(size.seq_q, device=q.device))
        if backend == SDPBackend.MATH:
            problem.require_memory(12)  # it computes in fp32: S, S masked, P

        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)

        return run

    return prepare


def flex(problem: Problem) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    size, (q, k, v) = problem.size, problem.views()
    torch.compiler.reset()  # each size is compiled anew, with its shapes as constants
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    offset = size.seq_kv - size.seq_q

    def visible(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= row + offset

    shape = None, None, size.seq_q, size.seq_kv  # the same mask for every batch entry and head
    mask = create_block_mask(visible, *shape, device=q.device) if size.causal else None
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=size.heads != size.kv_heads).transpose(1, 2)


def unfused(problem: Problem) -> Run:
    """S = QK^T, scale, softmax, PV as four calls. Layout and K/V heads are prepared first, so that no copy is timed."""
    size, (q, k, v) = problem.size, problem.views()
    problem.require_memory(2 * q.element_size())  # S and P
    if size.causal and size.seq_q > size.seq_kv:
        raise RuntimeError("the softmax of a row that sees no key is NaN")
    k, v = (x.repeat_interleave(size.heads // size.kv_heads, 1) for x in (k, v))
    q, k, v = (x.contiguous().flatten(0, 1) for x in (q, k, v))  # [batch * heads, seq, head_dim]
    hidden = ~seen(size, torch.arange(size.seq_q, device=q.device))

    def run() -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(1, 2)).mul_(size.head_dim**-0.5)
        if size.causal:
            scores.masked_fill_(hidden, -torch.inf)
        return torch.matmul(scores.softmax(-1), v).unflatten(0, (size.batch, size.heads)).transpose(1, 2)

    return run


def flash_attn(module: str) -> Callable[[Problem], Run]:
    def prepare(problem: Problem) -> Run:
        function = importlib.import_module(module).flash_attn_func
        return lambda: function(problem.q, problem.k, problem.v, causal=problem.size.causal)

    return prepare


def xformers(problem: Problem) -> Run:
    ops = importlib.import_module("xformers.ops")
    size, q, k, v = problem.size, problem.q, problem.k, problem.v
    mask = ops.fmha.attn_bias.LowerTriangularFromBottomRightMask() if size.causal else None
    if size.heads != size.kv_heads:  # a fifth dimension: [batch, seq, kv_heads, group, head_dim]
        q = q.unflatten(2, (size.kv_heads, -1))
        k, v = (x[:, :, :, None].expand(-1, -1, -1, q.shape[3], -1) for x in (k, v))
    return lambda: ops.memory_efficient_attention(q, k, v, attn_bias=mask).reshape(problem.q.shape)


def flashinfer(problem: Problem) -> Run:
    module = importlib.import_module("flashinfer")
    size, device = problem.size, problem.q.device
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    ends = torch.arange(size.batch + 1, dtype=torch.int32, device=device)
    heads = size.heads, size.kv_heads, size.head_dim
    q, k, v = (x.flatten(0, 1) for x in (problem.q, problem.k, problem.v))  # [batch * seq, heads, head_dim]
    wrapper.plan(ends * size.seq_q, ends * size.seq_kv, *heads, causal=size.causal, q_data_type=q.dtype)
    return lambda: wrapper.run(q, k, v).view(problem.q.shape)


PEERS: dict[str, Callable[[Problem], Run]] = {
    "unfused": unfused,
    "math": sdpa(SDPBackend.MATH),
    "efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
    "flash_attn": flash_attn("flash_attn"),
    "flash_attn_3": flash_attn("flash_attn_interface"),
    "xformers": xformers,
    "flashinfer": flashinfer,
}


@dataclasses.dataclass
class Contestant:
    name: str
    prepare: Callable[[Problem], Run]
    run: Run | None = None
    status: str = ""
    error: float = math.nan
    times: list[float] = dataclasses.field(default_factory=list)  # milliseconds

    def enter(self, problem: Problem) -> None:
        """The first run, checked."""
        with warnings.catch_warnings(record=True) as caught:  # PyTorch says in warnings why a backend refused
            warnings.simplefilter("always")
            try:
                run = self.prepare(problem)
                result = run()
                self.error, self.status = problem.verdict(*result if isinstance(result, tuple) else (result,))
                self.run = run
            except ChapterError as error:
                self.status = f"FAILED: {error}"
            except Exception as error:  # whatever a peer's package raises
                if "CUDA error" in str(error):
                    stop(1, f"{self.name} with {problem.size} broke the CUDA context: {error}")
                told = [str(warning.message).split(" (Triggered")[0] for warning in caught]
                told = [text for text in told if "because" not in text and "disabled" not in text]
                refused = told and "No available kernel" in str(error)
                self.status = f"not available: {told[0] if refused else error}"
        self.status = self.status.split("\n")[0]

    def result(self, size: Size) -> dict[str, Any]:
        times = self.times or [math.nan]
        figures = {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}
        figures["tflops"] = (2 if size.causal else 4) * size.scores() * size.head_dim / figures["median_ms"] / 1e9
        figures["max_error"] = self.error
        return {
            **{name: value if math.isfinite(value) else None for name, value in figures.items()},
            "repeats": len(self.times),
            "ok": self.status == "ok",
            "status": self.status,
            "skipped_reason": self.status.partition("not available: ")[2] or None,
        }


def race(contestants: list[Contestant], repeat: int, budget: float) -> None:
    """Times everyone in turn. `budget` is in seconds: the slow get fewer repeats, nobody fewer than LEAST_REPEATS."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(run: Run) -> float:
        for _ in range(L2_FLUSH_WRITES):
            flush.zero_()
        before.record()
        run()
        after.record()
        after.synchronize()
        return before.elapsed_time(after)

    runs = [(contestant, contestant.run) for contestant in contestants if contestant.run]
    shares = [budget * 1e3 / len(runs) / timed(run) for _, run in runs]  # in repeats; the warm-up as well
    start = time.monotonic()
    for turn in range(repeat):
        for (contestant, run), share in zip(runs, shares):
            if turn < LEAST_REPEATS or (turn < share and time.monotonic() - start < budget):
                contestant.times.append(timed(run))


def print_table(problem: Problem, results: dict[str, dict[str, Any]]) -> None:
    size, flash = problem.size, results.get("flash", {}).get("median_ms")
    mask = "causal" if size.causal else "full"
    heads, seq = f"{size.heads} over {size.kv_heads}", f"{size.seq_q} over {size.seq_kv}"
    print(
        f"\nbatch {size.batch}, heads {heads}, seq {seq}, head dim {size.head_dim}, {mask}; limit {problem.limit:.1e}"
    )
    print(f"  {'':<28}{'TFLOP/s':>9}{'ms':>11}{'x flash':>9}{'error':>10}  check")
    for name, result in results.items():
        median = result["median_ms"]
        ratio = flash / median if flash and median else None
        cells = (result["tflops"], ".1f"), (median, ".4f"), (ratio, ".2f"), (result["max_error"], ".1e")
        texts = ["-" if value is None else format(value, spec) for value, spec in cells]
        check = textwrap.shorten(result["status"], 90, placeholder=" ...")
        print("  {:<28}{:>9}{:>11}{:>9}{:>10}  {}".format(name, *texts, check), flush=True)


def ask(*command: str) -> str | None:
    """What a command prints, or None where it cannot be run."""
    try:
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def gpu_state(*fields: str) -> dict[str, str] | None:
    gpu = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
    line = ask("nvidia-smi", gpu, f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return dict(zip(fields, line.split(", "))) if line else None


def save(report: dict[str, Any], path: Path) -> None:
    """Under its final name only when complete."""
    try:
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        partial.replace(path)
    except OSError as error:
        stop(2, f"cannot write --json {path}: {error}")


def make_room(path: Path) -> None:
    """Makes the folder of the figures' file, and stops before anything is measured if it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
    except OSError as error:
        stop(2, f"cannot write --json {path}: {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--sizes", nargs="+", type=Size.parse, metavar="b,h,hkv,nq,nk,d,full|causal")
    sizes.add_argument("--preset", choices=PRESETS, help="default: small on a GPU, tiny in the simulation")
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--device", choices=("gpu", "sim"), default="gpu")
    parser.add_argument("--repeat", type=int, default=30, help="times of each contestant and size (30)")
    parser.add_argument("--budget", type=float, default=20, help="seconds of timing for each size (20)")
    parser.add_argument("--chapters", nargs="+", default=[""], metavar="NN[/VARIANT]",
                        help="only chapters that begin so, or one variant: 01 02_onl 05/split-q")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="only these, or none at all")
    parser.add_argument("--library", dest="shared_library", type=Path, default=LIBRARY)
    parser.add_argument("--before", type=Path, metavar="LIBRARY", help="another build, whose chapters run beside")
    parser.add_argument("--json", type=Path, help="write the figures to this file, after each size")
    arguments = parser.parse_args()
    if arguments.repeat < LEAST_REPEATS or not arguments.budget > 0:
        parser.error(f"--repeat must be at least {LEAST_REPEATS} and --budget above 0")
    return arguments


def matches(wanted: str, names: tuple[str, str]) -> bool:
    """Whether `wanted`, the beginning of a chapter's name and perhaps /VARIANT, means this chapter and variant."""
    chapter, _, variant = wanted.partition("/")
    return names[0].startswith(chapter) and variant in ("", names[1])


def main() -> int:
    arguments = parse_arguments()
    on_gpu = arguments.device == "gpu"
    if on_gpu and not torch.cuda.is_available():
        stop(3, "PyTorch sees no CUDA GPU; --device sim checks the chapters on the simulated one")
    try:
        libraries = {"": Library(arguments.shared_library)}
        if arguments.before:
            libraries["before:"] = Library(arguments.before)
    except OSError as error:
        stop(3, f"the chapters' library is missing, build it with: cmake --workflow --preset default ({error})")
    variants = [
        (build, library, names)
        for build, library in libraries.items()
        for names in library.variants()
        if any(matches(chapter, names) for chapter in arguments.chapters)
    ]
    if not variants:
        stop(2, f"no chapter begins with {' or '.join(arguments.chapters)}")

    if arguments.json:
        make_room(arguments.json)

    clocks = "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu"
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["docs/peers.py", *sys.argv[1:]]),
        "commit": ask("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "device": torch.cuda.get_device_name() if on_gpu else "simulated GPU",
        **((gpu_state("driver_version") or {}) if on_gpu else {}),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dtype": arguments.dtype,
        "clocks_before": gpu_state(*clocks) if on_gpu else None,
        "clocks_after": None,
        "sizes": [],
    }
    failed: list[str] = []
    asked = time.monotonic()
    print(f"{report['device']}, PyTorch {report['torch']}, CUDA {report['cuda']}, {arguments.dtype}")
    for size in arguments.sizes or PRESETS[arguments.preset or ("small" if on_gpu else "tiny")]:
        problem = make_problem(size, DTYPES[arguments.dtype], "cuda" if on_gpu else "cpu")
        chapters = [
            Contestant(build + "/".join(names), functools.partial(library.prepare, names))
            for build, library, names in variants
        ]
        contestants = chapters + [Contestant(name, PEERS[name]) for name in arguments.peers]
        for contestant in contestants:
            contestant.enter(problem)
        if on_gpu:
            race(contestants, arguments.repeat, arguments.budget)
        results = {contestant.name: contestant.result(size) for contestant in contestants}
        print_table(problem, results)
        failed += [chapter.name for chapter in chapters if chapter.status.startswith("FAILED")]
        report["sizes"].append({**dataclasses.asdict(size), "error_limit": problem.limit, "contestants": results})
        if on_gpu and time.monotonic() - asked > 20:  # nvidia-smi may take seconds
            report["clocks_after"], asked = gpu_state(*clocks), time.monotonic()
        if arguments.json:  # after each size, so that an interrupted run keeps what it measured
            save(report, arguments.json)
        del problem, contestants, chapters
        torch.cuda.empty_cache()
    report["clocks_after"] = gpu_state(*clocks) if on_gpu else None
    if arguments.json:
        save(report, arguments.json)
    print(f"\n{len(failed)} wrong results{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
