"""Filling, selecting and scattering by masks; indices of nonzero elements."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.broadcasting import broadcast_shape
from offgrad.ops._core.dtypes import (
    as_tensor_of,
    category,
    check_broadcastable,
    check_tensor,
    element,
    shape_error,
)
from offgrad.ops._core.updates import Update
from offgrad.ops._reduction.sums import sum_to_size
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["argwhere", "masked_fill", "masked_scatter", "masked_select", "nonzero"]


class _MaskedUpdate(Update):
    """x changed where a mask that broadcasts is true."""

    @classmethod
    def _may_change(cls, target: "Tensor", inputs: "tuple[Tensor | None, ...]") -> bool:
        if not super()._may_change(target, inputs):
            return False
        shape, mask = target._array.shape, inputs[1]
        return mask is not None and broadcast_shape(shape, mask._array.shape) == shape


class MaskedFill(_MaskedUpdate):
    """x with a number where the mask is true; keeps the mask."""

    is_recomputable = True
    in_place_name = "masked_fill_"

    def forward(self, x: Array, mask: Array, value: Any) -> Array:
        self.setup_context(x, mask, value)
        return filled(x, mask, value)

    def setup_context(self, x: Array, mask: Array, value: Any) -> None:
        self.save(mask=mask)
        self.shape = x.shape

    def change(self, out: Array, mask: Array, value: Any) -> None:
        fill(out, mask, value)

    def backward(self, grad: "Tensor") -> Any:
        """Zero the gradient of filled elements."""
        return sum_to_size(masked_fill(grad, self.saved("mask"), 0), self.shape), None


class MaskedFillTensor(_MaskedUpdate):
    """x with a tensor without dimensions where the mask is true; keeps the mask."""

    is_recomputable = True
    torch_name = "MaskedFillBackward1"
    in_place_name = "masked_fill_"

    def forward(self, x: Array, mask: Array, value: Array) -> Array:
        self.setup_context(x, mask, value)
        return filled(x, mask, value)

    def setup_context(self, x: Array, mask: Array, value: Array) -> None:
        self.save(mask=mask)
        self.shape = x.shape

    def change(self, out: Array, mask: Array, value: Array) -> None:
        fill(out, mask, value)

    def backward(self, grad: "Tensor") -> Any:
        """The value gets the sum over filled elements, x the gradient of the others."""
        need_x, _, need_value = self.needs_input_grad
        mask = self.saved("mask")
        return (
            sum_to_size(masked_fill(grad, mask, 0), self.shape) if need_x else None,
            None,
            masked_fill(grad, ~mask, 0).sum() if need_value else None,
        )


def filled(x: Array, mask: Array, value: Any) -> Array:
    """Return a copy of x with a number where a mask that broadcasts to it is true."""
    out = memory.empty(broadcast_shape(x.shape, mask.shape), x.dtype)
    fill(out, mask, value, x)
    return out


def fill(out: Array, mask: Array, value: Any, x: Array | None = None) -> None:
    """Write a number where a mask is true; elsewhere, leave `out` or write x. Both broadcast."""
    if kernels.is_large(out.size):
        number = np.asarray(value).astype(out.dtype).reshape(())
        kernels.fill_where(out if x is None else x, mask, number, out)
    else:
        if x is not None:
            np.copyto(out, x)
        np.copyto(out, value, where=mask, casting="unsafe")


class MaskedSelect(Op):
    """The elements where the mask is true, as a vector; keeps the mask."""

    def forward(self, x: Array, mask: Array) -> Array:
        self.save(mask=mask)
        self.shape = x.shape
        full = np.broadcast_shapes(x.shape, mask.shape)
        result: Array = np.broadcast_to(x, full)[np.broadcast_to(mask, full)]
        return result

    def backward(self, grad: "Tensor") -> Any:
        mask = self.saved("mask")
        zeros = grad.new_zeros(np.broadcast_shapes(self.shape, mask.shape))
        return sum_to_size(masked_scatter(zeros, mask, grad), self.shape), None


class MaskedScatter(_MaskedUpdate):
    """x with the elements of a source, one after the other, where the mask is true; keeps it."""

    in_place_name = "masked_scatter_"

    def forward(self, x: Array, mask: Array, source: Array) -> Array:
        self.setup_context(x, mask, source)
        out = memory.empty(broadcast_shape(x.shape, mask.shape), x.dtype)
        np.copyto(out, x)
        self.change(out, mask, source)
        return out

    def setup_context(self, x: Array, mask: Array, source: Array) -> None:
        self.save(mask=mask)
        self.shape, self.source_sym_sizes = x.shape, source.shape

    def change(self, out: Array, mask: Array, source: Array) -> None:
        chosen = np.broadcast_to(mask, out.shape)
        out[chosen] = source.reshape(-1)[: np.count_nonzero(chosen)]

    def backward(self, grad: "Tensor") -> Any:
        """The source gets the gradient of its elements, zeros for unused ones; x gets the rest."""
        need_x, _, need_source = self.needs_input_grad
        mask = self.saved("mask")
        grad_source = None
        if need_source:
            grad_selected = masked_select(grad, mask)
            unused = int(np.prod(self.source_sym_sizes)) - grad_selected._array.size
            if unused:
                grad_selected = cat([grad_selected, grad.new_zeros(unused)])
            grad_source = grad_selected.reshape(self.source_sym_sizes)
        return (
            sum_to_size(masked_fill(grad, mask, 0), self.shape) if need_x else None,
            None,
            grad_source,
        )


_ONLY_BOOL = "only supports boolean masks"


def _check_mask(input: "Tensor", mask: "Tensor", where: str) -> None:
    if check_tensor(mask, where)._array.dtype != np.bool_:
        needs = "expected BoolTensor for mask" if where == "masked_select" else _ONLY_BOOL
        raise RuntimeError(f"{where}: {needs}, got a {describe(mask)}; compare it, or .bool()")
    check_broadcastable(where, check_tensor(input, where), mask)


def masked_fill(input: "Tensor", mask: "Tensor", value: Any) -> "Tensor":
    """Return a copy of `input` with `value` where `mask`, a bool tensor, is true.

    Args:
        input: the tensor.
        mask: broadcasts with `input`.
        value: a number, or a tensor without dimensions.

    Raises:
        RuntimeError: if the mask is not bool, or the value does not convert to the dtype.
    """
    _check_mask(input, mask, "masked_fill")
    dtype = input._array.dtype
    if isinstance(value, TensorBase):
        if value._array.ndim:
            raise RuntimeError(
                f"masked_fill only supports a 0-dimensional value tensor, got a {describe(value)}"
            )
        if category(value._array.dtype) == 3 != category(dtype):
            raise RuntimeError(
                "masked_fill: value cannot be converted to type "
                f"{dtype.name} without overflow: it is complex, for a {describe(input)}"
            )
        cast = as_tensor_of(value, dtype, "masked_fill")  # type: ignore[arg-type]
        return MaskedFillTensor.apply(input, mask, cast)
    return MaskedFill.apply(input, mask, value=element(value, dtype, "masked_fill"))


def masked_select(input: "Tensor", mask: "Tensor") -> "Tensor":
    """Return the elements of `input` where `mask`, a bool tensor, is true, as a vector."""
    _check_mask(input, mask, "masked_select")
    return MaskedSelect.apply(input, mask)


def masked_scatter(input: "Tensor", mask: "Tensor", source: "Tensor") -> "Tensor":
    """Return a copy of `input` with the elements of `source`, in order, where `mask` is true.

    Raises:
        RuntimeError: if there are fewer elements than places, or the dtypes differ.
    """
    _check_mask(input, mask, "masked_scatter")
    if check_tensor(source, "masked_scatter")._array.dtype != input._array.dtype:
        raise shape_error(
            "masked_scatter", "expected self and source to have same dtypes", input, source
        )
    full = np.broadcast_shapes(input._array.shape, mask._array.shape)
    places = np.count_nonzero(np.broadcast_to(mask._array, full))
    if not input.is_meta and source._array.size < places:
        raise RuntimeError(
            f"masked_scatter: Number of elements of source < number of ones in mask, {places}, got "
            f"a {describe(source)}"
        )
    return MaskedScatter.apply(input, mask, source)


def nonzero(input: "Tensor", *, as_tuple: bool = False) -> Any:
    """Return where elements are not zero, as indices [count, dimensions].

    With `as_tuple`, a vector for each dimension, in a tuple that can index `input`.
    """
    array = check_tensor(input, "nonzero")._array
    if as_tuple:
        found = np.nonzero(np.atleast_1d(array))
        return tuple([wrap(np.ascontiguousarray(each)) for each in found])
    return wrap(np.argwhere(array))


def argwhere(input: "Tensor") -> "Tensor":
    """Return where elements are not zero, as indices [count, dimensions]."""
    result: Tensor = nonzero(input)
    return result
