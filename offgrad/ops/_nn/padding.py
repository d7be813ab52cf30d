"""Padding: with a constant, or with copies of elements near or opposite the edge."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.autocast import in_full_precision
from offgrad.ops._core.dims import integers
from offgrad.ops._core.dtypes import check_tensor, element
from offgrad.ops._nn.resampling import resampled

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Taps

__all__ = ["constant_pad_nd"]


class ConstantPadNd(Op):
    """x between elements of one value, or without its margins; keeps nothing."""

    is_recomputable = True

    def forward(self, x: Array, pads: tuple[tuple[int, int], ...], value: Any) -> Array:
        """Return x with elements added before and after in each dimension; taken if below 0."""
        self.pads = pads
        sizes = [size + sum(each) for size, each in zip(x.shape, pads, strict=True)]
        out = memory.empty(tuple(sizes), x.dtype)
        target, source = [], []
        for size, new, (before, after) in zip(x.shape, sizes, pads, strict=True):
            target.append(slice(max(before, 0), new - max(after, 0)))
            source.append(slice(max(-before, 0), size - max(-after, 0)))
        _fill_margins(out, target, value)
        out[tuple(target)] = x[tuple(source)]
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Take the margins away again."""
        opposite = tuple([(-before, -after) for before, after in self.pads])
        return ConstantPadNd.apply(grad, pads=opposite, value=0)


def _fill_margins(out: Array, inner: list[slice], value: Any) -> None:
    """Write `value` into all but the elements `inner`."""
    for axis, each in enumerate(inner):
        before = tuple(inner[:axis])
        out[(*before, slice(0, each.start))] = value
        out[(*before, slice(each.stop, None))] = value


def constant_pad_nd(input: "Tensor", pad: Sequence[int], value: Any = 0) -> "Tensor":
    """Return `input` with `value` around it.

    Args:
        input: of any dtype.
        pad: pairs of numbers of elements to add before and after, the pair of the last dimension
            first; negative numbers take elements away.
        value: a number.

    Raises:
        RuntimeError: if there are too many numbers, an odd number of them, or a dimension would
            get a negative size.
    """
    x = check_tensor(input, "pad")
    given = integers(pad, "pad", "pad")
    if len(given) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2, got {list(given)}")
    ndim = x._array.ndim
    if len(given) > 2 * ndim:
        raise RuntimeError(
            "pad: at most two numbers for each dimension are possible, got "
            f"{len(given)} numbers for a {describe(x)}"
        )
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)][::-1]
    pads = (*((0, 0),) * (ndim - len(pairs)), *pairs)
    for size, (before, after) in zip(x._array.shape, pads, strict=True):
        if size + before + after < 0 or size + min(before, 0) + min(after, 0) < 0:
            raise RuntimeError(
                f"pad: the result would have a negative size, with pad={list(given)} for a "
                f"{describe(x)}"
            )
    return ConstantPadNd.apply(x, pads=pads, value=element(value, x._array.dtype, "pad"))


@lru_cache(256)
def _copies(mode: str, size: int, before: int, after: int) -> "Taps":
    """Return the taps of one dimension that is padded with copies of its elements."""
    at = np.arange(-before, size + after)
    if mode == "replicate":
        at = np.clip(at, 0, size - 1)
    elif mode == "circular":
        # As in PyTorch, what a negative number takes away is not copied.
        first, stop = max(-before, 0), size - max(-after, 0)
        at = first + (at - first) % (stop - first)
    else:
        last = size - 1
        at = last - np.abs(last - np.abs(at))
    return kernels.Taps(size, at[None], np.ones((1, len(at))))


_NODES = {"reflect": "ReflectionPad", "replicate": "ReplicationPad", "circular": "CircularPad"}


def pad(
    input: "Tensor", pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> "Tensor":
    """Return `input` with elements added around it, or taken away.

    Args:
        input: of any dtype; unless the mode is "constant", of shape [N, C, *sizes] or [C, *sizes]
            with as many sizes as there are pairs of numbers.
        pad: pairs of numbers of elements to add before and after, the pair of the last dimension
            first; negative numbers take elements away.
        mode: "constant"; "reflect", copies in reverse order without the edge; "replicate", copies
            of the edge; or "circular", copies from the opposite end.
        value: of the added elements in the mode "constant"; 0 if None.

    Raises:
        RuntimeError: if the numbers do not fit the shape.
        NotImplementedError: for another mode, or number of dimensions.
    """
    if isinstance(value, TensorBase):
        value = value.item()
    if mode == "constant":
        return constant_pad_nd(input, pad, 0 if value is None else value)
    x = check_tensor(input, "pad")
    given = integers(pad, "pad", "pad")
    if len(given) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2, got {list(given)}")
    if not isinstance(mode, str):
        raise TypeError(f"pad: mode must be a string, got {mode!r}")
    if mode not in _NODES:
        raise NotImplementedError(
            f"Unrecognised padding mode {mode}: there are constant, reflect, replicate, circular"
        )
    if value:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument, got {value}')
    count = len(given) // 2
    if mode == "replicate" or (mode == "reflect" and count < 3):  # PyTorch's list has no other
        x = in_full_precision(x)
    shape = x._array.shape
    if not 1 <= count <= 3 or len(shape) not in (count + 1, count + 2):
        raise NotImplementedError(
            f"pad: Padding size {len(given)} is not supported for {len(shape)}D input tensor. "
            f"Supported combinations for non-constant padding: 2 numbers for each of the last 1 to "
            f"3 dimensions of a tensor with one or two more, got a {describe(x)}"
        )
    if mode != "circular" and x._array.dtype == np.bool_:
        raise NotImplementedError(f"pad: the mode {mode!r} is not implemented for bool")
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)][::-1]
    if 0 in shape[-count - 1 :]:
        raise RuntimeError(
            f"pad: Expected {count + 1}D or {count + 2}D (batch mode) tensor with possibly 0 batch "
            f"size and other non-zero dimensions for input, got a {describe(x)}"
        )
    for size, each in zip(shape[-count:], pairs, strict=True):
        _check_pair(x, mode, size, each)
    taps = tuple(
        _copies(mode, size, *each) for size, each in zip(shape[-count:], pairs, strict=True)
    )
    kept = tuple(None if each == (0, 0) else tap for each, tap in zip(pairs, taps, strict=True))
    return resampled(x, kept, f"{_NODES[mode]}{count}D")


def _check_pair(x: "Tensor", mode: str, size: int, pair: tuple[int, int]) -> None:
    """Raise RuntimeError if the numbers of elements around `size` elements do not fit."""
    largest = max(pair)
    if mode == "reflect" and largest >= size:
        raise RuntimeError(
            "pad: Padding size should be less than the corresponding input dimension to reflect, "
            f"got {pair} for the size {size} of a {describe(x)}"
        )
    if mode == "circular" and largest > size:
        raise RuntimeError(
            f"circular padding can wrap around only once, got padding {pair} for the size {size} "
            f"of a {describe(x)}"
        )
    kept = size + min(pair[0], 0) + min(pair[1], 0)
    if mode == "circular" and kept < 1 <= size + sum(pair):
        raise RuntimeError(
            f"pad: circular padding has nothing to copy, the padding {pair} takes away all of the "
            f"size {size} of a {describe(x)}"
        )
    if size + sum(pair) < (0 if mode == "circular" else 1):
        raise RuntimeError(
            f"pad: the padding {pair} leaves nothing of the size {size} of a {describe(x)}"
        )
