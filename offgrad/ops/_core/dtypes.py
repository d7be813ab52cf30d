"""Conversion of arguments to tensors, and PyTorch's type promotion."""

import itertools
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offgrad import kernels, memory
from offgrad._dtype import type_name
from offgrad._warning import warn_program
from offgrad.autograd.op import Op
from offgrad.autograd.tensor_base import (
    TensorBase,
    describe,
    is_differentiable,
    metadata,
    wrap,
)
from offgrad.memory import Storage
from offgrad.memory.meta import meters

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["cast"]

Scalar: TypeAlias = "bool | int | float | complex"
TensorLike: TypeAlias = "Tensor | bool | int | float | complex"

_default_dtype = np.dtype(np.float32)
_has_warned_of_complex = False


def default_dtype() -> np.dtype[Any]:
    """Return the dtype of tensors made from Python floats."""
    return _default_dtype


def change_default_dtype(dtype: np.dtype[Any]) -> None:
    """Set the dtype of tensors made from Python floats.

    Raises:
        TypeError: if `dtype` is not a floating point type.
    """
    global _default_dtype
    if dtype.kind == "c" or not is_differentiable(dtype):
        raise TypeError(
            f"only floating-point types are supported as the default type, got {dtype.name}"
        )
    _default_dtype = dtype


def category(dtype: np.dtype[Any]) -> int:
    """Return the promotion category: 0 bool, 1 integer, 2 floating point, 3 complex."""
    kind = dtype.kind
    if kind == "f" or kind == "V":  # V: ml_dtypes' bfloat16 and float8
        return 2
    try:
        return {"b": 0, "i": 1, "u": 1, "c": 3}[kind]
    except KeyError:
        raise TypeError(f"dtype must be one of numbers or bool, got {dtype}") from None


