"""Functions that pickle by name, as PyTorch's do, also where they wrap others."""

import sys
from types import FunctionType
from typing import Any


def name_functions(namespace: dict[str, Any]) -> None:
    """Name the public functions of a module after it, as far as their own module lacks them.

    Args:
        namespace: of the module, with ``__name__`` and ``__all__``.
    """
    for name in namespace["__all__"]:
        function = namespace.get(name)
        if not isinstance(function, FunctionType):
            continue
        module = sys.modules.get(function.__module__)
        if getattr(module, function.__qualname__, None) is not function:
            function.__module__ = namespace["__name__"]
            function.__qualname__ = name
