"""The running module calls of each thread, and the qualified names of their modules."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from offgrad_storage.interrupts import masked

from offgrad.autograd import saved_tensor

if TYPE_CHECKING:
    from offgrad.nn.modules.module import Module


class _QualifiedName(NamedTuple):
    """The name of a running module, and whether it is a path from the root."""

    text: str
    is_below_root: bool


class Call:
    """One running call of a module.

    Calls are tracked only while hooks or sessions need them.

    Attributes:
        module: that is called.
        caller: the tracked call around this one in its thread; None for the outermost.
        exit_actions: called when the call ends; the last one first.
    """

    # Class attributes as defaults save time: most calls have no name and no actions.
    exit_actions: Sequence[Callable[[], None]] = ()
    _cached_name: "tuple[Module | None, _QualifiedName] | None" = None
    # What an observer of calls notes of this one.
    noted: Any = None

    def __init__(self, module: "Module", caller: "Call | None") -> None:
        self.module = module
        self.caller = caller

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call `action` when the call ends, also by an exception. Actions run in reverse order."""
        self.exit_actions = (*self.exit_actions, action)

    def end(self) -> None:
        """Run the exit actions. Ctrl-C comes before or after them."""
        with masked:
            while self.exit_actions:
                *self.exit_actions, action = self.exit_actions
                action()

    def name(self, root: "Module | None") -> str:
        """Return the module's qualified name, from `root` or the outermost called module on."""
        return without_wrappers(self._name(root).text)

    def name_inside(self, root: "Module") -> str | None:
        """Return the module's qualified name from `root` on; None if it is not below `root`."""
        name = self._name(root)
        return without_wrappers(name.text) if name.is_below_root else None

    def depth_below(self, module: "Module", root: "Module | None") -> int | None:
        """Return how many levels below `module` this call's module is; None if it is not below.

        If it has several qualified names, the one of this call counts.
        """
        name = self._name(root)
        if name.is_below_root and (root is not None or self.caller is not None):
            return _depth(root or self._outermost(), name.text, module)
        path = _path_to(module, self.module)
        return None if path is None else _depth(module, path, module)

    def _name(self, root: "Module | None") -> _QualifiedName:
        if self._cached_name is None or self._cached_name[0] is not root:
            self._cached_name = root, self._find_name(root)
        return self._cached_name[1]

    def _find_name(self, root: "Module | None") -> _QualifiedName:
        if self.module is root or (root is None and self.caller is None):
            return _QualifiedName("", True)
        parent = _QualifiedName("", False) if self.caller is None else self.caller._name(root)
        below = None if self.caller is None else _path_to(self.caller.module, self.module)
        if not parent.is_below_root or below is None:
            # The caller lacks the module, as in recomputation. Use its name in the model.
            path = _path_to(root or self._outermost(), self.module)
            if path is not None:
                return _QualifiedName(path, True)
        is_below_root = parent.is_below_root and below is not None
        name = type(self.module).__name__ if below is None else below
        return _QualifiedName(".".join(filter(None, (parent.text, name))), is_below_root)

    def _outermost(self) -> "Module":
        call = self
        while call.caller is not None:
            call = call.caller
        return call.module


observers: list[Callable[[Call], Callable[[], None]]] = []
"""Called with each tracked call when it begins; they return a function for its end."""


class _Calls(threading.local):
    innermost: Call | None = None


calls = _Calls()


def current_module_name(root: "Module | None" = None) -> str:
    """Return the qualified name of the innermost module that this thread is calling.

    Names count from `root`, or from the outermost called module, whose own name is ``""``. The name
    is ``""`` outside of all modules, too. A module with several parents is named after the one that
    calls it; a module that is not registered below its caller is named after its class.
    """
    return "" if calls.innermost is None else calls.innermost.name(root)


saved_tensor.current_module = current_module_name


def without_wrappers(name: str) -> str:
    """Return a qualified name without the parts of compiled modules: rules hold for both."""
    if "_orig_mod" not in name:
        return name
    return ".".join(each for each in name.split(".") if each != "_orig_mod")


class _SubmodulePaths:
    """The qualified names of all modules below one module, at the time of construction."""

    def __init__(self, module: "Module") -> None:
        self.registration_count = module_registrations.count
        named = {each: name for name, each in module.named_modules()}
        self.names: WeakKeyDictionary[Module, str] = WeakKeyDictionary(named)


class _Registrations:
    # Registrations of modules so far, in the process: each may invalidate a cached absence.
    count = 0


module_registrations = _Registrations()
_known_paths: "WeakKeyDictionary[Module, _SubmodulePaths]" = WeakKeyDictionary()


def _path_to(module: "Module", submodule: "Module") -> str | None:
    """Return the qualified name of `submodule` in `module`; None if it is not below it."""
    paths = _known_paths.get(module)
    if paths is not None:
        path = paths.names.get(submodule)
        if path is not None and _modules_along(module, path)[-1] is submodule:
            return path
        if path is None and paths.registration_count == module_registrations.count:
            return None
    paths = _known_paths[module] = _SubmodulePaths(module)
    return paths.names.get(submodule)


def _modules_along(module: "Module", path: str) -> "list[Module | None]":
    """Return the modules along `path`: `module`, and one for each name (None if there is none)."""
    found: list[Module | None] = [module]
    for name in path.split(".") if path else ():
        parent = found[-1]
        found.append(None if parent is None else parent._modules.get(name))
    return found


def _depth(root: "Module", path: str, module: "Module") -> int | None:
    """Return how many levels the end of `path`, which begins at `root`, is below `module`."""
    backwards = enumerate(reversed(_modules_along(root, path)))
    return next((depth for depth, each in backwards if each is module), None)
