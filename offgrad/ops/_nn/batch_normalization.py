"""Normalisation of channels over a batch, and of each sample's channels."""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["batch_norm", "instance_norm", "native_batch_norm"]


class Statistics(NamedTuple):
    """Arrays [C] of each channel.

    Attributes:
        mean: the means.
        invstd: 1 / sqrt(variance + eps).
        variance: the variances over the number of elements; None if the others are given.
    """

    mean: Array
    invstd: Array
    variance: Array | None


def is_channels_last(x: Array) -> bool:
    """Return whether an array [N, C, d1, ...] lies in memory as [N, d1, ..., C]."""
    return x.ndim > 2 and not x.flags.c_contiguous and np.moveaxis(x, 1, -1).flags.c_contiguous


def _for_kernel(x: Array, channels_last: bool) -> Array:
    """Return [N, C, ...] as contiguous [N, C, L], or as [R, C] where channels are columns."""
    if channels_last:
        return memory.contiguous(np.moveaxis(x, 1, -1)).reshape(-1, x.shape[1])
    if prod(x.shape[2:]) == 1:
        return memory.contiguous(x).reshape(x.shape[:2])
    return memory.contiguous(x).reshape(*x.shape[:2], prod(x.shape[2:]))


def _new_like(x: Array, channels_last: bool) -> Array:
    """Return an uninitialised array in the layout that `_for_kernel` takes without a copy."""
    if channels_last:
        return np.moveaxis(memory.empty((x.shape[0], *x.shape[2:], x.shape[1]), x.dtype), -1, 1)
    return memory.empty(x.shape, x.dtype)


