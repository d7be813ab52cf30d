"""Comparisons and logic, which are not differentiable, and `where`, which is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from offgrad import kernels, memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    broadcast_shape,
    compute,
    converted,
    operands,
)
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_factor,
    as_tensor_of,
    category,
    check_broadcastable,
    check_ordered,
    check_tensor,
    common_dtype,
    not_implemented,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "allclose",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "equal",
    "ge",
    "greater",
    "greater_equal",
    "gt",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "le",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "ne",
    "not_equal",
    "signbit",
    "where",
]


def _compare(ufunc: Callable[..., Any], a: TensorLike, b: TensorLike, where: str) -> "Tensor":
    x, y, dtype = operands(where, a, b)
    if dtype.kind == "c" and ufunc not in (np.equal, np.not_equal):
        raise not_implemented(where, dtype, "it needs an order, which complex numbers lack")
    arrays = converted(x._array, dtype), converted(y._array, dtype)
    if dtype.kind != "V":
        return wrap(compute(ufunc, *arrays, dtype=np.bool_))
    with np.errstate(invalid="ignore"):  # bfloat16's comparisons report NaN
        return wrap(compute(ufunc, *arrays, dtype=np.bool_))


def compare(ufunc: Callable[..., Any], a: Array, b: Any) -> Array:
    """Return ``ufunc(a, b)``, which compares an array, without a warning of NaN."""
    if a.dtype.kind != "V":
        return ufunc(a, b)  # type: ignore[no-any-return]
    with np.errstate(invalid="ignore"):  # bfloat16's comparisons report NaN
        return ufunc(a, b)  # type: ignore[no-any-return]


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
    x, y, dtype = operands(where, a, b)
    if dtype.kind not in "biu":
        raise not_implemented(where, dtype, "it takes bools and integers")
    return wrap(compute(ufunc, converted(x._array, dtype), converted(y._array, dtype)))


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
            "~ (operator.invert) is only implemented on integer and Boolean-type tensors, got "
            f"{input._array.dtype.name}"
        )
    return wrap(compute(np.invert, input._array))


def logical_not(input: "Tensor") -> "Tensor":
    """Return where `input` is zero, as bool."""
    return wrap(compute(np.logical_not, check_tensor(input, "logical_not")._array, dtype=np.bool_))


def _logical(ufunc: Callable[..., Any], a: "Tensor", b: "Tensor", where: str) -> "Tensor":
    check_broadcastable(where, check_tensor(a, where), check_tensor(b, where))
    return wrap(compute(ufunc, a._array != 0, b._array != 0))


def logical_and(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return where both are nonzero, as bool."""
    return _logical(np.logical_and, input, other, "logical_and")


