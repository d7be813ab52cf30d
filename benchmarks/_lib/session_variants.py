"""The variants of a training step that the benchmarks of sessions compare, by how they are called.

A new one is a line of `OFFGRAD` or `TORCH`. What the texts mean is in `benchmarks._lib.variants`.
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
"""Percent are of a size that is known only later: what `keep` saves, or a limit."""

TORCH = {"keep": "keep", "disk": "disk", "checkpoint": "checkpoint"}


def has_torch() -> bool:
    """Return whether PyTorch is there to compare with."""
    return importlib.util.find_spec("torch") is not None


def variants(nbytes: int) -> dict[str, str]:
    """Return framework and variant by framework and name; budgets are percents of `nbytes`.

    OFFGRAD_BENCH_ONLY says which, such as ``"offgrad disk; torch disk"``; the two with everything
    kept are always among them.

    Raises:
        ValueError: one of these is unknown.
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
        raise ValueError(f"unknown variants {sorted(unknown)}; there are {'; '.join(found)}")
    return {name: text for name, text in found.items() if name in names}


def budget_of(variant: str) -> int | None:
    """Return the bytes of a budget, from framework and variant; None if it is none."""
    match = re.fullmatch(r"offgrad budget:(\d+)", variant)
    return int(match[1]) if match else None


def _with_nbytes(text: str, nbytes: int) -> str:
    return re.sub(r"(\d+)%", lambda match: str(max(1, nbytes * int(match[1]) // 100)), text)