class BatchNorm(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias by channels (Ioffe and Szegedy, 2015).

    Keeps x, the weight, and each channel's mean and 1/sqrt(var + eps).
    """

    is_recomputable = True
    torch_name = "NativeBatchNormBackward0"

    def forward(
        self, x: Array, weight: Array | None, bias: Array | None, eps: float, statistics: Statistics
    ) -> Array:
        """Return x [N, C, ...] normalised; write the statistics if they have a variance."""
        self.eps, self.training = eps, statistics.variance is not None
        last = is_channels_last(x)
        out = _new_like(x, last)
        rows, results = _for_kernel(x, last), _for_kernel(out, last)
        kernels.batch_norm(rows, weight, bias, eps, results, *statistics)
        self.save(input=x, weight=weight, result1=statistics.mean, result2=statistics.invstd)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return all three gradients, in one kernel."""
        return BatchNormBackward.apply_all(
            grad,
            self.saved("input"),
            self.saved("weight") if "weight" in self._saved else None,
            mean=self.saved("result1")._array,
            invstd=self.saved("result2")._array,
            eps=self.eps,
            training=self.training,
            needs=self.needs_input_grad,
        )


class BatchNormBackward(Op):
    """The gradients of x, weight and bias; keeps the incoming gradient, x and the weight."""

    torch_name = "NativeBatchNormBackwardBackward0"

    def forward(
        self,
        grad: Array,
        x: Array,
        weight: Array | None,
        mean: Array,
        invstd: Array,
        eps: float,
        training: bool,
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.mean, self.invstd, self.eps = mean, invstd, eps
        self.training, self.needs = training, needs
        self.save(grad_out=grad, input=x, weight=weight)
        last = is_channels_last(x)
        dx = _new_like(x, last) if needs[0] else None
        dtype = mean.dtype if weight is None else weight.dtype
        dweight = memory.empty(mean.shape, dtype) if needs[1] else None
        dbias = memory.empty(mean.shape, dtype) if needs[2] else None
        kernels.batch_norm_backward(
            _for_kernel(grad, last),
            _for_kernel(x, last),
            weight,
            mean,
            invstd,
            None if dx is None else _for_kernel(dx, last),
            dweight,
            dbias,
            training,
        )
        return dx, dweight, dbias

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula, the statistics included if they are those of x."""
        has_weight = "weight" in self._saved
        inputs = [self.saved("grad_out"), self.saved("input")]
        if has_weight:
            inputs.append(self.saved("weight"))
        dims = tuple([axis for axis in range(inputs[1].ndim) if axis != 1])
        by_channel = (-1, *(1,) * (inputs[1].ndim - 2))

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor | None" = None) -> Any:
            if self.training:
                centred = x - x.mean(dims, keepdim=True)
                invstd = ((centred * centred).mean(dims, keepdim=True) + self.eps).rsqrt()
            else:
                centred = x - wrap(self.mean).reshape(by_channel)
                invstd = wrap(self.invstd).reshape(by_channel)
            normal = centred * invstd
            scaled = g if weight is None else g * weight.reshape(by_channel)
            dx = scaled * invstd
            if self.training:
                projection = (scaled * normal).mean(dims, keepdim=True)
                dx = (scaled - scaled.mean(dims, keepdim=True) - normal * projection) * invstd
            results = dx, (g * normal).sum(dims), g.sum(dims)
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        needs = self.needs_input_grad if has_weight else self.needs_input_grad[:2]
        computed = differentiate(reference, inputs, grads, needs)
        return computed if has_weight else (*computed, None)


def _check(
    name: str,
    x: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    training: bool,
) -> None:
    channels = x._array.shape[1] if x._array.ndim > 1 else 0
    if not training:
        for label, running in (("running_mean", running_mean), ("running_var", running_var)):
            if running is None:
                raise RuntimeError(f"{name}: {label} must be defined in evaluation mode")
    narrow = x._array.dtype.itemsize == 2
    for label, each in (
        ("running_mean", running_mean),
        ("running_var", running_var),
        ("weight", weight),
        ("bias", bias),
    ):
        if each is None:
            continue
        if each._array.size != channels or each._array.ndim != 1:
            raise RuntimeError(
                f"{name}: {label} should contain {channels} elements not {each._array.size}, one "
                f"for each channel of the {describe(x)}"
            )
        dtype = each._array.dtype
        if dtype != x._array.dtype and not (narrow and dtype == np.float32):
            raise RuntimeError(
                f"{name}: {label} must have the dtype of the input, got a {describe(each)} for a "
                f"{describe(x)}"
            )
        if label.startswith("running") and each._requires_grad:
            raise RuntimeError(
                f"{name}: not differentiable with respect to {label}, which must not require grad"
            )


def _normalized(
    input: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    training: bool,
    momentum: float,
    eps: float,
    name: str,
) -> "tuple[Tensor, Statistics]":
    """Return the normalised input and the statistics; update the running ones in training."""
    x = real_floating(input, name)
    _check(name, x, weight, bias, running_mean, running_var, training)
    array = x._array
    dtype = np.dtype(np.float32) if array.dtype.itemsize == 2 else array.dtype
    if training:
        mean, invstd, variance = (memory.zeros(array.shape[1], dtype) for _ in range(3))
        statistics = Statistics(mean, invstd, variance)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = running_mean._array.astype(dtype)
        with np.errstate(all="ignore"):
            invstd = (1 / np.sqrt(running_var._array.astype(dtype) + dtype.type(eps))).astype(dtype)
        statistics = Statistics(mean, invstd, None)
    out: Tensor = BatchNorm.apply(x, weight, bias, eps=eps, statistics=statistics)
    if training and array.size:
        count = array.size // array.shape[1]
        unbiased = variance * (count / max(count - 1, 1))
        for running, value in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                update_running(running, value, momentum, name)
    return out, statistics


def update_running(running: "Tensor", value: Array, momentum: float, name: str) -> None:
    """Move a running statistic towards `value`, in place; its version counts the change."""
    check_mutable(running, name, recorded=False)
    running._storage.write(name)
    array = running._array
    array[...] = array.astype(value.dtype) * (1 - momentum) + value * momentum


def batch_norm(
    input: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each channel, times weight, plus bias.

    Args:
        input: shape [N, C, ...].
        weight: shape [C], or None for 1.
        bias: shape [C], or None for 0.
        running_mean: shape [C], updated in place in training, used otherwise.
        running_var: as `running_mean`; the variances' divisor is one less than the count.
        training: whether to use the statistics of `input`.
        momentum: the part of the new statistics in the running ones.
        eps: added to variances.
        cudnn_enabled: ignored.

    Raises:
        RuntimeError: if shapes or dtypes do not fit, or statistics are missing.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    parameters = weight, bias, running_mean, running_var
    return _normalized(input, *parameters, training, momentum, eps, "batch_norm")[0]


def native_batch_norm(
    input: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    training: bool,
    momentum: float,
    eps: float,
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return `batch_norm`, and each channel's mean and 1/sqrt(var + eps) (empty out of training).

    Gradients flow through the first alone.
    """
    parameters = weight, bias, running_mean, running_var
    out, found = _normalized(input, *parameters, training, momentum, eps, "native_batch_norm")
    size = slice(None if training else 0)
    return out, wrap(found.mean[size].copy()), wrap(found.invstd[size].copy())


def instance_norm(
    input: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each channel of each sample (Ulyanov et al.).

    Args:
        input: shape [N, C, ...].
        weight: shape [C], or None for 1.
        bias: shape [C], or None for 0.
        running_mean: shape [C], moved in place towards the average over samples if
            `use_input_stats`, used otherwise.
        running_var: as `running_mean`.
        use_input_stats: whether to use the statistics of `input`.
        momentum: the part of the new statistics in the running ones.
        eps: added to variances.
        cudnn_enabled: ignored.

    Raises:
        RuntimeError, NotImplementedError: as `batch_norm`.
    """
    x = real_floating(input, "instance_norm")
    _check("instance_norm", x, weight, bias, running_mean, running_var, use_input_stats)
    shape = x._array.shape
    samples, channels = shape[:2]
    # Each channel of each sample is a channel of one sample.
    joined = x.contiguous().view(1, samples * channels, *shape[2:])
    out, found = _normalized(
        joined,
        _repeated(weight, samples),
        _repeated(bias, samples),
        None if use_input_stats else _repeated(running_mean, samples),
        None if use_input_stats else _repeated(running_var, samples),
        use_input_stats,
        momentum,
        eps,
        "instance_norm",
    )
    if use_input_stats and x._array.size:
        assert found.variance is not None
        count = prod(shape[2:])
        unbiased = found.variance * (count / max(count - 1, 1))
        for running, value in ((running_mean, found.mean), (running_var, unbiased)):
            if running is not None:
                average = value.reshape(samples, channels).mean(0)
                update_running(running, average, momentum, "instance_norm")
    return out.view(shape)


def _repeated(each: "Tensor | None", times: int) -> "Tensor | None":
    return None if each is None else each.repeat(times)
