"""Which modules are running, and what they are called."""

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from offgrad.nn.module import Module


class _Calls(threading.local):
    stack: "tuple[Module, ...]" = ()


calls = _Calls()
# For each outermost module, the names of those below; a module it does not know goes by its class.
_names: "WeakKeyDictionary[Module, WeakKeyDictionary[Module, str]]" = WeakKeyDictionary()


def current_module_name() -> str:
    """Return the qualified name of the module this thread is in, below the outermost one called.

    The outermost itself, and no module at all, is ``""``. A module that is not registered below the
    outermost goes by its class.
    """
    stack = calls.stack
    if len(stack) < 2:
        return ""
    root, current = stack[0], stack[-1]
    names = _names.get(root)
    if names is None or current not in names:
        names = _names[root] = WeakKeyDictionary(
            {module: name for name, module in root.named_modules()}
        )
        names.setdefault(current, type(current).__name__)
    return names[current]
