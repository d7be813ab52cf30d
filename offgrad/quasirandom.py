"""``torch.quasirandom``: sequences of points that fill a cube evenly."""

from offgrad._missing import missing as _missing
from offgrad._sobol import SobolEngine

__all__ = ["SobolEngine"]

__getattr__ = _missing("offgrad.quasirandom")
