"""The call of a module with hooks: its own or global ones."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad.nn.hooks.call_stack import Call, calls, observers
from offgrad.nn.hooks.full_backward import BackwardHook
from offgrad.nn.hooks.legacy_backward import register_on_last_operation
from offgrad.nn.hooks.registry import Hooks, global_hooks, stop_tracking_if_unused

if TYPE_CHECKING:
    from offgrad.nn.modules.module import Module


def call_with_hooks(module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the output of `forward`, called with the module's hooks and the global ones."""
    caller = calls.innermost
    call = Call(module, caller)
    try:
        try:
            calls.innermost = call
            for observer in observers:
                call.on_exit(observer(call))
            own: Hooks | None = module.__dict__.get("_call_hooks")
            if (own is not None and own.has_call_hooks()) or global_hooks.has_call_hooks():
                return _HookedCall(module, args, kwargs).run(own or _NO_HOOKS)
            if not global_hooks.trackers:
                stop_tracking_if_unused()
            return module.forward(*args, **kwargs)
        finally:
            calls.innermost = caller
            if call.exit_actions:
                call.end()
    finally:  # Ctrl-C may have come where `end` began
        if call.exit_actions:
            call.end()


_NO_HOOKS = Hooks()


class _HookedCall:
    __slots__ = ("_args", "_called", "_kwargs", "_module", "_output")

    def __init__(self, module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module
        self._args = args
        self._kwargs = kwargs
        self._output: Any = None
        self._called: list[int] = []

    @property
    def _own(self) -> Hooks:
        """The module's own hooks. Looked up each time: a hook may register the first one."""
        own: Hooks = self._module.__dict__.get("_call_hooks", _NO_HOOKS)
        return own

    def run(self, own: Hooks) -> Any:
        try:
            forward = self._module.forward
            backward: BackwardHook | None = None
            legacy: list[Any] = []
            if own.has_backward_hooks() or global_hooks.has_backward_hooks():
                backward, legacy = self._backward_hooks()
            if own.forward_pre or global_hooks.forward_pre:
                pre_hooks = [*global_hooks.forward_pre_entries(), *own.forward_pre_entries()]
                for _, hook, with_kwargs in pre_hooks:
                    self._call_pre_hook(hook, with_kwargs)
            if backward is not None:
                self._args = backward.setup_input_hook(self._args)
            self._output = forward(*self._args, **self._kwargs)
            for hook_id, hook, with_kwargs in self._forward_hooks():
                self._call_forward_hook(hook_id, hook, with_kwargs)
            if backward is not None:
                self._output = backward.setup_output_hook(self._output)
            if legacy:
                register_on_last_operation(self._module, legacy, self._args, self._output)
            return self._output
        except Exception:
            self._call_always_hooks()
            raise

    def _forward_hooks(self) -> list[tuple[int, Callable[..., Any], bool]]:
        """Return the current forward hooks, global ones first."""
        own = self._own.forward_entries()
        return [*global_hooks.forward_entries(), *own] if global_hooks.forward else own

    def _backward_hooks(self) -> tuple[BackwardHook | None, list[Any]]:
        """Return the full backward hooks, None if there are none, and the legacy ones."""
        full: list[Any] = []
        legacy: list[Any] = []
        pre: list[Any] = []
        for hooks in (global_hooks, self._own):
            if hooks.is_full_backward is not None:
                (full if hooks.is_full_backward else legacy).extend(hooks.backward.values())
            if hooks.backward_pre:
                pre.extend(hooks.backward_pre.values())
        return BackwardHook(self._module, full, pre) if full or pre else None, legacy

    def _call_pre_hook(self, hook: Callable[..., Any], with_kwargs: bool) -> None:
        if not with_kwargs:
            result = hook(self._module, self._args)
            if result is not None:
                self._args = result if isinstance(result, tuple) else (result,)
            return
        result = hook(self._module, self._args, self._kwargs)
        if result is None:
            return
        if not isinstance(result, tuple) or len(result) != 2:
            raise RuntimeError(
                "a forward pre-hook with with_kwargs=True must return None or (args, kwargs), but "
                f"one of {type(self._module).__name__} returned {result!r}"
            )
        self._args, self._kwargs = result

    def _call_forward_hook(self, hook_id: int, hook: Callable[..., Any], with_kwargs: bool) -> None:
        self._called.append(hook_id)
        if with_kwargs:
            result = hook(self._module, self._args, self._kwargs, self._output)
        else:
            result = hook(self._module, self._args, self._output)
        if result is not None:
            self._output = result

    def _call_always_hooks(self) -> None:
        for hook_id, hook, with_kwargs in self._forward_hooks():
            always = hook_id in self._own.always_called or hook_id in global_hooks.always_called
            if not always or hook_id in self._called:
                continue
            try:
                self._call_forward_hook(hook_id, hook, with_kwargs)
            except Exception as error:
                warnings.warn(
                    f"a forward hook of {type(self._module).__name__} with always_call=True raised "
                    f"{error!r}; it is dropped, because forward or another hook raised before it",
                    stacklevel=5,
                )
