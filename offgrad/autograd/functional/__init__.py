"""Jacobians and Hessians of functions, whole or multiplied with vectors."""

from offgrad._missing import missing
from offgrad.autograd.functional.jacobians import hessian, jacobian
from offgrad.autograd.functional.products import hvp, jvp, vhp, vjp

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

__getattr__ = missing("offgrad.autograd.functional")
