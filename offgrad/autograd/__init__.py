"""Automatic differentiation: graph, engine, saved tensors, and what users build on them."""

from offgrad._missing import missing
from offgrad.autograd import graph
from offgrad.autograd.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from offgrad.autograd.function import Function, once_differentiable
from offgrad.autograd.functional import jacobians as functional
from offgrad.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from offgrad.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from offgrad.autograd.gradients import backward, grad
from offgrad.autograd.saved_tensor import SavedTensor

__all__ = [
    "Function",
    "GradcheckError",
    "SavedTensor",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]

__getattr__ = missing("offgrad.autograd")
