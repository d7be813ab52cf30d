"""The registered hooks: those of each module, and the global ones of all modules."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast
from weakref import ref

from offgrad_storage.interrupts import MaskedLock

from offgrad.autograd.handles import RemovableHandle, add_hook, skip_ids

Hook = Callable[..., Any]

CALL_KINDS = ("forward_pre", "forward", "backward_pre", "backward")
STATE_KINDS = ("state_dict_pre", "state_dict", "load_state_dict_pre", "load_state_dict_post")


class WithModule:
    """A hook whose first argument is its module, held weakly. A copy's hook gets the copy."""

    def __init__(self, hook: Hook, module: Any) -> None:
        self._hook = hook
        self._module = ref(module)

    def __call__(self, *args: Any) -> Any:
        module = self._module()
        if module is None:
            raise RuntimeError(
                f"the module of the hook {self._hook!r} no longer exists; keep a reference to it"
            )
        return self._hook(module, *args)

    def __getstate__(self) -> tuple[Hook, Any]:
        return self._hook, self._module()

    def __setstate__(self, state: tuple[Hook, Any]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _entries(
    hooks: "OrderedDict[int, Hook]", flags: dict[int, bool]
) -> list[tuple[int, Hook, bool]]:
    if not hooks:
        return []
    if not flags:
        return [(hook_id, hook, False) for hook_id, hook in list(hooks.items())]
    entries = [(hook_id, hook, hook_id in flags) for hook_id, hook in list(hooks.items())]
    # Another thread that removes a hook meanwhile may have dropped its flag already.
    return [entry for entry in entries if entry[0] in hooks]


class Hooks:
    """The hooks of one module, or the global ones: for each kind, functions by handle id.

    Attributes:
        forward_pre_with_kwargs, forward_with_kwargs: ids of hooks that get keyword arguments.
        always_called: ids of forward hooks that are called after an exception, too.
        must_return_none: ids of state dict hooks that must return None.
        is_full_backward: whether the hooks in `backward` are full ones; None before the first.
    """

    forward_pre: "OrderedDict[int, Hook]"
    forward: "OrderedDict[int, Hook]"
    backward_pre: "OrderedDict[int, Hook]"
    backward: "OrderedDict[int, Hook]"
    state_dict_pre: "OrderedDict[int, Hook]"
    state_dict: "OrderedDict[int, Hook]"
    load_state_dict_pre: "OrderedDict[int, Hook]"
    load_state_dict_post: "OrderedDict[int, Hook]"

    def __init__(self) -> None:
        for kind in (*CALL_KINDS, *STATE_KINDS):
            setattr(self, kind, OrderedDict())
        self.forward_pre_with_kwargs: dict[int, bool] = {}
        self.forward_with_kwargs: dict[int, bool] = {}
        self.always_called: dict[int, bool] = {}
        self.must_return_none: dict[int, bool] = {}
        self.is_full_backward: bool | None = None

    def has_call_hooks(self) -> bool:
        """Return whether there are hooks around module calls."""
        return bool(self.forward or self.forward_pre or self.backward or self.backward_pre)

    def has_backward_hooks(self) -> bool:
        """Return whether there are hooks around the backward of module calls."""
        return bool(self.backward or self.backward_pre)

    def forward_pre_entries(self) -> "list[tuple[int, Hook, bool]]":
        """Return the current forward pre-hooks: id, hook, whether it gets keyword arguments."""
        return _entries(self.forward_pre, self.forward_pre_with_kwargs)

    def forward_entries(self) -> "list[tuple[int, Hook, bool]]":
        """Return the current forward hooks: id, hook, whether it gets keyword arguments."""
        return _entries(self.forward, self.forward_with_kwargs)

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
        return self.add("forward_pre", hook, prepend, [self.forward_pre_with_kwargs] * with_kwargs)

    def add_forward(
        self, hook: Hook, prepend: bool, with_kwargs: bool, always_call: bool
    ) -> RemovableHandle:
        flags = [self.forward_with_kwargs] * with_kwargs + [self.always_called] * always_call
        return self.add("forward", hook, prepend, flags)

    def add_backward(self, hook: Hook, full: bool, prepend: bool = False) -> RemovableHandle:
        """Add a backward hook.

        Raises:
            RuntimeError: if a hook of the other kind was added before.
        """
        if self.is_full_backward is not None and self.is_full_backward != full:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single "
                f"Module, but a {'full' if full else 'non-full'} one was added to the other kind; "
                "use register_full_backward_hook for all"
            )
        handle = self.add("backward", hook, prepend)
        self.is_full_backward = full
        return handle


class _GlobalHooks(Hooks):
    """The hooks of all modules, and the number of `track_calls` in effect."""

    def __init__(self) -> None:
        super().__init__()
        self.trackers = 0
        self.buffer_registration: dict[int, Hook] = {}
        self.module_registration: dict[int, Hook] = {}
        self.parameter_registration: dict[int, Hook] = {}


global_hooks = _GlobalHooks()
# Reentrant, because garbage collection may end a session, which calls untrack_calls, while this
# thread holds the lock.
_lock = MaskedLock(reentrant=True)


def add_global(add: Callable[[], RemovableHandle]) -> RemovableHandle:
    """Register a hook of all modules' calls by `add`, and have all calls look for it."""
    with _lock:
        handle = add()
        HookMethods._call_hooks = global_hooks
    return handle


def track_calls() -> None:
    """Put all module calls on `call_stack.calls`, until `untrack_calls`."""
    with _lock:
        global_hooks.trackers += 1
        HookMethods._call_hooks = global_hooks


def untrack_calls() -> None:
    """Undo one `track_calls`."""
    with _lock:
        global_hooks.trackers -= 1
    stop_tracking_if_unused()


def stop_tracking_if_unused() -> None:
    """Let modules without hooks skip the call stack, unless tracking or global hooks need it."""
    if HookMethods._call_hooks is None:
        return
    with _lock:
        if not global_hooks.trackers and not global_hooks.has_call_hooks():
            HookMethods._call_hooks = None


def call_registration_hooks(kind: str, module: Any, name: str, value: Any) -> Any:
    """Return `value`, or its replacement by a registration hook.

    Args:
        kind: ``"buffer"``, ``"module"`` or ``"parameter"``.
        module: the module that registers the value.
        name: the name for the value.
        value: a tensor, module or parameter, or None.
    """
    for hook in list(getattr(global_hooks, f"{kind}_registration").values()):
        result = hook(module, name, value)
        if result is not None:
            value = result
    return value


def _hook_dict(kind: str) -> property:
    """Return a property for a module's hooks of one kind, for use under PyTorch's name."""

    def get(self: "HookMethods") -> "OrderedDict[int, Hook]":
        return cast("OrderedDict[int, Hook]", getattr(self._own_hooks(), kind))

    def set_(self: "HookMethods", hooks: dict[int, Any]) -> None:
        setattr(self._own_hooks(), kind, OrderedDict(hooks))

    return property(get, set_)


# Attributes of `Hooks` by PyTorch's names for them in the module.
_TORCH_NAMES = {
    **{f"_{kind}_hooks": kind for kind in (*CALL_KINDS, *STATE_KINDS)},
    "_forward_pre_hooks_with_kwargs": "forward_pre_with_kwargs",
    "_forward_hooks_with_kwargs": "forward_with_kwargs",
    "_forward_hooks_always_called": "always_called",
    "_state_dict_hooks_returning_none": "must_return_none",
    "_is_full_backward_hook": "is_full_backward",
}


