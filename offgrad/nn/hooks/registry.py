"""The hooks of modules: those of one, those of all, and how they are registered."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast
from weakref import ref

from offgrad.autograd.handles import RemovableHandle, add_hook, skip_ids

Hook = Callable[..., Any]

CALL = ("forward_pre", "forward", "backward_pre", "backward")
STATE = ("state_dict_pre", "state_dict", "load_state_dict_pre", "load_state_dict_post")


class WithModule:
    """A hook that gets its module first, and does not keep it alive; a copy gets the copy."""

    def __init__(self, hook: Hook, module: Any) -> None:
        self._hook = hook
        self._module = ref(module)

    def __call__(self, *args: Any) -> Any:
        """Call the hook."""
        module = self._module()
        if module is None:
            raise RuntimeError(f"the module of the hook {self._hook!r} is gone; keep it")
        return self._hook(module, *args)

    def __getstate__(self) -> tuple[Hook, Any]:
        return self._hook, self._module()

    def __setstate__(self, state: tuple[Hook, Any]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _with_flags(
    hooks: "OrderedDict[int, Hook]", flags: dict[int, bool]
) -> list[tuple[int, Hook, bool]]:
    if not hooks:
        return []
    found = [(hook_id, hook, hook_id in flags) for hook_id, hook in list(hooks.items())]
    # One that another thread removes meanwhile may have lost its flag before we looked.
    return [each for each in found if each[0] in hooks]


class Hooks:
    """The hooks of one module, or of all: for each kind, functions by the ids of their handles."""

    def __init__(self) -> None:
        for kind in (*CALL, *STATE):
            setattr(self, kind, OrderedDict())
        # The ids of hooks that get keyword arguments too, that are called after errors too, and
        # that may not return anything.
        self.forward_pre_with_kwargs: dict[int, bool] = {}
        self.forward_with_kwargs: dict[int, bool] = {}
        self.always_called: dict[int, bool] = {}
        self.returns_none: dict[int, bool] = {}
        # Whether those in `backward` are full ones; None before the first.
        self.full: bool | None = None

    forward_pre: "OrderedDict[int, Hook]"
    forward: "OrderedDict[int, Hook]"
    backward_pre: "OrderedDict[int, Hook]"
    backward: "OrderedDict[int, Hook]"
    state_dict_pre: "OrderedDict[int, Hook]"
    state_dict: "OrderedDict[int, Hook]"
    load_state_dict_pre: "OrderedDict[int, Hook]"
    load_state_dict_post: "OrderedDict[int, Hook]"

    def wants_calls(self) -> bool:
        """Return whether a call of a module has hooks to call."""
        return bool(self.forward_pre or self.forward or self.backward_pre or self.backward)

    def forward_pre_now(self) -> "list[tuple[int, Hook, bool]]":
        """Return the forward pre-hooks there are: id, hook, whether it gets keyword arguments."""
        return _with_flags(self.forward_pre, self.forward_pre_with_kwargs)

    def forward_now(self) -> "list[tuple[int, Hook, bool]]":
        """Return the forward hooks there are: id, hook, whether it gets keyword arguments."""
        return _with_flags(self.forward, self.forward_with_kwargs)

    def add(
        self, kind: str, hook: Hook, prepend: bool = False, flags: Sequence[dict[int, bool]] = ()
    ) -> RemovableHandle:
        """Add a hook, last or first of its kind, and its id to `flags`."""
        hooks: OrderedDict[int, Hook] = getattr(self, kind)
        handle = add_hook(hooks, hook, *flags)
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def add_forward_pre(self, hook: Hook, prepend: bool, with_kwargs: bool) -> RemovableHandle:
        """Add a forward pre-hook."""
        return self.add("forward_pre", hook, prepend, [self.forward_pre_with_kwargs] * with_kwargs)

    def add_forward(
        self, hook: Hook, prepend: bool, with_kwargs: bool, always_call: bool
    ) -> RemovableHandle:
        """Add a forward hook."""
        flags = [self.forward_with_kwargs] * with_kwargs + [self.always_called] * always_call
        return self.add("forward", hook, prepend, flags)

    def add_backward(self, hook: Hook, full: bool, prepend: bool = False) -> RemovableHandle:
        """Add a backward hook.

        Raises:
            RuntimeError: if there were ones of the other sort: one cannot tell what they are given.
        """
        if self.full is not None and self.full != full:
            raise RuntimeError(
                "a module has either full backward hooks or those of register_backward_hook, but "
                f"a {'full' if full else 'non-full'} one was added to the others; use "
                "register_full_backward_hook for all"
            )
        handle = self.add("backward", hook, prepend)
        self.full = full
        return handle


class _Everywhere(Hooks):
    """The hooks of all modules, and how many sessions want to know which modules run."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers = 0
        self.buffer_registration: dict[int, Hook] = {}
        self.module_registration: dict[int, Hook] = {}
        self.parameter_registration: dict[int, Hook] = {}


