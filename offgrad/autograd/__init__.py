"""Automatic differentiation: the graph, the engine, saved tensors and user-defined Functions.

Public are the names in `__all__`, `anomaly_mode`, `forward_ad`, `functional`, `graph` and
`profiler`.
Internal are the other modules below.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

from offgrad._missing import missing as _missing
from offgrad.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from offgrad.autograd.function import Function, NestedIOFunction, once_differentiable
from offgrad.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    is_multithreading_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from offgrad.autograd.gradients import backward, grad
from offgrad.autograd.mutation import (
    _unsafe_preserve_version_counter as _unsafe_preserve_version_counter,
)
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.variable import Variable

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.autograd import forward_ad, functional, graph
    from offgrad.autograd.gradient_checks import GradcheckError, gradcheck, gradgradcheck

__all__ = [
    "Function",
    "GradcheckError",
    "NestedIOFunction",
    "SavedTensor",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_multithreading_enabled",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
]

__getattr__ = _missing("offgrad.autograd", ("anomaly_mode", "profiler"))
