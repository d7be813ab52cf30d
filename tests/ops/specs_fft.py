"""Fourier transforms."""

import numpy as np

import offgrad.fft  # noqa: F401
from offgrad.ops._core.dtypes import Cast
from offgrad.ops._fft.arguments import ConstantPadNd
from offgrad.ops._fft.nodes import FftC2C, FftC2R, FftR2C
from offgrad.ops._shape.reordering import Roll
from tests.ops.opspec import OpSpec

# Odd and even lengths, and one element.
LINES = [((2, 5),), ((2, 4),), ((3, 1),)]
HALVES = [((2, 4),), ((2, 3),), ((3, 2),)]
GRIDS = [((3, 2, 4),), ((2, 3, 5),)]
# No signals at all: torch raises an error of MKL's for them.
NONE = [((0, 4),), ((0, 3, 4),)]

LINE = [
    OpSpec("fft", (FftC2C,), lambda m, x: m.fft.fft(x), LINES, np.fft.fft, real=False,
           complex=True),
    OpSpec("fft_real", (FftR2C, FftC2C, Cast), lambda m, x: m.fft.fft(x), LINES, np.fft.fft),
    OpSpec("fft_of_none", (FftR2C, FftC2C), lambda m, x: m.fft.fft(x), NONE, np.fft.fft,
           complex=True, torch=False),
    OpSpec("fft_padded", (ConstantPadNd, FftR2C), lambda m, x: m.fft.fft(x, 6, 0, "ortho"),
           LINES, lambda x: np.fft.fft(x, 6, 0, "ortho"), complex=True),
    OpSpec("ifft", (FftC2C,), lambda m, x: m.fft.ifft(x, dim=0), LINES,
           lambda x: np.fft.ifft(x, axis=0), real=False, complex=True),
    OpSpec("ifft_real", (FftR2C, FftC2C), lambda m, x: m.fft.ifft(x, 3, norm="forward"), LINES,
           lambda x: np.fft.ifft(x, 3, norm="forward")),
    OpSpec("rfft", (FftR2C, FftC2R), lambda m, x: m.fft.rfft(x), LINES, np.fft.rfft),
    OpSpec("rfft_cut", (FftR2C, FftC2R), lambda m, x: m.fft.rfft(x, 2, 0, "forward"),
           [((3, 2),), ((5, 1, 3),)], lambda x: np.fft.rfft(x, 2, 0, "forward")),
    OpSpec("rfft_of_none", (FftR2C, FftC2R), lambda m, x: m.fft.rfft(x), NONE, np.fft.rfft,
           torch=False),
    OpSpec("irfft", (FftC2R, FftR2C), lambda m, x: m.fft.irfft(x), HALVES, np.fft.irfft,
           real=False, complex=True),
    OpSpec("irfft_odd", (FftC2R, FftR2C), lambda m, x: m.fft.irfft(x, 5, norm="ortho"),
           HALVES, lambda x: np.fft.irfft(x, 5, norm="ortho"), complex=True),
    OpSpec("hfft", (FftC2R, FftR2C), lambda m, x: m.fft.hfft(x, 5), HALVES,
           lambda x: np.fft.hfft(x, 5), complex=True),
    OpSpec("ihfft", (FftR2C, FftC2R), lambda m, x: m.fft.ihfft(x), LINES, np.fft.ihfft),
]  # fmt: skip

GRID = [
    OpSpec("fft2", (FftC2C,), lambda m, x: m.fft.fft2(x), GRIDS, np.fft.fft2, complex=True),
    OpSpec("ifft2", (FftC2C,), lambda m, x: m.fft.ifft2(x, (4, -1), (2, 0), "ortho"), GRIDS,
           lambda x: np.fft.ifft2(x, (4, x.shape[0]), (2, 0), "ortho"), complex=True),
    OpSpec("rfft2", (FftR2C, FftC2R), lambda m, x: m.fft.rfft2(x), GRIDS, np.fft.rfft2),
    OpSpec("irfft2", (FftC2R, FftR2C), lambda m, x: m.fft.irfft2(x), GRIDS, np.fft.irfft2,
           complex=True),
    OpSpec("hfft2", (FftC2R, FftR2C), lambda m, x: m.fft.hfft2(x, norm="ortho"), GRIDS,
           lambda x: np.fft.irfft2(x.conj(), norm="ortho"), complex=True),
    OpSpec("ihfft2", (FftR2C, FftC2R, FftC2C), lambda m, x: m.fft.ihfft2(x), GRIDS,
           lambda x: np.fft.rfft2(x, norm="forward").conj()),
    OpSpec("fftn", (FftC2C,), lambda m, x: m.fft.fftn(x), GRIDS, np.fft.fftn, complex=True),
    OpSpec("fftn_of_nothing", (FftC2C,), lambda m, x: m.fft.fftn(x, dim=()), GRIDS,
           lambda x: x + 0j, complex=True),
    OpSpec("ifftn", (FftC2C,), lambda m, x: m.fft.ifftn(x, (3, 2), norm="forward"), GRIDS,
           lambda x: np.fft.ifftn(x, (3, 2), (1, 2), norm="forward"), complex=True),
    OpSpec("rfftn", (FftR2C, FftC2R), lambda m, x: m.fft.rfftn(x, dim=(2, 0, 1)), GRIDS,
           lambda x: np.fft.rfftn(x, axes=(2, 0, 1))),
    OpSpec("irfftn", (FftC2R, FftR2C), lambda m, x: m.fft.irfftn(x, (3, 3), (-1, 0)), GRIDS,
           lambda x: np.fft.irfftn(x, (3, 3), (-1, 0)), complex=True),
    OpSpec("irfftn_of_none", (FftC2R, FftR2C), lambda m, x: m.fft.irfftn(x, dim=(-1,)), NONE,
           lambda x: np.fft.irfftn(x, axes=(-1,)), complex=True, torch=False),
    OpSpec("hfftn", (FftC2R, FftR2C), lambda m, x: m.fft.hfftn(x, (3, 2, 5)), GRIDS,
           lambda x: np.fft.irfftn(x.conj(), (3, 2, 5), (0, 1, 2), norm="forward"), complex=True),
    OpSpec("ihfftn", (FftR2C, FftC2R, FftC2C), lambda m, x: m.fft.ihfftn(x, norm="forward"),
           GRIDS, lambda x: np.fft.rfftn(x).conj()),
]  # fmt: skip

ORDER = [
    OpSpec("fftshift", (Roll,), lambda m, x: m.fft.fftshift(x), [*GRIDS, ((0, 3),)],
           np.fft.fftshift, complex=True),
    OpSpec("ifftshift", (Roll,), lambda m, x: m.fft.ifftshift(x, (-1, 0)), GRIDS,
           lambda x: np.fft.ifftshift(x, (-1, 0)), complex=True),
]  # fmt: skip

SPECS = [*LINE, *GRID, *ORDER]
