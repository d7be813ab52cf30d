"""Statistics of samples: covariances, distances; integrals and differences of sampled functions."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase, describe, metadata, wrap
from offgrad.ops._core.dims import integer, normalize_dim, normalize_dims
from offgrad.ops._core.dtypes import category, check_tensor, floating
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "gradient",
    "renorm",
    "trapezoid",
    "trapz",
    "vander",
]


def cov(
    input: "Tensor",
    *,
    correction: int = 1,
    fweights: "Tensor | None" = None,
    aweights: "Tensor | None" = None,
) -> "Tensor":
    """Return the covariances of the rows of `input`, variables by observations.

    Args:
        input: [variables, observations], or a vector of observations of one.
        correction: what is subtracted from the number of observations, or of weights.
        fweights: how often each observation occurs, integers.
        aweights: the weight of each observation.

    Raises:
        RuntimeError: if shapes or weights do not fit.
    """
    x = floating(check_tensor(input, "cov"), "cov")
    if metadata(x).ndim > 2:
        raise RuntimeError(
            f"cov: expected input to have two or fewer dimensions, got a {describe(x)}"
        )
    rows = x.reshape(1, -1) if metadata(x).ndim < 2 else x
    count = metadata(rows).shape[1]
    weights: Any = None
    divisor: Any
    for name, each in (("fweights", fweights), ("aweights", aweights)):
        if each is None:
            continue
        if metadata(each).shape != (count,):
            rule = "the same numel" if metadata(each).ndim < 2 else "one or fewer dimensions"
            raise RuntimeError(
                f"cov(): expected {name} to have {rule}, a vector of {count} weights, got a "
                f"{describe(each)}"
            )
        kind, allowed = (1, "integral") if name == "fweights" else (2, "floating point")
        if category(metadata(each).dtype) != kind:
            raise RuntimeError(
                f"cov(): expected {name} to have {allowed} dtype, got a {describe(each)}"
            )
        if metadata(each).size and each._array.min() < 0:
            raise RuntimeError(f"cov(): {name} cannot be negative, got {each._array.min()}")
        weights = each if weights is None else weights * each
    if weights is None:
        centred = rows - rows.mean(1, keepdim=True)
        scaled, divisor = centred, count - correction
        divisor = max(divisor, 0)
    else:
        total = weights.sum()
        centred = rows - (rows * weights).sum(1, keepdim=True) / total
        scaled = centred * weights
        if aweights is not None and correction:
            divisor = total - correction * (weights * aweights).sum() / total
        else:
            divisor = total - correction
        divisor = divisor.clamp(min=0)
    result: Tensor = (scaled @ centred.t().conj()) / divisor
    return result.squeeze()


def corrcoef(input: "Tensor") -> "Tensor":
    """Return the correlation coefficients of the rows of `input`, variables by observations.

    Raises:
        RuntimeError: for more than two dimensions.
    """
    covariances = cov(input)
    if not metadata(covariances).ndim:
        return covariances / covariances
    deviations = covariances.diagonal().sqrt()
    result = covariances / deviations.unsqueeze(1) / deviations.unsqueeze(0)
    if metadata(result).dtype.kind == "c":
        return result
    return result.clamp(-1, 1)


@with_numpy_names
def renorm(input: "Tensor", p: float, dim: int, maxnorm: float) -> "Tensor":
    """Return `input` with entries along `dim` scaled so that no norm `p` exceeds `maxnorm`.

    Raises:
        RuntimeError: for less than two dimensions, or norms that are not positive.
    """
    x = check_tensor(input, "renorm")
    if x._array.ndim < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {x._array.ndim} dimensions in a "
            f"{describe(x)}"
        )
    if not (p > 0 and maxnorm >= 0):
        raise RuntimeError(
            f"renorm: non-positive-norm not supported, got p={p} and maxnorm={maxnorm}"
        )
    axis = normalize_dim(dim, x._array.ndim, "renorm")
    others = tuple(each for each in range(x._array.ndim) if each != axis)
    norms = x.norm(p, others, keepdim=True)
    undefined = np.isnan(norms._array)
    if undefined.any():  # it exceeds nothing
        return where(wrap(undefined), x, renorm(x.masked_fill(wrap(undefined), 0), p, dim, maxnorm))
    factors = (maxnorm / (norms + 1e-7)).masked_fill(norms <= maxnorm, 1)
    return x * factors


def _halves(y: "Tensor", axis: int) -> "Tensor":
    """Return the sums of adjacent elements."""
    count = metadata(y).shape[axis]
    return y.narrow(axis, 0, count - 1) + y.narrow(axis, 1, count - 1)


def _trapezoids(
    y: "Tensor", x: Any, dx: Any, dim: int, where: str
) -> "tuple[Tensor, int, float | None]":
    """Return twice the areas under the line between samples, divided by the last result."""
    samples = check_tensor(y, where)
    axis = normalize_dim(dim, metadata(samples).ndim, where)
    if x is not None and dx is not None:
        raise TypeError(f"{where}: give x or dx, not both")
    count = metadata(samples).shape[axis]
    if not count:
        return samples.detach(), axis, 0.5
    if x is None:
        return _halves(samples, axis), axis, 0.5 * (1 if dx is None else dx)
    places = check_tensor(x, where)
    if metadata(places).ndim == 1:
        if metadata(places).shape[0] != count:
            raise RuntimeError(
                f"{where}: There must be one `x` value for each sample point, got a "
                f"{describe(places)} for a {describe(samples)}"
            )
        places = places.reshape(-1, *(1,) * (metadata(samples).ndim - axis - 1))
        steps = places.diff(dim=0)
    else:
        while metadata(places).ndim < metadata(samples).ndim:
            places = places.unsqueeze(0)
        steps = places.diff(dim=axis)
    return _halves(samples, axis) * steps, axis, 0.5


def trapezoid(y: "Tensor", x: "Tensor | None" = None, *, dx: Any = None, dim: int = -1) -> "Tensor":
    """Return the integral of samples along `dim` by the trapezoidal rule.

    Args:
        y: the samples.
        x: where they were taken; or
        dx: their distance, 1 by default.
        dim: their dimension.

    Raises:
        RuntimeError: if the shapes do not fit.
    """
    areas, axis, factor = _trapezoids(y, x, dx, dim, "trapezoid")
    return areas.sum(axis) * factor


def trapz(y: "Tensor", x: "Tensor | None" = None, *, dx: Any = None, dim: int = -1) -> "Tensor":
    """Return `trapezoid` of the arguments."""
    return trapezoid(y, x, dx=dx, dim=dim)


def cumulative_trapezoid(
    y: "Tensor", x: "Tensor | None" = None, *, dx: Any = None, dim: int = -1
) -> "Tensor":
    """Return the integrals from the first sample to each other along `dim`; see `trapezoid`."""
    areas, axis, factor = _trapezoids(y, x, dx, dim, "cumulative_trapezoid")
    return areas.cumsum(axis) * factor


def gradient(
    input: "Tensor", *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> "tuple[Tensor, ...]":
    """Return the estimated derivatives of samples along dimensions.

    Args:
        input: the samples.
        spacing: their distance; a list of distances, or of vectors of places, for each dimension.
        dim: the dimensions; all by default.
        edge_order: 1 or 2, the order of the estimate at the ends.

    Raises:
        RuntimeError: if arguments do not fit, or there are too few samples.
    """
    x = check_tensor(input, "gradient")
    if edge_order not in (1, 2):
        raise RuntimeError(
            f"torch.gradient only supports edge_order=1 and edge_order=2, got {edge_order}"
        )
    dims = normalize_dims(dim, metadata(x).ndim, "gradient")
    spacing = 1 if spacing is None else spacing
    distances = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    if len(distances) != len(dims):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar or a list of one for each "
            f"of {len(dims)} dimensions, got {len(distances)}"
        )
    pairs = zip(dims, distances, strict=True)
    return tuple([_gradient(x, axis, h, edge_order) for axis, h in pairs])


def _gradient(x: "Tensor", axis: int, spacing: Any, edge_order: int) -> "Tensor":
    count = metadata(x).shape[axis]
    if count < edge_order + 1:
        raise RuntimeError(
            "torch.gradient expected each dimension size to be at least edge_order+1, "
            f"{edge_order + 1}, got a {describe(x)}"
        )
    x = floating(x, "gradient")
    places: Any
    if isinstance(spacing, TensorBase) and metadata(spacing).ndim:
        places = spacing
    else:
        places = wrap(np.arange(count, dtype=metadata(x).real.dtype)) * spacing
    shape = (-1, *(1,) * (metadata(x).ndim - axis - 1))
    h = places.diff().reshape(shape)
    slopes = x.diff(dim=axis) / h
    before, after = slopes.narrow(axis, 0, count - 2), slopes.narrow(axis, 1, count - 2)
    low, high = h.narrow(0, 0, count - 2), h.narrow(0, 1, count - 2)
    inner = (before * high + after * low) / (low + high)
    first, last = slopes.narrow(axis, 0, 1), slopes.narrow(axis, count - 2, 1)
    if edge_order == 2:
        a, b = h.narrow(0, 0, 1), h.narrow(0, 1, 1)
        second = slopes.narrow(axis, 1, 1)
        c, d = h.narrow(0, count - 2, 1), h.narrow(0, count - 3, 1)
        third = slopes.narrow(axis, count - 3, 1)
        first = first + (first - second) * a / (a + b)
        last = last + (last - third) * c / (c + d)
    return cat([first, inner, last], axis)


def vander(x: "Tensor", N: int | None = None, increasing: bool = False) -> "Tensor":
    """Return the powers 0 to ``N - 1`` of a vector as columns, the highest first.

    Args:
        x: a vector.
        N: the number of columns; as many as elements by default.
        increasing: whether the power 0 comes first.

    Raises:
        RuntimeError: if `x` is no vector, or N negative.
    """
    base = check_tensor(x, "vander")
    if base._array.ndim != 1:
        raise RuntimeError(f"vander: x must be a one-dimensional tensor, got a {describe(base)}")
    count = base._array.size if N is None else integer(N, "vander", "N")
    if count < 0:
        raise RuntimeError(f"N must be non-negative, got {count}")
    dtype = np.int64 if base._array.dtype.kind in "biu" else base._array.dtype
    ones = wrap(np.ones((base._array.size, min(count, 1)), dtype))
    columns = ones
    if count > 1:
        powers = base.unsqueeze(-1).expand(-1, count - 1).cumprod(-1)
        columns = cat([ones, powers], 1)
    return columns if increasing else columns.flip(1)
