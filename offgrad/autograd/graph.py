"""The public names of the graph, as in ``torch.autograd.graph``: nodes, edges, hooks."""

from offgrad._missing import missing as _missing
from offgrad.autograd.hook_contexts import (
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from offgrad.autograd.multi_grad_hook import register_multi_grad_hook
from offgrad.autograd.mutation import increment_version
from offgrad.autograd.node import GradientEdge, Node, get_gradient_edge
from offgrad.autograd.saved_mutation import allow_mutation_on_saved_tensors
from offgrad.autograd.saved_tensor import SavedTensor

__all__ = [
    "GradientEdge",
    "Node",
    "SavedTensor",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

__getattr__ = _missing("offgrad.autograd.graph")
