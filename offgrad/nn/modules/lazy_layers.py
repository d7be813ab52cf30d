"""Layers that take the number of input channels from the first input."""

from typing import Any, ClassVar

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from offgrad.nn.modules.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Size,
)
from offgrad.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from offgrad.nn.modules.lazy import LazyModuleMixin
from offgrad.nn.modules.linear import Linear
from offgrad.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
]


class _Inferred(LazyModuleMixin):
    """Base of the layers, which are constructed with 0 input channels.

    Attributes:
        _inferred: the attribute for the number of input channels.
    """

    _inferred: ClassVar[str]

    def _forget_shapes(self) -> None:
        """Make parameters and running statistics uninitialized."""
        for name, parameter in self._parameters.items():
            if parameter is not None:
                dtype = parameter._array.dtype
                self._parameters[name] = UninitializedParameter(
                    device=parameter.device, dtype=dtype
                )
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer._array.ndim:
                self._buffers[name] = UninitializedBuffer(
                    device=buffer.device, dtype=buffer._array.dtype
                )

    def _channels(self, input: Tensor) -> int:
        raise NotImplementedError

    def _shape(self, name: str) -> Any:
        """Return the shape of a parameter or buffer."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the parameters as the layer does, once their shapes are known."""
        if getattr(self, self._inferred):
            super().reset_parameters()  # type: ignore[misc]

    @grad_mode.no_grad()
    def initialize_parameters(self, input: Tensor) -> None:
        """Take the number of channels from `input`, and draw the parameters.

        Args:
            input: the first input.
        """
        needs_values = self.has_uninitialized_params()
        setattr(self, self._inferred, self._channels(input))
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if is_lazy(tensor):
                tensor.materialize(self._shape(name))  # type: ignore[union-attr]
        if needs_values:
            self.reset_parameters()


class LazyLinear(_Inferred, Linear):
    """A `Linear` that takes `in_features` from its first input."""

    cls_to_become = Linear
    _inferred = "in_features"

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, out_features, bias, device, dtype)
        self._forget_shapes()

    def _channels(self, input: Tensor) -> int:
        return int(input.shape[-1])

    def _shape(self, name: str) -> Any:
        own = (self.out_features,)
        return own if name == "bias" else (*own, self.in_features)


class _LazyConv(_Inferred):
    """Base of the convolutions."""

    _inferred = "in_channels"
    _ndim: ClassVar[int]
    in_channels: int
    out_channels: int
    groups: int
    transposed: bool
    kernel_size: tuple[int, ...]

    def _channels(self, input: Tensor) -> int:
        ndim = self._ndim
        if input.dim() not in (ndim + 1, ndim + 2):
            raise RuntimeError(
                f"{type(self).__name__} takes {ndim + 2} dimensions, or {ndim + 1} without a "
                f"batch, got the shape {input.shape}"
            )
        return int(input.shape[input.dim() - ndim - 1])

    def _shape(self, name: str) -> Any:
        if name == "bias":
            return (self.out_channels,)
        if self.transposed:
            return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)


class _LazyForwardConv(_LazyConv):
    def __init__(
        self,
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
            0,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self._forget_shapes()


class LazyConv1d(_LazyForwardConv, Conv1d):
    """A `Conv1d` that takes `in_channels` from its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyForwardConv, Conv2d):
    """A `Conv2d` that takes `in_channels` from its first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyForwardConv, Conv3d):
    """A `Conv3d` that takes `in_channels` from its first input."""

    cls_to_become = Conv3d


class _LazyTransposedConv(_LazyConv):
    def __init__(
        self,
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
            0,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        self._forget_shapes()


class LazyConvTranspose1d(_LazyTransposedConv, ConvTranspose1d):
    """A `ConvTranspose1d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyTransposedConv, ConvTranspose2d):
    """A `ConvTranspose2d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposedConv, ConvTranspose3d):
    """A `ConvTranspose3d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose3d


class _LazyNorm(_Inferred):
    """Base of the layers with running statistics."""

    _inferred = "num_features"
    num_features: int

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self._forget_shapes()

    def _channels(self, input: Tensor) -> int:
        return int(input.shape[1])

    def _shape(self, name: str) -> Any:
        return (self.num_features,)


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A `BatchNorm1d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A `BatchNorm2d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A `BatchNorm3d` that takes `num_features` from its first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An `InstanceNorm1d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An `InstanceNorm2d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An `InstanceNorm3d` that takes `num_features` from its first input."""

    cls_to_become = InstanceNorm3d