global_hooks = _Everywhere()
# Held for moments only, but a session that garbage collection ends there takes it again.
_lock = threading.RLock()


def _add_everywhere(add: Callable[[], RemovableHandle]) -> RemovableHandle:
    with _lock:
        handle = add()
        HookMethods._call_hooks = global_hooks
    return handle


def track_calls() -> None:
    """Have all calls of modules known to `offgrad.nn.calls`, until `untrack_calls`."""
    with _lock:
        global_hooks.watchers += 1
        HookMethods._call_hooks = global_hooks


def untrack_calls() -> None:
    """Take one `track_calls` back."""
    with _lock:
        global_hooks.watchers -= 1
    stop_tracking()


def stop_tracking() -> None:
    """Have calls of modules without hooks pass by, if nothing concerns all modules any more."""
    if HookMethods._call_hooks is None:
        return
    with _lock:
        if not global_hooks.watchers and not global_hooks.wants_calls():
            HookMethods._call_hooks = None


def registered(kind: str, module: Any, name: str, value: Any) -> Any:
    """Return what is to be registered as a module's buffer, module or parameter `name`."""
    for hook in list(getattr(global_hooks, f"{kind}_registration").values()):
        result = hook(module, name, value)
        if result is not None:
            value = result
    return value


def _dictionary(kind: str) -> property:
    """Return the attribute, under PyTorch's name, of a module's hooks of one kind."""

    def get(self: "HookMethods") -> "OrderedDict[int, Hook]":
        return cast("OrderedDict[int, Hook]", getattr(self._own_hooks(), kind))

    def put(self: "HookMethods", hooks: dict[int, Any]) -> None:
        setattr(self._own_hooks(), kind, OrderedDict(hooks))

    return property(get, put)


# A module's hooks as attributes, under PyTorch's names.
_NAMES = {
    **{f"_{kind}_hooks": kind for kind in (*CALL, *STATE)},
    "_forward_pre_hooks_with_kwargs": "forward_pre_with_kwargs",
    "_forward_hooks_with_kwargs": "forward_with_kwargs",
    "_forward_hooks_always_called": "always_called",
    "_state_dict_hooks_returning_none": "returns_none",
    "_is_full_backward_hook": "full",
}