class HookMethods:
    """Methods of Module that register hooks. The handles they return remove the hooks."""

    # From its first hook on, a module has its own hooks in its __dict__. While calls are tracked or
    # global hooks exist, the class has `global_hooks` here. So one lookup of the attribute tells
    # whether a call needs more than `forward`.
    _call_hooks: ClassVar[Hooks | None] = None

    _forward_pre_hooks = _hook_dict("forward_pre")
    _forward_hooks = _hook_dict("forward")
    _forward_pre_hooks_with_kwargs = _hook_dict("forward_pre_with_kwargs")
    _forward_hooks_with_kwargs = _hook_dict("forward_with_kwargs")
    _forward_hooks_always_called = _hook_dict("always_called")
    _backward_pre_hooks = _hook_dict("backward_pre")
    _backward_hooks = _hook_dict("backward")
    _state_dict_pre_hooks = _hook_dict("state_dict_pre")
    _state_dict_hooks = _hook_dict("state_dict")
    _load_state_dict_pre_hooks = _hook_dict("load_state_dict_pre")
    _load_state_dict_post_hooks = _hook_dict("load_state_dict_post")

    @property
    def _is_full_backward_hook(self) -> bool | None:
        return self._own_hooks().is_full_backward

    @_is_full_backward_hook.setter
    def _is_full_backward_hook(self, full: bool | None) -> None:
        self._own_hooks().is_full_backward = full

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with hooks under PyTorch's names, to pickle or copy the module."""
        state = self.__dict__.copy()
        own: Hooks | None = state.get("_call_hooks")
        if own is not None:
            for name, attribute in _TORCH_NAMES.items():
                state[name] = getattr(own, attribute)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes = {name: value for name, value in state.items() if name not in _TORCH_NAMES}
        self.__dict__.update(attributes)
        if len(attributes) < len(state):
            # A subclass whose __setstate__ sets the attributes unchanged keeps `_call_hooks`.
            own = Hooks()
            for name in state.keys() & _TORCH_NAMES.keys():
                setattr(own, _TORCH_NAMES[name], state[name])
            for kind in (*CALL_KINDS, *STATE_KINDS):
                for hook_id in getattr(own, kind):
                    skip_ids(hook_id)
            self.__dict__["_call_hooks"] = own

    def _own_hooks(self) -> Hooks:
        own: Hooks | None = self.__dict__.get("_call_hooks")
        if "_modules" not in self.__dict__:
            raise AttributeError(
                "hooks can be registered only after super().__init__(), but "
                f"{type(self).__name__} got one before"
            )
        # In one atomic step, because two threads may register the first hooks.
        return self.__dict__.setdefault("_call_hooks", Hooks()) if own is None else own

    def _hooks_of(self, kind: str) -> list[tuple[int, Hook]]:
        """Return ids and hooks of one kind; only the module's own."""
        own: Hooks | None = self.__dict__.get("_call_hooks")
        return [] if own is None else list(getattr(own, kind).items())

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before `forward`; it may return new arguments.

        `args` is the tuple of positional arguments; a returned value that is no tuple becomes the
        only argument. With `with_kwargs` the call is ``hook(module, args, kwargs)``, and the hook
        may return ``(args, kwargs)``. With `prepend` it is called before the module's other hooks;
        global hooks are called first.
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

        With `with_kwargs` the call is ``hook(module, args, kwargs, output)``. With `always_call`
        the hook is called after an exception, too, with the output so far or None; an exception of
        its own then becomes a warning, and the first exception propagates. With `prepend` it is
        called before the module's other hooks; global hooks are called first.
        """
        return self._own_hooks().add_forward(hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are computed.

        `grad_output` is as in `register_full_backward_hook`. The hook may return a replacement.
        """
        return self._own_hooks().add("backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are
        computed, or, if no input requires grad, those of the outputs.

        Both are tuples with an entry for each positional argument or output: its gradient, or None
        if it is no tensor or has no gradient. The hook may return a replacement of `grad_input`,
        with which backward continues. Hooks are called only if the output is a tensor or a tuple;
        otherwise a warning says so.

        While a module has such hooks, `forward` and its caller get views of the tensors. Changing
        these in place raises an error.

        Raises:
            RuntimeError: if the module has hooks of `register_backward_hook`.
        """
        return self._own_hooks().add_backward(hook, True, prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` after the last operation of `forward`.

        Deprecated, as in PyTorch: `grad_input` has the gradients of that operation's inputs, not of
        the module's; a warning says so if these differ. Use `register_full_backward_hook`.

        Raises:
            RuntimeError: if the module has full backward hooks.
        """
        return self._own_hooks().add_backward(hook, False)
