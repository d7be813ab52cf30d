"""Elementwise maximum and minimum, and values limited to a range."""

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    compute,
    converted,
    operands,
)
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_tensor_of,
    cast,
    check_broadcastable,
    check_operand,
    check_ordered,
    check_tensor,
    common_dtype,
    element,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import compare

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "clamp",
    "clamp_",
    "clamp_max",
    "clamp_max_",
    "clamp_min",
    "clamp_min_",
    "clip",
    "clip_",
    "fmax",
    "fmin",
    "maximum",
    "minimum",
    "nan_to_num",
    "nan_to_num_",
]


class Extremum(Broadcasting):
    """The larger or smaller of two; keeps both.

    Equal elements get half the gradient each; if one is NaN, both get all of it. fmax and fmin
    ignore NaN: their gradient goes to the element they return, the first of equal ones.
    """

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], ufunc: Any) -> Array:
        self.ufunc = ufunc
        self.save(self=a, other=b)
        return compute(ufunc, *self.operands(dtype, a, b))

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to the larger or smaller element."""
        a, b = self.saved("self")._array, self.saved("other")._array
        need_a, need_b = self.needs_input_grad
        if self.ufunc in (np.fmax, np.fmin):
            wins = np.greater_equal if self.ufunc is np.fmax else np.less_equal
            first = compare(wins, a, b) | np.isnan(b)
            loses_a, loses_b = ~first, first
        else:
            less, greater = compare(np.less, a, b), compare(np.greater, a, b)
            loses_a, loses_b = (less, greater) if self.ufunc is np.maximum else (greater, less)
            tie = a == b
            if tie.any():
                grad = grad * wrap(np.where(tie, 0.5, 1.0).astype(grad._array.dtype))
        return self.reduced(
            grad.masked_fill(wrap(loses_a), 0) if need_a else None,
            grad.masked_fill(wrap(loses_b), 0) if need_b else None,
        )


class Clamp(Op):
    """x limited to numbers; keeps x. The gradient is 1 inside, bounds included, else 0."""

    is_recomputable = True

    def forward(self, x: Array, min: Any, max: Any, dtype: np.dtype[Any]) -> Array:
        """Return the limited values; NaN stays."""
        self.min, self.max, self.dtype = min, max, x.dtype
        self.save(self=x)
        low = None if min is None else element(min, dtype, "clamp")
        high = None if max is None else element(max, dtype, "clamp")
        if dtype.kind == "f":  # NumPy's clip is twice as fast with both bounds
            low = dtype.type(-np.inf) if low is None else low
            high = dtype.type(np.inf) if high is None else high
        out = memory.empty(x.shape, dtype)
        source = converted(x, dtype)
        kernels.clip(source, out, low, high)
        return out

    def backward(self, grad: "Tensor") -> Any:
        bounds = {"min": self.min, "max": self.max}
        return cast(ClampBackward.apply(grad, self.saved("self"), **bounds), self.dtype)


class ClampBackward(Op):
    """A gradient where x is within numbers, else 0, in one pass; keeps x."""

    torch_name = "WhereBackward0"
    is_elementwise = True

    def forward(self, grad: Array, x: Array, min: Any, max: Any) -> Array:
        self.min, self.max = min, max
        self.save(self=x)
        out = memory.empty(grad.shape, grad.dtype)
        flat = memory.contiguous(x).reshape(-1)

        def inside(start: int, stop: int) -> Array:
            part = flat[start:stop]
            mask: Array = part <= max if min is None else part >= min
            return mask if min is None or max is None else mask & (part <= max)

        kernels.keep_where(memory.contiguous(grad), inside, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        bounds = {"min": self.min, "max": self.max}
        return ClampBackward.apply(grad, self.saved("self"), **bounds), None


class ClampTensor(Broadcasting):
    """x limited by tensors, one of which may be None; keeps all.

    The gradient goes to x within the bounds, these included, else to the bound.
    """

    def forward(
        self,
        x: Array,
        low: Array | None,
        high: Array | None,
        dtype: np.dtype[Any],
    ) -> Array:
        """Return the limited values; `high` where it is below `low`, NaN where any is NaN."""
        self.save(self=x, min=low, max=high)
        present = [each for each in (x, low, high) if each is not None]
        arrays = iter(self.operands(dtype, *present))
        out = next(arrays)
        if low is not None:
            out = compute(np.maximum, out, next(arrays))
        return out if high is None else compute(np.minimum, out, next(arrays))

    def backward(self, grad: "Tensor") -> Any:
        x = self.saved("self")._array
        low = self.saved("min")._array if "min" in self._saved else None
        high = self.saved("max")._array if "max" in self._saved else None
        inside: Any = np.True_
        masks = []
        if low is not None:
            inside = inside & compare(np.greater_equal, x, low)
            is_lower = True if high is None else compare(np.less, low, high)
            masks.append(compare(np.less, x, low) & is_lower)
        if high is not None:
            inside = inside & compare(np.less_equal, x, high)
            is_lower = False if low is None else compare(np.less, high, low)
            masks.append(compare(np.greater, x, high) | is_lower)
        grads = iter(self.reduced(*[grad.masked_fill(wrap(~mask), 0) for mask in (inside, *masks)]))
        return (
            next(grads),
            None if low is None else next(grads),
            None if high is None else next(grads),
        )


class NanToNum(Op):
    """x with NaN and infinities replaced; keeps x. Replaced elements get gradient 0."""

    is_recomputable = True

    def forward(self, x: Array, nan: float, posinf: float | None, neginf: float | None) -> Array:
        self.save(self=x)
        result = out = memory.copy(x)
        if x.dtype.kind == "c":  # each part by itself
            out = result.reshape(-1).view(result.real.dtype)
            x = out.copy()
        np.copyto(out, x.dtype.type(nan), where=np.isnan(x))
        limits = None if x.dtype.kind in "biu" else _finite_limits(x.dtype)
        if limits is not None:
            low, high = limits
            np.copyto(out, x.dtype.type(high if posinf is None else posinf), where=x == np.inf)
            np.copyto(out, x.dtype.type(low if neginf is None else neginf), where=x == -np.inf)
        return result

    def backward(self, grad: "Tensor") -> Any:
        return grad.masked_fill(wrap(~np.isfinite(self.saved("self")._array)), 0)


def _finite_limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the lowest and highest finite number of a floating point dtype."""
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return info.min, info.max
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return info.min, info.max


