"""Predictions of memory and time, before a model is trained under a policy.

Internal: the modules in this folder.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.prediction.auto import AutoSession
    from offgrad.prediction.choosing import choose
    from offgrad.prediction.estimate_result import Estimate
    from offgrad.prediction.estimate_step import estimate
    from offgrad.prediction.machine import Machine
    from offgrad.prediction.plan import Choice, Plan
    from offgrad.prediction.recorder import SaveRecorder
    from offgrad.prediction.recording import Recording
    from offgrad.prediction.simulation import Replay, replay

__all__ = [
    "AutoSession",
    "Choice",
    "Estimate",
    "Machine",
    "Plan",
    "Recording",
    "Replay",
    "SaveRecorder",
    "choose",
    "estimate",
    "replay",
]