def logical_or(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return where either is nonzero, as bool."""
    return _logical(np.logical_or, input, other, "logical_or")


def logical_xor(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return where exactly one is nonzero, as bool."""
    return _logical(np.logical_xor, input, other, "logical_xor")


def isnan(input: "Tensor") -> "Tensor":
    """Return where `input` is not a number, as bool."""
    return wrap(np.isnan(check_tensor(input, "isnan")._array))


def isinf(input: "Tensor") -> "Tensor":
    """Return where `input` is infinite, as bool."""
    return wrap(np.isinf(check_tensor(input, "isinf")._array))


def isfinite(input: "Tensor") -> "Tensor":
    """Return where `input` is finite, as bool."""
    return wrap(np.isfinite(check_tensor(input, "isfinite")._array))


def isposinf(input: "Tensor") -> "Tensor":
    """Return where `input` is positive infinity, as bool."""
    check_ordered(check_tensor(input, "isposinf"), "isposinf")
    return wrap(input._array == np.inf)


def isneginf(input: "Tensor") -> "Tensor":
    """Return where `input` is negative infinity, as bool."""
    check_ordered(check_tensor(input, "isneginf"), "isneginf")
    return wrap(input._array == -np.inf)


def isreal(input: "Tensor") -> "Tensor":
    """Return where the imaginary part is zero, as bool: everywhere in real tensors."""
    return wrap(np.isreal(check_tensor(input, "isreal")._array))


def signbit(input: "Tensor") -> "Tensor":
    """Return where the sign bit is set, also that of a zero, as bool."""
    check_ordered(check_tensor(input, "signbit"), "signbit")
    array = input._array
    return wrap(np.signbit(array) if category(array.dtype) == 2 else array < 0)


def isclose(
    input: "Tensor",
    other: "Tensor",
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> "Tensor":
    """Return where ``|input - other| <= atol + rtol * |other|``, as bool.

    Raises:
        RuntimeError: if the dtypes differ, or a tolerance is negative.
    """
    a, b = check_tensor(input, "isclose")._array, check_tensor(other, "isclose")._array
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"isclose needs two tensors of one dtype, got {a.dtype.name} and {b.dtype.name}; "
            "convert one"
        )
    if rtol < 0 or atol < 0:
        name, given = ("rtol", rtol) if rtol < 0 else ("atol", atol)
        raise RuntimeError(f"isclose: {name} must be greater than or equal to zero, got {given}")
    check_broadcastable("isclose", input, other)
    with np.errstate(all="ignore"):
        return wrap(np.isclose(a, b, rtol, atol, equal_nan))


def equal(input: "Tensor", other: "Tensor") -> bool:
    """Return whether the two have the same shape and the same elements."""
    first, second = check_tensor(input, "equal"), check_tensor(other, "equal")
    if first.is_meta or second.is_meta:
        raise NotImplementedError("equal: meta tensors have no values to compare")
    return np.array_equal(first._array, second._array)


def allclose(
    input: "Tensor",
    other: "Tensor",
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Return whether `isclose` holds everywhere."""
    check_broadcastable(
        "allclose", check_tensor(input, "allclose"), check_tensor(other, "allclose")
    )
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


class Where(Broadcasting):
    """a where the condition is true, else b; keeps the condition."""

    def forward(self, condition: Array, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        self.save(condition=condition)
        a, b = self.operands(dtype, a, b)
        shape = broadcast_shape(broadcast_shape(condition.shape, a.shape), b.shape)
        out = memory.empty(shape, dtype)
        kernels.select(condition, a, b, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Pass each element's gradient to the operand it came from."""
        condition = self.saved("condition")
        zero = grad.new_zeros(())
        _, need_a, need_b = self.needs_input_grad
        return (
            None,
            *self.reduced(
                where(condition, grad, zero) if need_a else None,
                where(condition, zero, grad) if need_b else None,
            ),
        )


@overload
def where(condition: "Tensor", input: TensorLike, other: TensorLike) -> "Tensor": ...


@overload
def where(condition: "Tensor") -> "tuple[Tensor, ...]": ...


def where(condition: "Tensor", input: Any = None, other: Any = None) -> Any:
    """Return `input` where `condition`, a bool tensor, is true, and `other` elsewhere.

    Without these return the indices where it is true, one tensor for each dimension.

    Raises:
        RuntimeError: if the condition is not a bool tensor.
    """
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if check_tensor(condition, "where")._array.dtype == np.uint8:
        warn_program("where received a uint8 condition, which is deprecated; use a bool tensor")
        condition = ne(condition, 0)
    if condition._array.dtype != np.bool_:
        raise RuntimeError(
            "where expected condition to be a boolean tensor, got "
            f"{condition._array.dtype.name}; compare it, or .bool()"
        )
    if isinstance(input, TensorBase) or isinstance(other, TensorBase):
        a, b, dtype = operands("where", input, other)
    else:
        dtype = common_dtype(input, other)
        a, b = as_tensor_of(input, dtype, "where"), as_tensor_of(other, dtype, "where")
    for each in (input, other):
        if not isinstance(each, TensorBase):
            as_factor(each, dtype, "where")  # raises if it does not fit
    check_broadcastable("where", condition, a, b)
    return Where.apply(condition, a, b, dtype=dtype)


greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne
