"""Initialisation of parameters, in place and without recording; each returns its tensor."""

import math as _math

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.grad_mode import no_grad as _no_grad
from offgrad.autograd.tensor_base import describe as _describe
from offgrad.ops import Generator as _Generator

__all__ = [
    "calculate_gain",
    "constant_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_GAINS = {
    "linear": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
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
        ValueError: for an unknown nonlinearity.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return _math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"no gain is known for {nonlinearity!r}, only for {[*_GAINS, 'leaky_relu']}"
        )
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: _Tensor) -> tuple[int, int]:
    """Return the number of inputs of one output element and of outputs of one input element."""
    if tensor.ndim < 2:
        raise ValueError(
            f"fan in and fan out need at least 2 dimensions, got a {_describe(tensor)}"
        )
    receptive = _math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


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
    """Fill a matrix with ones on the diagonal."""
    return tensor.copy_(_ops.eye(*tensor.shape, dtype=tensor._array.dtype))


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


def _kaiming_std(tensor: _Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', got {mode!r}")
    fan = _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / _math.sqrt(fan)


def kaiming_uniform_(
    tensor: _Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: _Generator | None = None,
) -> _Tensor:
    """Fill uniformly, to preserve variances through rectifiers (He et al., 2015)."""
    bound = _math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: _Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: _Generator | None = None,
) -> _Tensor:
    """Fill normally, to preserve variances through rectifiers (He et al., 2015)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


__getattr__ = _missing("offgrad.nn.init")
