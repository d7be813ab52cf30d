"""Initialisation of parameters, in place and without recording; each returns its tensor."""

import math as _math
import warnings as _warnings
from collections.abc import Callable as _Callable
from typing import Any as _Any

import numpy as _np

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.grad_mode import no_grad as _no_grad
from offgrad.autograd.tensor_base import describe as _describe
from offgrad.ops import Generator as _Generator

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac",
    "dirac_",
    "eye",
    "eye_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal",
    "orthogonal_",
    "sparse",
    "sparse_",
    "trunc_normal_",
    "uniform",
    "uniform_",
    "xavier_normal",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]

_LINEAR = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d sigmoid"
_GAINS = {
    **dict.fromkeys(_LINEAR.split(), 1),
    "tanh": 5.0 / 3,
    "relu": _math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return PyTorch's factor for the standard deviation of weights before a nonlinearity.

    Args:
        nonlinearity: such as ``"relu"``.
        param: the negative slope of ``"leaky_relu"``; 0.01 by default.

    Raises:
        ValueError: for an unknown nonlinearity, or a slope that is no number.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {slope} not a valid number")
        return _math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"Unsupported nonlinearity {nonlinearity}: a gain is known for "
            f"{[*_GAINS, 'leaky_relu']}"
        )
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: _Tensor) -> tuple[int, int]:
    """Return the number of inputs of one output element and of outputs of one input element."""
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, got a "
            f"{_describe(tensor)}"
        )
    receptive = _math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


def _calculate_correct_fan(tensor: _Tensor, mode: str) -> int:
    """Return the fan that `mode` names."""
    lowered = mode.lower()
    if lowered not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported; use 'fan_in' or 'fan_out'")
    return _calculate_fan_in_and_fan_out(tensor)[lowered == "fan_out"]


@_no_grad()
def uniform_(
    tensor: _Tensor, a: float = 0.0, b: float = 1.0, generator: _Generator | None = None
) -> _Tensor:
    """Fill with numbers from the uniform distribution on [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@_no_grad()
def normal_(
    tensor: _Tensor, mean: float = 0.0, std: float = 1.0, generator: _Generator | None = None
) -> _Tensor:
    """Fill with numbers from the normal distribution."""
    return tensor.normal_(mean, std, generator=generator)


@_no_grad()
def trunc_normal_(
    tensor: _Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: _Generator | None = None,
) -> _Tensor:
    """Fill with numbers from the part of a normal distribution that lies in [a, b].

    The inverse of the distribution function turns uniform numbers into them.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        _warnings.warn(
            f"mean is more than 2 std from [a, b] in nn.init.trunc_normal_: {mean} from "
            f"{[a, b]} with std {std}; values may be distributed inexactly",
            stacklevel=2,
        )
    low, high = (_math.erf((end - mean) / std / _math.sqrt(2)) for end in (a, b))
    if tensor.is_meta:
        return tensor
    sample = _ops.rand(tensor.shape, dtype=tensor._array.dtype, generator=generator)
    values = _ops.erfinv(sample * (high - low) + low) * (std * _math.sqrt(2)) + mean
    return tensor.copy_(values.clamp(a, b))


@_no_grad()
def constant_(tensor: _Tensor, val: float) -> _Tensor:
    """Fill with the number `val`."""
    return tensor.fill_(val)


def zeros_(tensor: _Tensor) -> _Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: _Tensor) -> _Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


@_no_grad()
def eye_(tensor: _Tensor) -> _Tensor:
    """Fill a matrix with ones on the diagonal.

    Raises:
        ValueError: unless the tensor has 2 dimensions.
    """
    if tensor.ndim != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, got a {_describe(tensor)}")
    if tensor.is_meta:
        return tensor
    return tensor.copy_(_ops.eye(*tensor.shape, dtype=tensor._array.dtype))


