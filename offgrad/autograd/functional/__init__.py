"""Jacobians and Hessians of functions, and their products with vectors."""

from offgrad._missing import missing as _missing
from offgrad.autograd.functional.jacobians import (
    _construct_standard_basis_for as _construct_standard_basis_for,
)
from offgrad.autograd.functional.jacobians import hessian, jacobian
from offgrad.autograd.functional.products import hvp, jvp, vhp, vjp

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

__getattr__ = _missing("offgrad.autograd.functional")
