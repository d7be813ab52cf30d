"""Linear and bilinear layers, and the identity."""

from math import sqrt
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn import init
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Return the input; constructor arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """``x @ weight.T + bias``: [..., in_features] to [..., out_features]."""

    __constants__ = ["in_features", "out_features"]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        kind = {"device": device, "dtype": dtype}
        self.weight = Parameter(ops.empty(out_features, in_features, **kind))
        self.register_parameter(
            "bias", Parameter(ops.empty(out_features, **kind)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within 1/sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = 1 / sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear` under the name that PyTorch's attention uses."""


class Bilinear(Module):
    """``x1 @ weight[k] @ x2 + bias[k]`` for each output k: [..., in1] and [..., in2] to [..., out].

    Raises:
        ValueError: if `in1_features` is not positive.
    """

    __constants__ = ["in1_features", "in2_features", "out_features"]

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, got {in1_features}")
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        kind = {"device": device, "dtype": dtype}
        self.weight = Parameter(ops.empty(out_features, in1_features, in2_features, **kind))
        self.register_parameter(
            "bias", Parameter(ops.empty(out_features, **kind)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within 1/sqrt(in1_features)."""
        bound = 1 / sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
