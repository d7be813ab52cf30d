"""Activations: layers that keep the shape, most of them without parameters."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.attention import MultiheadAttention
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter


class _Plain(Module):
    """A function of the input alone; constructor arguments are ignored."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input)


class _InPlace(Module):
    """A function of the input that may overwrite it."""

    __constants__ = ["inplace"]

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def _with_inplace(self, options: str) -> str:
        return f"{options}, inplace=True" if self.inplace else options


class _AlongDim(Module):
    """A function along a dimension; without one, 0 or 1, with a warning."""

    __constants__ = ["dim"]

    function: ClassVar[Callable[..., Tensor]]
    dim: int | None

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"dim": None, **state})

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.dim, _stacklevel=4)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class ReLU(_InPlace):
    """``max(x, 0)``, elementwise."""

    function = staticmethod(F.relu)


class SiLU(_InPlace):
    """``x * sigmoid(x)``, elementwise."""

    function = staticmethod(F.silu)


class Mish(_InPlace):
    """``x * tanh(softplus(x))``, elementwise."""

    function = staticmethod(F.mish)


class SELU(_InPlace):
    """The scaled exponential linear unit (Klambauer et al., 2017)."""

    function = staticmethod(F.selu)


class Hardsigmoid(_InPlace):
    """``(x + 3) / 6`` limited to 0 and 1, elementwise."""

    function = staticmethod(F.hardsigmoid)

    def extra_repr(self) -> str:
        return ""


class Hardswish(Hardsigmoid):
    """``x * hardsigmoid(x)``, elementwise."""

    function = staticmethod(F.hardswish)


class Sigmoid(_Plain):
    """``1 / (1 + exp(-x))``, elementwise."""

    function = staticmethod(F.sigmoid)


class Tanh(_Plain):
    """The hyperbolic tangent, elementwise."""

    function = staticmethod(F.tanh)


class LogSigmoid(_Plain):
    """The logarithm of the logistic function, elementwise."""

    function = staticmethod(F.logsigmoid)


class Softsign(_Plain):
    """``x / (1 + abs(x))``, elementwise."""

    function = staticmethod(F.softsign)


class Tanhshrink(_Plain):
    """``x - tanh(x)``, elementwise."""

    function = staticmethod(F.tanhshrink)


class Softmax(_AlongDim):
    """Exponentials, divided by their sum along `dim`."""

    function = staticmethod(F.softmax)


class Softmin(_AlongDim):
    """Exponentials of ``-x``, divided by their sum along `dim`."""

    function = staticmethod(F.softmin)


class LogSoftmax(_AlongDim):
    """The logarithm of the softmax along `dim`."""

    function = staticmethod(F.log_softmax)


class Softmax2d(Module):
    """The softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (3, 4):
            raise ValueError(
                f"Softmax2d takes [N, C, H, W] or [C, H, W], got {input.dim()} dimensions"
            )
        return F.softmax(input, -3)


__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
    "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "MultiheadAttention", "PReLU",
    "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin",
    "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


class GELU(Module):
    """The Gaussian error linear unit, exact or in its ``"tanh"`` approximation."""

    __constants__ = ["approximate"]

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class GLU(Module):
    """The first half along `dim` times the logistic function of the second."""

    __constants__ = ["dim"]

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class ELU(_InPlace):
    """``x``, below 0 ``alpha * (exp(x) - 1)``, elementwise."""

    __constants__ = ["alpha", "inplace"]

    function = staticmethod(F.elu)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return self._with_inplace(f"alpha={self.alpha}")


class CELU(ELU):
    """``x``, below 0 ``alpha * (exp(x / alpha) - 1)``, elementwise."""

    function = staticmethod(F.celu)


class LeakyReLU(_InPlace):
    """``x``, below 0 ``negative_slope * x``, elementwise."""

    __constants__ = ["inplace", "negative_slope"]

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        return self._with_inplace(f"negative_slope={self.negative_slope}")


class RReLU(_InPlace):
    """``x``, below 0 times a factor: random in training, the mean of its bounds otherwise."""

    __constants__ = ["lower", "upper", "inplace"]

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return self._with_inplace(f"lower={self.lower}, upper={self.upper}")


class Threshold(_InPlace):
    """``x`` above a threshold, else a value, elementwise."""

    __constants__ = ["threshold", "value", "inplace"]

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        return self._with_inplace(f"threshold={self.threshold}, value={self.value}")


class Hardtanh(_InPlace):
    """``x`` limited to a range; `min_value` and `max_value` are deprecated names of its ends."""

    __constants__ = ["min_val", "max_val", "inplace"]

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        for old, value in (("min", min_value), ("max", max_value)):
            if value is not None:
                warnings.warn(
                    f"keyword argument `{old}_value` is deprecated and renamed to `{old}_val`",
                    FutureWarning,
                    stacklevel=2,
                )
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if self.max_val <= self.min_val:
            raise AssertionError(
                f"max_val ({self.max_val}) must be greater than min_val ({self.min_val})"
            )

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        return self._with_inplace(f"min_val={self.min_val}, max_val={self.max_val}")


class ReLU6(Hardtanh):
    """``x`` limited to 0 and 6, elementwise."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Softplus(Module):
    """``log(1 + exp(beta * x)) / beta``, and ``x`` where the exponent exceeds a threshold."""

    __constants__ = ["beta", "threshold"]

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softshrink(Module):
    """``x`` moved by `lambd` towards 0, and 0 within ``[-lambd, lambd]``."""

    __constants__ = ["lambd"]

    function: ClassVar[Callable[..., Tensor]] = staticmethod(F.softshrink)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(Softshrink):
    """``x``, and 0 within ``[-lambd, lambd]``."""

    function = staticmethod(F.hardshrink)


class PReLU(Module):
    """``x``, below 0 times a learned weight, one for all or one for each channel."""

    __constants__ = ["num_parameters"]

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(ops.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights to their initial value."""
        self.weight.detach().fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
