"""What PyTorch keeps under utils."""

from offgrad.missing import missing
from offgrad.utils import hooks

__all__ = ["hooks"]

__getattr__ = missing("offgrad.utils")
