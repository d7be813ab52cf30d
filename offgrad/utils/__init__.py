"""Checkpoints, hook handles, data loading and others, as in ``torch.utils``."""

from offgrad._missing import missing as _missing
from offgrad.utils import checkpoint, hooks

__all__ = ["checkpoint", "data", "hooks"]

__getattr__ = _missing(
    "offgrad.utils",
    (
        *("benchmark", "collect_env", "data", "dlpack", "model_zoo", "safetensors"),
        *("tensorboard",),
    ),
)
