"""Functions by name, from any namespace of torch and offgrad."""

from typing import Any

import offgrad


def of(m: Any, name: str) -> Any:
    """Return the function `name` of torch or its tensors, or of offgrad.

    ``F.name`` is one of torch's nn.functional, ``linalg.name`` of its linalg.
    """
    module, _, last = name.rpartition(".")
    if m is offgrad:
        places: list[Any] = [offgrad.linalg if module == "linalg" else offgrad.ops]
    elif module:
        places = [{"F": m.nn.functional, "linalg": m.linalg}[module]]
    else:
        places = [m, m.Tensor]
    return next(getattr(place, last) for place in places if hasattr(place, last))


def call(m: Any, name: str, *args: Any, **options: Any) -> Any:
    """Call it."""
    return of(m, name)(*args, **options)
