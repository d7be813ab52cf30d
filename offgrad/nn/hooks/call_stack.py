"""Which modules are running in this thread, and what they are called."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from offgrad.autograd import saved_tensor

if TYPE_CHECKING:
    from offgrad.nn.modules.module import Module


class _Name(NamedTuple):
    """What a running module is called, and whether that counts from the root."""

    text: str
    inside: bool


class Call:
    """One running call of a module. Calls are known while hooks or sessions need them."""

    __slots__ = ("_at_end", "_named", "caller", "module")

    def __init__(self, module: "Module", caller: "Call | None") -> None:
        self.module = module
        self.caller = caller
        self._named: tuple[Module | None, _Name] | None = None
        self._at_end: list[Callable[[], None]] = []

    def on_exit(self, action: Callable[[], None]) -> None:
        """Have `action` called when the call ends, however it does; the last one first."""
        self._at_end.append(action)

    def end(self) -> None:
        """Do what was to be done at the end."""
        while self._at_end:
            self._at_end.pop()()

    def name(self, root: "Module | None") -> str:
        """Return the qualified name of the module below `root`, or below the outermost called."""
        return self._name(root).text

    def name_inside(self, root: "Module") -> str | None:
        """Return the qualified name of the module below `root`; None if it is not there."""
        name = self._name(root)
        return name.text if name.inside else None

    def steps_below(self, module: "Module", root: "Module | None") -> int | None:
        """Return how many names further in than `module` this one is; None if it is not in there.

        Where it has several names, the one it is called by decides.
        """
        name = self._name(root)
        if name.inside and (root is not None or self.caller is not None):
            return _steps(root or self._outermost(), name.text, module)
        path = _path(module, self.module)
        return None if path is None else _steps(module, path, module)

    def _name(self, root: "Module | None") -> _Name:
        if self._named is None or self._named[0] is not root:
            self._named = root, self._find_name(root)
        return self._named[1]

    def _find_name(self, root: "Module | None") -> _Name:
        if self.module is root or (root is None and self.caller is None):
            return _Name("", True)
        parent = _Name("", False) if self.caller is None else self.caller._name(root)
        below = None if self.caller is None else _path(self.caller.module, self.module)
        if not parent.inside or below is None:
            # Called from elsewhere, as when a part is computed again: its name in the model.
            path = _path(root or self._outermost(), self.module)
            if path is not None:
                return _Name(path, True)
        inside = parent.inside and below is not None
        last = type(self.module).__name__ if below is None else below
        return _Name(".".join(filter(None, (parent.text, last))), inside)

    def _outermost(self) -> "Module":
        call = self
        while call.caller is not None:
            call = call.caller
        return call.module


class _Calls(threading.local):
    innermost: Call | None = None


calls = _Calls()


def current_module_name(root: "Module | None" = None) -> str:
    """Return the qualified name of the module this thread is in.

    It counts from `root`, or from the outermost module called, which itself is ``""``, as is no
    module at all. A module that several have is named after the one that calls it; one that is not
    registered below goes by its class.
    """
    return "" if calls.innermost is None else calls.innermost.name(root)


saved_tensor.current_module = current_module_name


class _Paths:
    """The names of the modules below one, each once."""

    def __init__(self, module: "Module") -> None:
        self.changes = structure.changes
        named = {each: name for name, each in module.named_modules()}
        self.names: WeakKeyDictionary[Module, str] = WeakKeyDictionary(named)


class _Structure:
    # How often modules were registered anywhere: what was not there before may be there now.
    changes = 0


structure = _Structure()
_paths: "WeakKeyDictionary[Module, _Paths]" = WeakKeyDictionary()


def _path(module: "Module", below: "Module") -> str | None:
    """Return the name of a module below another; None if it is not there."""
    paths = _paths.get(module)
    if paths is not None:
        path = paths.names.get(below)
        if path is not None and _along(module, path)[-1] is below:
            return path
        if path is None and paths.changes == structure.changes:
            return None
    paths = _paths[module] = _Paths(module)
    return paths.names.get(below)


def _along(module: "Module", path: str) -> "list[Module | None]":
    """Return the modules on a way: the first, and one for each name."""
    found: list[Module | None] = [module]
    for name in path.split(".") if path else ():
        above = found[-1]
        found.append(None if above is None else above._modules.get(name))
    return found


def _steps(root: "Module", path: str, module: "Module") -> int | None:
    """Return how many names lie between `module`, on the way from `root`, and the way's end."""
    backwards = enumerate(reversed(_along(root, path)))
    return next((steps for steps, each in backwards if each is module), None)
