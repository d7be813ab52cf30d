"""Comparisons and logic, which are not differentiable, and `where`, which is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops.arithmetic import compute
from offgrad.ops.convert import (
    TensorLike,
    as_tensor_of,
    check_broadcastable,
    check_ordered,
    check_tensor,
    promote,
    result_type,
)
from offgrad.ops.reduce import sum_to_size

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


def _compare(ufunc: Callable[..., Any], a: TensorLike, b: TensorLike, where: str) -> "Tensor":
    x, y = promote(a, b, where)
    check_broadcastable(where, x, y)
    if ufunc not in (np.equal, np.not_equal):
        check_ordered(x, where)
    return wrap(compute(ufunc, x._array, y._array, dtype=np.bool_))


def eq(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where the two are equal, as bool."""
    return _compare(np.equal, input, other, "eq")


def ne(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where the two differ, as bool."""
    return _compare(np.not_equal, input, other, "ne")


def lt(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where `input` is less, as bool."""
    return _compare(np.less, input, other, "lt")


def le(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where `input` is less or equal, as bool."""
    return _compare(np.less_equal, input, other, "le")


def gt(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where `input` is greater, as bool."""
    return _compare(np.greater, input, other, "gt")


def ge(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return where `input` is greater or equal, as bool."""
    return _compare(np.greater_equal, input, other, "ge")


def _bits(ufunc: Callable[..., Any], a: TensorLike, b: TensorLike, where: str) -> "Tensor":
    x, y = promote(a, b, where)
    if x._array.dtype.kind not in "biu":
        raise RuntimeError(
            f"{where} is defined for bool and integer tensors, got {x._array.dtype.name}"
        )
    check_broadcastable(where, x, y)
    return wrap(compute(ufunc, x._array, y._array))


def bitwise_and(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input & other`` of bools or integers."""
    return _bits(np.bitwise_and, input, other, "bitwise_and")


def bitwise_or(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input | other`` of bools or integers."""
    return _bits(np.bitwise_or, input, other, "bitwise_or")


def bitwise_xor(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input ^ other`` of bools or integers."""
    return _bits(np.bitwise_xor, input, other, "bitwise_xor")


def bitwise_not(input: "Tensor") -> "Tensor":
    """Return ``~input`` of bools or integers."""
    if check_tensor(input, "bitwise_not")._array.dtype.kind not in "biu":
        raise TypeError(
            f"bitwise_not is defined for bool and integer tensors, got {input._array.dtype.name}"
        )
    return wrap(compute(np.invert, input._array))


def logical_not(input: "Tensor") -> "Tensor":
    """Return where `input` is zero, as bool."""
    return wrap(compute(np.logical_not, check_tensor(input, "logical_not")._array, dtype=np.bool_))


def logical_and(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return where both are nonzero, as bool."""
    check_broadcastable("logical_and", input, other)
    return wrap(compute(np.logical_and, input._array, other._array, dtype=np.bool_))


def logical_or(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return where either is nonzero, as bool."""
    check_broadcastable("logical_or", input, other)
    return wrap(compute(np.logical_or, input._array, other._array, dtype=np.bool_))


def isnan(input: "Tensor") -> "Tensor":
    """Return where `input` is not a number, as bool."""
    return wrap(np.isnan(check_tensor(input, "isnan")._array))


def isinf(input: "Tensor") -> "Tensor":
    """Return where `input` is infinite, as bool."""
    return wrap(np.isinf(check_tensor(input, "isinf")._array))


def isfinite(input: "Tensor") -> "Tensor":
    """Return where `input` is finite, as bool."""
    return wrap(np.isfinite(check_tensor(input, "isfinite")._array))


def equal(input: "Tensor", other: "Tensor") -> bool:
    """Return whether the two have the same shape and the same elements."""
    return np.array_equal(input._array, other._array)


def allclose(
    input: "Tensor",
    other: "Tensor",
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Return whether ``|input - other| <= atol + rtol * |other|`` everywhere."""
    return np.allclose(input._array, other._array, rtol, atol, equal_nan)


class Where(Op):
    """a where the condition holds, else b; keeps the condition."""

    def forward(self, condition: Array, a: Array, b: Array) -> Array:
        """Return the mixture."""
        self.save(condition=condition)
        self.shapes = a.shape, b.shape
        out = memory.empty(np.broadcast_shapes(condition.shape, a.shape, b.shape), a.dtype)
        np.copyto(out, b)
        np.copyto(out, a, where=condition)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Give each element's gradient to where it came from."""
        condition = self.saved("condition")
        zero = grad.new_zeros(())
        _, need_a, need_b = self.needs_input_grad
        return (
            None,
            sum_to_size(where(condition, grad, zero), self.shapes[0]) if need_a else None,
            sum_to_size(where(condition, zero, grad), self.shapes[1]) if need_b else None,
        )


def where(condition: "Tensor", input: TensorLike, other: TensorLike) -> "Tensor":
    """Return `input` where `condition`, a bool tensor, holds, and `other` elsewhere.

    Raises:
        TypeError: if the condition is not a bool tensor.
    """
    if check_tensor(condition, "where")._array.dtype != np.bool_:
        raise TypeError(f"where needs a bool condition, got {condition._array.dtype.name}")
    if isinstance(input, TensorBase) or isinstance(other, TensorBase):
        a, b = promote(input, other, "where")
    else:
        dtype = result_type(input, other)
        a, b = as_tensor_of(input, dtype, "where"), as_tensor_of(other, dtype, "where")
    check_broadcastable("where", condition, a, b)
    return Where.apply(condition, a, b)
