"""The arguments of a call by name, and dimensions of a sample as dimensions of all samples."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@functools.cache
def _parameters(func: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the positional parameters of a function, and all defaults by name."""
    found = [
        each for each in inspect.signature(func).parameters.values() if each.kind not in _VARIADIC
    ]
    names = tuple([each.name for each in found if each.kind in _POSITIONAL])
    defaults = {each.name: each.default for each in found if each.default is not each.empty}
    return names, defaults


def named_arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name; None where there are more than parameters."""
    names, _ = _parameters(func)
    if len(args) > len(names):
        return None
    given = dict(zip(names, args, strict=False))
    given.update(kwargs)
    if "axis" in given and "dim" not in given:
        given["dim"] = given.pop("axis")
    if "keepdims" in given and "keepdim" not in given:
        given["keepdim"] = given.pop("keepdims")
    return given


def default_of(func: Any, name: str) -> Any:
    """Return the default of a parameter; None if it has none."""
    return _parameters(func)[1].get(name)


def positional_names(func: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters; of properties none."""
    return _parameters(func)[0] if hasattr(func, "__code__") else ()


def first_name(func: Any) -> str:
    """Return the name of the first parameter."""
    return _parameters(func)[0][0]


def has_parameter(func: Any, name: str) -> bool:
    """Return whether a function has a positional parameter of this name."""
    return name in _parameters(func)[0]


def from_end(dim: int, ndim: int) -> int:
    """Return a dimension of a sample counted from the last, which is the same for all samples.

    Raises:
        IndexError: if samples have no such dimension.
    """
    size = max(ndim, 1)
    if not -size <= dim < size:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-size}, {size - 1}], but got "
            f"{dim})"
        )
    return dim if dim < 0 else dim - size


def all_from_end(dims: Any, ndim: int) -> Any:
    """Return one dimension or several, each as `from_end` does."""
    if isinstance(dims, (list, tuple)):
        return tuple([from_end(each, ndim) for each in dims])
    return from_end(int(dims), ndim)


def sizes_of(args: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes that were given one by one or as a sequence."""
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        return tuple(args[0])
    return tuple(args)
