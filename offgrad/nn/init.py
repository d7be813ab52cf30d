"""Initialisation of parameters, in place."""

from math import prod, sqrt

from offgrad import ops
from offgrad._missing import missing
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.grad_mode import no_grad
from offgrad.autograd.tensor_base import describe
from offgrad.ops import Generator

_GAINS = {
    "linear": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that keeps the variance through a nonlinearity."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"no gain is known for {nonlinearity!r}, only for {[*_GAINS, 'leaky_relu']}"
        )
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs an output has and how many outputs an input has."""
    if tensor.ndim < 2:
        raise ValueError(f"fan in and fan out need at least 2 dimensions, got a {describe(tensor)}")
    receptive = prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


@no_grad()
def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill with numbers uniform on [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill with normal numbers."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal."""
    return tensor.copy_(ops.eye(*tensor.shape, dtype=tensor.dtype))


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill uniformly so that variances stay forward and backward (Glorot and Bengio, 2010)."""
    bound = gain * sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill normally so that variances stay forward and backward (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * sqrt(2.0 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', got {mode!r}")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill uniformly so that variances stay through rectifiers (He et al., 2015)."""
    bound = sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill normally so that variances stay through rectifiers (He et al., 2015)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


__getattr__ = missing("offgrad.nn.init")
