"""The discrete Fourier transforms of complex numbers, from real ones, and to real ones.

With w = exp(-2 pi i / n) the forward transform is y[k] = sum_j x[j] w^(jk); the inverse has the
exponents negated. `norm` places the factor 1/n: ``"backward"`` on inverse transforms,
``"forward"`` on forward ones, ``"ortho"`` as 1/sqrt(n) on both.

The matrix w^(jk) is symmetric, so its adjoint is its conjugate: the gradient of a transform is that
of the other direction with the same factor, and nothing is kept.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.kernels import parallel_for
from offgrad.ops._core.dtypes import cast_gradient

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

INVERSE_NORM = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The norm that gives the other direction the same factor."""

_MIN_ROWS = 16
"""Parts of a dimension that are enough for the threads."""


def _along(
    function: Callable[..., Any], x: Array, out: Array, axis: int, length: int, norm: str
) -> None:
    """Write ``function(x, length, axis, norm)``, of numpy.fft, to `out`, which may be x.

    Without a factor NumPy (2.4) multiplies by an integer 1 and so computes single precision in
    double, several times slower: then it gets a factor, undone afterwards.
    """
    inverse = function in (np.fft.ifft, np.fft.irfft)
    unscaled = norm == ("forward" if inverse else "backward")
    undo = unscaled and out.real.dtype == np.float32
    if undo:
        norm = INVERSE_NORM[norm]
    if x.ndim == 1:
        x, out, axis = x[np.newaxis], out[np.newaxis], 1
    # Threads divide an outer dimension, whose parts follow one another in memory, if it is long.
    others = [each for each in range(x.ndim) if each != axis]
    longest = max(others, key=lambda each: x.shape[each])
    rows = next((each for each in others if x.shape[each] >= _MIN_ROWS), longest)

    def body(start: int, stop: int) -> None:
        index = _at(rows, start, stop)
        part = out[index]
        with np.errstate(all="ignore"):
            function(x[index], length, axis, norm, part)
            if undo:
                np.multiply(part, np.float32(length), out=part)

    cost = max(x.size, out.size) // max(x.shape[rows], 1)
    parallel_for(body, x.shape[rows], cost, merge=True)


def _complex(x: Array, out: Array, dim: tuple[int, ...], norm: str, inverse: bool) -> Array:
    """Write the transform of x along `dim` to `out`, which may be x; return it."""
    if not dim:
        np.copyto(out, x)
    for axis in dim:
        _along(np.fft.ifft if inverse else np.fft.fft, x, out, axis, x.shape[axis], norm)
        x = out
    return out


def _at(axis: int, start: int | None, stop: int | None, step: int = 1) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop, step))


def _with_omitted_conjugate(axis: int, length: int) -> tuple[slice, ...]:
    """Return the index, in half a spectrum, of the frequencies whose conjugates are omitted.

    These are all but 0 and, if the length is even, the last one.
    """
    return _at(axis, 1, (length + 1) // 2)


class FftC2C(Op):
    """Transform of complex numbers along dimensions, forward or inverse; keeps nothing."""

    def forward(self, x: Array, dim: tuple[int, ...], norm: str, inverse: bool) -> Array:
        self.dim, self.norm, self.inverse = dim, norm, inverse
        return _complex(x, memory.empty(x.shape, x.dtype), dim, norm, inverse)

    def backward(self, grad: "Tensor") -> Any:
        return FftC2C.apply(
            grad, dim=self.dim, norm=INVERSE_NORM[self.norm], inverse=not self.inverse
        )


class FftR2C(Op):
    """Forward transform of real numbers along dimensions; keeps nothing.

    If `onesided`, the result has frequencies 0 to n/2 of the last dimension: the others are their
    conjugates. Frequencies with an omitted conjugate are multiplied by `paired`. If not `onesided`,
    the result has all frequencies, and there is one dimension.
    """

    def forward(
        self, x: Array, dim: tuple[int, ...], norm: str, onesided: bool = True, paired: float = 1
    ) -> Array:
        self.dim, self.norm, self.onesided, self.paired = dim, norm, onesided, paired
        axis = dim[-1]
        self.dtype, self.length = x.dtype, x.shape[axis]
        half = self.length // 2 + 1
        shape = (*x.shape[:axis], half if onesided else self.length, *x.shape[axis + 1 :])
        out: Array = memory.empty(shape, np.result_type(x.dtype, np.complex64))
        _along(np.fft.rfft, x, out[_at(axis, 0, half)], axis, self.length, norm)
        if not onesided:
            conjugates = out[_at(axis, self.length - half, 0, -1)]
            np.conjugate(conjugates, out=out[_at(axis, half, None)])
        elif paired != 1:
            out[_with_omitted_conjugate(axis, self.length)] *= paired
        return _complex(out, out, dim[:-1], norm, inverse=False) if dim[:-1] else out

    def backward(self, grad: "Tensor") -> Any:
        """The real part of the inverse transform.

        For half a spectrum this is an inverse transform to real numbers, which adds each
        frequency's conjugate and so doubles the real part: hence the half.
        """
        norm = INVERSE_NORM[self.norm]
        if not self.onesided:
            full = FftC2C.apply(grad, dim=self.dim, norm=norm, inverse=True)
            return cast_gradient(full, self.dtype)
        return FftC2R.apply(
            grad, dim=self.dim, norm=norm, length=self.length, paired=self.paired / 2
        )


class FftC2R(Op):
    """Inverse transform to real numbers along dimensions; keeps nothing.

    x has frequencies 0 to n/2 of the last dimension, the result `length` elements there.
    Frequencies with an omitted conjugate are multiplied by `paired`; the imaginary part of the
    others is ignored.
    """

    def forward(
        self, x: Array, dim: tuple[int, ...], norm: str, length: int, paired: float = 1
    ) -> Array:
        self.dim, self.norm, self.paired = dim, norm, paired
        axis = dim[-1]
        if dim[:-1] or paired != 1:
            x = _complex(x, memory.empty(x.shape, x.dtype), dim[:-1], norm, inverse=True)
        if paired != 1:
            x[_with_omitted_conjugate(axis, length)] *= paired
        out = memory.empty((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.real.dtype)
        _along(np.fft.irfft, x, out, axis, length, norm)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Transform to half a spectrum, doubled where forward added a conjugate."""
        return FftR2C.apply(
            grad, dim=self.dim, norm=INVERSE_NORM[self.norm], paired=2 * self.paired
        )