def promote_dtypes(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to which PyTorch promotes two tensors with dimensions, or two without.

    Raises:
        RuntimeError: for uint16, uint32 and uint64 next to integers, bools or complex numbers.
    """
    if a == b:
        return a
    category_a, category_b = category(a), category(b)
    if 2 in (category_a if a.itemsize == 1 else 0, category_b if b.itemsize == 1 else 0):
        raise RuntimeError(
            f"promotion for Float8 types is not supported, got {a.name} and {b.name}; convert one"
        )
    if {category_a, category_b} == {2, 3}:
        return np.promote_types(a, _complex_of(b)) if category_a == 3 else promote_dtypes(b, a)
    for each, partner in ((a, category_b), (b, category_a)):
        if each.kind == "u" and each.itemsize > 1 and partner != 2:
            raise RuntimeError(
                "promotion for uint16, uint32 and uint64 types is not supported, got "
                f"{a.name} and {b.name}; convert one of them"
            )
    if category_a == category_b:
        if "bfloat16" in (a.name, b.name):
            other = b if a.name == "bfloat16" else a
            return np.dtype(np.float32) if other.itemsize <= 2 else other
        return np.promote_types(a, b)
    # Floating point takes precedence over integers of any width.
    return a if category_a > category_b else b


def _scalar_dtype(value: Any, like: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a Python number next to a tensor of dtype `like`."""
    if isinstance(value, (bool, np.bool_)):
        return like  # also next to bools
    if isinstance(value, (int, np.integer)):
        return like if category(like) >= 1 else np.dtype(np.int64)
    if isinstance(value, (float, np.floating)):
        return like if category(like) >= 2 else _default_dtype
    return like if category(like) == 3 else _complex_of(like)


def _complex_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the complex dtype with parts like `dtype`, or of the default dtype for integers."""
    real = dtype if category(dtype) == 2 else _default_dtype
    return np.dtype(np.complex128 if real == np.float64 else np.complex64)


def common_dtype(*operands: Any) -> np.dtype[Any]:
    """Return the dtype to which PyTorch promotes `operands`.

    Tensors with dimensions decide. A tensor without dimensions, or a number, changes the dtype only
    if its category (bool, integer, floating point, complex) is higher.
    """
    dimensioned: np.dtype[Any] | None = None
    zero_dim: np.dtype[Any] | None = None
    numbers = []
    for each in operands:
        if isinstance(each, TensorBase):
            dtype = metadata(each).dtype
            if metadata(each).ndim:
                dimensioned = dtype if dimensioned is None else promote_dtypes(dimensioned, dtype)
            else:
                zero_dim = dtype if zero_dim is None else promote_dtypes(zero_dim, dtype)
        else:
            numbers.append(each)
    result = dimensioned
    if zero_dim is not None and (result is None or category(zero_dim) > category(result)):
        floats = result is not None and category(result) == 2
        result = _complex_of(result) if floats and result is not None else zero_dim
    for number in numbers:
        result = _scalar_dtype(number, np.dtype(np.bool_) if result is None else result)
    assert result is not None
    return result


_ALWAYS_FITS = 65504  # the largest float16: all floating point dtypes have it


def as_tensor_of(value: TensorLike, dtype: np.dtype[Any], where: str) -> "Tensor":
    """Return `value` as a tensor of `dtype`; the conversion of a tensor is recorded.

    A number becomes a wrapped number, which stays with the node that saves it.
    """
    if isinstance(value, TensorBase):
        if value._array.dtype == dtype:
            return value
        return Cast.apply(value, dtype=dtype)
    number = wrap(number_array(value, dtype, where))
    number._is_wrapped_number = True
    return number


def shared_number(value: float, dtype: np.dtype[Any], where: str) -> "Tensor":
    """Return a number as `as_tensor_of` does, shared by all operations on it and small tensors.

    Its memory is read-only, and not counted.
    """
    if meters or not value or not -_ALWAYS_FITS <= value <= _ALWAYS_FITS:  # 0.0 equals -0.0
        return as_tensor_of(value, dtype, where)
    return _cached_number(value, dtype)


@lru_cache(maxsize=1024, typed=True)
def _cached_number(value: float, dtype: np.dtype[Any]) -> "Tensor":
    array = number_array(value, dtype, "")
    array.setflags(write=False)
    number = wrap(array, Storage.of_nothing(array))
    number._is_wrapped_number = True
    return number


def number_array(value: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return a number as an array without dimensions of `dtype`, as an operand.

    Integers wrap around, floating point numbers become infinite.
    """
    if isinstance(value, int) and dtype.kind in "iu":
        value = _wrap_around(check_operand(value, where), dtype)
    elif isinstance(value, complex) and dtype.kind not in "cb":
        value = real_part(np.asarray(value)).item()
    if isinstance(value, (int, float)) and -_ALWAYS_FITS <= value <= _ALWAYS_FITS:
        return np.asarray(value, dtype)
    number = check_operand(value, where)
    if isinstance(number, int) and category(dtype) >= 2:
        number = float(number)  # 16-bit dtypes of ml_dtypes take no integers above 64 bits
    with np.errstate(over="ignore"):
        return np.asarray(number, dtype)


def element(value: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return a number as an array without dimensions of `dtype`, to be stored in a tensor.

    A negative number wraps around in an unsigned dtype, as in PyTorch.

    Raises:
        TypeError: if `value` is not a number.
        RuntimeError: if it does not fit into the dtype, its imaginary part included.
    """
    if dtype.kind == "f" and type(value) in (int, float) and abs(value) <= _ALWAYS_FITS:
        return np.asarray(value, dtype)
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        raise TypeError(f"{where}: the value must be a number, got {type(value).__name__}")
    real: Any = value
    if isinstance(value, (complex, np.complexfloating)) and dtype.kind not in "cb":
        real = None if value.imag else value.real
    if dtype.kind in "iu":
        lowest, highest = _int_limits(dtype)
        if dtype.kind == "u" and isinstance(real, (int, np.integer)):
            lowest = -highest
        fits = real is not None and lowest <= real <= highest
        real = _wrap_around(int(real), dtype) if fits else None
    elif category(dtype) >= 2 and real is not None:
        with np.errstate(over="ignore"):
            result = np.asarray(complex(real) if dtype.kind == "c" else float(real)).astype(dtype)
        real = None if np.isinf(result) and not np.isinf(complex(real)) else real
    if real is None:
        raise RuntimeError(
            f"{where}: value cannot be converted to type {dtype.name} without overflow: {value!r} "
            "does not fit"
        )
    return np.asarray(real).astype(dtype)


def number_of(value: Any, where: str) -> Any:
    """Return the number of a tensor of one element; all else as it is.

    Raises:
        TypeError: for a tensor of more elements, or none.
    """
    if not isinstance(value, TensorBase):
        return value
    if value._array.size != 1:
        raise TypeError(f"{where}: the factor must be a number, got a {describe(value)}")
    return value._array.item()


def from_old(where: str, count: int, names: tuple[str, ...], *given: Any) -> list[Any]:
    """Return the arguments of an old form, numbers before tensors, in today's order, and warn.

    Such as ``add(x, alpha, y)``, ``addmm(beta, x, alpha, a, b)`` and ``x.addmm_(beta, a, b)``.

    Args:
        where: the operation.
        count: of its tensors.
        names: of its numbers, in their order; those that are left out are 1.
        *given: the arguments.

    Raises:
        TypeError: for another number of tensors, or more numbers.
    """
    tensors = [each for each in given if isinstance(each, TensorBase)]
    numbers = [each for each in given if not isinstance(each, TensorBase)]
    keywords = " and ".join(f"{name}=" for name in names)
    if len(tensors) != count or len(numbers) > len(names):
        raise TypeError(
            f"{where} takes {count} tensors, and numbers as {keywords}, got {len(tensors)} tensors "
            f"and {len(numbers)} numbers"
        )
    warn_program(f"{where} takes numbers as {keywords}; the old form is deprecated")
    return [*tensors, *numbers, *[1] * (len(names) - len(numbers))]


def as_factor(value: Any, dtype: np.dtype[Any], where: str) -> Any:
    """Return a factor of elements of `dtype`, a number or a tensor without dimensions.

    Of integers as `element` returns it.
    """
    value = number_of(value, where)
    return element(value, dtype, where).item() if dtype.kind in "iu" else value


def _wrap_around(value: int, dtype: np.dtype[Any]) -> int:
    """Return `value` wrapped around into the range of an integer dtype, as in PyTorch."""
    low, high = _int_limits(dtype)
    if low <= value <= high:
        return value
    return int((value - low) % 2 ** (8 * dtype.itemsize) + low)


@cache
def _int_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the lowest and the highest number of an integer dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def check_operand(value: Any, where: str) -> Any:
    """Return `value`, which must be a tensor or a number.

    Raises:
        TypeError: for all else.
        OverflowError: for an int that is neither an int64 nor a uint64.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise OverflowError(
            f"{where}: int too big to convert, the number must fit into 64 bits, got {value}; "
            "pass a float"
        )
    if not isinstance(value, (TensorBase, bool, int, float, complex, np.generic)):
        raise TypeError(
            f"{where} takes tensors and numbers, got {_class_of(value)}; convert it with "
            "offgrad.tensor()"
        )
    return value


def _class_of(value: Any) -> str:
    """Return the name of a class for a message. PyTorch's `Tensor` is told from ours."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch":
        return kind.__name__
    return f"PyTorch's {kind.__name__} (offgrad.from_dlpack shares its memory)"


def promote(a: TensorLike, b: TensorLike, where: str) -> "tuple[Tensor, Tensor]":
    """Return both operands as tensors of their common dtype."""
    if isinstance(a, TensorBase) and isinstance(b, TensorBase) and a._array.dtype == b._array.dtype:
        return a, b
    for each in (a, b):
        check_operand(each, where)
    dtype = common_dtype(a, b)
    return as_tensor_of(a, dtype, where), as_tensor_of(b, dtype, where)


def floating(input: TensorLike, where: str) -> "Tensor":
    """Return `input` as a floating point or complex tensor: integers become the default dtype."""
    if not isinstance(input, TensorBase):
        raise TypeError(f"{where} takes a tensor, got {_class_of(input)}")
    if category(metadata(input).dtype) >= 2:
        return input
    return as_tensor_of(input, _default_dtype, where)


def real_floating(input: TensorLike, where: str) -> "Tensor":
    """Return `input`, which must be a tensor of real floating point numbers.

    Raises:
        NotImplementedError: for other dtypes.
    """
    tensor = check_tensor(input, where)
    if category(metadata(tensor).dtype) != 2:
        raise NotImplementedError(
            f"{where} is defined for real floating point numbers, got a {describe(tensor)}; "
            "convert with .float()"
        )
    return tensor


def check_tensor(value: Any, where: str) -> "Tensor":
    """Return `value`, which must be a tensor."""
    if not isinstance(value, TensorBase):
        raise TypeError(f"{where} takes a tensor, got {_class_of(value)}")
    return value  # type: ignore[return-value]


def real_part(array: NDArray[Any]) -> NDArray[Any]:
    """Return the real part of a complex array, a view.

    Warn that the imaginary part is lost, once in the process, as PyTorch does.
    """
    global _has_warned_of_complex
    if not _has_warned_of_complex and array.size:
        _has_warned_of_complex = True
        warn_program(
            "Casting complex values to real discards their imaginary part; use .real if you mean it"
        )
    return array.real


def converted_array(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array` as `dtype`; itself if it has that dtype."""
    if array.dtype.kind == "c" and dtype.kind not in "cb":
        return real_part(array).astype(dtype)
    return array.astype(dtype, copy=False)


class Cast(Op):
    """Conversion to another dtype; complex to real drops the imaginary part, in both directions."""

    is_recomputable = True
    is_elementwise = True

    torch_name = "ToCopyBackward0"

    def forward(
        self, x: NDArray[Any], dtype: np.dtype[Any], is_gradient: bool = False
    ) -> NDArray[Any]:
        self.dtype = x.dtype
        if x.dtype.kind == "c" and dtype.kind not in "cb":
            # The gradient of a real number is real.
            x = x.real if is_gradient else real_part(x)
        out = memory.empty(x.shape, dtype)
        kernels.convert(x, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return cast_gradient(grad, self.dtype)


def cast(input: "Tensor", dtype: Any) -> "Tensor":
    """Return `input` converted to `dtype`; `input` itself if it has that dtype."""
    dtype = np.dtype(dtype)
    if metadata(input).dtype == dtype:
        return input
    return Cast.apply(input, dtype=dtype)


def cast_gradient(grad: "Tensor", dtype: np.dtype[Any]) -> "Tensor":
    """Return `grad` as the gradient of a tensor of `dtype`: of a real one, without the imaginary
    part.
    """
    if metadata(grad).dtype == dtype:
        return grad
    return Cast.apply(grad, dtype=dtype, is_gradient=True)


def check_ordered(
    tensor: TensorBase, where: str, error: type[Exception] = NotImplementedError
) -> None:
    """Raise `error` for complex numbers, which have no order."""
    if tensor._array.dtype.kind == "c":
        reason = f"{where}(): does not support complex input, which has no order"
        raise error(str(not_implemented(where, tensor._array.dtype, reason)))


def check_not_bool(
    tensor: TensorBase, where: str, error: type[Exception] = NotImplementedError
) -> None:
    """Raise `error` for bools, for which PyTorch lacks some operations."""
    if tensor._array.dtype == np.bool_:
        raise error(f"\"{where}\" not implemented for 'Bool'; convert to a number")


def not_implemented(where: str, dtype: np.dtype[Any], reason: str) -> NotImplementedError:
    """Return the error for a dtype that an operation does not take."""
    return NotImplementedError(f"\"{where}\" not implemented for '{type_name(dtype)}': {reason}")


def check_broadcastable(where: str, *tensors: TensorBase) -> None:
    """Raise RuntimeError unless the shapes broadcast."""
    shapes = [metadata(each).shape for each in tensors]
    try:
        if shapes.count(shapes[0]) < len(shapes):
            np.broadcast_shapes(*shapes)
    except ValueError:
        raise not_broadcastable(where, *tensors) from None


def not_broadcastable(where: str, *tensors: TensorBase) -> RuntimeError:
    """Return the error for shapes that do not broadcast."""
    rule = "shapes must be equal, or 1 where they differ, counted from the last dimension"
    for first, second in itertools.pairwise(tensors):
        a, b = first._array.shape, second._array.shape
        for back, (m, n) in enumerate(zip(reversed(a), reversed(b), strict=False), 1):
            if m != n and 1 not in (m, n):
                rule += (
                    f". The size of tensor a ({m}) must match the size of tensor b ({n}) at "
                    f"non-singleton dimension {max(len(a), len(b)) - back}"
                )
                return shape_error(where, rule, *tensors)
    return shape_error(where, rule, *tensors)


def shape_error(where: str, rule: str, *tensors: TensorBase) -> RuntimeError:
    """Return the error for shapes that break `rule`."""
    return RuntimeError(f"{where}: {rule}, got {' and '.join(describe(each) for each in tensors)}")
