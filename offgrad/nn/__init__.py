"""Modules: layers, containers, and the parts to build them from.

Internal: the modules in this folder other than `functional`, `grad`, `init`, `parallel` and
`utils`.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

from offgrad._missing import missing as _missing
from offgrad.nn import functional, init, modules, parameter
from offgrad.nn.hooks.of_all_modules import (
    register_module_backward_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from offgrad.nn.modules import *  # noqa: F403
from offgrad.nn.parameter import (
    Buffer,
    Parameter,
    UninitializedBuffer,
    UninitializedParameter,
)

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.nn import attention, common_types, grad, parallel, utils
    from offgrad.nn.parallel import DataParallel

__all__ = [
    "Buffer",
    "DataParallel",
    "Parameter",
    "UninitializedBuffer",
    "UninitializedParameter",
    "attention",
    "common_types",
    "functional",
    "grad",
    "init",
    "modules",
    "parallel",
    "parameter",
    "register_module_backward_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "utils",
]
__all__ += vars(modules)["__all__"]

_OPTIONS = dict.fromkeys(("LinearCrossEntropyOptions", "factory_kwargs"), "_options")
__getattr__ = _missing("offgrad.nn", (), _OPTIONS)
