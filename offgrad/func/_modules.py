"""Modules as functions of their parameters."""

from collections.abc import Sequence
from typing import Any

from offgrad import ops
from offgrad.nn.modules.batchnorm import _BatchNorm
from offgrad.nn.modules.module import Module
from offgrad.nn.utils import stateless


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with the given tensors in place of its parameters and buffers.

    Args:
        module: the module; it is as before afterwards.
        parameter_and_buffer_dicts: a dict of tensors by qualified name, or a sequence of dicts.
        args: the positional arguments, or the only one.
        kwargs: the keyword arguments.
        tie_weights: names of one tensor in the module get one value.
        strict: raise RuntimeError for missing and unexpected names.
    """
    return stateless.functional_call(
        module, parameter_and_buffer_dicts, args, kwargs, tie_weights=tie_weights, strict=strict
    )


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of models of one class, stacked by name.

    Args:
        models: at least one; all in training mode or all in evaluation mode.

    Returns:
        New leaves, which require grad as the first model's parameters do, and buffers.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({each.training for each in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if len({type(each) for each in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = {}
    for name, first in models[0].named_parameters():
        each = [dict(model.named_parameters())[name].detach() for model in models]
        parameters[name] = ops.stack(each).requires_grad_(first.requires_grad)
    buffers = {}
    for name, _ in models[0].named_buffers():
        buffers[name] = ops.stack([dict(model.named_buffers())[name] for model in models])
    return parameters, buffers


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Drop the running statistics of all batch norms in a module; return it."""
    for module in root.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
