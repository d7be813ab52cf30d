"""`unfold` and `fold` of `nn.functional`: blocks of images as columns, and their sums."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import is_integer
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._nn.convolution_arguments import per_dim

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Pair = tuple[int, ...]


class Im2Col(Op):
    """The blocks of images, each as a column; keeps nothing."""

    is_recomputable = True

    def forward(self, x: Array, kernel: Pair, places: Pair, steps: "kernels.Steps") -> Array:
        """Return [N, C KH KW, places] for x [N, C, H, W]."""
        self.space, self.kernel, self.places, self.steps = x.shape[2:], kernel, places, steps
        out = memory.empty((*x.shape[:2], *kernel, *places), x.dtype)
        out[...] = kernels.columns(x, kernel, places, steps)
        return out.reshape(len(x), x.shape[1] * prod(kernel), prod(places))

    def backward(self, grad: "Tensor") -> Any:
        """Sum the blocks where they were."""
        return Col2Im.apply(
            grad, size=self.space, kernel=self.kernel, places=self.places, steps=self.steps
        )


class Col2Im(Op):
    """Images summed from their blocks; keeps nothing."""

    is_recomputable = True

    def forward(
        self, x: Array, size: Pair, kernel: Pair, places: Pair, steps: "kernels.Steps"
    ) -> Array:
        """Return [N, C, *size] for x [N, C KH KW, places]."""
        self.kernel, self.places, self.steps = kernel, places, steps
        channels = x.shape[1] // prod(kernel)
        out = memory.empty((len(x), channels, *size), x.dtype)
        kernels.add_columns(x.reshape(len(x), channels, *kernel, *places), out, steps)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return the blocks of the gradient."""
        return Im2Col.apply(grad, kernel=self.kernel, places=self.places, steps=self.steps)


def unfold(
    input: "Tensor",
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> "Tensor":
    """Return the blocks of input [N, C, H, W], or [C, H, W], as columns: [N, C KH KW, places].

    Args:
        input: images.
        kernel_size: size of a block.
        dilation: distance of two elements of a block.
        padding: zeros around the images.
        stride: distance of two blocks.

    Raises:
        RuntimeError: if no block fits, or a number is too small.
        NotImplementedError: for integers, as in PyTorch.
    """
    x = _check_dtype(input, "unfold")
    if x._array.ndim not in (3, 4) or 0 in x._array.shape[-3:]:
        raise RuntimeError(
            f"unfold: an input [N, C, H, W] or [C, H, W] is needed, in which only the batch may be "
            f"empty, got a {describe(x)}"
        )
    kernel, steps = _steps("unfold", kernel_size, dilation, padding, stride)
    space = x._array.shape[-2:]
    places = _places(space, kernel, steps)
    if min(places) < 1:
        raise RuntimeError(
            f"unfold: with spatial size {space}, kernel_size={kernel}, dilation={steps.dilation} "
            f"and padding={steps.padding}, calculated shape of the array of sliding blocks as "
            f"{places}, but at least one block must fit in each dimension"
        )
    if x._array.ndim == 3:
        return Im2Col.apply(x.unsqueeze(0), kernel=kernel, places=places, steps=steps).squeeze(0)
    return Im2Col.apply(x, kernel=kernel, places=places, steps=steps)


def fold(
    input: "Tensor",
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> "Tensor":
    """Return images [N, C, *output_size], the sums of their blocks [N, C KH KW, places].

    Args:
        input: the blocks as `unfold` returns them, [C KH KW, places] for a single image.
        output_size: size of the images.
        kernel_size, dilation, padding, stride: as in `unfold`.

    Raises:
        RuntimeError: if the number of blocks or their size does not fit.
        NotImplementedError: for integers, as in PyTorch.
    """
    x = _check_dtype(input, "fold")
    if x._array.ndim not in (2, 3) or 0 in x._array.shape[-2:]:
        raise RuntimeError(
            f"fold: an input [N, C KH KW, places] or [C KH KW, places] is needed, in which only "
            f"the batch may be empty, got a {describe(x)}"
        )
    size = _pair("fold", "output_size", output_size)
    kernel, steps = _steps("fold", kernel_size, dilation, padding, stride)
    places, (rows, given) = _places(size, kernel, steps), x._array.shape[-2:]
    if rows % prod(kernel):
        raise RuntimeError(
            "fold: Expected size of input's dimension -2 to be divisible by the product of "
            f"kernel_size={kernel}, got {rows}"
        )
    if min(places) < 1 or prod(places) != given:
        raise RuntimeError(
            f"fold: with output_size={size}, kernel_size={kernel}, dilation={steps.dilation}, "
            f"padding={steps.padding} and stride={steps.stride}, expected size of input's last "
            f"dimension to match the calculated number of sliding blocks {places[0]} * "
            f"{places[1]} = {prod(places)}, got {given}"
        )
    parameters = {"size": size, "kernel": kernel, "places": places, "steps": steps}
    if x._array.ndim == 2:
        return Col2Im.apply(x.unsqueeze(0), **parameters).squeeze(0)
    return Col2Im.apply(x, **parameters)


def _check_dtype(input: "Tensor", where: str) -> "Tensor":
    x = check_tensor(input, where)
    if x._array.dtype.kind in "iu":
        raise NotImplementedError(
            f"{where} is not defined for integers, got a {describe(x)}; convert with .float()"
        )
    return x


def _pair(where: str, name: str, value: Any) -> Pair:
    lengths = (1, 2) if name in ("stride", "padding", "dilation") else (2,)
    if not is_integer(value) and len(value) not in lengths:
        raise RuntimeError(f"{where}: expected two numbers as {name}, got {value}")
    return per_dim(where, name, value, 2)


def _steps(
    where: str, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> "tuple[Pair, kernels.Steps]":
    pairs = [
        _pair(where, name, value)
        for name, value in (
            ("kernel_size", kernel),
            ("stride", stride),
            ("padding", padding),
            ("dilation", dilation),
        )
    ]
    for name, pair, lowest in zip(
        ("kernel_size", "stride", "padding", "dilation"), pairs, (1, 1, 0, 1), strict=True
    ):
        if min(pair) < lowest:
            raise RuntimeError(f"{where}: {name} should be at least {lowest}, got {pair}")
    return pairs[0], kernels.Steps(pairs[1], pairs[2], pairs[3])


def _places(space: Pair, kernel: Pair, steps: "kernels.Steps") -> Pair:
    """Return the number of blocks in each dimension, 0 or less if none fits."""
    sizes = zip(space, kernel, steps.stride, steps.padding, steps.dilation, strict=True)
    return tuple(
        [
            (size + 2 * padding - dilation * (reach - 1) - 1) // stride + 1
            for size, reach, stride, padding, dilation in sizes
        ]
    )
