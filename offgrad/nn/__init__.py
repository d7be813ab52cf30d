"""Modules: layers, containers, and what they are built from."""

from offgrad._missing import missing
from offgrad.nn import functional, init, modules
from offgrad.nn.hooks.registry import (
    register_module_backward_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from offgrad.nn.modules.activation import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Identity,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from offgrad.nn.modules.container import ModuleDict, ModuleList, Sequential
from offgrad.nn.modules.layers import Embedding, LayerNorm, Linear
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "modules",
    "register_module_backward_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]

__getattr__ = missing("offgrad.nn")
