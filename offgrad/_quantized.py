"""Quantized tensors: integers, with a scale and the integer that stands for 0."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._dtype import DType, _make
from offgrad._layout import _Constant
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.override_state import disabled_torch_function
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.quantization import parameters_of_range, rounded
from offgrad.ops._core.sparse_data import SparseArray


class qscheme(_Constant):
    """How integers stand for numbers: one scale for a tensor, or one for each channel."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _scheme, (self._name,)


def _scheme(name: str) -> Any:
    return globals()[name]


qscheme.__module__ = "offgrad"
per_tensor_affine, per_channel_affine = qscheme("per_tensor_affine"), qscheme("per_channel_affine")
per_tensor_symmetric = qscheme("per_tensor_symmetric")
per_channel_symmetric = qscheme("per_channel_symmetric")
per_channel_affine_float_qparams = qscheme("per_channel_affine_float_qparams")

qint8, quint8, qint32 = (
    _make("qint8", np.int8),
    _make("quint8", np.uint8),
    _make("qint32", np.int32),
)


class _Codes(SparseArray):
    """Shape and dtype of a quantized tensor; whatever needs numbers in an array raises."""

    __slots__ = ()
    what = "a quantized"
    instead = "dequantize()"


def _of_codes(name: str) -> Callable[..., Any]:
    """Return the method that moves elements, by that of the integers."""

    def method(self: "QuantizedTensor", *args: Any, **options: Any) -> Any:
        return self._with(getattr(self._integers, name)(*args, **options))

    method.__name__ = name
    method.__doc__ = f"Return the quantized tensor after `{name}` of its elements."
    return method


