"""Pooling layers: maxima, means and power means of windows."""

from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.module import Module
from offgrad.nn.modules.utils import _ntuple

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPool(Module):
    """The maxima of windows; with `return_indices`, also their places, for unpooling."""

    ndim: int
    return_indices: bool
    ceil_mode: bool
    __constants__ = [
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "return_indices",
        "ceil_mode",
    ]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        pool = getattr(F, f"max_pool{self.ndim}d")
        return pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The maxima of windows along the last dimension."""

    ndim = 1


class MaxPool2d(_MaxPool):
    """The maxima of windows of the last two dimensions."""

    ndim = 2


class MaxPool3d(_MaxPool):
    """The maxima of windows of the last three dimensions."""

    ndim = 3


class _MaxUnpool(Module):
    """Zeros with maxima at the places that a layer of max pooling returned."""

    ndim: int

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        as_sizes = _ntuple(self.ndim)
        self.kernel_size = as_sizes(kernel_size)
        self.stride = as_sizes(stride if stride is not None else kernel_size)
        self.padding = as_sizes(padding)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        unpool = getattr(F, f"max_unpool{self.ndim}d")
        result: Tensor = unpool(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )
        return result

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The partial inverse of `MaxPool1d`."""

    ndim = 1


class MaxUnpool2d(_MaxUnpool):
    """The partial inverse of `MaxPool2d`."""

    ndim = 2


class MaxUnpool3d(_MaxUnpool):
    """The partial inverse of `MaxPool3d`."""

    ndim = 3


class _AvgPool(Module):
    """The means of windows."""

    kernel_size: Any
    stride: Any
    padding: Any
    __constants__ = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"]

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The means of windows along the last dimension."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        as_sizes = _ntuple(1)
        self.kernel_size = as_sizes(kernel_size)
        self.stride = as_sizes(stride if stride is not None else kernel_size)
        self.padding = as_sizes(padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )


class AvgPool2d(_AvgPool):
    """The means of windows of the last two dimensions."""

    ndim = 2
    __constants__ = [*_AvgPool.__constants__, "divisor_override"]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        pool = F.avg_pool2d if self.ndim == 2 else F.avg_pool3d
        return pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool3d(AvgPool2d):
    """The means of windows of the last three dimensions."""

    ndim = 3


class FractionalMaxPool2d(Module):
    """The maxima of windows at random places, anew in each call; their number or ratio is given."""

    ndim = 2
    __constants__ = ["kernel_size", "return_indices", "output_size", "output_ratio"]

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        as_sizes, name = _ntuple(self.ndim), type(self).__name__
        self.kernel_size, self.return_indices = as_sizes(kernel_size), return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = as_sizes(output_size) if output_size is not None else None
        self.output_ratio = as_sizes(output_ratio) if output_ratio is not None else None
        if output_size is None and output_ratio is None:
            raise ValueError(f"{name} needs output_size or output_ratio")
        if output_size is not None and output_ratio is not None:
            raise ValueError(f"{name} got output_size and output_ratio; pass one of them")
        if self.output_ratio is not None and not all(0 < each < 1 for each in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:
        pool = F.fractional_max_pool2d if self.ndim == 2 else F.fractional_max_pool3d
        return pool(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool3d(FractionalMaxPool2d):
    """The same of the last three dimensions."""

    ndim = 3


class _LPPool(Module):
    """The roots of the sums of powers of windows."""

    ndim: int
    __constants__ = ["norm_type", "kernel_size", "stride", "ceil_mode"]

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        pool = getattr(F, f"lp_pool{self.ndim}d")
        result: Tensor = pool(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )
        return result

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """The power means of windows along the last dimension, times the count's root."""

    ndim = 1


class LPPool2d(_LPPool):
    """The power means of windows of the last two dimensions, times the count's root."""

    ndim = 2


class LPPool3d(_LPPool):
    """The power means of windows of the last three dimensions, times the count's root."""

    ndim = 3


class _AdaptivePool(Module):
    """A pooling layer with a given number of windows, None for the size of the input."""

    ndim: int
    __constants__ = ["output_size"]

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveAvgPool(_AdaptivePool):
    """The means of windows that cover the last dimensions evenly."""

    def forward(self, input: Tensor) -> Tensor:
        pool = getattr(F, f"adaptive_avg_pool{self.ndim}d")
        result: Tensor = pool(input, self.output_size)
        return result


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of windows that cover the last dimension evenly."""

    ndim = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of windows that cover the last two dimensions evenly."""

    ndim = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of windows that cover the last three dimensions evenly."""

    ndim = 3


class _AdaptiveMaxPool(_AdaptivePool):
    """The maxima of windows that cover the last dimensions evenly."""

    __constants__ = ["output_size", "return_indices"]

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        pool = getattr(F, f"adaptive_max_pool{self.ndim}d")
        return pool(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The maxima of windows that cover the last dimension evenly."""

    ndim = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The maxima of windows that cover the last two dimensions evenly."""

    ndim = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The maxima of windows that cover the last three dimensions evenly."""

    ndim = 3
