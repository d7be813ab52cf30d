"""Discrete Fourier transforms: ``torch.fft``.

Transforms of complex and real tensors, of one dimension (`fft`), of two (`fft2`) and of several
(`fftn`); inverses begin with ``i``. ``rfft`` takes real numbers and omits the half of the
result that follows from the other, ``hfft`` has a real result. Their gradients keep nothing.
"""

from offgrad import _missing, _out
from offgrad._pickling import name_functions as _name_functions
from offgrad.ops._fft.frequencies import (
    fftfreq,
    fftshift,
    ifftshift,
    rfftfreq,
)
from offgrad.ops._fft.transforms import (
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

__getattr__ = _missing.missing("offgrad.fft")

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

globals().update({name: _out.with_out(globals()[name]) for name in __all__ if "shift" not in name})

_name_functions(globals())
