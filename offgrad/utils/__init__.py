"""What PyTorch keeps under utils."""

from offgrad._missing import missing
from offgrad.utils import checkpoint, hooks

__all__ = ["checkpoint", "hooks"]

__getattr__ = missing("offgrad.utils")
