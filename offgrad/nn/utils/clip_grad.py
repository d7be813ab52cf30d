"""Norms of gradients, and clipping, in place and without recording."""

import math
import warnings
from collections.abc import Iterable, Sequence
from inspect import isgenerator
from typing import Any, NamedTuple

import numpy as np
from offgrad_storage.interrupts import masked

from offgrad import kernels, ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase, in_batches, metadata
from offgrad.ops._core.dtypes import promote_dtypes

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
]

Tensors = Tensor | Iterable[Tensor]


@grad_mode.no_grad()
def get_total_norm(
    tensors: Tensors,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Return the norm of all elements of all tensors, as if they were one vector.

    Args:
        tensors: one or several.
        norm_type: the order; ``inf`` is the largest magnitude.
        error_if_nonfinite: raise RuntimeError if the norm is NaN or infinite.
        foreach: accepted; all tensors are always taken in one pass.
    """
    each = list(_listed(tensors))
    norm_type = float(norm_type)
    total = _norm(each, norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite; "
            "find the operation that gave NaN or infinity, for example by detect_anomaly(), or "
            "pass error_if_nonfinite=False to clip anyway"
        )
    return total


def _norm(tensors: Sequence[Tensor], norm_type: float) -> Tensor:
    if not tensors:
        return ops.tensor(0.0)
    if norm_type == 2:
        return ops.tensor(math.sqrt(_sum_of_squares(tensors)), dtype=_real_dtype(tensors))
    if norm_type == math.inf:
        return ops.tensor(_largest(tensors), dtype=_real_dtype(tensors))
    return ops.norm(ops.stack([ops.norm(each, norm_type) for each in tensors]), norm_type)


def _real_dtype(tensors: Sequence[Tensor]) -> Any:
    dtypes = [metadata(each).dtype for each in tensors]
    dtype = dtypes[0]
    for each in dtypes[1:]:
        dtype = promote_dtypes(dtype, each)
    return dtype if dtype.kind != "c" else np.zeros((), dtype).real.dtype


def _sum_of_squares(tensors: Sequence[Tensor]) -> float:
    return kernels.sum_of_squares(
        [_as_real(each._array) for each in batch] for batch in in_batches(tensors)
    )


def _as_real(array: Any) -> Any:
    return np.ascontiguousarray(array.view(array.real.dtype) if array.dtype.kind == "c" else array)


def _largest(tensors: Sequence[Tensor]) -> float:
    largest = [_largest_of(each._array) for each in tensors if metadata(each).size]
    return float(np.max(largest)) if largest else 0.0


def _largest_of(array: Any) -> Any:
    if array.dtype.kind == "c":
        return np.abs(array).max()
    return np.maximum(array.max(), -array.min())


@grad_mode.no_grad()
def clip_grads_with_norm_(
    parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Multiply the gradients of parameters by ``max_norm / (total_norm + 1e-6)`` if that is below
    1.

    Paged gradients come in batches. If one fails, as on a faulty drive, the error says how many are
    scaled; the same call again scales the others, unless gradients have changed.

    Args:
        parameters: one or several tensors; those without a gradient are skipped.
        max_norm: the largest norm.
        total_norm: that of the gradients, from `get_total_norm`.
        foreach: accepted; all gradients are always scaled in one pass.
    """
    _scale_all(_gradients(parameters), max_norm, total_norm)


class _Unfinished(NamedTuple):
    """A clipping that has failed after a part.

    Attributes:
        versions: of all gradients, by the uids of their memory.
        scaled: the uids of those that are scaled.
    """

    versions: dict[int, int]
    scaled: set[int]
    max_norm: float
    total_norm: Tensor


def _unfinished(grads: Sequence[Tensor], max_norm: float) -> _Unfinished | None:
    """Return the failed clipping of the same gradients, if they have not changed since."""
    found = getattr(grads[0]._storage, "unfinished_clipping", None) if grads else None
    if isinstance(found, _Unfinished) and found.max_norm == max_norm:
        return found if found.versions == _versions(grads) else None
    return None


def _versions(grads: Sequence[Tensor]) -> dict[int, int]:
    return {each._storage.uid: each._storage.version for each in grads}


def _scale_all(grads: Sequence[Tensor], max_norm: float, total_norm: Tensor) -> None:
    unfinished = _unfinished(grads, max_norm)
    scaled: set[int] = set()
    if unfinished is not None:
        total_norm, scaled = unfinished.total_norm, unfinished.scaled
    factor = float(max_norm / (total_norm + 1e-6))  # in the dtype of the norm, as PyTorch
    if factor >= 1 or not grads:
        return
    first = grads[0]._storage
    try:
        for batch in in_batches(each for each in grads if each._storage.uid not in scaled):
            with masked:  # Ctrl-C comes while pages are read, or after the note
                _scale(batch, factor)
                scaled |= {each._storage.uid for each in batch}
    except BaseException as error:
        if scaled:
            first.__dict__["unfinished_clipping"] = _Unfinished(
                _versions(grads), scaled, max_norm, total_norm
            )
            count = sum(each._storage.uid in scaled for each in grads)
            error.add_note(
                f"clipping has scaled {count} of {len(grads)} gradients; the same call again "
                "scales the others"
            )
        raise
    first.__dict__.pop("unfinished_clipping", None)


def _scale(grads: Sequence[Tensor], factor: float) -> None:
    """Multiply gradients in place, all or none."""
    for each in {id(grad._storage): grad for grad in grads}.values():
        each._storage.write("clip_grads_with_norm_")
    arrays: list[Any] = [each._array for each in grads]
    for array in arrays:
        if not array.flags.c_contiguous:
            array *= array.dtype.type(factor)
    kernels.scale_all([each for each in arrays if each.flags.c_contiguous], factor)


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients of parameters so that their common norm is at most `max_norm`.

    Where paged gradients fail after a part, the same call again scales the others: see
    `clip_grads_with_norm_`.

    Args:
        parameters: one or several tensors; those without a gradient are skipped.
        max_norm: the largest norm.
        norm_type: the order of the norm; ``inf`` is the largest magnitude.
        error_if_nonfinite: raise RuntimeError if the norm is NaN or infinite.
        foreach: accepted; all gradients are always taken in one pass.

    Returns:
        The norm before, a tensor without dimensions.
    """
    tensors = list(_listed(parameters))
    if isgenerator(parameters) and not tensors:
        warnings.warn(
            "clipping no gradients: `parameters` is an empty generator; was it consumed before?",
            stacklevel=2,
        )
    grads = _gradients(tensors)
    unfinished = _unfinished(grads, max_norm)
    if unfinished is None:
        total = get_total_norm(grads, norm_type, error_if_nonfinite, foreach)
    else:
        total = unfinished.total_norm
    grad_mode.call(False, _scale_all, grads, max_norm, total)
    return total


def clip_grad_norm(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Call `clip_grad_norm_`; deprecated."""
    warnings.warn(
        "torch.nn.utils.clip_grad_norm is deprecated: use clip_grad_norm_",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


@grad_mode.no_grad()
def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Limit each element of the gradients of parameters to -`clip_value` and `clip_value`.

    Args:
        parameters: one or several tensors; those without a gradient are skipped.
        clip_value: the limit.
        foreach: accepted; it has no effect.
    """
    limit = float(clip_value)
    for grad in _gradients(parameters):
        grad.clamp_(-limit, limit)


def _listed(tensors: Tensors) -> Iterable[Tensor]:
    return [tensors] if isinstance(tensors, TensorBase) else tensors


def _gradients(parameters: Tensors) -> list[Tensor]:
    return [each.grad for each in _listed(parameters) if each.grad is not None]
