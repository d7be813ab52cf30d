"""Kernels for meta arrays: they write nothing, and return meta arrays where kernels return arrays.

They replace the kernels in the package's namespace while a thread computes shapes only; calls from
other threads reach the real ones.
"""

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from offgrad.kernels._losses import PairLoss
from offgrad.memory import meta
from offgrad.memory.meta import Array, meta_empty
from offgrad.memory.meta_functions import reduced_shape

# They read no arrays, or only geometry.
_AS_THEY_ARE = {
    "backend", "code_dtype", "get_num_threads", "has_scans", "is_large", "nadam_momentum",
    "set_backend", "set_num_threads", "single_threaded_blas",
}  # fmt: skip


class _Loss(PairLoss):
    """A loss without values."""

    def total(self, x: Array, target: Array) -> float:
        return 0.0

    def values(self, x: Array, target: Array, out: Array) -> None:
        pass

    def slopes(self, x: Array, target: Array, scale: Any, out: Array) -> None:
        pass


def _loss(*_: Any) -> PairLoss:
    return _Loss()


def _sum_axes(
    x: Array, axes: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    return meta_empty(reduced_shape(x, axes, keepdims), x.dtype) if out is None else out


def _columns(x: Array, kernel: tuple[int, ...], places: tuple[int, ...], steps: Any) -> Array:
    return meta_empty((*x.shape[:2], *kernel, *places), x.dtype)


def _ctc_states(targets: Any, n: int) -> tuple[Array, Array]:
    raise NotImplementedError("targets without values")


def _sorted_indices(x: Array, descending: bool, first: int = 0, last: int | None = None) -> Array:
    count = (x.shape[-1] if last is None else last) - first
    return meta_empty((*x.shape[:-1], count), np.int64)


_RULES: dict[str, Callable[..., Any]] = {
    "are_probabilities": lambda x: True,
    "are_within": lambda index, low, high: True,
    "arg_extreme": lambda find, x: meta_empty(x.shape[:-1], np.int64),
    "binary_cross_entropy": _loss,
    "binary_cross_entropy_with_logits": _loss,
    "columns": _columns,
    "cross_entropy_total_weight": lambda *_: 1.0,
    "ctc_states": _ctc_states,
    "dropout_mask": lambda shape, *_: meta_empty(shape, np.bool_),
    "huber": _loss,
    "mse": _loss,
    "places": lambda codes, *_: meta_empty(codes.shape, np.int64),
    "scratch": lambda number, size, dtype: meta_empty((size,), dtype),
    "smooth_l1": _loss,
    "soft_margin": _loss,
    "sorted_indices": _sorted_indices,
    "sum_axes": _sum_axes,
    "sum_of_squares": lambda parts: 1.0,
}


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _silent(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    rule: Any = _RULES.get(name, _nothing)

    def run(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in meta.shape_only:
            return rule(*args, **kwargs)
        return kernel(*args, **kwargs)

    return run


def replacements(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the kernels of a namespace as they are while a thread computes shapes only."""
    return {
        name: _silent(name, each)
        for name, each in namespace.items()
        if isinstance(each, FunctionType) and not name.startswith("_") and name not in _AS_THEY_ARE
    }