class QuantizedTensor(Tensor):
    """Numbers ``(integer - zero_point) * scale``. Operations other than of shapes raise."""

    is_quantized = True
    __torch_function__ = staticmethod(disabled_torch_function)
    _integers: Tensor
    _kind: DType
    _scales: Any
    _zeros: Any
    _axis: int | None

    @property
    def dtype(self) -> DType:
        """The type of the elements: `qint8`, `quint8` or `qint32`."""
        return self._kind

    def _with(self, integers: Tensor) -> "QuantizedTensor":
        return make(integers, self._kind, self._scales, self._zeros, self._axis)

    def int_repr(self) -> Tensor:
        """Return a copy of the integers."""
        return self._integers.clone()

    def dequantize(self) -> Tensor:
        """Return the numbers, float32."""
        scale, zero = self._factors()
        codes = self._integers._array.astype(np.float32)
        return wrap(((codes - zero) * scale).astype(np.float32))

    def _factors(self) -> tuple[Any, Any]:
        if self._axis is None:
            return np.float32(self._scales), np.float32(self._zeros)
        shape = [1] * self.ndim
        shape[self._axis] = -1
        scale = self._scales._array.astype(np.float32).reshape(shape)
        return scale, self._zeros._array.astype(np.float32).reshape(shape)

    def qscheme(self) -> Any:
        """Return whether there is one scale, or one for each channel."""
        return per_tensor_affine if self._axis is None else per_channel_affine

    def _check(self, name: str, per_channel: bool) -> None:
        if per_channel != (self._axis is not None):
            raise RuntimeError(f"{name} is not for tensors of {self.qscheme()}")

    def q_scale(self) -> float:
        """Return the scale."""
        self._check("q_scale", False)
        return float(self._scales)

    def q_zero_point(self) -> int:
        """Return the integer that stands for 0."""
        self._check("q_zero_point", False)
        return int(self._zeros)

    def q_per_channel_scales(self) -> Any:
        """Return the scale of each channel."""
        self._check("q_per_channel_scales", True)
        return self._scales

    def q_per_channel_zero_points(self) -> Any:
        """Return the integer that stands for 0, of each channel."""
        self._check("q_per_channel_zero_points", True)
        return self._zeros

    def q_per_channel_axis(self) -> int:
        """Return the dimension of channels."""
        self._check("q_per_channel_axis", True)
        assert self._axis is not None
        return self._axis

    def __repr__(self, **_: Any) -> str:
        text = repr(self.dequantize())
        shown = [f"size={tuple(self.shape)}", f"dtype={self._kind}"]
        shown.append(f"quantization_scheme={self.qscheme()}")
        if self._axis is None:
            shown += [f"scale={self._scales}", f"zero_point={self._zeros}"]
        else:
            shown += [f"scale={self._scales}", f"zero_point={self._zeros}", f"axis={self._axis}"]
        text, width = text[:-1], len(text) - text.rfind("\n")
        for each in shown:
            if width + len(each) + 2 > 80:
                text, width = f"{text},\n       {each}", 7 + len(each)
            else:
                text, width = f"{text}, {each}", width + len(each) + 2
        return text + ")"

    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec)

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self._kind.itemsize

    def item(self) -> Any:
        """Return the only number."""
        return self.dequantize().item()

    def tolist(self) -> Any:
        """Return the numbers as nested lists."""
        return self.dequantize().tolist()

    def relu(self) -> "QuantizedTensor":
        """Return the tensor with negative numbers as 0."""
        self._check("relu", False)
        return self._with(self._integers.clamp(min=int(self._zeros)))

    def clone(self, *, memory_format: Any = None) -> "QuantizedTensor":
        """Return a copy."""
        return self._with(self._integers.clone())

    def detach(self) -> "QuantizedTensor":
        """Return the tensor over the same memory; there is no history."""
        return self._with(self._integers)

    def cpu(self, memory_format: Any = None) -> "QuantizedTensor":
        """Return the tensor itself."""
        return self

    def __len__(self) -> int:
        return len(self._integers)

    def __getitem__(self, index: Any) -> "QuantizedTensor":
        self._check("an index", False)
        return self._with(self._integers[index])

    def equal(self, other: Any) -> bool:
        """Return whether integers, scales and zero points are the same."""
        if not isinstance(other, QuantizedTensor) or self._kind is not other._kind:
            return False
        parts = zip(self._factors(), other._factors(), strict=True)
        same = all(np.array_equal(mine, theirs) for mine, theirs in parts)
        return same and ops.equal(self._integers, other._integers)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        known = memo.get(id(self))
        if known is None:
            parts = deepcopy((self._integers, self._scales, self._zeros), memo)
            known = memo[id(self)] = make(parts[0], self._kind, *parts[1:], self._axis)
        return known

    def __reduce__(self) -> Any:
        return make, (self._integers, self._kind, self._scales, self._zeros, self._axis)


_SHAPES = """
    view reshape flatten squeeze unsqueeze contiguous expand permute transpose t unflatten select
    narrow index_select
"""

for _name in _SHAPES.split():

    def _shape_method(self: QuantizedTensor, *args: Any, _name: str = _name, **options: Any) -> Any:
        if _name != "contiguous":
            self._check(_name, False)
        return _of_codes(_name)(self, *args, **options)

    _shape_method.__name__ = _name
    _shape_method.__doc__ = f"Return the tensor after `{_name}` of its elements."
    setattr(QuantizedTensor, _name, _shape_method)


def make(
    integers: Tensor, kind: DType, scales: Any, zeros: Any, axis: int | None = None
) -> QuantizedTensor:
    """Return a quantized tensor over integers."""
    tensor: QuantizedTensor = object.__new__(QuantizedTensor)
    tensor._integers, tensor._kind = integers, kind
    tensor._scales, tensor._zeros, tensor._axis = scales, zeros, axis
    tensor._array = _Codes(integers._array.shape, integers._array.dtype)  # type: ignore[assignment]
    tensor._storage = integers._storage
    return tensor


def _quantized(x: Any, dtype: Any, scale: Any, zero: Any, where: str) -> Tensor:
    if dtype not in (qint8, quint8, qint32):
        raise RuntimeError(f"{where}: dtype must be qint8, quint8 or qint32, got {dtype}")
    if x._array.dtype != np.float32:
        raise RuntimeError(f"{where}: float32 numbers are needed, got a {describe(x)}")
    limits = np.iinfo(dtype.dtype)
    codes = rounded(x._array, scale, zero)
    return wrap(np.clip(codes.astype(np.float64), limits.min, limits.max).astype(dtype.dtype))


