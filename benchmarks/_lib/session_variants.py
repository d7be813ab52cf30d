"""The variants of a training step that the benchmarks of sessions compare, by name.

A new variant is a line in `OFFGRAD` or `TORCH`; `benchmarks._lib.variants` explains the texts.
"""

import importlib.util
import os
import re

KEEP, TORCH_KEEP = "offgrad keep", "torch keep"

OFFGRAD = {
    "keep": "keep",
    "pool": "pool",
    "disk": "disk",
    "zarr": "zarr",
    "disk, lz4": "disk:lz4",
    "bfloat16": "cast:bfloat16",
    "disk, bfloat16": "cast:bfloat16,then=disk",
    "recompute": "recompute",
    "recompute, disk": "recompute,then=disk",
    "budget 50%": "budget:50%",
    "budget 25%": "budget:25%",
    "budget 10%": "budget:10%",
    "checkpoint": "checkpoint",
    "checkpoint, disk": "checkpoint disk",
}
"""Percentages refer to a size known only at run time: the bytes that `keep` saves, or a limit."""

TORCH = {"keep": "keep", "disk": "disk", "checkpoint": "checkpoint"}


def has_torch() -> bool:
    """Return whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def variants(nbytes: int) -> dict[str, str]:
    """Map "framework name" to "framework variant"; budgets are percentages of `nbytes`.

    OFFGRAD_BENCH_ONLY selects variants, such as ``"offgrad disk; torch disk"``; the two `keep`
    variants are always included.

    Raises:
        ValueError: if OFFGRAD_BENCH_ONLY names an unknown variant.
    """
    found = {
        f"offgrad {name}": f"offgrad {_with_nbytes(text, nbytes)}" for name, text in OFFGRAD.items()
    }
    if has_torch():
        found |= {f"torch {name}": f"torch {text}" for name, text in TORCH.items()}
    wanted = os.environ.get("OFFGRAD_BENCH_ONLY")
    if not wanted:
        return found
    names = {KEEP, TORCH_KEEP} | {name.strip() for name in wanted.split(";") if name.strip()}
    if unknown := names - found.keys() - {TORCH_KEEP}:
        raise ValueError(f"unknown variants {sorted(unknown)}; known are {'; '.join(found)}")
    return {name: text for name, text in found.items() if name in names}


def budget_of(variant: str) -> int | None:
    """Return the bytes of the budget in "framework variant"; None for other variants."""
    match = re.fullmatch(r"offgrad budget:(\d+)", variant)
    return int(match[1]) if match else None


def _with_nbytes(text: str, nbytes: int) -> str:
    return re.sub(r"(\d+)%", lambda match: str(max(1, nbytes * int(match[1]) // 100)), text)
