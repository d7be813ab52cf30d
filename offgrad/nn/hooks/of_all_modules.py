"""Registering hooks of all modules."""

from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.nn.hooks.registry import Hook, add_global, global_hooks


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, args)`` before any module's `forward`; it may return new arguments.

    Global hooks are called before those of the module.
    """
    return add_global(lambda: global_hooks.add("forward_pre", hook))


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after any module's `forward`.

    The parameters are those of `Module.register_forward_hook`.
    """
    return add_global(lambda: global_hooks.add_forward(hook, False, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_output)`` as `Module.register_full_backward_pre_hook` does, for any
    module.
    """
    return add_global(lambda: global_hooks.add("backward_pre", hook))


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` as `Module.register_full_backward_hook` does,
    for any module.
    """
    return add_global(lambda: global_hooks.add_backward(hook, True))


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` as `Module.register_backward_hook` does, for
    any module.

    Deprecated, as in PyTorch.
    """
    return add_global(lambda: global_hooks.add_backward(hook, False))


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, buffer)`` when a buffer is registered; it may return a
    replacement.
    """
    return add_hook(global_hooks.buffer_registration, hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, submodule)`` when a module is registered; it may return a
    replacement.
    """
    return add_hook(global_hooks.module_registration, hook)


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, param)`` when a parameter is registered; it may return a
    replacement.
    """
    return add_hook(global_hooks.parameter_registration, hook)
