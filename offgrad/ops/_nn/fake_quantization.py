"""Rounding to the numbers of a quantized tensor, with gradients as if nothing was rounded."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._core.quantization import parameters_of_range, rounded

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "fused_moving_avg_obs_fake_quant",
]


class FakeQuantizePerTensorAffineCachemask(Op):
    """x rounded to multiples of the scale within a range; keeps where x was within it.

    The gradient passes there, and is 0 elsewhere.
    """

    def forward(self, x: Array, scale: Array, zero_point: Array, low: int, high: int) -> Array:
        codes = rounded(x, scale, zero_point)
        self.save(mask=(codes >= low) & (codes <= high))
        values = (np.clip(codes, low, high) - zero_point) * scale
        return memory.contiguous(values.astype(x.dtype))

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient within the range."""
        return grad * self.saved("mask")


PER_TENSOR = FakeQuantizePerTensorAffineCachemask.named(
    "FakeQuantizePerTensorAffineCachemaskTensorQparamsBackward0"
)
PER_CHANNEL = FakeQuantizePerTensorAffineCachemask.named(
    "FakeQuantizePerChannelAffineCachemaskBackward0"
)


def _check_range(where: str, quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise RuntimeError(
            f"{where}: quant_min must be at most quant_max, got {quant_min} and {quant_max}"
        )


def _number(value: Any) -> Any:
    return value._array.item() if isinstance(value, TensorBase) else value


@full_precision
def fake_quantize_per_tensor_affine(
    input: "Tensor", scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> "Tensor":
    """Return the numbers that quantizing `input` and back gives.

    Args:
        input: numbers, whose gradient passes where they are in range.
        scale: the distance of neighbours: a number, or a tensor of one.
        zero_point: the integer that stands for 0, likewise.
        quant_min: the lowest integer.
        quant_max: the highest integer.

    Raises:
        RuntimeError: if the range is empty, or does not hold `zero_point`.
    """
    where = "fake_quantize_per_tensor_affine"
    x = real_floating(input, where)
    _check_range(where, quant_min, quant_max)
    zero, kind = _number(zero_point), FakeQuantizePerTensorAffineCachemask
    if isinstance(scale, TensorBase):
        kind = PER_TENSOR
    elif not quant_min <= zero <= quant_max:
        raise RuntimeError(
            f"{where}: zero_point must be from quant_min, {quant_min}, to quant_max, {quant_max}, "
            f"got {zero}"
        )
    return kind.apply(
        x,
        scale=np.float32(_number(scale)),
        zero_point=np.int64(round(zero)),
        low=quant_min,
        high=quant_max,
    )


def fake_quantize_per_channel_affine(
    input: "Tensor",
    scale: "Tensor",
    zero_point: "Tensor",
    axis: int,
    quant_min: int,
    quant_max: int,
) -> "Tensor":
    """Return the numbers that quantizing `input` and back gives, with a scale for each channel.

    Args:
        input: numbers, whose gradient passes where they are in range.
        scale: the distance of neighbours for each entry of `axis`.
        zero_point: the integers that stand for 0, likewise: int32, float32 or float16.
        axis: the dimension of channels.
        quant_min: the lowest integer.
        quant_max: the highest integer.

    Raises:
        RuntimeError: if shapes, dtypes or the range do not fit.
    """
    where = "fake_quantize_per_channel_affine"
    x = real_floating(input, where)
    _check_range(where, quant_min, quant_max)
    zeros = zero_point._array
    if zeros.dtype not in (np.int32, np.float32, np.float16):
        raise RuntimeError(
            f"{where}: zero_point must be int32, float32 or float16, got a {describe(zero_point)}"
        )
    dim = normalize_dim(axis, x._array.ndim, where)
    size = x._array.shape[dim]
    if scale._array.shape != (size,) or zeros.shape != (size,):
        raise RuntimeError(
            f"{where}: scale and zero_point need a number for each of {size} channels, got a "
            f"{describe(scale)} and a {describe(zero_point)}"
        )
    if zeros.dtype == np.int32 and ((zeros < quant_min) | (zeros > quant_max)).any():
        raise RuntimeError(
            f"{where}: zero_point must be from quant_min, {quant_min}, to quant_max, {quant_max}, "
            f"got {zeros.tolist()}"
        )
    shape = tuple(size if each == dim else 1 for each in range(x._array.ndim))
    return PER_CHANNEL.apply(
        x,
        scale=scale._array.reshape(shape),
        zero_point=zeros.reshape(shape),
        low=quant_min,
        high=quant_max,
    )


def fused_moving_avg_obs_fake_quant(
    input: "Tensor",
    observer_on: "Tensor",
    fake_quant_on: "Tensor",
    running_min: "Tensor",
    running_max: "Tensor",
    scale: "Tensor",
    zero_point: "Tensor",
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int = -1,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> "Tensor":
    """Return `input` rounded as a quantized tensor, by a range that follows the inputs seen.

    Args:
        input: numbers.
        observer_on: whether the range follows this input, and with it `scale` and `zero_point`.
        fake_quant_on: whether to round; otherwise `input` is returned.
        running_min: the lowest number, changed in place; infinite before the first input.
        running_max: the highest number, likewise.
        scale: the distance of neighbours, changed in place.
        zero_point: the integer that stands for 0, changed in place.
        averaging_const: how far the range moves towards that of the input.
        quant_min: the lowest integer.
        quant_max: the highest integer.
        ch_axis: the dimension of channels, if there is a scale for each.
        per_row_fake_quant: whether there is.
        symmetric_quant: whether the range is symmetric.
    """
    x = real_floating(input, "fused_moving_avg_obs_fake_quant")
    if _number(observer_on):
        array = x._array
        axes = None
        if per_row_fake_quant:
            axis = normalize_dim(ch_axis, array.ndim, "fused_moving_avg_obs_fake_quant")
            axes = tuple(each for each in range(array.ndim) if each != axis)
        for running, found in ((running_min, array.min(axes)), (running_max, array.max(axes))):
            before = np.where(np.isinf(running._array), found, running._array)
            _set(running, before + np.float32(averaging_const) * (found - before))
        scales, zeros = parameters_of_range(
            running_min._array, running_max._array, quant_min, quant_max, symmetric_quant
        )
        _set(scale, scales)
        _set(zero_point, zeros)
    if not _number(fake_quant_on):
        return input
    if per_row_fake_quant:
        zeros32 = wrap(zero_point._array.astype(np.int32))
        return fake_quantize_per_channel_affine(
            input, scale, zeros32, ch_axis, quant_min, quant_max
        )
    return fake_quantize_per_tensor_affine(input, scale, zero_point, quant_min, quant_max)


def _set(tensor: "Tensor", value: Array) -> None:
    check_mutable(tensor.detach(), "fused_moving_avg_obs_fake_quant", recorded=False)
    tensor._storage.write("fused_moving_avg_obs_fake_quant")
    if tensor._array.shape != np.shape(value) and not tensor._array.size:
        tensor._set(np.asarray(value, tensor._array.dtype), None, False)
    tensor._array[...] = np.reshape(value, tensor._array.shape)
