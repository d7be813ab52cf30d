"""Sampling of images at given places, and the places of affine maps."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import cast, category, check_tensor, real_floating, shape_error
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._nn.interpolation import cubic_weights

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["affine_grid_generator", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"]

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


class GridSampler2D(Op):
    """Values of images from the elements around each place; keeps images and places.

    Images [N, C, H, W] and places [N, *sizes, 2] of two sizes to [N, C, *sizes].
    """

    def forward(self, x: Array, grid: Array, sampling: kernels.Sampling) -> Array:
        self.sampling = sampling
        self.save(input=x, grid=grid)
        out = memory.empty((*x.shape[:2], *grid.shape[1:3]), x.dtype)
        images, places = memory.contiguous(x), memory.contiguous(grid)
        kernels.grid_sample(images, _flat(places, 1, 3), sampling, _flat(out, 2, 4))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """See `GridSampler2DBackward`."""
        x, grid = self.saved("input"), self.saved("grid")
        return GridSampler2DBackward.apply_all(
            grad, x, grid, needs=self.needs_input_grad, sampling=self.sampling
        )


class GridSampler2DBackward(Op):
    """The gradients of images and places from that of the values; keeps all three."""

    torch_name = "GridSampler2DBackwardBackward0"

    def forward(
        self,
        grad: Array,
        x: Array,
        grid: Array,
        sampling: kernels.Sampling,
        needs: tuple[bool, bool],
    ) -> tuple[Array | None, Array | None]:
        self.sampling, self.needs = sampling, needs
        self.save(grad=grad, input=x, grid=grid)
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dgrid = memory.empty(grid.shape, grid.dtype) if needs[1] else None
        kernels.grid_sample_backward(
            _flat(memory.contiguous(grad), 2, 4),
            memory.contiguous(x),
            _flat(memory.contiguous(grid), 1, 3),
            sampling,
            dx,
            None if dgrid is None else _flat(dgrid, 1, 3),
        )
        return dx, dgrid

    def backward(self, *grads: "Tensor | None") -> Any:
        inputs = [self.saved(slot) for slot in ("grad", "input", "grid")]
        return differentiate(self._reference, inputs, grads, self.needs_input_grad)

    def _reference(self, grad: "Tensor", x: "Tensor", grid: "Tensor") -> Any:
        def values(x: "Tensor", grid: "Tensor") -> "Tensor":
            return _composed(x, grid, *self.sampling)

        return differentiate(values, (x, grid), (grad,), self.needs)


def _flat(array: Array, begin: int, end: int) -> Array:
    """Return an array with the dimensions `begin` to ``end - 1`` as one."""
    shape = array.shape
    return array.reshape(*shape[:begin], prod(shape[begin:end]), *shape[end:])


@full_precision
def grid_sample(
    input: "Tensor",
    grid: "Tensor",
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> "Tensor":
    """Return the values of `input` at the places `grid`.

    Args:
        input: shape [N, C, H, W] or [N, C, D, H, W], of floating point numbers.
        grid: shape [N, *sizes, 2] or [N, *sizes, 3] with as many sizes as the input has: x, y (and
            z) from -1 to 1 over the input's width, height (and depth).
        mode: "bilinear" between the elements around (of volumes, too), "nearest", or "bicubic"
            (images only).
        padding_mode: of places outside: "zeros", "border" (the nearest element) or "reflection".
        align_corners: whether -1 and 1 are the centres of the corner elements instead of their
            outer edges; False if None, with a warning.

    Raises:
        ValueError: for another mode.
        RuntimeError: if shapes or dtypes do not fit.
    """
    if mode not in MODES:
        raise ValueError(
            "grid_sample: expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: "
            f"{mode!r}"
        )
    if padding_mode not in PADDINGS:
        raise ValueError(
            "grid_sample: expected padding_mode to be 'zeros', 'border', or 'reflection', but "
            f"got: {padding_mode!r}"
        )
    if align_corners is None:
        warn_program(
            "grid_sample: align_corners is False by default; set it to say which you mean",
        )
    return _sampled(input, grid, mode, padding_mode, bool(align_corners))


@full_precision
def grid_sampler(
    input: "Tensor",
    grid: "Tensor",
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> "Tensor":
    """Return `grid_sample` of the arguments, modes by their number in `MODES` and `PADDINGS`."""
    modes = MODES[interpolation_mode], PADDINGS[padding_mode]
    return _sampled(input, grid, *modes, bool(align_corners))


grid_sampler_2d = grid_sampler_3d = grid_sampler


def _sampled(
    input: "Tensor", grid: "Tensor", mode: str, padding: str, align_corners: bool
) -> "Tensor":
    x, places = _checked(input, grid, mode)
    if x._array.ndim == 4:
        sampling = kernels.Sampling(mode, padding, align_corners)
        return GridSampler2D.apply(x, places, sampling=sampling)
    dtype = wide_dtype(x._array.dtype)  # places of 16 bits lie between elements
    volumes, places = cast(x, dtype), cast(places, dtype)
    return cast(_composed(volumes, places, mode, padding, align_corners), x._array.dtype)


def _composed(
    x: "Tensor", places: "Tensor", mode: str, padding: str, align_corners: bool
) -> "Tensor":
    n, channels, *sizes = x._array.shape
    ndim, out_sizes = len(sizes), places._array.shape[1:-1]
    flat = x.reshape(n, channels, prod(sizes))
    # x, y, z of the grid are columns, rows, planes.
    at = [
        _unnormalised(each, size, align_corners).reshape(n, prod(out_sizes))
        for each, size in zip(places.unbind(-1)[::-1], sizes, strict=True)
    ]
    if mode != "bicubic":
        at = [
            _inside(each, size, padding, align_corners)
            for each, size in zip(at, sizes, strict=True)
        ]
    total: Any = None
    for indices, weight in _corners(at, mode):
        chosen = indices
        if mode == "bicubic":
            chosen = [
                _inside(each, size, padding, align_corners)
                for each, size in zip(indices, sizes, strict=True)
            ]
        part = _values(flat, chosen, tuple(sizes))
        part = part * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert len(out_sizes) == ndim
    result: Tensor = total.reshape(n, channels, *out_sizes)
    return result


def _checked(input: "Tensor", grid: "Tensor", mode: str) -> "tuple[Tensor, Tensor]":
    x, places = real_floating(input, "grid_sampler"), real_floating(grid, "grid_sampler")
    ndim = x._array.ndim - 2
    if x._array.dtype != places._array.dtype:
        raise shape_error("grid_sampler", "expected input and grid to have one dtype", x, places)
    if ndim not in (2, 3) or places._array.ndim != ndim + 2:
        raise shape_error(
            "grid_sampler()", "the input and the grid must both be 4D, or both 5D", x,
            places,
        )  # fmt: skip
    if len(x._array) != len(places._array):
        raise shape_error(
            "grid_sampler()", "expected grid and input to have same batch size", x, places
        )
    if places._array.shape[-1] != ndim:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {ndim} in last dimension, but got a "
            f"{describe(places)}"
        )
    if 0 in x._array.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, got a "
            f"{describe(x)}"
        )
    if mode == "bicubic" and ndim == 3:
        raise RuntimeError(
            f"grid_sampler(): bicubic interpolation only supports 4D input, got a {describe(x)}"
        )
    return x, places


def _unnormalised(place: "Tensor", size: int, align_corners: bool) -> "Tensor":
    """Return places from -1 to 1 as positions among `size` elements."""
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _inside(at: "Tensor", size: int, padding: str, align_corners: bool) -> "Tensor":
    """Return positions, those outside moved to the border or reflected."""
    if padding == "zeros":
        return at
    if padding == "reflection":
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return at * 0
        distance = (at - low).abs()
        extra = distance.fmod(span)
        is_even = (distance / span).floor().remainder(2) == 0
        at = where(is_even, extra, span - extra) + low
    # At the border itself the gradient is 0, as in PyTorch.
    is_within = (at > 0) & (at < size - 1)
    limited = at.detach().nan_to_num(0.0).clamp(0, size - 1)
    return where(is_within, at, limited)


def _corners(at: "list[Tensor]", mode: str) -> "Any":
    """Yield for each element that takes part its indices, as floats, and its weights."""
    if mode == "nearest":
        # A weight of 1, by which the grid gets a gradient: 0.
        every = wrap(np.ones(at[0]._array.shape, np.bool_))
        yield [each.detach().round() for each in at], where(every, 1.0, sum(at))
        return
    lower = [each.detach().floor() for each in at]
    share = [each - low for each, low in zip(at, lower, strict=True)]
    weights = (
        [cubic_weights(each) for each in share]
        if mode == "bicubic"
        else [[1 - each, each] for each in share]
    )
    first = -1 if mode == "bicubic" else 0
    for taps in product(range(len(weights[0])), repeat=len(at)):
        weight: Any = 1
        for tap, each in zip(taps, weights, strict=True):
            weight = each[tap] * weight
        yield [low + (tap + first) for tap, low in zip(taps, lower, strict=True)], weight


def _values(flat: "Tensor", indices: "list[Tensor]", sizes: tuple[int, ...]) -> "Tensor":
    """Return the elements [N, C, P] at indices along each dimension; 0 for those outside."""
    index = np.zeros(indices[0]._array.shape, np.int64)
    inside = np.ones(index.shape, np.bool_)
    for each, size in zip(indices, sizes, strict=True):
        array = each._array
        inside = inside & (array >= 0) & (array <= size - 1)
        index = index * size + np.where(inside, array, 0).astype(np.int64)
    index[~inside] = 0
    channels = flat._array.shape[1]
    chosen = wrap(index).unsqueeze(1).expand(-1, channels, -1)
    values = flat.gather(2, chosen)
    return values if inside.all() else values.masked_fill(wrap(~inside).unsqueeze(1), 0)


def affine_grid_generator(theta: "Tensor", size: Sequence[int], align_corners: bool) -> "Tensor":
    """Return the places that affine maps give to the elements of a batch; see `affine_grid`."""
    matrices = real_floating(theta, "affine_grid")
    dtype = matrices._array.dtype
    spatial = tuple(size[2:])
    axes = []
    for count in spatial:
        axis = np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
        axes.append(axis if align_corners or count <= 1 else axis * ((count - 1) / count))
    planes = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*planes[::-1], np.ones(spatial)], -1).reshape(-1, len(spatial) + 1)
    places = matrices.new_tensor(base.astype(dtype)) @ matrices.transpose(1, 2)
    return places.reshape(size[0], *spatial, len(spatial))


def affine_grid(
    theta: "Tensor", size: Sequence[int], align_corners: bool | None = None
) -> "Tensor":
    """Return for each element of a batch of images the place that an affine map gives it.

    Args:
        theta: shape [N, 2, 3] for images, [N, 3, 4] for volumes.
        size: of the images, [N, C, H, W] or [N, C, D, H, W].
        align_corners: as in `grid_sample`, which takes the result.

    Returns:
        Shape [N, H, W, 2] or [N, D, H, W, 3].

    Raises:
        ValueError: if the shapes do not fit, or a size is not positive.
        NotImplementedError: for sizes of another number.
    """
    if align_corners is None:
        warn_program(
            "affine_grid: align_corners is False by default; set it to say which you mean",
        )
    if category(check_tensor(theta, "affine_grid")._array.dtype) < 2:
        raise ValueError(
            f"affine_grid: Expected theta to have floating point type, got a {describe(theta)}; "
            "convert with .float()"
        )
    matrices = real_floating(theta, "affine_grid")
    ndim = len(size) - 2
    if ndim not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, [N, C, H, W] or [N, C, D, H, W], got "
            f"{list(size)}"
        )
    if matrices._array.shape[1:] != (ndim, ndim + 1) or matrices._array.ndim != 3:
        raise ValueError(
            f"affine_grid: Expected a batch of {ndim}D affine matrices of shape "
            f"Nx{ndim}x{ndim + 1} for size {list(size)}, got a {describe(matrices)}"
        )
    if min(size) <= 0:
        raise ValueError(f"affine_grid: all sizes must be positive, got {list(size)}")
    return affine_grid_generator(matrices, size, bool(align_corners))
