"""Reductions made of others: variance, norms, log-sum-exp."""

from math import prod as product
from typing import TYPE_CHECKING

import numpy as np

from offgrad.autograd.tensor_base import wrap
from offgrad.ops.convert import floating, get_default_dtype
from offgrad.ops.reduce import Dim, amax, amin, mean, normalize_dims, sum

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


def var(input: "Tensor", dim: Dim = None, correction: float = 1, keepdim: bool = False) -> "Tensor":
    """Return the variance over `dim`: squared distances from the mean over ``n - correction``."""
    x = floating(input, "var")
    dims = normalize_dims(dim, x._array.ndim, "var")
    centred = x - mean(x, dims, keepdim=True) if dims else x - x
    n = product(x._array.shape[axis] for axis in dims)
    squares = (centred * centred.conj()).real if x._array.dtype.kind == "c" else centred * centred
    freedom = n - correction
    total = sum(squares, dims, keepdim) if dims else squares
    return total / (freedom if freedom > 0 else 0.0)


def std(input: "Tensor", dim: Dim = None, correction: float = 1, keepdim: bool = False) -> "Tensor":
    """Return the standard deviation over `dim`: the square root of `var`."""
    return var(input, dim, correction, keepdim).sqrt()


def logsumexp(input: "Tensor", dim: Dim, keepdim: bool = False) -> "Tensor":
    """Return ``log(sum(exp(input)))`` over `dim`, without overflow."""
    x = floating(input, "logsumexp")
    dims = normalize_dims(dim, x._array.ndim, "logsumexp")
    if not dims:
        return x.clone()
    if not product(x._array.shape[axis] for axis in dims):
        return sum(x.exp(), dims, keepdim).log()
    top = amax(x.detach(), dims, keepdim=True)
    top = top.masked_fill(wrap(~np.isfinite(top._array)), 0)
    result = (x - top).exp().sum(dims, keepdim=True).log() + top
    return result if keepdim else result.squeeze(dims)


def norm(input: "Tensor", p: float | str = 2, dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return the p-norm of the elements over `dim`; the gradient of a zero norm is zero."""
    from offgrad.ops.compare import where

    x = floating(input, "norm")
    if p in ("fro", 2):
        squares = (x * x.conj()).real if x._array.dtype.kind == "c" else x * x
        total = sum(squares, dim, keepdim)
        zero = total == 0
        root = where(zero, total.new_ones(()), total).sqrt()
        return where(zero, total * 0, root)
    if p == float("inf"):
        return amax(x.abs(), dim, keepdim)
    if p == float("-inf"):
        return amin(x.abs(), dim, keepdim)
    if p == 1:
        return sum(x.abs(), dim, keepdim)
    if p == 0:
        return sum((x != 0).to(get_default_dtype()), dim, keepdim)
    if not isinstance(p, int | float):
        raise ValueError(f"norm: p must be a number, 'fro' or inf, got {p!r}")
    total = sum(x.abs() ** p, dim, keepdim)
    zero = total == 0
    root = where(zero, total.new_ones(()), total) ** (1 / p)
    return where(zero, total * 0, root)