class HookMethods:
    """The registration of a module's hooks. A handle takes its hook away again."""

    # A module's own hooks are in its __dict__ from the first one on. While something concerns all
    # modules, the class has `global_hooks` here: one look tells whether a call needs any care.
    _call_hooks: ClassVar[Hooks | None] = None

    _forward_pre_hooks = _dictionary("forward_pre")
    _forward_hooks = _dictionary("forward")
    _forward_pre_hooks_with_kwargs = _dictionary("forward_pre_with_kwargs")
    _forward_hooks_with_kwargs = _dictionary("forward_with_kwargs")
    _forward_hooks_always_called = _dictionary("always_called")
    _backward_pre_hooks = _dictionary("backward_pre")
    _backward_hooks = _dictionary("backward")
    _state_dict_pre_hooks = _dictionary("state_dict_pre")
    _state_dict_hooks = _dictionary("state_dict")
    _load_state_dict_pre_hooks = _dictionary("load_state_dict_pre")
    _load_state_dict_post_hooks = _dictionary("load_state_dict_post")

    @property
    def _is_full_backward_hook(self) -> bool | None:
        return self._own_hooks().full

    @_is_full_backward_hook.setter
    def _is_full_backward_hook(self, full: bool | None) -> None:
        self._own_hooks().full = full

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, hooks under PyTorch's names, to pickle or copy the module."""
        state = self.__dict__.copy()
        own: Hooks | None = state.get("_call_hooks")
        if own is not None:
            state.update({name: getattr(own, attribute) for name, attribute in _NAMES.items()})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes = {name: value for name, value in state.items() if name not in _NAMES}
        self.__dict__.update(attributes)
        if len(attributes) < len(state):
            # Of a subclass whose __setstate__ takes attributes as they are, `_call_hooks` is kept.
            own = Hooks()
            for name in state.keys() & _NAMES.keys():
                setattr(own, _NAMES[name], state[name])
            for kind in (*CALL, *STATE):
                for hook_id in getattr(own, kind):
                    skip_ids(hook_id)
            self.__dict__["_call_hooks"] = own

    def _own_hooks(self) -> Hooks:
        own: Hooks | None = self.__dict__.get("_call_hooks")
        if "_modules" not in self.__dict__:
            raise AttributeError(
                "hooks can be registered only after super().__init__(), got one for "
                f"{type(self).__name__} before"
            )
        # As one step: two threads may register first hooks.
        return self.__dict__.setdefault("_call_hooks", Hooks()) if own is None else own

    def _hooks_of(self, kind: str) -> list[tuple[int, Hook]]:
        """Return the module's own hooks of a kind, and their ids."""
        own: Hooks | None = self.__dict__.get("_call_hooks")
        return [] if own is None else list(getattr(own, kind).items())

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before `forward`; it may return new arguments.

        `args` is the tuple of positional arguments; what is returned and is no tuple becomes the
        only one. With `with_kwargs` it is ``hook(module, args, kwargs)``, and what it may return is
        ``(args, kwargs)``. With `prepend` it comes before the module's other hooks; hooks of all
        modules come first.
        """
        return self._own_hooks().add_forward_pre(hook, prepend, with_kwargs)

    def register_forward_hook(
        self,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after `forward`; it may return another output.

        With `with_kwargs` it is ``hook(module, args, kwargs, output)``. With `always_call` it is
        called after an exception, too, with the output so far or None; what it raises then is a
        warning, and the first exception goes on. With `prepend` it comes before the module's other
        hooks; hooks of all modules come first.
        """
        return self._own_hooks().add_forward(hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are computed.

        `grad_output` is as in `register_full_backward_hook`. The hook may return another one.
        """
        return self._own_hooks().add("backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are
        computed, or, if no input requires grad, those of the outputs.

        Both are tuples, one entry for each positional argument and for each output, None for what
        is no tensor or has no gradient. The hook may return another `grad_input`, with which
        backward goes on. An output must be a tensor or a tuple for hooks to be called; else a
        warning says so.

        While a module has such hooks, `forward` gets, and its caller gets, views of the tensors.
        To change them in place raises an error.

        Raises:
            RuntimeError: if the module has hooks of `register_backward_hook`.
        """
        return self._own_hooks().add_backward(hook, True, prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` after the last operation of `forward`.

        Deprecated, as in PyTorch: `grad_input` are the gradients of that operation's inputs, not of
        the module's; a warning says so where these differ. Use `register_full_backward_hook`.

        Raises:
            RuntimeError: if the module has full backward hooks.
        """
        return self._own_hooks().add_backward(hook, False)


# The hooks of all modules


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, args)`` before any module's `forward`; it may return new arguments.

    Hooks of all modules come before those of the module.
    """
    return _add_everywhere(lambda: global_hooks.add("forward_pre", hook))


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, output)`` after any module's `forward`.

    The parameters are those of `Module.register_forward_hook`.
    """
    return _add_everywhere(lambda: global_hooks.add_forward(hook, False, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_output)`` as `Module.register_full_backward_pre_hook`, for any."""
    return _add_everywhere(lambda: global_hooks.add("backward_pre", hook))


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` as `Module.register_full_backward_hook`, for
    any module.
    """
    return _add_everywhere(lambda: global_hooks.add_backward(hook, True))


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, grad_input, grad_output)`` as `Module.register_backward_hook`, for any.

    Deprecated, as in PyTorch.
    """
    return _add_everywhere(lambda: global_hooks.add_backward(hook, False))


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, buffer)`` when a buffer is registered; it may return another."""
    return add_hook(global_hooks.buffer_registration, hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, submodule)`` when a module is registered; it may return another."""
    return add_hook(global_hooks.module_registration, hook)


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call ``hook(module, name, param)`` when a parameter is registered; it may return another."""
    return add_hook(global_hooks.parameter_registration, hook)
