"""Checks and helpers of operations on batches of matrices."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.dtypes import category, check_tensor
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["LinAlgError"]


class LinAlgError(RuntimeError):
    """A matrix that an operation cannot work with: singular, not positive-definite, not finite."""


def check_matrices(
    tensor: "Tensor", where: str, square: bool = False, of_lapack: bool = True
) -> "Tensor":
    """Return `tensor`, which must have two dimensions or more and a floating dtype.

    Raises:
        RuntimeError: for fewer dimensions, for matrices that are not square where `square` is set,
            and for dtypes of integers and bools; with `of_lapack` for those that LAPACK lacks.
    """
    array = check_tensor(tensor, where)._array
    if array.ndim < 2:
        raise RuntimeError(f"{where}: A must have at least 2 dimensions, got a {describe(tensor)}")
    if square and array.shape[-1] != array.shape[-2]:
        raise RuntimeError(
            f"{where}: A must be batches of square matrices, got a {describe(tensor)}"
        )
    if category(array.dtype) < 2 or (of_lapack and array.dtype.itemsize < 4):
        raise RuntimeError(
            f"{where}: floating point or complex numbers of 32 bits or more are needed, got a "
            f"{describe(tensor)}; convert it with .float() or .double()"
        )
    return tensor


def check_same_dtype(where: str, a: "Tensor", b: "Tensor") -> None:
    """Raise RuntimeError unless both tensors have one dtype."""
    if a._array.dtype != b._array.dtype:
        raise RuntimeError(
            f"{where}: A and B must have one dtype, got {a._array.dtype.name} and "
            f"{b._array.dtype.name}"
        )


def over_batch(function: Callable[..., tuple[Array, ...]], *arrays: Array) -> tuple[Array, ...]:
    """Return the results of `function` on each matrix of equal batches, stacked.

    For LAPACK's routines that take one matrix. An empty batch, or one without values, is computed
    on an identity, of which the shapes are kept.
    """
    batch = arrays[0].shape[:-2]
    flat = [each.reshape(prod(batch), *each.shape[-2:]) for each in arrays]
    if not flat[0].shape[0] or type(flat[0]) is MetaArray:
        eyes = [np.zeros(each.shape[1:], each.dtype) for each in flat]
        for each in eyes:
            np.fill_diagonal(each, 1)
        results = function(*eyes)
        return tuple(memory.empty((*batch, *each.shape), each.dtype) for each in results)
    rows = [function(*each) for each in zip(*flat, strict=True)]
    return tuple(
        np.stack(column).reshape((*batch, *column[0].shape)) for column in zip(*rows, strict=True)
    )


def lapack(where: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return ``function(*args)``, NumPy's LinAlgError raised as ours."""
    try:
        return function(*args, **options)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise LinAlgError(
            f"{where}: {error}; check the matrices for NaN, infinities and dependent rows"
        ) from None


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the real part of `dtype`."""
    return np.empty(0, dtype).real.dtype


def complex_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the complex dtype whose real part has `dtype`."""
    return np.result_type(dtype, np.complex64)


def eye_like(matrices: "Tensor", size: int) -> "Tensor":
    """Return the identity of `size`, of the dtype of `matrices`."""
    return matrices.new_ones(size).diag()


def tall_eye(eye: "Tensor", rows: int) -> "Tensor":
    """Return a unit matrix [k, k] with zeros below, [rows, k]."""
    k = eye._array.shape[0]
    return cat((eye, eye.new_zeros(rows - k, k)), 0)


def halved_diagonal(matrices: "Tensor") -> "Tensor":
    """Return square matrices with half of their diagonal."""
    size = matrices._array.shape[-1]
    return matrices * (1 - 0.5 * eye_like(matrices, size))
