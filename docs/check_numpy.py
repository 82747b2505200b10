#!/usr/bin/env python3
"""Checks what a chapter wrote with --out and --lse against attention computed in fp64, with nothing but NumPy.

    docs/check_numpy.py --q q.npy --k k.npy --v v.npy --out o.npy --lse lse.npy [--causal]

It shares no code with the chapters or their reference. q is [batch, seq_q, heads, head_dim], k and v are
[batch, seq_kv, kv_heads, head_dim], out is like q, lse [batch, heads, seq_q]. heads / kv_heads query heads share a key
head; causal is aligned bottom-right; a row that sees no key has O = 0 and LSE = -inf.

A float16 `out` is taken as the result of an fp16 run, a float32 one as that of a bf16 run, and q, k and v are rounded
to that precision first, as the chapter does. O may be off by twice the error of standard attention with S and P rounded
to the same precision, plus 1e-5; LSE by 1e-3. NaN fails. Exits 0 when both hold, 1 when not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
from typing import Callable, NoReturn

try:
    import numpy as np
except ImportError:
    print("check_numpy.py: NumPy is missing; install it with: pip install numpy", file=sys.stderr)
    sys.exit(2)

LSE_LIMIT = 1e-3


def fail(message: str) -> NoReturn:
    print(f"check_numpy.py: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def load(option: str, path: str, dims: int) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fail(f"--{option} {path} is not a readable .npy file: {error}")
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.ndim != dims:
        fail(f"--{option} {path} must hold one array of floats with {dims} dimensions")
    return array


def to_fp16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest bf16, ties to even: the upper half of an fp32 word. Inf and NaN stay what they are."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P and LSE of each row; a row of -inf gives P = 0 and LSE = -inf."""
    row_max = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(row_max == -np.inf, 0, row_max))
    row_sum = weights.sum(axis=1, keepdims=True)
    return weights / np.where(row_sum == 0, 1, row_sum), (row_max + np.log(row_sum))[:, 0]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """O [seq_q, head_dim] and LSE [seq_q] of one head in fp64."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[1])
    scores[hidden] = -np.inf
    weights, lse = softmax(scores)
    return weights @ v.astype(np.float64), lse


def standard(q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray, to_dtype: Callable) -> np.ndarray:
    """O of one head by the three steps of standard attention, each accumulated in fp32 and its result rounded."""
    scores = to_dtype(to_dtype(q @ k.T) * np.float32(1 / np.sqrt(q.shape[1])))
    scores[hidden] = -np.inf
    return to_dtype(to_dtype(softmax(scores)[0]) @ v)


def largest(x: np.ndarray) -> float:
    """The largest element; NaN when there is one (np.max propagates it)."""
    return float(np.max(x)) if x.size else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("q", "k", "v", "out", "lse"):
        parser.add_argument(f"--{option}", required=True, metavar="FILE")
    parser.add_argument("--causal", action="store_true")
    arguments = parser.parse_args()

    q, k, v, out = (load(option, getattr(arguments, option), 4) for option in ("q", "k", "v", "out"))
    lse = load("lse", arguments.lse, 3)
    batch, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads = k.shape[1:3]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != head_dim:
        fail(f"q {q.shape}, k {k.shape} and v {v.shape} do not belong together")
    if 0 in q.shape + k.shape or heads % kv_heads != 0:
        fail(f"q {q.shape} and k {k.shape}: no size may be 0 and kv_heads must divide heads")
    if out.shape != q.shape:
        fail(f"out is {out.shape}, and q is {q.shape}: they must be equal")
    if lse.shape != (batch, heads, seq_q):
        fail(f"lse is {lse.shape} and must be [batch, heads, seq_q] = {(batch, heads, seq_q)}")

    to_dtype = to_fp16 if out.dtype == np.float16 else to_bf16
    q, k, v = (to_dtype(x) for x in (q, k, v))
    visible = np.arange(seq_kv) <= np.arange(seq_q)[:, None] + seq_kv - seq_q
    hidden = ~visible if arguments.causal else np.zeros((seq_q, seq_kv), bool)

    error = standard_error = lse_error = 0.0
    with np.errstate(all="ignore"):
        for b in range(batch):
            for h in range(heads):
                head = q[b, :, h], k[b, :, h * kv_heads // heads], v[b, :, h * kv_heads // heads], hidden
                expected, expected_lse = exact(*head)
                same_inf = (lse[b, h] == expected_lse) & np.isinf(expected_lse)
                error = np.maximum(error, largest(np.abs(out[b, :, h] - expected)))
                standard_error = np.maximum(standard_error, largest(np.abs(standard(*head, to_dtype) - expected)))
                lse_error = np.maximum(lse_error, largest(np.where(same_inf, 0, np.abs(lse[b, h] - expected_lse))))

    limit = 2 * standard_error + 1e-5
    passed = bool(error <= limit and lse_error <= LSE_LIMIT)
    print(
        f"O error {error:.2e} (limit {limit:.2e}), LSE error {lse_error:.2e} (limit {LSE_LIMIT:.0e}), "
        f"{'fp16' if to_dtype is to_fp16 else 'bf16'}, {batch * heads * seq_q} rows: {'ok' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