def _extremum(where: str, input: "Tensor", other: "Tensor", ufunc: Any) -> "Tensor":
    a, b, dtype = operands(where, check_tensor(input, where), check_tensor(other, where))
    check_ordered(a, where)
    check_ordered(b, where)
    name = f"{where.capitalize()}Backward0"
    return Extremum.named(name).apply(a, b, dtype=dtype, ufunc=ufunc)


def maximum(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise maximum of two tensors; NaN if either is."""
    return _extremum("maximum", input, other, np.maximum)


def minimum(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise minimum of two tensors; NaN if either is."""
    return _extremum("minimum", input, other, np.minimum)


def fmax(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise maximum of two tensors; the other one where one is NaN."""
    return _extremum("fmax", input, other, np.fmax)


def fmin(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise minimum of two tensors; the other one where one is NaN."""
    return _extremum("fmin", input, other, np.fmin)


def _clamp(where: str, input: "Tensor", low: Any, high: Any) -> "Tensor":
    name = "".join(part.capitalize() for part in where.split("_"))
    x = check_tensor(input, where)
    bounds = [each for each in (low, high) if each is not None]
    for each in bounds:
        check_operand(each, where)
    check_ordered(x, where)
    dtype = common_dtype(x, *bounds)
    of_numbers = not any(isinstance(each, TensorBase) for each in bounds)
    if dtype.kind == "c" or (dtype.kind == "b" and of_numbers):
        raise NotImplementedError(f"{where} is defined for integers and floats, got {dtype.name}")
    if of_numbers:
        for each in bounds:
            element(each, dtype, where)  # raises if it does not fit
        suffix = "Backward1" if where == "clamp" else "Backward0"
        return Clamp.named(name + suffix).apply(x, min=low, max=high, dtype=dtype)
    tensors: list[Any] = [
        each if each is None or isinstance(each, TensorBase) else as_tensor_of(each, dtype, where)
        for each in (low, high)
    ]
    check_broadcastable(where, x, *[each for each in tensors if each is not None])
    suffix = "Backward0" if where == "clamp" else "Backward1"
    return ClampTensor.named(name + suffix).apply(x, *tensors, dtype=dtype)


def clamp(input: "Tensor", min: Any = None, max: Any = None) -> "Tensor":
    """Return `input` limited to `min` and `max`, numbers or tensors; one may be None.

    Raises:
        RuntimeError: if both are None.
    """
    if min is None and max is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    return _clamp("clamp", input, min, max)


def clamp_min(input: "Tensor", min: TensorLike) -> "Tensor":
    """Return `input` limited to at least `min`."""
    return _clamp("clamp_min", input, check_operand(min, "clamp_min"), None)


def clamp_max(input: "Tensor", max: TensorLike) -> "Tensor":
    """Return `input` limited to at most `max`."""
    return _clamp("clamp_max", input, None, check_operand(max, "clamp_max"))


def nan_to_num(
    input: "Tensor",
    nan: float | None = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> "Tensor":
    """Return `input` with NaN replaced by `nan`, and infinities by `posinf` and `neginf`.

    These default to the largest and lowest finite number of the dtype. The parts of complex numbers
    are replaced one by one.
    """
    return NanToNum.apply(
        check_tensor(input, "nan_to_num"),
        nan=0.0 if nan is None else nan,
        posinf=posinf,
        neginf=neginf,
    )


clip = clamp


clamp_ = inplace_form(clamp)
clamp_max_ = inplace_form(clamp_max)
clamp_min_ = inplace_form(clamp_min)
clip_ = inplace_form(clip)
nan_to_num_ = inplace_form(nan_to_num)
