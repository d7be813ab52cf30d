"""Schedulers of learning rates.

Internal: the modules in this folder.
"""

from offgrad._missing import missing as _missing
from offgrad.optim.lr_scheduler.base import (
    EPOCH_DEPRECATION_WARNING,
    LRScheduler,
)
from offgrad.optim.lr_scheduler.base import _LRScheduler as _LRScheduler
from offgrad.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from offgrad.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from offgrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from offgrad.optim.lr_scheduler.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "EPOCH_DEPRECATION_WARNING",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

__getattr__ = _missing("offgrad.optim.lr_scheduler")
