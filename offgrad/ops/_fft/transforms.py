"""The transforms of `offgrad.fft`: of one dimension, of several, and of two.

Their arguments:

- `n`, or `s` for several dimensions: the length of the signal; the input is truncated or padded
  with zeros at the end. In `s`, -1 keeps a length.
- `dim`: the dimensions to transform; the last one is halved or doubled.
- `norm`: the place of the factor: ``"backward"``, the default, is 1/n on inverse transforms,
  ``"forward"`` is 1/n on forward ones, ``"ortho"`` is 1/sqrt(n) on both.

Float32 is transformed to complex64 and float64 to complex128, integers and bools as the default
dtype; transforms with real results convert the other way round.

All raise TypeError for an argument of the wrong type, IndexError for a dimension out of range,
and RuntimeError for a length below 1, a dimension given twice, an `s` of another length than
`dim`, an unknown `norm`, 16-bit floats, and complex numbers in transforms of real ones.
"""

from typing import TYPE_CHECKING

from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import (
    conj,
)
from offgrad.ops._core.dtypes import category
from offgrad.ops._fft.arguments import (
    Geometry,
    Ints,
    as_complex,
    as_real,
    check_has_dims,
    check_norm,
    integers,
    one_dim,
    resize,
    several_dims,
)
from offgrad.ops._fft.nodes import (
    INVERSE_NORM,
    FftC2C,
    FftC2R,
    FftR2C,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _c2c(
    input: "Tensor", geometry: Geometry, norm: str | None, where: str, *, inverse: bool
) -> "Tensor":
    """Return the transform as complex numbers."""
    factor = check_norm(norm, where)
    x = resize(as_complex(input, where), geometry, where)
    return FftC2C.apply(x, dim=geometry.dim, norm=factor, inverse=inverse)


def _r2c(
    input: "Tensor",
    geometry: Geometry,
    norm: str | None,
    where: str,
    *,
    inverse: bool = False,
    onesided: bool = True,
) -> "Tensor":
    """Return the transform of real numbers; the inverse is the conjugate of the forward one."""
    factor = check_norm(norm, where)
    check_has_dims(geometry, where)
    x = resize(as_real(input, where), geometry, where)
    if not inverse:
        return FftR2C.apply(x, dim=geometry.dim, norm=factor, onesided=onesided)
    *others, last = geometry.dim
    half = conj(FftR2C.apply(x, dim=(last,), norm=INVERSE_NORM[factor], onesided=onesided))
    return FftC2C.apply(half, dim=tuple(others), norm=factor, inverse=True) if others else half


def _c2r(
    input: "Tensor", geometry: Geometry, norm: str | None, where: str, *, inverse: bool
) -> "Tensor":
    """Return the transform to real numbers; the forward one is the inverse of the conjugate."""
    factor = check_norm(norm, where)
    check_has_dims(geometry, where)
    *others, length = geometry.lengths
    if length is None:
        length = 2 * (input._array.shape[geometry.dim[-1]] - 1)
    if length < 1:
        raise RuntimeError(
            f"{where}: Invalid number of data points ({length}) of the result: it needs 1 or more; "
            "pass its length as n or s"
        )
    halved = Geometry(geometry.dim, (*others, length // 2 + 1))
    x = resize(as_complex(input, where), halved, where)
    if not inverse:
        x, factor = conj(x), INVERSE_NORM[factor]
    return FftC2R.apply(x, dim=geometry.dim, norm=factor, length=length)


# One dimension


@full_precision
def fft(input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None) -> "Tensor":
    """Return the transform along `dim`: y[k] = sum_j x[j] exp(-2 pi i jk / n)."""
    geometry = one_dim(input, n, dim, "fft")
    if category(input._array.dtype) == 3:
        return _c2c(input, geometry, norm, "fft", inverse=False)
    return _r2c(input, geometry, norm, "fft", onesided=False)


@full_precision
def ifft(input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None) -> "Tensor":
    """Return the inverse of `fft`: y[k] = 1/n sum_j x[j] exp(2 pi i jk / n)."""
    geometry = one_dim(input, n, dim, "ifft")
    if category(input._array.dtype) == 3:
        return _c2c(input, geometry, norm, "ifft", inverse=True)
    return _r2c(input, geometry, norm, "ifft", inverse=True, onesided=False)


@full_precision
def rfft(input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None) -> "Tensor":
    """Return frequencies 0 to n/2 of the `fft` of a real tensor; the others are conjugates."""
    return _r2c(input, one_dim(input, n, dim, "rfft"), norm, "rfft")


@full_precision
def irfft(
    input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None
) -> "Tensor":
    """Return the inverse of `rfft`, a real tensor of length `n`, by default 2 * (size - 1)."""
    return _c2r(input, one_dim(input, n, dim, "irfft"), norm, "irfft", inverse=True)


@full_precision
def hfft(input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None) -> "Tensor":
    """Return the `fft`, which is real, of a signal with x[n-j] = conj(x[j]).

    `input` has elements 0 to n/2 of it; `n` is by default 2 * (size - 1).
    """
    return _c2r(input, one_dim(input, n, dim, "hfft"), norm, "hfft", inverse=False)


@full_precision
def ihfft(
    input: "Tensor", n: int | None = None, dim: int = -1, norm: str | None = None
) -> "Tensor":
    """Return the inverse of `hfft`: elements 0 to n/2 of the `ifft` of a real tensor."""
    return _r2c(input, one_dim(input, n, dim, "ihfft"), norm, "ihfft", inverse=True)


# Several dimensions: by default the last ones, one for each length in `s`, or else all


@full_precision
def fftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the `fft` along each of several dimensions."""
    return _c2c(input, several_dims(input, s, dim, "fftn"), norm, "fftn", inverse=False)


@full_precision
def ifftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the inverse of `fftn`."""
    return _c2c(input, several_dims(input, s, dim, "ifftn"), norm, "ifftn", inverse=True)


@full_precision
def rfftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the `fftn` of a real tensor, frequencies 0 to n/2 of the last dimension."""
    return _r2c(input, several_dims(input, s, dim, "rfftn"), norm, "rfftn")


@full_precision
def irfftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the inverse of `rfftn`, the last dimension by default 2 * (size - 1) long."""
    return _c2r(input, several_dims(input, s, dim, "irfftn"), norm, "irfftn", inverse=True)


def hfftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the `fftn`, which is real, of a signal that is symmetric as with `hfft`.

    `input` has elements 0 to n/2 of its last dimension, by default 2 * (size - 1) long.
    """
    return _c2r(input, several_dims(input, s, dim, "hfftn"), norm, "hfftn", inverse=False)


def ihfftn(
    input: "Tensor", s: Ints | None = None, dim: Ints | None = None, norm: str | None = None
) -> "Tensor":
    """Return the inverse of `hfftn`: the `ifftn` of a real tensor, half of the last dimension."""
    return _r2c(input, several_dims(input, s, dim, "ihfftn"), norm, "ihfftn", inverse=True)


# Two dimensions. `dim` must not be None here.


@full_precision
def fft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `fftn` of two dimensions."""
    return fftn(input, s, integers(dim, "fft2", "dim"), norm)


@full_precision
def ifft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `ifftn` of two dimensions."""
    return ifftn(input, s, integers(dim, "ifft2", "dim"), norm)


@full_precision
def rfft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `rfftn` of two dimensions."""
    return rfftn(input, s, integers(dim, "rfft2", "dim"), norm)


@full_precision
def irfft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `irfftn` of two dimensions."""
    return irfftn(input, s, integers(dim, "irfft2", "dim"), norm)


def hfft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `hfftn` of two dimensions."""
    return hfftn(input, s, integers(dim, "hfft2", "dim"), norm)


def ihfft2(
    input: "Tensor", s: Ints | None = None, dim: Ints = (-2, -1), norm: str | None = None
) -> "Tensor":
    """Return `ihfftn` of two dimensions."""
    return ihfftn(input, s, integers(dim, "ihfft2", "dim"), norm)
