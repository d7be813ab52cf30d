"""``__torch_function__``: calls with tensors of subclasses, and of other classes that define it.

Functions know nothing of it, and cost nothing more, until a program needs it: it defines a subclass
of tensors, enters a mode, or passes an object with ``__torch_function__``. Then `install` gives the
public functions and methods code that looks at their arguments first. They stay the same objects,
because programs hold them, in tables by function for one.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, NoneType
from typing import Any

from offgrad.autograd.override_state import (
    DisableTorchFunctionSubclass,
    disabled_torch_function,
    state,
)
from offgrad.autograd.tensor_base import TensorBase

_NEVER = frozenset({int, float, bool, str, NoneType, complex, slice})

NAMESPACES = ("", "nn.functional", "linalg", "fft", "special")
"""The modules whose functions are overridable."""

_NOT_FUNCTIONS = frozenset(
    [
        *("as_tensor", "asarray", "compile", "from_dlpack", "from_file", "from_numpy"),
        *("frombuffer", "is_storage", "is_tensor", "promote_types", "scalar_tensor", "tensor"),
        *("sparse_coo_tensor", "typename", "vmap", "manual_seed", "seed", "set_rng_state"),
        *("get_rng_state", "initial_seed", "load", "save", "set_printoptions"),
        *("set_default_device", "set_default_dtype", "get_default_device", "get_default_dtype"),
    ]
)
_SPECIAL_METHODS = frozenset({"__getitem__", "__setitem__", "__len__", "__contains__"})
_NOT_METHODS = frozenset({"as_subclass", "register_hook", "new", "dim_order"})


def is_overriding(kind: type) -> bool:
    """Return whether a class has a ``__torch_function__`` that functions call; not PyTorch's."""
    if kind is TensorBase.tensor_class:
        return False
    found = getattr(kind, "__torch_function__", None)
    return (
        found is not None
        and found is not disabled_torch_function
        and (getattr(found, "__module__", None) or "").partition(".")[0] != "torch"
    )


_plain = {*_NEVER}
"""Classes whose objects override nothing; `install` adds that of plain tensors."""


def overriding(arguments: Iterable[Any]) -> list[Any]:
    """Return an argument of each class with ``__torch_function__``, subclasses before others.

    Lists and tuples count by their elements.
    """
    found: list[Any] = []
    for each in arguments:
        kind = type(each)
        if kind in _plain:
            continue
        for one in each if kind is list or kind is tuple else (each,):
            if is_overriding(type(one)) and type(one) not in map(type, found):
                at = [i for i, other in enumerate(found) if isinstance(one, type(other))]
                found.insert(at[0] if at else len(found), one)
    return found


