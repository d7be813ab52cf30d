"""Interpolation: images, signals and volumes at other sizes."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import integer, integers
from offgrad.ops._core.dtypes import cast, category, check_tensor
from offgrad.ops._nn.average_pooling import adaptive_means
from offgrad.ops._nn.resampling import resampled

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Taps

__all__: list[str] = []

_MODES = {
    "nearest": "UpsampleNearest",
    "nearest-exact": "UpsampleNearestExact",
    "linear": "UpsampleLinear",
    "bilinear": "UpsampleBilinear",
    "bicubic": "UpsampleBicubic",
    "trilinear": "UpsampleTrilinear",
    "lanczos": "UpsampleLanczos",
    "area": "AdaptiveAvgPool",
}
_NDIM_OF_MODE = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3, "lanczos": 2}


def _scale(size: int, count: int, factor: float | None, dtype: Any) -> Any:
    """Return the distance of adjacent outputs, in inputs."""
    return dtype(1 / factor) if factor else dtype(size) / dtype(count)


@lru_cache(256)
def _nearest(size: int, count: int, factor: float | None, is_exact: bool) -> "Taps":
    """Return the taps of the element nearest to each output; its lower edge if not exact."""
    # In float32 as in PyTorch: ties between elements depend on rounding.
    number = np.arange(count, dtype=np.float32)
    scale = _scale(size, count, factor, np.float32)
    at = np.floor((number + np.float32(0.5)) * scale if is_exact else number * scale)
    index = np.minimum(at.astype(np.int64), size - 1)
    return kernels.Taps(size, index[None], np.ones((1, count)))


def _positions(
    size: int, count: int, factor: float | None, align_corners: bool, dtype: Any
) -> Array:
    """Return where the outputs lie among the inputs, as fractions."""
    number = np.arange(count, dtype=dtype)
    if align_corners:
        return np.asarray(number * (dtype(size - 1) / dtype(count - 1) if count > 1 else dtype(0)))
    half = dtype(0.5)
    return np.asarray(_scale(size, count, factor, dtype) * (number + half) - half)


@lru_cache(256)
def _linear(size: int, count: int, factor: float | None, align_corners: bool, dtype: Any) -> "Taps":
    """Return the taps of the two elements next to each output."""
    at = np.maximum(_positions(size, count, factor, align_corners, dtype), 0)
    if size == count:
        at = np.arange(count, dtype=dtype)
    lower = np.minimum(at.astype(np.int64), size - 1)
    share = np.clip(at - lower.astype(dtype), 0, 1)
    return kernels.Taps(size, [lower, np.minimum(lower + 1, size - 1)], [1 - share, share])


def _cubic_near(x: Any, a: float) -> Any:
    return (x * (a + 2) - (a + 3)) * x * x + 1


def _cubic_far(x: Any, a: float) -> Any:
    return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a


def cubic_weights(share: Any, a: float = -0.75) -> list[Any]:
    """Return the weights of the four elements around a position, `share` after the second.

    Source: R. G. Keys, "Cubic convolution interpolation for digital image processing", 1981.
    """
    return [
        _cubic_far(share + 1, a),
        _cubic_near(share, a),
        _cubic_near(1 - share, a),
        _cubic_far(2 - share, a),
    ]


@lru_cache(256)
def _cubic(size: int, count: int, factor: float | None, align_corners: bool, dtype: Any) -> "Taps":
    """Return the taps of the four elements around each output; those outside are the edges."""
    at = _positions(size, count, factor, align_corners, dtype)
    if size == count:
        at = np.arange(count, dtype=dtype)
    second = np.floor(at)
    index = second.astype(np.int64) + np.arange(-1, 3)[:, None]
    return kernels.Taps(size, np.clip(index, 0, size - 1), cubic_weights(at - second))


def _triangle(x: Array) -> Array:
    return np.asarray(np.maximum(0, 1 - np.abs(x)))


def _keys(x: Array) -> Array:
    x = np.abs(x)
    far = np.where(x < 2, _cubic_far(x, -0.5), 0)
    return np.asarray(np.where(x < 1, _cubic_near(x, -0.5), far))


def _lanczos(x: Array) -> Array:
    return np.asarray(np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0))


_FILTERS: dict[str, tuple[Callable[[Array], Array], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_keys, 2),
    "lanczos": (_lanczos, 3),
}


@lru_cache(256)
def _antialiased(
    size: int, count: int, factor: float | None, align_corners: bool, mode: str
) -> "Taps":
    """Return the taps of a filter as wide as the outputs are apart, if that is more than 1."""
    weigh, reach = _FILTERS[mode]
    if align_corners:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        scale = float(_scale(size, count, factor, np.float64))
    wide = max(scale, 1.0)
    centre = scale * (np.arange(count) + 0.5)
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    stop = np.minimum((centre + reach * wide + 0.5).astype(np.int64), size)
    within = np.arange(int((stop - first).max(initial=1)))[:, None]
    weight = np.where(within < stop - first, weigh((within + first - centre + 0.5) / wide), 0)
    return kernels.Taps(size, np.minimum(first + within, size - 1), weight / weight.sum(0))


def interpolate(
    input: "Tensor",
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> "Tensor":
    """Return `input` at another size.

    Args:
        input: shape [N, C, *sizes] with one to three sizes, of floating point numbers; of uint8 in
            the modes nearest, nearest-exact, bilinear and bicubic.
        size: the new sizes, or one number for all.
        scale_factor: instead, the factors of the sizes, or one for all; sizes round down.
        mode: "nearest" or "nearest-exact"; "linear", "bilinear" or "trilinear" for one, two or
            three sizes; "bicubic" (two sizes); "area", the means of equal parts; "lanczos", with
            `antialias` only.
        align_corners: whether the centres of the corner elements stay in place, instead of the
            corners themselves; for the linear modes and bicubic.
        recompute_scale_factor: whether the factors of the rounded sizes replace the given ones.
        antialias: whether to filter frequencies that a smaller size cannot hold; for the modes
            bilinear, bicubic and lanczos.

    Raises:
        ValueError: if sizes or options contradict each other.
        NotImplementedError: for another mode, number of sizes or dtype.
        RuntimeError: for sizes of 0.

    The weights are computed once for each pair of sizes; nothing is kept for backward.
    """
    x = check_tensor(input, "interpolate")
    ndim = x._array.ndim - 2
    if not 1 <= ndim <= 3 or mode not in _MODES or _NDIM_OF_MODE.get(mode, ndim) != ndim:
        raise NotImplementedError(
            f"interpolate: the mode {mode!r} got {ndim + 2}D input, a {describe(x)}; nearest, "
            "nearest-exact and area need 3D, 4D or 5D input, linear mode needs 3D input, bilinear "
            "and bicubic 4D, trilinear 5D; there are no other modes"
        )
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear, bilinear, "
            f"bicubic and trilinear, got {mode!r}"
        )
    if antialias and mode not in _FILTERS:
        raise ValueError(
            f"antialias is for images [N, C, H, W] in the modes bilinear and bicubic, got {mode!r}"
        )
    if mode == "lanczos" and not antialias:
        raise ValueError("the mode lanczos requires antialias=True")
    sizes, factors = _sizes_and_factors(x, ndim, size, scale_factor, recompute_scale_factor)
    if min(sizes) <= 0 or 0 in x._array.shape[1:]:
        raise RuntimeError(
            "interpolate: sizes must be above 0, got output sizes "
            f"{list(sizes)} for a {describe(x)}"
        )
    return _interpolated(x, sizes, factors, mode, bool(align_corners), antialias)


def _interpolated(
    x: "Tensor",
    sizes: tuple[int, ...],
    factors: tuple[float | None, ...],
    mode: str,
    align_corners: bool,
    antialias: bool,
) -> "Tensor":
    dtype = x._array.dtype
    is_bytes = dtype == np.uint8 and mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    if category(dtype) != 2 and not is_bytes:
        raise NotImplementedError(
            f"interpolate: the mode {mode!r} is not implemented for {dtype.name}; convert the "
            "input with .float()"
        )
    # Positions are computed in the precision of PyTorch, on which weights depend.
    number = np.float64 if dtype == np.float64 else np.float32
    found: list[Taps] = []
    for old, new, factor in zip(x._array.shape[2:], sizes, factors, strict=True):
        if mode == "area":
            found.append(adaptive_means(old, new))
        elif mode.startswith("nearest"):
            found.append(_nearest(old, new, factor, mode == "nearest-exact"))
        elif antialias:
            found.append(_antialiased(old, new, factor, align_corners, mode))
        else:
            of_mode = _cubic if mode == "bicubic" else _linear
            found.append(of_mode(old, new, factor, align_corners, number))
    ndim = len(sizes)
    name = f"{_MODES[mode]}{max(ndim, 2) if mode == 'area' else ndim}D{'Aa' if antialias else ''}"
    if dtype == np.uint8 and not mode.startswith("nearest"):
        # As in PyTorch, rounded after each dimension, the width first; halves up.
        for taps in ((None, found[1]), (found[0], None)):
            wide = resampled(cast(x, np.float32), taps, name)
            x = cast((wide + 0.5).floor().clamp(0, 255), np.uint8)
        return x
    return resampled(x, tuple(found), name)


def _sizes_and_factors(
    x: "Tensor", ndim: int, size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the sizes, and the factors that positions depend on, None for those of the sizes."""
    spatial = x._array.shape[2:]
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "interpolate: only one of size or scale_factor should be defined, got both"
            if size is not None
            else "interpolate: either size or scale_factor should be defined, got neither"
        )
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor=True goes with scale_factor, not with size")
        if isinstance(size, (tuple, list)):
            _check_count(x, ndim, size, "output size")
            if any(isinstance(each, float) for each in size):
                _refuse_size(size)
            return integers(size, "interpolate", "size"), (None,) * ndim
        if isinstance(size, float):
            _refuse_size(size)
        return (integer(size, "interpolate", "size"),) * ndim, (None,) * ndim
    if isinstance(scale_factor, (tuple, list)):
        _check_count(x, ndim, scale_factor, "scale_factor")
        factors = tuple(float(each) for each in scale_factor)
    elif isinstance(scale_factor, str):
        raise TypeError(f"interpolate: scale_factor must be a number, got {scale_factor!r}")
    else:
        factors = (float(scale_factor),) * ndim
    sizes = tuple(floor(old * factor) for old, factor in zip(spatial, factors, strict=True))
    return sizes, (None,) * ndim if recompute else factors


def _refuse_size(size: Any) -> None:
    raise TypeError(
        f"interpolate: expected size to be one of int or a tuple of ints, got {size}; a factor "
        "is scale_factor="
    )


def _check_count(x: "Tensor", ndim: int, given: Any, name: str) -> None:
    if len(given) != ndim:
        raise ValueError(
            "interpolate: give one number for each dimension after the first two, got "
            f"{name} {given} for a {describe(x)}"
        )


def _warn_of_age(name: str) -> None:
    warnings.warn(
        f"`nn.functional.{name}` is deprecated: use `nn.functional.interpolate`, which does the "
        "same",
        UserWarning,
        stacklevel=3,
    )


def upsample(
    input: "Tensor",
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> "Tensor":
    """Return `interpolate` of the arguments: its older name, with a warning."""
    _warn_of_age("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: "Tensor", size: Any = None, scale_factor: Any = None) -> "Tensor":
    """Return `interpolate` in the mode "nearest", with a warning: an older name."""
    _warn_of_age("upsample_nearest")
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: "Tensor", size: Any = None, scale_factor: Any = None) -> "Tensor":
    """Return `interpolate` in the mode "bilinear" with aligned corners, with a warning."""
    _warn_of_age("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)
