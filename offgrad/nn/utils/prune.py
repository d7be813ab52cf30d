"""Pruning: weights times masks of zeros and ones, by hooks before `forward`.

A pruned ``NAME`` is no parameter: that is ``NAME_orig``, and the mask is the buffer ``NAME_mask``.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn.modules.module import Module
from offgrad.nn.utils._pruning_methods import (
    BasePruningMethod,
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    PruningContainer,
    RandomStructured,
    RandomUnstructured,
)

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]

M = TypeVar("M", bound=Module)


# Functions; each returns the module


def identity(module: M, name: str) -> M:
    """Prepare a tensor for pruning, with a mask of ones."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: M, name: str, amount: Any) -> M:
    """Prune random elements: a fraction of them, or a number."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: M, name: str, amount: Any, importance_scores: Any = None) -> M:
    """Prune the elements of the smallest magnitudes: a fraction of them, or a number."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: M, name: str, amount: Any, dim: int) -> M:
    """Prune random channels along `dim`: a fraction of them, or a number."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: M, name: str, amount: Any, n: Any, dim: int, importance_scores: Any = None
) -> M:
    """Prune the channels along `dim` of the smallest n-norms: a fraction of them, or a number."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Prune where a mask is 0."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Any, pruning_method: Any, importance_scores: Any = None, **kwargs: Any
) -> None:
    """Prune several tensors as if they were one.

    Args:
        parameters: pairs of modules and names.
        pruning_method: a class whose `PRUNING_TYPE` is ``"unstructured"``.
        importance_scores: what decides, by module and name; by default the tensors.
        kwargs: of the method's constructor.
    """
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    pairs: list[tuple[Module, str]] = list(parameters)
    scores = {} if importance_scores is None else importance_scores
    if not isinstance(scores, dict):
        raise TypeError(
            f"global_unstructured(): importance_scores must be a dict, got {type(scores).__name__}"
        )
    tensors = [scores.get(each, getattr(*each)) for each in pairs]
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            "global pruning takes methods of PRUNING_TYPE 'unstructured', got "
            f"{pruning_method} of type {method.PRUNING_TYPE!r}"
        )
    masks = [
        getattr(module, f"{name}_mask", ops.ones_like(getattr(module, name)))
        for module, name in pairs
    ]
    together = PruningContainer()
    together._tensor_name = method._tensor_name = "temp"
    together.add_pruning_method(method)
    mask = together.compute_mask(
        ops.cat([each.detach().reshape(-1) for each in tensors]),
        ops.cat([each.reshape(-1) for each in masks]),
    )
    start = 0
    for module, name in pairs:
        tensor = getattr(module, name)
        stop = start + tensor.numel()
        custom_from_mask(module, name, mask=mask[start:stop].view_as(tensor))
        start = stop


def remove(module: M, name: str) -> M:
    """Make a pruned tensor a parameter again, for good.

    Raises:
        ValueError: if it is not pruned.
    """
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"{name!r} of {module} is not pruned, so there is no pruning to remove")


def is_pruned(module: Module) -> bool:
    """Return whether a tensor of a module, or of one below, is pruned.

    Raises:
        TypeError: for anything but a module.
    """
    if not isinstance(module, Module):
        raise TypeError(f"is_pruned takes a module, got {type(module).__name__}")
    return any(
        isinstance(hook, BasePruningMethod)
        for each in module.modules()
        for hook in each._forward_pre_hooks.values()
    )
