#!/usr/bin/env python3
"""Saves the q, k and v that a Hugging Face causal language model hands to its attention, as NumPy files.

    docs/capture_qkv.py --model HuggingFaceTB/SmolLM2-135M --layer 12 --text "..." --out captured/
    docs/capture_qkv.py --model model.gguf --layer 12 --text-file text.txt --tokens 320 --out captured/

--model is a name on the hub, a local folder or a GGUF file. The tensors are taken after the rotary embedding and before
the K/V heads are repeated for their group: q.npy [1, seq, heads, head_dim], k.npy and v.npy [1, seq, kv_heads,
head_dim], float16, C order, ready for a chapter's --q, --k and --v with --causal. Where a model scales its scores by
something else than 1/sqrt(head_dim), the difference is folded into q.

The model runs in fp32 on the CPU. What its attention returned is compared with causal attention computed in fp64 from
the captured tensors before they are rounded to fp16: they must agree to fp32 precision, else the model does something
more than plain causal attention (a sliding window, a score cap) and the script says so and exits with 1. What the
rounding changes is printed beside it. Bad input exits with 2.

Needs: pip install torch transformers numpy, and for GGUF files: pip install gguf accelerate
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

# The largest difference, relative to the largest output, that fp32 arithmetic explains.
FP32_LIMIT = 1e-4


def fail(message: str) -> NoReturn:
    print(f"capture_qkv.py: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def require(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        fail(f"missing Python packages; install them with: pip install {' '.join(missing)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub name, local folder or GGUF file")
    parser.add_argument("--layer", required=True, type=int, help="layer to capture, from 0")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text")
    text.add_argument("--text-file", type=Path)
    parser.add_argument("--tokens", type=int, help="use only the first TOKENS tokens of the text")
    parser.add_argument("--out", required=True, type=Path, help="folder for q.npy, k.npy and v.npy")
    arguments = parser.parse_args()
    if arguments.tokens is not None and arguments.tokens < 1:
        fail(f"--tokens {arguments.tokens} is not a number of tokens: give 1 or more")
    return arguments


def read_text(arguments: argparse.Namespace) -> str:
    if arguments.text_file is None:
        text = arguments.text
    else:
        try:
            text = arguments.text_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read --text-file {arguments.text_file}: {error}")
    if not text.strip():
        fail("the text is empty")
    return text


def locate(model: str) -> tuple[str, dict[str, str]]:
    """What transformers' from_pretrained wants: a name or folder, and for a GGUF file its name in the folder."""
    path = Path(model)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            fail(f"--model {model} is a file but not a GGUF file: give a hub name, a folder or a .gguf file")
        require("gguf", "accelerate")
        return str(path.parent), {"gguf_file": path.name}
    if not path.is_dir() and (path.suffix.lower() == ".gguf" or path.is_absolute() or model.startswith(".")):
        fail(f"--model {model} does not exist")
    return model, {}


def load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The tokenizer, and the model in fp32 with its attention going through transformers' sdpa function."""
    import torch
    import transformers

    name, options = locate(arguments.model)
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
        layers = config.get_text_config().num_hidden_layers
        if not 0 <= arguments.layer < layers:
            fail(f"--layer {arguments.layer} is out of range: {arguments.model} has layers 0 to {layers - 1}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa", **options)
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        fail(f"cannot load --model {arguments.model}: {error}")
    # Not model.float(): transformers refuses it for GGUF files, whose weights it has already expanded to floats.
    return tokenizer, torch.nn.Module.float(model).eval()


def capture(model: Any, tokens: Any, layer: int) -> dict[str, Any]:
    """Runs the model once; q, k, v as [batch, heads, seq, head_dim], the output as [batch, seq, heads, head_dim]."""
    import torch

    try:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError:
        fail("this transformers has no attention interface to record from: pip install 'transformers>=4.48'")
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    captured: dict[str, Any] = {}

    def recording_sdpa(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        result = sdpa(module, query, key, value, *rest, **options)
        if getattr(module, "layer_idx", None) == layer:
            captured.update(q=query, k=key, v=value, out=result[0], scaling=options.get("scaling"))
        return result

    ALL_ATTENTION_FUNCTIONS["sdpa"] = recording_sdpa
    with torch.no_grad():
        model(tokens, use_cache=False)
    if not captured:
        fail(f"the attention of {type(model).__name__} does not go through transformers' attention interface")
    return captured


def attention_difference(q: Any, k: Any, v: Any, out: Any) -> float:
    """Largest |causal attention in fp64 - out| over the largest |out|; all tensors [batch, seq, heads, head_dim]."""
    import numpy as np

    group = q.shape[2] // k.shape[2]
    hidden = np.triu(np.ones((q.shape[1], k.shape[1]), bool), 1)
    worst = 0.0
    for head in range(q.shape[2]):
        keys, values = (x[0, :, head // group].astype(np.float64) for x in (k, v))
        scores = q[0, :, head].astype(np.float64) @ keys.T / np.sqrt(q.shape[3])
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights @ values / weights.sum(axis=1, keepdims=True)
        worst = np.maximum(worst, np.abs(expected - out[0, :, head]).max())  # np.maximum keeps a NaN, max() may not
    return float(worst / np.abs(out).max())


def main() -> int:
    arguments = parse_arguments()
    text = read_text(arguments)
    require("numpy", "torch", "transformers")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    import numpy as np

    tokenizer, model = load(arguments)
    tokens = tokenizer(text, return_tensors="pt").input_ids[:, : arguments.tokens]
    captured = capture(model, tokens, arguments.layer)

    head_dim = captured["q"].shape[-1]
    if captured["scaling"] is not None:
        captured["q"] = captured["q"] * (captured["scaling"] * head_dim**0.5)
    output = captured["out"].numpy().astype(np.float64)
    tensors = {name: captured[name].transpose(1, 2).contiguous().numpy() for name in "qkv"}
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    for name, half in halves.items():
        if not np.isfinite(half).all():
            fail(f"{name} of layer {arguments.layer} has values that float16 cannot hold")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, half in halves.items():
            np.save(arguments.out / f"{name}.npy", half)
            print(f"{arguments.out / name}.npy  float16 {list(half.shape)}  largest |{name}| {np.abs(half).max():.3g}")
    except OSError as error:
        fail(f"cannot write --out {arguments.out}: {error}")

    difference = attention_difference(**tensors, out=output)
    rounding = attention_difference(**halves, out=output)
    agrees = difference <= FP32_LIMIT
    print(
        f"the model's own attention and causal attention in fp64 on the captured tensors differ by {difference:.1e} of "
        f"the largest output (limit {FP32_LIMIT:.0e}), on the saved fp16 ones by {rounding:.1e}: "
        + ("ok" if agrees else "FAILED, this layer is not plain causal attention")
    )
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
