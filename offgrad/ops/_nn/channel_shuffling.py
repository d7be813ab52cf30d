"""Rearranging channels: into finer or coarser grids, and between groups."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["channel_shuffle", "native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]


class Rearrange(Op):
    """The elements with some dimensions split, in another order, and joined; keeps nothing."""

    is_recomputable = True

    def forward(
        self, x: Array, split: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]
    ) -> Array:
        """Return x, viewed as `split`, with dimensions in `order`, copied as `shape`."""
        turned = memory.contiguous(x).reshape(split).transpose(order)
        self.arguments = {
            "split": turned.shape,
            "order": tuple(sorted(range(len(order)), key=order.__getitem__)),
            "shape": x.shape,
        }
        out = memory.empty(shape, x.dtype)
        kernels.copy_into(out.reshape(turned.shape), turned)
        return out

    def backward(self, grad: "Tensor") -> Any:
        name = self.name()
        return Rearrange.named(_OPPOSITES.get(name, name)).apply(grad, **self.arguments)


_OPPOSITES = {
    "PixelShuffleBackward0": "PixelUnshuffleBackward0",
    "PixelUnshuffleBackward0": "PixelShuffleBackward0",
}


def _rearranged(
    x: "Tensor", name: str, split: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> "Tensor":
    arguments = {"split": tuple(split), "order": tuple(order), "shape": tuple(shape)}
    return Rearrange.named(f"{name}Backward0").apply(x, **arguments)


def _factor(input: "Tensor", value: int, where: str, name: str) -> "tuple[Tensor, int]":
    x, factor = check_tensor(input, where), integer(value, where, name)
    if x._array.ndim < 3:
        raise RuntimeError(
            f"{where} expects input with > 2 dims, at least 3, but got a {describe(x)}"
        )
    if factor <= 0:
        if name == "groups":
            name = "Number of groups to divide channels in"
        raise RuntimeError(f"{where}: {name} must be positive, got {factor}")
    return x, factor


def pixel_shuffle(input: "Tensor", upscale_factor: int) -> "Tensor":
    """Return [..., C * r * r, H, W] as [..., C, H * r, W * r], r being the factor.

    Raises:
        RuntimeError: if the shape does not fit.
    """
    x, r = _factor(input, upscale_factor, "pixel_shuffle", "upscale_factor")
    *batch, channels, height, width = x._array.shape
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle: the number of channels must be a multiple of upscale_factor ** 2, got "
            f"{channels} channels for {r * r}"
        )
    kept, n = channels // (r * r), len(batch)
    split = *batch, kept, r, r, height, width
    order = *range(n), n, n + 3, n + 1, n + 4, n + 2
    return _rearranged(x, "PixelShuffle", split, order, (*batch, kept, height * r, width * r))


def pixel_unshuffle(input: "Tensor", downscale_factor: int) -> "Tensor":
    """Return [..., C, H * r, W * r] as [..., C * r * r, H, W], r being the factor.

    Raises:
        RuntimeError: if the shape does not fit.
    """
    x, r = _factor(input, downscale_factor, "pixel_unshuffle", "downscale_factor")
    *batch, channels, height, width = x._array.shape
    for name, dim, size in (("height", -2, height), ("width", -1, width)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle: downscale_factor={r} must divide the {name}, but dimension "
                f"{dim} has size {size}"
            )
    high, low, n = height // r, width // r, len(batch)
    split = *batch, channels, high, r, low, r
    order = *range(n), n, n + 2, n + 4, n + 1, n + 3
    return _rearranged(x, "PixelUnshuffle", split, order, (*batch, channels * r * r, high, low))


def channel_shuffle(input: "Tensor", groups: int) -> "Tensor":
    """Return `input` [N, C, ...] with its channels, split into groups, taken in turn from each.

    Raises:
        RuntimeError: if the shape does not fit.
    """
    x, count = _factor(input, groups, "channel_shuffle", "groups")
    n, channels, *rest = x._array.shape
    if channels % count:
        raise RuntimeError(
            "channel_shuffle: Number of channels must be divisible by groups, got "
            f"{channels} channels and {count} groups"
        )
    split = n, count, channels // count, *rest
    order = 0, 2, 1, *range(3, len(split))
    return _rearranged(x, "ChannelShuffle", split, order, x._array.shape)


native_channel_shuffle = channel_shuffle
