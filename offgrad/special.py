"""Special functions: ``torch.special``. SciPy computes those that are not operations of `offgrad`.

The functions of Bessel and the polynomials have gradients here, which PyTorch's lack.
"""

from offgrad import _missing, _out
from offgrad._pickling import name_functions as _name_functions
from offgrad.ops import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp2,
    expm1,
    i0,
    log1p,
    log_softmax,
    logit,
    logsumexp,
    polygamma,
    round,
    sinc,
    softmax,
    xlogy,
)
from offgrad.ops import igamma as gammainc
from offgrad.ops import igammac as gammaincc
from offgrad.ops import lgamma as gammaln
from offgrad.ops import mvlgamma as multigammaln
from offgrad.ops import sigmoid as expit
from offgrad.ops._elementwise.bessel_functions import public as _public
from offgrad.ops._elementwise.bessel_functions import spherical_bessel_j0, xlog1py, zeta
from offgrad.ops._elementwise.orthogonal_polynomials import polynomial as _polynomial

psi = digamma
modified_bessel_i0 = i0
airy_ai = _public("airy_ai")
bessel_j0, bessel_j1 = _public("bessel_j0"), _public("bessel_j1")
bessel_y0, bessel_y1 = _public("bessel_y0"), _public("bessel_y1")
entr, erfcx = _public("entr"), _public("erfcx")
i0e, i1, i1e = _public("i0e"), _public("i1"), _public("i1e")
log_ndtr, ndtr, ndtri = _public("log_ndtr"), _public("ndtr"), _public("ndtri")
modified_bessel_i1 = i1
modified_bessel_k0, modified_bessel_k1 = (
    _public("modified_bessel_k0"),
    _public("modified_bessel_k1"),
)
scaled_modified_bessel_k0, scaled_modified_bessel_k1 = (
    _public("scaled_modified_bessel_k0"),
    _public("scaled_modified_bessel_k1"),
)
chebyshev_polynomial_t = _polynomial("chebyshev_polynomial_t")
chebyshev_polynomial_u = _polynomial("chebyshev_polynomial_u")
chebyshev_polynomial_v = _polynomial("chebyshev_polynomial_v")
chebyshev_polynomial_w = _polynomial("chebyshev_polynomial_w")
hermite_polynomial_h = _polynomial("hermite_polynomial_h")
hermite_polynomial_he = _polynomial("hermite_polynomial_he")
laguerre_polynomial_l = _polynomial("laguerre_polynomial_l")
legendre_polynomial_p = _polynomial("legendre_polynomial_p")
shifted_chebyshev_polynomial_t = _polynomial("shifted_chebyshev_polynomial_t")
shifted_chebyshev_polynomial_u = _polynomial("shifted_chebyshev_polynomial_u")
shifted_chebyshev_polynomial_v = _polynomial("shifted_chebyshev_polynomial_v")
shifted_chebyshev_polynomial_w = _polynomial("shifted_chebyshev_polynomial_w")

__getattr__ = _missing.missing("offgrad.special")

__all__ = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammainc",
    "gammaincc",
    "gammaln",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "sinc",
    "softmax",
    "spherical_bessel_j0",
    "xlog1py",
    "xlogy",
    "zeta",
]

globals().update({name: _out.with_out(globals()[name]) for name in __all__})

_name_functions(globals())
