"""One call of a module with hooks, its own or those of all modules."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad.nn.hooks.call_stack import Call, calls
from offgrad.nn.hooks.full_backward import BackwardHook
from offgrad.nn.hooks.legacy_backward import register_on_last_operation
from offgrad.nn.hooks.registry import Hooks, global_hooks, stop_tracking

if TYPE_CHECKING:
    from offgrad.nn.modules.module import Module


def call_with_hooks(module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the module's hooks, and `forward` among them."""
    caller = calls.innermost
    call = Call(module, caller)
    try:
        calls.innermost = call
        own = module.__dict__.get("_call_hooks")
        if global_hooks.wants_calls() or (own is not None and own.wants_calls()):
            return _HookedCall(module, args, kwargs).run()
        if not global_hooks.watchers:
            stop_tracking()
        return module.forward(*args, **kwargs)
    finally:
        calls.innermost = caller
        call.end()


_NONE = Hooks()


class _HookedCall:
    def __init__(self, module: "Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module
        self._args = args
        self._kwargs = kwargs
        self._output: Any = None
        self._called: set[int] = set()

    @property
    def _own(self) -> Hooks:
        """The module's own hooks, of which other hooks may register the first."""
        own: Hooks = self._module.__dict__.get("_call_hooks", _NONE)
        return own

    def run(self) -> Any:
        """Return the output, after all hooks."""
        try:
            return self._run()
        except Exception:
            self._call_always_hooks()
            raise

    def _run(self) -> Any:
        forward = self._module.forward
        full, old = self._backward_hooks()
        pre = [*global_hooks.backward_pre.values(), *self._own.backward_pre.values()]
        for _, hook, with_kwargs in [*global_hooks.forward_pre_now(), *self._own.forward_pre_now()]:
            self._call_pre_hook(hook, with_kwargs)
        backward = BackwardHook(self._module, full, pre) if full or pre else None
        if backward is not None:
            self._args = backward.watch_inputs(self._args)
        self._output = forward(*self._args, **self._kwargs)
        for hook_id, hook, with_kwargs in self._forward_hooks():
            self._call_forward_hook(hook_id, hook, with_kwargs)
        if backward is not None:
            self._output = backward.watch_outputs(self._output)
        if old:
            register_on_last_operation(self._module, old, self._args, self._output)
        return self._output

    def _forward_hooks(self) -> list[tuple[int, Callable[..., Any], bool]]:
        """Return the forward hooks there are now, those of all modules first."""
        return [*global_hooks.forward_now(), *self._own.forward_now()]

    def _backward_hooks(self) -> tuple[list[Any], list[Any]]:
        full: list[Any] = []
        old: list[Any] = []
        for hooks in (global_hooks, self._own):
            if hooks.full is not None:
                (full if hooks.full else old).extend(hooks.backward.values())
        return full, old

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
                "a forward pre-hook with_kwargs must return None or (args, kwargs), but one of "
                f"{type(self._module).__name__} returned {result!r}"
            )
        self._args, self._kwargs = result

    def _call_forward_hook(self, hook_id: int, hook: Callable[..., Any], with_kwargs: bool) -> None:
        self._called.add(hook_id)
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
                    f"{error!r}, which gives way to the exception before it",
                    stacklevel=5,
                )
