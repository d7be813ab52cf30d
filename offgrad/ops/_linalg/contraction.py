"""Sums of products over chosen dimensions, by matrix products."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, metadata
from offgrad.ops._core.broadcasting import (
    conj,
)
from offgrad.ops._core.dims import is_integer, normalize_dim
from offgrad.ops._core.dtypes import check_tensor, shape_error
from offgrad.ops._linalg.products import (
    check_factors,
    dot,
    matmul,
    mm,
)
from offgrad.ops._shape.permuting import broadcast_tensors
from offgrad.ops._shape.reshaping import UnsafeView

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["chain_matmul", "cross", "inner", "kron", "tensordot"]


class LinalgCross(Op):
    """The cross product along a dimension; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array, dim: int) -> Array:
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, other=b if need_a else None)
        self.dim = dim
        out = memory.empty(a.shape, a.dtype)
        out[...] = np.cross(a, b, axis=dim)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """da = conj(b) x g, db = g x conj(a)."""
        need_a, need_b = self.needs_input_grad
        return (
            cross(conj(self.saved("other")), grad, self.dim) if need_a else None,
            cross(grad, conj(self.saved("self")), self.dim) if need_b else None,
        )


def cross(input: "Tensor", other: "Tensor", dim: int | None = None) -> "Tensor":
    """Return the cross product along `dim`, by default the first dimension of size 3.

    Raises:
        RuntimeError: if the size is not 3, or shapes or dtypes do not fit.
    """
    if dim is None:
        sizes = check_tensor(input, "cross")._array.shape
        if 3 not in sizes:
            raise RuntimeError(f"cross: a dimension of size 3 is needed, got a {describe(input)}")
        warn_program(
            "Using torch.cross without specifying the dim arg is deprecated; pass dim, or use "
            "linalg.cross, whose default is the last"
        )
        dim = sizes.index(3)
    return linalg_cross(input, other, dim=dim)


def linalg_cross(input: "Tensor", other: "Tensor", *, dim: int = -1) -> "Tensor":
    """Return the cross product along `dim`; the other dimensions broadcast.

    Raises:
        RuntimeError: if the size is not 3, or shapes or dtypes do not fit.
    """
    check_factors("cross", input, other)
    if input._array.ndim != other._array.ndim:
        raise shape_error("cross", "inputs must have the same number of dimensions", input, other)
    axis = normalize_dim(dim, input._array.ndim, "cross")
    if input._array.ndim == 0 or {input._array.shape[axis], other._array.shape[axis]} != {3}:
        raise shape_error("cross", f"inputs dimension {dim} must have length 3", input, other)
    return LinalgCross.apply(*broadcast_tensors(input, other), dim=axis)


def tensordot(a: "Tensor", b: "Tensor", dims: Any = 2) -> "Tensor":
    """Return the sum of products over dimensions of `a` and as many of `b`.

    Args:
        a: a tensor.
        b: a tensor.
        dims: two sequences of dimensions, of `a` and of `b`; or the number of last ones of `a` and
            first ones of `b`.

    Returns:
        The other dimensions of `a`, then those of `b`.

    Raises:
        RuntimeError: if the sizes, of which 1 broadcasts, differ.
    """
    check_factors("tensordot", a, b)
    if isinstance(dims, TensorBase):
        dims = dims._array.tolist()
    if is_integer(dims):
        count = int(dims)
        if not 0 <= count <= min(metadata(a).ndim, metadata(b).ndim):
            raise shape_error("tensordot", f"{count} dimensions to sum over are needed", a, b)
        dims = range(metadata(a).ndim - count, metadata(a).ndim), range(count)
    elif not isinstance(dims, (tuple, list)):
        raise RuntimeError(f"tensordot: dims must be an integer or two lists, got {dims!r}")
    first, second = (
        [normalize_dim(dim, metadata(each).ndim, "tensordot") for dim in listed]
        for each, listed in zip((a, b), dims, strict=True)
    )
    if len(first) != len(second):
        raise shape_error("tensordot", "both need the same number of dims", a, b)
    for m, n in zip(first, second, strict=True):
        if metadata(a).shape[m] != metadata(b).shape[n]:
            if metadata(a).shape[m] == 1:
                b = b.sum(n, keepdim=True, dtype=b.dtype)
            elif metadata(b).shape[n] == 1:
                a = a.sum(m, keepdim=True, dtype=a.dtype)
            else:
                rule = f"contracted dimensions need to match, {m} of one and {n} of the other"
                raise shape_error("tensordot", rule, a, b)
    rest_a = [axis for axis in range(metadata(a).ndim) if axis not in first]
    rest_b = [axis for axis in range(metadata(b).ndim) if axis not in second]
    left, right = a.permute(rest_a + first), b.permute(second + rest_b)
    inner = prod(metadata(a).shape[axis] for axis in first)
    shape = [metadata(a).shape[axis] for axis in rest_a] + [
        metadata(b).shape[axis] for axis in rest_b
    ]
    if not shape:
        return dot(left.reshape(inner), right.reshape(inner)).reshape(())
    outer_a, outer_b = (
        prod(metadata(each).shape[axis] for axis in rest)
        for each, rest in ((a, rest_a), (b, rest_b))
    )
    return mm(left.reshape(outer_a, inner), right.reshape(inner, outer_b)).reshape(shape)


