"""``torch.backends``: flags that scripts set and read. They are kept, and have no effect."""

from offgrad._missing import missing as _missing
from offgrad.backends import cpu, cuda, cudnn, mha, mkl, mkldnn, mps, openmp, opt_einsum

__all__ = ["cpu", "cuda", "cudnn", "mha", "mkl", "mkldnn", "mps", "openmp", "opt_einsum"]

__getattr__ = _missing("offgrad.backends")
