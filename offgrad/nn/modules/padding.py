"""Padding layers: a mode of `functional.pad` for one, two or three dimensions each."""

from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.module import Module
from offgrad.nn.modules.utils import _ntuple

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """Pad the last dimensions: `padding` elements at each end, or a pair for each, the last first.

    Attributes:
        padding: one number for each end.
    """

    ndim: int
    mode = "constant"
    __constants__ = ["padding"]

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding: tuple[int, ...] = _ntuple(2 * self.ndim)(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _CircularPad(_Pad):
    mode = "circular"

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (self.ndim + 1, self.ndim + 2):
            raise ValueError(
                f"expected {self.ndim + 1}D or {self.ndim + 2}D input (got {input.dim()}D input)"
            )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return super().forward(input)


class _ConstantPad(_Pad):
    """Pad the last dimensions with `value`."""

    __constants__ = ["padding", "value"]

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Pad the last dimension with `value`."""

    ndim = 1


class ConstantPad2d(_ConstantPad):
    """Pad the last two dimensions with `value`."""

    ndim = 2


class ConstantPad3d(_ConstantPad):
    """Pad the last three dimensions with `value`."""

    ndim = 3


class ZeroPad1d(ConstantPad1d):
    """Pad the last dimension with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(ConstantPad2d):
    """Pad the last two dimensions with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad3d(ConstantPad3d):
    """Pad the last three dimensions with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ReflectionPad1d(_Pad):
    """Pad the last dimension with its elements in reverse order, without the edge."""

    ndim, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Pad the last two dimensions with their elements in reverse order, without the edge."""

    ndim, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """Pad the last three dimensions with their elements in reverse order, without the edge."""

    ndim, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """Pad the last dimension with copies of its edge."""

    ndim, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """Pad the last two dimensions with copies of their edges."""

    ndim, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """Pad the last three dimensions with copies of their edges."""

    ndim, mode = 3, "replicate"


class CircularPad1d(_CircularPad):
    """Pad the last dimension with elements from its other end."""

    ndim, mode = 1, "circular"


class CircularPad2d(_CircularPad):
    """Pad the last two dimensions with elements from their other ends."""

    ndim, mode = 2, "circular"


class CircularPad3d(_CircularPad):
    """Pad the last three dimensions with elements from their other ends."""

    ndim, mode = 3, "circular"
