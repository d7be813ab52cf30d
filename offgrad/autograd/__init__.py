"""Automatic differentiation: graph, engine, saved tensors, and what users build on them."""

from offgrad.autograd import graph
from offgrad.autograd.function import Function, once_differentiable
from offgrad.autograd.grad_mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from offgrad.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from offgrad.autograd.gradients import backward, grad
from offgrad.missing import missing

__all__ = [
    "Function",
    "GradcheckError",
    "backward",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "set_grad_enabled",
]

__getattr__ = missing("offgrad.autograd")