@_no_grad()
def dirac_(tensor: _Tensor, groups: int = 1) -> _Tensor:
    """Fill the weight of a convolution so that it passes on as many channels as it can.

    Args:
        tensor: shape [out, in, ...], with 1 to 3 further dimensions.
        groups: the groups of channels of the convolution.

    Raises:
        ValueError: if the shape does not fit.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError(
            f"Only tensors with 3, 4, or 5 dimensions are supported, got a {_describe(tensor)}"
        )
    if tensor.shape[0] % groups:
        raise ValueError(f"dim 0 must be divisible by groups, got {tensor.shape[0]} and {groups}")
    if tensor.is_meta:
        return tensor
    out = tensor.shape[0] // groups
    values = _ops.zeros(tensor.shape, dtype=tensor._array.dtype)
    centre = tuple([size // 2 for size in tensor.shape[2:]])
    for group in range(groups):
        for channel in range(min(out, tensor.shape[1])):
            values[(group * out + channel, channel, *centre)] = 1
    return tensor.copy_(values)


def xavier_uniform_(
    tensor: _Tensor, gain: float = 1.0, generator: _Generator | None = None
) -> _Tensor:
    """Fill uniformly, to preserve variances forward and backward (Glorot and Bengio, 2010)."""
    bound = gain * _math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(
    tensor: _Tensor, gain: float = 1.0, generator: _Generator | None = None
) -> _Tensor:
    """Fill normally, to preserve variances forward and backward (Glorot and Bengio, 2010)."""
    return normal_(
        tensor, 0.0, gain * _math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator
    )


def _is_empty(tensor: _Tensor) -> bool:
    """Return whether there is nothing to fill; warn then."""
    if 0 in tensor.shape:
        _warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return True
    return False


def kaiming_uniform_(
    tensor: _Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: _Generator | None = None,
) -> _Tensor:
    """Fill uniformly, to preserve variances through rectifiers (He et al., 2015)."""
    if _is_empty(tensor):
        return tensor
    fan = _calculate_correct_fan(tensor, mode)
    bound = calculate_gain(nonlinearity, a) * _math.sqrt(3.0 / fan)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: _Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: _Generator | None = None,
) -> _Tensor:
    """Fill normally, to preserve variances through rectifiers (He et al., 2015)."""
    if _is_empty(tensor):
        return tensor
    fan = _calculate_correct_fan(tensor, mode)
    std = calculate_gain(nonlinearity, a) / _math.sqrt(fan)
    return normal_(tensor, 0.0, std, generator)


@_no_grad()
def orthogonal_(tensor: _Tensor, gain: float = 1, generator: _Generator | None = None) -> _Tensor:
    """Fill with a random (semi-)orthogonal matrix times `gain` (Saxe et al., 2014).

    Further dimensions count as columns.

    Raises:
        ValueError: for fewer than 2 dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError(
            f"Only tensors with 2 or more dimensions are supported, got a {_describe(tensor)}"
        )
    if not tensor.numel():
        return tensor
    if tensor.is_meta:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    long, short = max(rows, columns), min(rows, columns)
    sample = _ops.randn((long, short), dtype=_np.float64, generator=generator)
    q, r = _np.linalg.qr(sample.numpy())
    # The signs make the distribution uniform.
    q = q * _np.where(_np.diag(r) < 0, -1.0, 1.0) * gain
    values = q if rows >= columns else q.T
    return tensor.copy_(_ops.tensor(_np.ascontiguousarray(values)).reshape(tensor.shape))


@_no_grad()
def sparse_(
    tensor: _Tensor, sparsity: float, std: float = 0.01, generator: _Generator | None = None
) -> _Tensor:
    """Fill a matrix with normal numbers, and the part `sparsity` of each column with zeros.

    Raises:
        ValueError: unless the tensor has 2 dimensions.
    """
    if tensor.ndim != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, got a {_describe(tensor)}")
    if tensor.is_meta:
        return tensor
    rows, columns = tensor.shape
    zeros = _math.ceil(sparsity * rows)
    values = _ops.randn(tensor.shape, dtype=tensor._array.dtype, generator=generator) * std
    for column in range(columns):
        values[_ops.randperm(rows, generator=generator)[:zeros], column] = 0
    return tensor.copy_(values)


def _deprecated(function: _Callable[..., _Tensor]) -> _Callable[..., _Tensor]:
    """Return `function` under PyTorch's deprecated name, without the underscore."""
    name = function.__name__
    old = name[:-1]

    def run(*args: _Any, **kwargs: _Any) -> _Tensor:
        _warnings.warn(
            f"nn.init.{old} is deprecated in favor of `nn.init.{name}`",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    run.__name__ = run.__qualname__ = old
    run.__doc__ = f"Call `{name}`; a deprecated name."
    return run


constant = _deprecated(constant_)
dirac = _deprecated(dirac_)
eye = _deprecated(eye_)
kaiming_normal = _deprecated(kaiming_normal_)
kaiming_uniform = _deprecated(kaiming_uniform_)
normal = _deprecated(normal_)
orthogonal = _deprecated(orthogonal_)
sparse = _deprecated(sparse_)
uniform = _deprecated(uniform_)
xavier_normal = _deprecated(xavier_normal_)
xavier_uniform = _deprecated(xavier_uniform_)

__getattr__ = _missing("offgrad.nn.init")