def handle(function: Any, found: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what the innermost mode, or else the first class that answers, does for a call.

    Raises:
        TypeError: if all classes return NotImplemented.
    """
    kinds = tuple([type(each) for each in found])
    if state.modes:
        modes = state.modes
        state.modes = modes[:-1]
        try:
            result = modes[-1].__torch_function__(function, kinds, args, kwargs)
        finally:
            state.modes = modes
        if result is not NotImplemented:
            return result
    for kind in kinds:
        answer: Any = kind.__torch_function__
        result = answer(function, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', function)}"
    raise TypeError(
        f"no implementation found for {name!r} on types that implement __torch_function__: "
        f"{[*kinds]}"
    )


def _call(
    function: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function that has got other code."""
    for each in args:
        if type(each) not in _plain:
            break
    else:
        if not kwargs and not state.modes:
            return original(*args)
    found = overriding((*args, *kwargs.values())) if state.enabled else []
    if found or state.modes:
        return handle(function, found, args, kwargs)
    return original(*args, **kwargs)


def default_torch_function(
    cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Call `func` on plain tensors; tensors that it returns become tensors of the class `cls`.

    A subclass extends it: ``super().__torch_function__(func, types, args, kwargs)``.
    """
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    module = getattr(func, "__module__", None) or "torch"  # functions in C have none
    if func is state.running and not state.enabled and module.partition(".")[0] == "torch":
        # Functions of this library would not have asked again.
        raise TypeError(
            f"{module}.{getattr(func, '__name__', func)} is a function of PyTorch that was called "
            "with a tensor of offgrad: import offgrad's instead, as in import "
            "offgrad.nn.functional as F"
        )
    outer, state.running = state.running, func
    try:
        with DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
    finally:
        state.running = outer
    if func in plain_results():
        return result
    return _converted(result, cls)


def plain_results() -> set[Any]:
    """Return the functions whose results do not become tensors of a subclass."""
    kind = TensorBase.tensor_class
    names = ("grad", "requires_grad", "is_leaf", "grad_fn")
    return {getattr(vars(_owner(kind, name))[name], "__get__") for name in names}  # noqa: B009


def _owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def _converted(result: Any, kind: Any) -> Any:
    if kind is TensorBase.tensor_class:
        return result
    if isinstance(result, TensorBase):
        return result if isinstance(result, kind) else result.as_subclass(kind)  # type: ignore[attr-defined]
    if isinstance(result, (tuple, list)):
        parts = [_converted(each, kind) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


# Other code for functions

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Let the public functions and methods call ``__torch_function__`` from now on."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        _plain.add(TensorBase.tensor_class)
        for function in dict.fromkeys(each for _, _, each in overridable()):
            _replace(function, function)
        for getter, function in _properties():
            _replace(function, getter)


def redirect(function: Any, shown: Any) -> None:
    """Let a function ask ``__torch_function__`` about `shown`, from the call of `install` on."""
    with _lock:
        if "__original__" not in function.__dict__:
            _replace(function, shown)


def is_installed() -> bool:
    """Return whether functions call ``__torch_function__``."""
    return _installed


def overridable() -> "Iterator[tuple[Any, str, Any]]":
    """Yield each overridable function and method, with its owner and its name."""
    package = sys.modules.get("offgrad")
    for path in NAMESPACES:
        module = functools.reduce(getattr, path.split("."), package) if path else package
        for name in getattr(module, "__all__", None) or vars(module):
            each = getattr(module, name, None)
            is_ours = isinstance(each, FunctionType) and each.__module__.startswith("offgrad")
            if is_ours and not name.startswith("_") and name not in _NOT_FUNCTIONS:
                yield module, name, each
    kind = TensorBase.tensor_class
    for owner in kind.__mro__:
        for name, each in vars(owner).items():
            is_public = not name.startswith("_") and name not in _NOT_METHODS
            if isinstance(each, FunctionType) and (is_public or name in _SPECIAL_METHODS):
                yield kind, name, each


def others() -> list[Any]:
    """Return the public functions that are not overridable."""
    package = sys.modules["offgrad"]
    return [vars(package)[name] for name in sorted(_NOT_FUNCTIONS) if name in vars(package)]


def _properties() -> "Iterator[tuple[Any, Any]]":
    """Yield each property of tensors as its getter, and the function behind that."""
    for owner in TensorBase.tensor_class.__mro__:
        for name, each in vars(owner).items():
            if isinstance(each, property) and not name.startswith("_"):
                yield each.__get__, each.fget


def _replace(function: Any, shown: Any) -> None:
    """Give a function code that asks ``__torch_function__`` about `shown` first."""
    original = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    original.__kwdefaults__ = function.__kwdefaults__
    call = functools.partial(_call, shown, original)
    code = _forwarding(function.__code__.co_freevars)
    constants = tuple([call if each == _PLACE else each for each in code.co_consts])
    original.__annotations__ = function.__annotations__
    function.__dict__.setdefault("__wrapped__", original)  # for inspect.signature
    function.__dict__["__original__"] = original
    function.__code__ = code.replace(
        co_consts=constants, co_name=function.__name__, co_qualname=function.__qualname__
    )


_PLACE = "what to call"
_UNCOUNTED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "<importlib._bootstrap>")
"""A file name that Python's warnings leave out when they count the frames of ``stacklevel``: the
frames between a program and a function that warns are as many as before."""
_call.__code__ = _call.__code__.replace(co_filename=_UNCOUNTED)


@functools.cache
def _forwarding(free: tuple[str, ...]) -> CodeType:
    """Return code that passes its arguments on, for a function with these free variables."""
    lines = [
        *(f"def outer({', '.join(free)}):",),
        " def forward(*args, **kwargs):",
        *(f"  if 0: {name}" for name in free),
        f"  call = {_PLACE!r}",
        "  return call(args, kwargs)",
        " return forward",
    ]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), _UNCOUNTED, "exec"), scope)
    code: CodeType = scope["outer"](*free).__code__
    return code
