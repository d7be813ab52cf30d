"""Losses of distances and margins, and the distances themselves."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import describe, metadata
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import category, check_broadcastable, check_tensor, common_dtype
from offgrad.ops._elementwise.clamping import clamp
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._elementwise.exponential import sqrt
from offgrad.ops._indexing.scattering import scatter
from offgrad.ops._nn.classification_losses import check_reduction, reduce

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "cosine_embedding_loss",
    "cosine_similarity",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "normalize",
    "pairwise_distance",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def normalize(
    input: "Tensor",
    p: float = 2.0,
    dim: Any = 1,
    eps: float = 1e-12,
    out: "Tensor | None" = None,
) -> "Tensor":
    """Return `input` over its p-norm along `dim`, which is at least `eps`."""
    length = check_tensor(input, "normalize").norm(p, dim, keepdim=True)
    result = input / clamp(length, min=eps).expand(input.shape)
    return result if out is None else out.copy_(result)


def cosine_similarity(x1: "Tensor", x2: "Tensor", dim: int = 1, eps: float = 1e-8) -> "Tensor":
    """Return the cosine of the angle between vectors along `dim`; each length is at least `eps`.

    Raises:
        RuntimeError: if the vectors are not floating point.
    """
    dtype = common_dtype(
        check_tensor(x1, "cosine_similarity"), check_tensor(x2, "cosine_similarity")
    )
    if category(dtype) != 2:
        raise RuntimeError(
            f"cosine_similarity is defined for real floating point numbers, got {dtype.name}"
        )
    a, b = x1.to(dtype), x2.to(dtype)
    check_broadcastable("cosine_similarity", a, b)
    shape = np.broadcast_shapes(a._array.shape, b._array.shape)
    a, b = a.expand(shape), b.expand(shape)
    parts = [each / clamp(each.norm(2, dim, keepdim=True), min=eps) for each in (a, b)]
    return (parts[0] * parts[1]).sum(dim)


def pairwise_distance(
    x1: "Tensor", x2: "Tensor", p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> "Tensor":
    """Return the p-norm of ``x1 - x2 + eps`` along the last dimension."""
    return _distance(x1, x2, p, eps, keepdim, "pairwise_distance")


def _distance(
    x1: "Tensor", x2: "Tensor", p: float, eps: float, keepdim: bool, name: str
) -> "Tensor":
    check_broadcastable(name, check_tensor(x1, name), check_tensor(x2, name))
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@full_precision
def hinge_embedding_loss(
    input: "Tensor", target: "Tensor", margin: float = 1.0, reduction: str = "mean"
) -> "Tensor":
    """Return ``input`` where the target is 1, and ``max(0, margin - input)`` where it is -1."""
    check_reduction(reduction, "hinge_embedding_loss")
    for each in (input, target):
        check_tensor(each, "hinge_embedding_loss")
    check_broadcastable("hinge_embedding_loss", input, target)
    zero = input.new_zeros(())
    dissimilar = where(target != 1, clamp(margin - input, min=0), zero)
    return reduce(dissimilar + where(target != -1, input, zero), reduction)


@full_precision
def margin_ranking_loss(
    input1: "Tensor",
    input2: "Tensor",
    target: "Tensor",
    margin: float = 0.0,
    reduction: str = "mean",
) -> "Tensor":
    """Return ``max(0, margin - target * (input1 - input2))`` for targets 1 and -1.

    Raises:
        RuntimeError: if the numbers of dimensions differ.
    """
    check_reduction(reduction, "margin_ranking_loss")
    for each in (input2, target):
        if metadata(each).ndim != metadata(input1).ndim:
            raise RuntimeError(
                "margin_ranking_loss: the numbers of dimensions must be equal, got a "
                f"{describe(input1)} and "
                f"a {describe(each)}"
            )
    return reduce(clamp(-target * (input1 - input2) + margin, min=0), reduction)


@full_precision
def cosine_embedding_loss(
    input1: "Tensor",
    input2: "Tensor",
    target: "Tensor",
    margin: float = 0.0,
    reduction: str = "mean",
) -> "Tensor":
    """Return ``1 - cosine`` where the target is 1, ``max(0, cosine - margin)`` where it is -1.

    Raises:
        RuntimeError: if the target is not one number for each pair of vectors.
    """
    check_reduction(reduction, "cosine_embedding_loss")
    ndim = metadata(check_tensor(target, "cosine_embedding_loss")).ndim
    if ndim > 1 or metadata(input1).ndim != ndim + 1 or metadata(input2).ndim != ndim + 1:
        problem = (
            "0D or 1D target tensor expected"
            if ndim > 1
            else f"{ndim}D target tensor expects {ndim + 1}D input tensors"
        )
        raise RuntimeError(
            f"cosine_embedding_loss: {problem}: vectors [N, D] with targets [N], or [D] with [], "
            f"got a {describe(input1)} and a {describe(input2)} with a {describe(target)}"
        )
    check_broadcastable("cosine_embedding_loss", input1, input2)
    # As in PyTorch an addition keeps the lengths above 0: a limit would change the gradient.
    product = (input1 * input2).sum(ndim)
    squares = [(each * each).sum(ndim) + 1e-12 for each in (input1, input2)]
    cosine = product / sqrt(squares[0] * squares[1])
    zero = cosine.new_zeros(())
    similar = where(target == 1, 1 - cosine, zero)
    return reduce(similar + where(target == -1, clamp(cosine - margin, min=0), zero), reduction)


@full_precision
def triplet_margin_loss(
    anchor: "Tensor",
    positive: "Tensor",
    negative: "Tensor",
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> "Tensor":
    """Return ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``, d the p-norm distance.

    With `swap`, d(positive, negative) replaces d(anchor, negative) where it is smaller.

    Raises:
        ValueError: if the margin is not positive.
    """
    check_reduction(reduction, "triplet_margin_loss")
    if margin <= 0:
        raise ValueError(f"triplet_margin_loss: the margin must be positive, got {margin}")
    name = "triplet_margin_loss"
    _check_ndims(name, anchor, positive, negative)
    to_positive = _distance(anchor, positive, p, eps, False, name)
    to_negative = _distance(anchor, negative, p, eps, False, name)
    if swap:
        to_negative = to_negative.minimum(_distance(positive, negative, p, eps, False, name))
    return reduce(clamp(to_positive - to_negative + margin, min=0), reduction)


def _check_ndims(name: str, anchor: "Tensor", positive: "Tensor", negative: "Tensor") -> None:
    if len({metadata(each).ndim for each in (anchor, positive, negative)}) > 1:
        raise RuntimeError(
            f"{name}: the three tensors must have equally many dimensions, got a "
            f"{describe(anchor)}, a {describe(positive)} and a {describe(negative)}"
        )


def triplet_margin_with_distance_loss(
    anchor: "Tensor",
    positive: "Tensor",
    negative: "Tensor",
    *,
    distance_function: "Callable[[Tensor, Tensor], Tensor] | None" = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> "Tensor":
    """Return `triplet_margin_loss` with any distance; the default is `pairwise_distance`.

    Raises:
        ValueError: if the margin is not positive, or the numbers of dimensions differ.
    """
    name = "triplet_margin_with_distance_loss"
    check_reduction(reduction, name)
    if margin <= 0:
        raise ValueError(f"{name}: the margin must be above 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    _check_ndims(name, anchor, positive, negative)
    to_positive, to_negative = distance(anchor, positive), distance(anchor, negative)
    if swap:
        to_negative = to_negative.minimum(distance(positive, negative))
    return reduce(clamp(to_positive - to_negative + margin, min=0), reduction)


@full_precision
def multi_margin_loss(
    input: "Tensor",
    target: "Tensor",
    p: int = 1,
    margin: float = 1.0,
    weight: "Tensor | None" = None,
    reduction: str = "mean",
) -> "Tensor":
    """Return the sum of ``max(0, margin - target's score + score) ** p`` over the other classes,
    divided by the number of classes.

    Args:
        input: scores [N, C] or [C].
        target: classes [N] or [].
        p: 1 or 2.
        margin: the required distance of the target's score from the others.
        weight: a factor for each class [C].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError, RuntimeError: if `p`, shapes or classes do not fit.
    """
    check_reduction(reduction, "multi_margin_loss")
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p must be 1 or 2, got {p}")
    scores = input if metadata(input).ndim == 2 else input.reshape(1, -1)
    index = target.reshape(-1, 1)
    if metadata(index).shape[0] != metadata(scores).shape[0]:
        raise RuntimeError(
            "multi_margin_loss: target tensor should be 1-D with size equal to the number of "
            f"rows, got a {describe(target)} for a {describe(input)}"
        )
    if weight is not None and metadata(weight).shape != metadata(scores).shape[1:]:
        raise ValueError(
            "multi_margin_loss: weight must be one-dimensional with an element for each class, got "
            f"a {describe(weight)} for a {describe(input)}"
        )
    shortfall = scores - scores.gather(1, index) + margin
    shortfall = shortfall.masked_fill(~(shortfall > 0), 0) ** p  # NaN falls short of nothing
    if weight is not None:
        shortfall = shortfall * weight[index]
    losses = scatter(shortfall, 1, index, 0.0).sum(1) / metadata(scores).shape[1]
    return reduce(losses.reshape(metadata(target).shape), reduction)