def inner(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the sum of products over the last dimensions; with a scalar, the product.

    Raises:
        RuntimeError: if the last sizes differ.
    """
    if not metadata(input).ndim or not metadata(other).ndim:
        return input * other
    check_factors("inner", input, other)
    if metadata(input).shape[-1] != metadata(other).shape[-1]:
        raise shape_error("inner", "the last sizes must be equal", input, other)
    return tensordot(input, other, ([-1], [-1]))


def kron(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the Kronecker product: `other` times each element of `input`, in its place."""
    a, b = check_tensor(input, "kron"), check_tensor(other, "kron")
    ndim = max(a._array.ndim, b._array.ndim)
    m, n = ((1,) * (ndim - each._array.ndim) + each._array.shape for each in (a, b))
    left = a.reshape([size for each in m for size in (each, 1)])
    right = b.reshape([size for each in n for size in (1, each)])
    shape = tuple(p * q for p, q in zip(m, n, strict=True))
    return UnsafeView.apply(left * right, shape=shape)


def multi_dot(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return the product of matrices, multiplied in the cheapest order.

    The first may be a vector, taken as a row; the last too, taken as a column.

    Raises:
        RuntimeError: for less than two tensors, or sizes or dtypes that do not fit.
    """
    chain = list(tensors)
    if len(chain) < 2:
        raise RuntimeError(f"multi_dot: at least 2 tensors are needed, got {len(chain)}")
    check_factors("multi_dot", *chain)
    row, column = metadata(chain[0]).ndim == 1, metadata(chain[-1]).ndim == 1
    if row:
        chain[0] = chain[0].unsqueeze(0)
    if column:
        chain[-1] = chain[-1].unsqueeze(1)
    for before, after in pairwise(chain):
        if metadata(before).ndim != 2 or metadata(after).ndim != 2:
            raise shape_error("multi_dot", "matrices are needed", before, after)
        if metadata(before).shape[1] != metadata(after).shape[0]:
            raise shape_error("multi_dot", "the inner sizes must be equal", before, after)
    sizes = [metadata(chain[0]).shape[0], *(metadata(each).shape[1] for each in chain)]
    result = _multiplied(chain, _cheapest(sizes), 0, len(chain) - 1)
    result = result.squeeze(0) if row else result
    return result.squeeze(-1) if column else result


def _cheapest(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Return where to split each product of matrices i to j (Cormen et al., section 14.2)."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return split


def _multiplied(
    chain: "list[Tensor]", split: dict[tuple[int, int], int], i: int, j: int
) -> "Tensor":
    if i == j:
        return chain[i]
    k = split[i, j]
    return matmul(_multiplied(chain, split, i, k), _multiplied(chain, split, k + 1, j))


def chain_matmul(*matrices: "Tensor") -> "Tensor":
    """Return the product of matrices; of a single one the matrix itself."""
    for each in matrices:
        if metadata(check_tensor(each, "chain_matmul")).ndim != 2:
            raise RuntimeError(f"chain_matmul: matrices are needed, got a {describe(each)}")
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)
