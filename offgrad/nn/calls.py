"""Which modules are running in this thread, and what they are called."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from offgrad.autograd import saved_tensor

if TYPE_CHECKING:
    from offgrad.nn.module import Module


class Call:
    """One running call of a module. Calls are known while hooks or sessions need them."""

    __slots__ = ("_at_end", "_named", "caller", "module")

    def __init__(self, module: "Module", caller: "Call | None") -> None:
        self.module = module
        self.caller = caller
        self._named: tuple[Module | None, str] | None = None
        self._at_end: list[Callable[[], None]] = []

    def at_end(self, action: Callable[[], None]) -> None:
        """Have `action` called when the call ends, however it does; the last one first."""
        self._at_end.append(action)

    def end(self) -> None:
        """Do what was to be done at the end."""
        while self._at_end:
            self._at_end.pop()()

    def name(self, root: "Module | None") -> str:
        """Return the qualified name of the module below `root`, or below the outermost called."""
        if self._named is None or self._named[0] is not root:
            self._named = root, self._find_name(root)
        return self._named[1]

    def _find_name(self, root: "Module | None") -> str:
        if self.module is root:
            return ""
        if self.caller is None:
            # Called directly, as when a part is computed again: its name in the model, if any.
            return "" if root is None else _path(root, self.module) or type(self.module).__name__
        parent = self.caller.name(root)
        below = _path(self.caller.module, self.module)
        if below is not None:
            return f"{parent}.{below}" if parent and below else parent or below
        outermost = root or self._outermost()
        return _path(outermost, self.module) or type(self.module).__name__

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


# For each module, the names of those below it, each once.
_paths: "WeakKeyDictionary[Module, WeakKeyDictionary[Module, str]]" = WeakKeyDictionary()


def _path(module: "Module", below: "Module") -> str | None:
    """Return the name of a module below another; None if it is not there."""
    paths = _paths.get(module)
    path = None if paths is None else paths.get(below)
    # Modules may have been added, taken away or renamed since.
    if path is None or _at(module, path) is not below:
        _paths[module] = WeakKeyDictionary({each: name for name, each in module.named_modules()})
        path = _paths[module].get(below)
    return path


def _at(module: "Module", path: str) -> "Module | None":
    found: Module | None = module
    for name in path.split(".") if path else ():
        if found is not None:
            found = found._modules.get(name)
    return found
