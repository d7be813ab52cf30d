"""Discrete Fourier transforms: ``torch.fft``.

Transforms of complex and real tensors, of one dimension (`fft`), of two (`fft2`) and of several
(`fftn`); inverses begin with ``i``. ``rfft`` takes real numbers and leaves out the half of the
result that follows from the other, ``hfft`` has a real result. Their gradients need nothing kept.
"""

from offgrad.missing import missing
from offgrad.ops.fft import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from offgrad.ops.frequency import fftfreq, fftshift, ifftshift, rfftfreq

__getattr__ = missing("offgrad.fft")

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]
