"""Distances between the rows of matrices."""

from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import cast, check_tensor, promote, real_floating, shape_error

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["cdist", "pdist"]

_FEW = 25
"""Rows up to which PyTorch computes Euclidean distances without a product of matrices."""

_MODES = {
    "use_mm_for_euclid_dist_if_necessary": None,
    "use_mm_for_euclid_dist": True,
    "donot_use_mm_for_euclid_dist": False,
}


def _in_batch(array: Array) -> Array:
    """Return an array [..., P, M] as a contiguous one [B, P, M]."""
    return memory.contiguous(array).reshape(prod(array.shape[:-2]), *array.shape[-2:])


class Cdist(Op):
    """The p-norms of the differences of rows, [..., P, M] and [..., R, M] to [..., P, R].

    Keeps both and the distances. A distance of 0 has gradient 0.
    """

    def forward(self, x1: Array, x2: Array, p: float) -> Array:
        self.p = p
        out = memory.empty((*x1.shape[:-1], x2.shape[-2]), x1.dtype)
        kernels.distances(_in_batch(x1), _in_batch(x2), p, _in_batch(out))
        self.save(x1=x1, x2=x2, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """See `CdistBackward`."""
        saved = [self.saved(slot) for slot in ("x1", "x2", "result")]
        need_x1, need_x2 = self.needs_input_grad
        grad_x1 = CdistBackward.apply(grad, *saved, p=self.p) if need_x1 else None
        if not need_x2:
            return grad_x1, None
        x1, x2, distances = saved
        return grad_x1, CdistBackward.apply(grad.mT, x2, x1, distances.mT, p=self.p)


class CdistBackward(Op):
    """The gradient of the first rows from that of the distances; keeps it and all rows."""

    torch_name = "CdistBackwardBackward0"

    def forward(self, grad: Array, x1: Array, x2: Array, distances: Array, p: float) -> Array:
        self.p = p
        self.save(grad=grad, x1=x1, x2=x2)
        out = memory.empty(x1.shape, x1.dtype)
        grad, x1, x2, distances = map(_in_batch, (grad, x1, x2, distances))
        kernels.distances_backward(grad, x1, x2, distances, p, _in_batch(out))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The distances count as functions of the rows."""
        inputs = [self.saved(slot) for slot in ("grad", "x1", "x2")]
        needs = self.needs_input_grad[:3]
        return (*differentiate(self._reference, inputs, (grad,), needs), None)

    def _reference(self, grad: "Tensor", x1: "Tensor", x2: "Tensor") -> Any:
        if not x1._array.size:
            return x1 * 0
        p, difference = self.p, x1.unsqueeze(-2) - x2.unsqueeze(-3)
        size, sign = difference.abs(), difference.sign().detach()
        if p == 0:
            return x1 * 0
        if p == inf:
            slopes = sign * (size == size.amax(-1, keepdim=True))
        elif p == 1:
            slopes = sign
        else:
            distance = difference.norm(p, -1, keepdim=True)
            distance = distance.masked_fill(distance == 0, inf)  # its slopes are 0, and constant
            if p == 2:
                slopes = difference / distance
            else:
                size = size.masked_fill(size == 0, 1)
                slopes = sign * size ** (p - 1) / distance ** (p - 1)
        return (grad.unsqueeze(-1) * slopes).sum(-2)


class EuclideanDist(Op):
    """Euclidean distances of rows by a product of matrices; keeps both and the distances."""

    def forward(self, x1: Array, x2: Array) -> Array:
        out = memory.empty((*x1.shape[:-1], x2.shape[-2]), x1.dtype)
        kernels.euclidean_distances(_in_batch(x1), _in_batch(x2), _in_batch(out))
        self.save(x1=x1, x2=x2, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Of x1: the gradient over the distance, times x1 - x2, summed; 0 for a distance of 0."""
        x1, x2, distances = (self.saved(slot) for slot in ("x1", "x2", "result"))
        need_x1, need_x2 = self.needs_input_grad
        ratio = grad / distances.masked_fill(distances == 0, inf)
        return (
            x1 * ratio.sum(-1, keepdim=True) - ratio @ x2 if need_x1 else None,
            x2 * ratio.sum(-2).unsqueeze(-1) - ratio.mT @ x1 if need_x2 else None,
        )


@full_precision
def cdist(
    x1: "Tensor",
    x2: "Tensor",
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> "Tensor":
    """Return the p-norm distances between rows: [..., P, M] and [..., R, M] to [..., P, R].

    A distance of 0 has gradient 0. Forward and backward make no array of all differences; the
    derivative of a gradient does.

    Args:
        x1: rows of real floating point numbers.
        x2: rows of the same size; the dimensions before broadcast.
        p: of the norm; 0 counts the differences, infinity is the largest.
        compute_mode: whether Euclidean distances come from a product of the matrices:
            "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist" or, with more than 25 rows,
            "use_mm_for_euclid_dist_if_necessary". It is faster, and loses digits of distances far
            below the norms of the rows.

    Raises:
        RuntimeError: if the rows differ in size, or are not real floating point numbers.
        ValueError: for another mode.
    """
    for each in (x1, x2):
        if check_tensor(each, "cdist")._array.ndim < 2 or not each.is_floating_point():
            raise RuntimeError(
                f"cdist: real floating point matrices are needed, got a {describe(each)}"
            )
    if x1._array.shape[-1] != x2._array.shape[-1]:
        raise shape_error("cdist", "X1 and X2 must have the same number of columns", x1, x2)
    if not p >= 0:
        raise RuntimeError(f"cdist: p must not be negative, got {p}")
    if compute_mode not in _MODES:
        raise ValueError(
            f"cdist: {compute_mode} is not a valid value for compute_mode: {', '.join(_MODES)}"
        )
    a, b = promote(x1, x2, "cdist")
    try:
        before = np.broadcast_shapes(a._array.shape[:-2], b._array.shape[:-2])
    except ValueError:
        raise shape_error("cdist", "the dimensions before the rows must broadcast", a, b) from None
    uses_product = _MODES[compute_mode]
    if uses_product is None:
        uses_product = max(a._array.shape[-2], b._array.shape[-2]) > _FEW
    return _distances(a, b, float(p), before, p == 2 and uses_product)


def _distances(
    a: "Tensor", b: "Tensor", p: float, before: tuple[int, ...], uses_product: bool
) -> "Tensor":
    dtype = a._array.dtype
    if kernels.is_half(dtype):
        wide = np.dtype(np.float32)
        return cast(_distances(cast(a, wide), cast(b, wide), p, before, uses_product), dtype)
    first, second = (
        each if each._array.shape[:-2] == before else each.expand(*before, *each._array.shape[-2:])
        for each in (a, b)
    )
    return EuclideanDist.apply(first, second) if uses_product else Cdist.apply(first, second, p=p)


def pdist(input: "Tensor", p: float = 2.0) -> "Tensor":
    """Return the distances of all pairs of rows [N, M] by the norm `p`, as [N (N - 1) / 2].

    Raises:
        RuntimeError: for other shapes, or a negative `p`.
    """
    x = real_floating(input, "pdist")
    if x._array.ndim != 2:
        raise RuntimeError(f"pdist: the input must be 2D, got a {describe(x)}")
    if not p >= 0:
        raise RuntimeError(f"pdist: p must not be negative, got {p}")
    above = np.triu(np.ones((len(x),) * 2, np.bool_), 1)
    return _distances(x, x, float(p), (), uses_product=False)[wrap(above)]
