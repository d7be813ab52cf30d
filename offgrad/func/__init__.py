"""Function transforms, as in ``torch.func``: gradients and Jacobians of functions, `vmap`.

The arguments and results of functions may be nested in tuples, lists and dicts. Each transform runs
the function on new tensors over the data of its arguments, so nothing is left in their ``.grad``.
"""

from offgrad._missing import missing as _missing
from offgrad.func._gradients import grad, grad_and_value, jvp, linearize, vjp
from offgrad.func._jacobians import hessian, jacfwd, jacrev
from offgrad.func._modules import (
    functional_call,
    replace_all_batch_norm_modules_,
    stack_module_state,
)
from offgrad.func._vmap import vmap

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "vjp",
    "vmap",
]

__getattr__ = _missing("offgrad.func")
