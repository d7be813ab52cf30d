"""Arguments of the functions of `offgrad.fft`: checks, defaults, lengths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import (
    integer,
    normalize_dim,
)
from offgrad.ops._core.dtypes import (
    cast,
    category,
    check_tensor,
    default_dtype,
)
from offgrad.ops._fft.nodes import INVERSE_NORM
from offgrad.ops._shape.slicing import narrow

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Ints: TypeAlias = int | Sequence[int]


class Geometry(NamedTuple):
    """The dimensions to transform, counted from the front, and the requested length of each.

    None stands for the length of the input, or the one that follows from it.
    """

    dim: tuple[int, ...]
    lengths: tuple[int | None, ...]


class ConstantPadNd(Op):
    """x padded with zeros at the end of dimensions, up to a shape; keeps nothing."""

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        self.shape = x.shape
        out = memory.zeros(shape, x.dtype)
        out[tuple(slice(size) for size in x.shape)] = x
        return out

    def backward(self, grad: "Tensor") -> Any:
        return _truncate(grad, self.shape)


def _truncate(input: "Tensor", shape: tuple[int, ...]) -> "Tensor":
    """Return a view of the first elements along each dimension, at most those of `shape`."""
    for axis, size in enumerate(shape):
        if size < input._array.shape[axis]:
            input = narrow(input, axis, 0, size)
    return input


def resize(input: "Tensor", geometry: Geometry, where: str) -> "Tensor":
    """Return `input` truncated or padded with zeros at the end to the requested lengths.

    Raises:
        RuntimeError: if a signal would have no element.
    """
    shape = list(input._array.shape)
    for axis, length in zip(*geometry, strict=True):
        shape[axis] = shape[axis] if length is None else length
        if shape[axis] < 1:
            raise RuntimeError(
                f"{where}: Invalid number of data points ({shape[axis]}) along dim {axis} for a "
                f"{describe(input)}: at least 1 is needed; pass another length as n or s"
            )
    x = _truncate(input, tuple(shape))
    return x if x._array.shape == tuple(shape) else ConstantPadNd.apply(x, shape=tuple(shape))


def integers(value: Any, where: str, name: str) -> tuple[int, ...]:
    """Return a list or tuple of integers, or an integer alone, as a tuple.

    Raises:
        TypeError: for other values.
    """
    many = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(integer(each, where, name) for each in many)


def dimensions(input: "Tensor", dim: Any, where: str) -> tuple[int, ...]:
    """Return `dim`, one or several, counted from the front.

    Raises:
        IndexError: if there is no such dimension.
    """
    dims = integers(dim, where, "dim")
    if dims and not input._array.ndim:
        raise IndexError(f"{where}: Dimension specified as {dims[0]} but tensor has no dimensions")
    return tuple(normalize_dim(each, input._array.ndim, where) for each in dims)


def one_dim(input: "Tensor", n: int | None, dim: int, where: str) -> Geometry:
    """Return the geometry of a transform of one dimension."""
    x = check_tensor(input, where)
    lengths = (None if n is None else integer(n, where, "n"),)
    return Geometry(dimensions(x, integer(dim, where, "dim"), where), lengths)


def several_dims(input: "Tensor", s: Ints | None, dim: Ints | None, where: str) -> Geometry:
    """Return the geometry of a transform of `dim`.

    By default these are the last dimensions, one for each length; without lengths, all.

    Raises:
        RuntimeError: if a dimension is given twice, or the numbers of dims and lengths differ.
    """
    ndim = check_tensor(input, where)._array.ndim
    lengths = None if s is None else integers(s, where, "s")
    if dim is None:
        axes = tuple(range(ndim))
        if lengths is not None and len(lengths) <= ndim:
            axes = axes[ndim - len(lengths) :]
    else:
        axes = dimensions(input, dim, where)
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"{where}: FFT dims must be unique, got dim={dim}")
    if lengths is None:
        return Geometry(axes, (None,) * len(axes))
    if len(lengths) != len(axes):
        raise RuntimeError(
            f"{where}: dim and shape arguments must have the same length, got s={s} for dim="
            f"{axes} of a {describe(input)}"
        )
    return Geometry(axes, tuple(None if length == -1 else length for length in lengths))


def check_norm(norm: str | None, where: str) -> str:
    """Return `norm`, ``"backward"`` for None.

    Raises:
        TypeError: if `norm` is not a string.
        RuntimeError: for an unknown norm.
    """
    if norm is None:
        return "backward"
    if not isinstance(norm, str):
        raise TypeError(f"{where}: norm must be a string or None, got {norm!r}")
    if norm not in INVERSE_NORM:
        raise RuntimeError(
            f"{where}: Invalid normalization mode: {norm!r}; norm must be one of "
            f"{', '.join(INVERSE_NORM)}"
        )
    return norm


def _transform_dtype(input: "Tensor", where: str) -> np.dtype[Any]:
    """Return the floating point or complex dtype of a transform of `input`."""
    dtype = input._array.dtype
    if category(dtype) < 2:
        dtype = default_dtype()
    if dtype.itemsize < 4:
        raise RuntimeError(
            f"{where} computes in single and double precision, got {dtype.name}; convert with "
            ".float()"
        )
    return dtype


def as_complex(input: "Tensor", where: str) -> "Tensor":
    """Return `input` as a complex tensor of its precision, or the default dtype's for integers.

    Raises:
        RuntimeError: for 16-bit floats.
    """
    return cast(input, np.result_type(_transform_dtype(input, where), np.complex64))


def as_real(input: "Tensor", where: str) -> "Tensor":
    """Return `input`, which is not complex, as a floating point tensor.

    Raises:
        RuntimeError: for complex numbers and 16-bit floats.
    """
    if category(input._array.dtype) == 3:
        raise RuntimeError(
            f"{where} expects a real input tensor, got a {describe(input)}; take its real part, or "
            "transform it as complex"
        )
    return cast(input, _transform_dtype(input, where))


def check_has_dims(geometry: Geometry, where: str) -> None:
    """Raise RuntimeError if there is no dimension to transform."""
    if not geometry.dim:
        raise RuntimeError(f"{where}: a dimension to transform is needed, got none; pass dim")
