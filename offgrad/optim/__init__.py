"""Optimisers.

Internal: the modules in this folder other than `lr_scheduler` and `swa_utils`.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

from offgrad._missing import missing as _missing

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.optim import lr_scheduler, swa_utils
    from offgrad.optim.adadelta import Adadelta
    from offgrad.optim.adafactor import Adafactor
    from offgrad.optim.adagrad import Adagrad
    from offgrad.optim.adam import Adam
    from offgrad.optim.adamax import Adamax
    from offgrad.optim.adamw import AdamW
    from offgrad.optim.asgd import ASGD
    from offgrad.optim.in_backward import step_in_backward
    from offgrad.optim.lbfgs import LBFGS
    from offgrad.optim.muon import Muon
    from offgrad.optim.nadam import NAdam
    from offgrad.optim.optimizer import Optimizer
    from offgrad.optim.radam import RAdam
    from offgrad.optim.rmsprop import RMSprop
    from offgrad.optim.rprop import Rprop
    from offgrad.optim.sgd import SGD
    from offgrad.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
    "lr_scheduler",
    "step_in_backward",
    "swa_utils",
]

__getattr__ = _missing("offgrad.optim", (), {"swap_in_optimizer_params_and_state": "swapping"})
