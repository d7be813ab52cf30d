"""Convolutions and transposed convolutions."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, ClassVar

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn import init
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Size = int | Sequence[int]
_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What all convolutions share: the numbers, the weight and the bias.

    Attributes:
        _reversed_padding_repeated_twice: the padding as `F.pad` takes it.
    """

    __constants__ = (
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
        "output_padding",
        "in_channels",
        "out_channels",
        "kernel_size",
    )
    _ndim: ClassVar[int]
    transposed: bool

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: str | tuple[int, ...],
        dilation: tuple[int, ...],
        transposed: bool,
        output_padding: tuple[int, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.transposed = dilation, transposed
        self.output_padding, self.groups = output_padding, groups
        self.padding_mode = padding_mode
        self._check()
        self._reversed_padding_repeated_twice = self._sides()
        kind = {"device": device, "dtype": dtype}
        rows, columns = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        self.weight = Parameter(ops.empty(rows, columns // groups, *kernel_size, **kind))
        self.register_parameter(
            "bias", Parameter(ops.empty(out_channels, **kind)) if bias else None
        )
        self.reset_parameters()

    def _each(self, value: Size) -> tuple[int, ...]:
        return (value,) * self._ndim if isinstance(value, int) else tuple(value)

    def _check(self) -> None:
        if self.groups <= 0:
            raise ValueError(f"groups must be a positive integer, got {self.groups}")
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise ValueError(
                    f"{name} must be divisible by groups, got {getattr(self, name)} and "
                    f"{self.groups}"
                )
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {self.padding!r}: use 'same', 'valid' or numbers"
                )
            if self.padding == "same" and any(each != 1 for each in self.stride):
                raise ValueError(
                    "padding='same' is not supported for strided convolutions, got "
                    f"stride={self.stride}; pass numbers as padding"
                )
        if self.padding_mode not in _MODES:
            raise ValueError(
                f"padding_mode must be one of {set(_MODES)}, got {self.padding_mode!r}"
            )
        if self.transposed and self.padding_mode != "zeros":
            raise ValueError(
                f"{type(self).__name__} takes only padding_mode='zeros', got {self.padding_mode!r}"
            )

    def _sides(self) -> Sequence[int]:
        if self.padding == "valid":
            return [0, 0] * len(self.kernel_size)
        if isinstance(self.padding, tuple):
            return tuple([each for each in reversed(self.padding) for _ in range(2)])
        sides = []
        for size, step in reversed([*zip(self.kernel_size, self.dilation, strict=False)]):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
        return sides

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within 1/sqrt of the inputs of an output."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            fan_in = prod(self.weight.shape[1:])
            if fan_in:
                init.uniform_(self.bias, -1 / sqrt(fan_in), 1 / sqrt(fan_in))

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}, stride={self.stride}",
        ]
        plain = {"padding": 0, "dilation": 1, "output_padding": 0}
        for name, default in plain.items():
            if getattr(self, name) != (default,) * len(self.kernel_size):
                parts.append(f"{name}={getattr(self, name)}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class _Conv(_ConvNd):
    """Convolution over `_ndim` dimensions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            self._each(kernel_size),
            self._each(stride),
            padding if isinstance(padding, str) else self._each(padding),
            self._each(dilation),
            False,
            self._each(0),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with the given weight; subclasses of users call it."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        convolve = getattr(F, f"conv{self._ndim}d")
        result: Tensor = convolve(
            input, weight, bias, self.stride, padding, self.dilation, self.groups
        )
        return result

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    """Convolution of [N, C, L] or [C, L]; see `F.conv1d`."""

    _ndim = 1


class Conv2d(_Conv):
    """Convolution of [N, C, H, W] or [C, H, W]; see `F.conv2d`."""

    _ndim = 2


class Conv3d(_Conv):
    """Convolution of [N, C, D, H, W] or [C, D, H, W]; see `F.conv3d`."""

    _ndim = 3


class _ConvTransposeNd(_ConvNd):
    """Transposed convolution over `_ndim` dimensions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            self._each(kernel_size),
            self._each(stride),
            self._each(padding),
            self._each(dilation),
            True,
            self._each(output_padding),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Return the transposed convolution, of `output_size` if that can be."""
        extra = self.output_padding
        if output_size is not None:
            extra = self._output_padding(input, tuple(output_size))
        convolve = getattr(F, f"conv_transpose{self._ndim}d")
        result: Tensor = convolve(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )
        return result

    def _output_padding(self, input: Tensor, output_size: tuple[int, ...]) -> tuple[int, ...]:
        """Return the padding at the end that gives the result a size.

        Raises:
            ValueError: if there is none.
        """
        ndim = self._ndim
        others = input.dim() - ndim
        if len(output_size) == ndim + others:
            output_size = output_size[others:]
        if len(output_size) != ndim:
            raise ValueError(
                f"ConvTranspose{ndim}d: output_size needs {ndim} or {ndim + others} numbers for an "
                f"input of {input.dim()} dimensions, got {len(output_size)}"
            )
        space = tuple(input.shape[others:])
        steps: Any = zip(
            space, self.stride, self.padding, self.kernel_size, self.dilation, strict=False
        )
        smallest = [
            (count - 1) * stride - 2 * padding + dilation * (size - 1) + 1
            for count, stride, padding, size, dilation in steps
        ]
        largest = [size + stride - 1 for size, stride in zip(smallest, self.stride, strict=False)]
        for size, low, high in zip(output_size, smallest, largest, strict=True):
            if not low <= size <= high:
                raise ValueError(
                    f"an input of size {space} gives outputs from {smallest} to {largest}, and "
                    f"output_size asks for {output_size}"
                )
        return tuple([size - low for size, low in zip(output_size, smallest, strict=True)])


class ConvTranspose1d(_ConvTransposeNd):
    """Transposed convolution of [N, C, L] or [C, L]; see `F.conv_transpose1d`."""

    _ndim = 1


class ConvTranspose2d(_ConvTransposeNd):
    """Transposed convolution of [N, C, H, W] or [C, H, W]; see `F.conv_transpose2d`."""

    _ndim = 2


class ConvTranspose3d(_ConvTransposeNd):
    """Transposed convolution of [N, C, D, H, W] or [C, D, H, W]; see `F.conv_transpose3d`."""

    _ndim = 3
