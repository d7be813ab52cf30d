"""Windows of signals, as SciPy computes them; with ``sym=False`` one period of a periodic one."""

from collections.abc import Iterable as _Iterable
from typing import Any as _Any

import numpy as _np

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.ops._core.factories import factory as _factory

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]


def _window(name: str, M: int, dtype: _Any, sym: bool, *shape: _Any) -> _Tensor:
    if M < 0:
        raise ValueError(f"{name}: the length of a window is not negative, got M={M}")
    kind = _np.dtype(_ops.get_default_dtype() if dtype is None else dtype)
    if kind.kind != "f" or kind.itemsize < 4:
        raise ValueError(f"{name}: windows are float32 or float64, got {kind.name}")
    from scipy.signal import windows

    values = getattr(windows, name)(M, *shape, sym=sym)
    return _ops.tensor(_np.asarray(values), dtype=kind)


def _plain(name: str) -> _Any:
    def window(M: int, *, sym: bool = True, dtype: _Any = None) -> _Tensor:
        return _window(name, M, dtype, sym)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"Return the {name.capitalize()} window of `M` numbers."
    return _factory(window)


bartlett, blackman, cosine = _plain("bartlett"), _plain("blackman"), _plain("cosine")
hamming, hann, nuttall = _plain("hamming"), _plain("hann"), _plain("nuttall")


@_factory
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: _Any = None,
) -> _Tensor:
    """Return ``exp(-|n - center| / tau)``; only a periodic window takes a `center`.

    Raises:
        ValueError: for a `tau` that is not positive, or a `center` of a symmetric window.
    """
    if tau <= 0:
        raise ValueError(f"exponential: tau must be above 0, got {tau}")
    if sym and center is not None:
        raise ValueError("exponential: the center of a symmetric window is in its middle")
    window = _window("exponential", M, dtype, sym, None, tau)
    if center is None:
        return window
    distances = _np.abs(_np.arange(M) - center)
    return _ops.tensor(_np.exp(-distances / tau), dtype=window._array.dtype)


@_factory
def gaussian(M: int, *, std: float = 1.0, sym: bool = True, dtype: _Any = None) -> _Tensor:
    """Return a normal curve of deviation `std`.

    Raises:
        ValueError: for an `std` that is not positive.
    """
    if std <= 0:
        raise ValueError(f"gaussian: std must be above 0, got {std}")
    return _window("gaussian", M, dtype, sym, std)


@_factory
def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, dtype: _Any = None) -> _Tensor:
    """Return Kaiser's window of shape `beta`.

    Raises:
        ValueError: for a negative `beta`.
    """
    if beta < 0:
        raise ValueError(f"kaiser: beta must not be negative, got {beta}")
    return _window("kaiser", M, dtype, sym, beta)


@_factory
def general_cosine(M: int, *, a: _Iterable[float], sym: bool = True, dtype: _Any = None) -> _Tensor:
    """Return the sum of cosines with alternating coefficients `a`.

    Raises:
        TypeError, ValueError: unless `a` holds numbers.
    """
    if not isinstance(a, _Iterable):
        raise TypeError(f"general_cosine: a must be a list of coefficients, got {a!r}")
    coefficients = list(a)
    if not coefficients:
        raise ValueError("general_cosine: a must hold a coefficient or more")
    return _window("general_cosine", M, dtype, sym, coefficients)


@_factory
def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, dtype: _Any = None
) -> _Tensor:
    """Return ``alpha - (1 - alpha) cos``, one period."""
    return _window("general_hamming", M, dtype, sym, alpha)


__getattr__ = _missing("offgrad.signal.windows")
