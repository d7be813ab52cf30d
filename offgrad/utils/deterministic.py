"""``torch.utils.deterministic``: a setting, which can be read and set without effect."""

from offgrad._missing import missing as _missing

__all__ = ["fill_uninitialized_memory"]

fill_uninitialized_memory = True

__getattr__ = _missing("offgrad.utils.deterministic")
