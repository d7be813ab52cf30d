"""Optimisers.

Internal: the modules in this folder.
"""

from offgrad._missing import missing as _missing
from offgrad.optim.adamw import Adam, AdamW
from offgrad.optim.optimizer import Optimizer
from offgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]

__getattr__ = _missing("offgrad.optim")
