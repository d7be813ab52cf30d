"""``torch.utils.benchmark``: `Timer` repeats a statement, `Measurement` has its times."""

from offgrad._missing import missing as _missing
from offgrad.utils._benchmark import Measurement, Timer

__all__ = ["Measurement", "Timer"]

__getattr__ = _missing("offgrad.utils.benchmark")
