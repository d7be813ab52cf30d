"""Hooks of optimizers: around steps, state dicts and loading; of one optimizer, or of all."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from typing import Any

from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.optim.placing import place_states

Hooks = OrderedDict[int, Callable[..., Any]]

_KINDS = (
    "step_pre",
    "step_post",
    "state_dict_pre",
    "state_dict_post",
    "load_state_dict_pre",
    "load_state_dict_post",
)

_before_all_steps: Hooks = OrderedDict()
_after_all_steps: Hooks = OrderedDict()


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(optimizer, args, kwargs)`` before each step of any optimizer.

    It may return other arguments, as ``(args, kwargs)``; the optimizer is the first of `args`.
    """
    return add_hook(_before_all_steps, hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call ``hook(optimizer, args, kwargs)`` after each step of any optimizer."""
    return add_hook(_after_all_steps, hook)


class OptimizerHooks:
    """The hooks of one optimizer; base class of `Optimizer`.

    Each method that registers a hook returns its handle. With `prepend` the hook comes before those
    that are registered.
    """

    def _make_hooks(self) -> None:
        for kind in _KINDS:
            self.__dict__.setdefault(f"_optimizer_{kind}_hooks", OrderedDict())

    def _hooks(self, kind: str) -> Hooks:
        # Optimizers that wrap another often do not call this class's __init__.
        hooks: Hooks = self.__dict__.setdefault(f"_optimizer_{kind}_hooks", OrderedDict())
        return hooks

    def _add(self, kind: str, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        handle = add_hook(self._hooks(kind), hook)
        if prepend:
            self._hooks(kind).move_to_end(handle.id, last=False)
        return handle

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step.

        It may return other arguments, as ``(args, kwargs)``; the optimizer is the first of `args`.
        """
        return self._add("step_pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return self._add("step_post", hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` before `state_dict`."""
        return self._add("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after `state_dict`; it may return another result."""
        return self._add("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before loading; it may return what to load."""
        return self._add("load_state_dict_pre", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` after loading."""
        return self._add("load_state_dict_post", hook, prepend)


def with_step_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `step` of an optimizer, with hooks called around it.

    After the step, state that it has made is paged like its parameter: see `place_states`.

    Raises:
        RuntimeError: if a hook before the step returns neither None nor two values.
    """
    if getattr(step, "hooked", False):
        return step

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        optimizer = args[0]
        before, after = optimizer._hooks("step_pre"), optimizer._hooks("step_post")
        if not (before or after or _before_all_steps or _after_all_steps):
            result = step(*args, **kwargs)
            place_states(getattr(optimizer, "state", {}))
            return result
        for hook in [*chain(_before_all_steps.values(), before.values())]:
            changed = hook(optimizer, args, kwargs)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(
                    f"a hook before {step.__qualname__} must return None, or new arguments as a "
                    f"tuple and a dict, got {changed!r}"
                )
            args, kwargs = changed
        result = step(*args, **kwargs)
        place_states(getattr(optimizer, "state", {}))
        for hook in [*chain(after.values(), _after_all_steps.values())]:
            hook(optimizer, args, kwargs)
        return result

    wrapper.hooked = True  # type: ignore[attr-defined]
    return wrapper
