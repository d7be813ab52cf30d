"""Checkpoints, hook handles, data loading and others, as in ``torch.utils``."""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

from offgrad._missing import missing as _missing

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.utils import checkpoint, hooks

__all__ = ["checkpoint", "data", "hooks"]

__getattr__ = _missing(
    "offgrad.utils",
    (
        *("_pytree", "benchmark", "collect_env", "data", "deterministic", "dlpack"),
        *("model_zoo", "safetensors", "tensorboard"),
    ),
)
