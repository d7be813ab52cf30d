"""Checkpoints: tensors that a function saves for backward are recomputed instead of kept.

The function's inputs are saved, as an operation saves its inputs. Each tensor saved inside is
replaced by a number. The first of them that a backward pass unpacks runs the function again, until
all tensors that the pass will unpack have been saved a second time.

Internal: the modules in this folder.
"""

from offgrad._missing import missing as _missing
from offgrad.utils.checkpoint._functions import (
    checkpoint,
    checkpoint_sequential,
    noop_context_fn,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)
from offgrad.utils.checkpoint.reentrant import (
    CheckpointFunction,
    check_backward_validity,
    detach_variable,
)
from offgrad.utils.checkpoint.save_log import CheckpointError

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "check_backward_validity",
    "checkpoint",
    "checkpoint_sequential",
    "detach_variable",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
]

__getattr__ = _missing("offgrad.utils.checkpoint")