def quantize_per_tensor(input: Any, scale: Any, zero_point: Any, dtype: Any) -> Any:
    """Return a float32 tensor, or each of a list, quantized with one scale.

    Args:
        input: numbers.
        scale: the distance of neighbours.
        zero_point: the integer that stands for 0.
        dtype: `qint8`, `quint8` or `qint32`.

    Raises:
        RuntimeError: for other dtypes, and a zero point out of range.
    """
    if isinstance(input, (tuple, list)):
        parts = zip(input, scale, zero_point, strict=True)
        return tuple(quantize_per_tensor(*each, dtype) for each in parts)
    factor, zero = float(scale), int(zero_point)
    integers = _quantized(input, dtype, factor, zero, "quantize_per_tensor")
    limits = np.iinfo(dtype.dtype)
    if not limits.min <= zero <= limits.max:
        raise RuntimeError(
            f"quantize_per_tensor: zero_point must be from {limits.min} to {limits.max}, got {zero}"
        )
    return make(integers, dtype, factor, zero)


def quantize_per_channel(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: Any
) -> QuantizedTensor:
    """Return a float32 tensor quantized with a scale for each entry of `axis`.

    Raises:
        RuntimeError: for other dtypes, and if there is not one scale and zero point a channel.
    """
    dim = normalize_dim(axis, input.ndim, "quantize_per_channel")
    size = input.shape[dim]
    if scales.shape != (size,) or zero_points.shape != (size,):
        raise RuntimeError(
            f"quantize_per_channel: a scale and a zero point for each of {size} channels are "
            f"needed, got a {describe(scales)} and a {describe(zero_points)}"
        )
    shape = tuple(size if each == dim else 1 for each in range(input.ndim))
    factors, zeros = scales.detach().double(), zero_points.detach().long()
    integers = _quantized(
        input,
        dtype,
        factors._array.reshape(shape),
        zeros._array.reshape(shape),
        "quantize_per_channel",
    )
    return make(integers, dtype, factors, zeros, dim)


def quantize_per_tensor_dynamic(input: Tensor, dtype: Any, reduce_range: bool) -> QuantizedTensor:
    """Return a float32 tensor quantized with the scale that its range needs.

    Args:
        input: numbers.
        dtype: `qint8` or `quint8`.
        reduce_range: whether to use half the integers.

    Raises:
        RuntimeError: for other dtypes.
    """
    if dtype not in (qint8, quint8):
        raise RuntimeError(
            f"quantize_per_tensor_dynamic: dtype must be qint8 or quint8, got {dtype}"
        )
    limits, parts = np.iinfo(dtype.dtype), 2 if reduce_range else 1
    low, high = int(limits.min / parts), int(limits.max / parts)
    x = input._array
    lowest, highest = (x.min(), x.max()) if x.size else (0, 0)
    scale, zero = parameters_of_range(lowest, highest, low, high)
    return quantize_per_tensor(input, float(scale), int(zero), dtype)  # type: ignore[no-any-return]


def dequantize(tensor: Any) -> Any:
    """Return the numbers of a quantized tensor, or of each of a list, float32."""
    if isinstance(tensor, (tuple, list)):
        return tuple(dequantize(each) for each in tensor)
    return tensor.dequantize()


def _function(name: str) -> Callable[[Any], Any]:
    def function(input: Any) -> Any:
        return getattr(input, name)()

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return ``input.{name}()`` of a quantized tensor."
    return function


int_repr, q_scale, q_zero_point = map(_function, ("int_repr", "q_scale", "q_zero_point"))
q_per_channel_axis = _function("q_per_channel_axis")
q_per_channel_scales = _function("q_per_channel_scales")
q_per_channel_zero_points = _function("q_per_channel_zero_points")
