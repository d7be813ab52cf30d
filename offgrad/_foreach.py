"""Operations on lists of tensors, ``_foreach_add`` and its like: for averages of weights."""

from collections.abc import Callable, Sequence
from typing import Any

from offgrad._tensor.tensor import Tensor

_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_BINARY = "add sub mul div pow clamp_max clamp_min maximum minimum lerp addcmul addcdiv"

_KEYWORDS = {"addcmul": "value", "addcdiv": "value"}
"""Operations whose last argument is a number, a list or a tensor of them, with its name."""

_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Operations that take a number under another name."""


def _per_tensor(argument: Any, count: int, name: str) -> list[Any]:
    """Return an argument for each of `count` tensors: an element of a list, or always the same."""
    if not isinstance(argument, list | tuple):
        return [argument] * count
    if len(argument) != count:
        raise RuntimeError(
            f"{name}: lists must have the same number of elements, got {count} tensors and a list "
            f"of {len(argument)}"
        )
    return list(argument)


def _apply(operation: str, tensor: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    base = operation.rstrip("_")
    if base in _OF_NUMBERS and not isinstance(arguments[0], Tensor):
        operation = operation.replace(base, _OF_NUMBERS[base])
    if base in _KEYWORDS and len(arguments) == 3:
        *arguments, last = arguments
        keywords = {**keywords, _KEYWORDS[base]: last}
    if not isinstance(tensor, Tensor):  # a number to the power of tensors
        return tensor ** arguments[0]
    method = getattr(tensor, operation, None)
    if method is None:
        return tensor.copy_(getattr(tensor, base)(*arguments, **keywords))
    return method(*arguments, **keywords)


def _foreach(operation: str) -> Callable[..., Any]:
    """Return the function that calls a method of each tensor of a list.

    Further arguments are one for all, or a list with one for each. It returns the results as a
    tuple; in place, the list.

    Raises:
        RuntimeError: for an empty list, or lists of different lengths.
    """
    name = f"_foreach_{operation}"

    def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        rows = tensors if isinstance(tensors, list | tuple) else [tensors] * len(args[0])
        if not rows:
            raise RuntimeError(f"{name}: the list must have at least one tensor")
        if operation.rstrip("_") in _KEYWORDS and len(args) == 3 and isinstance(args[2], Tensor):
            args = (*args[:2], args[2].tolist())
        columns = [_per_tensor(each, len(rows), name) for each in args]
        results = [
            _apply(operation, tensor, arguments, kwargs)
            for tensor, *arguments in zip(rows, *columns, strict=True)
        ]
        return tensors if operation.endswith("_") else tuple(results)

    run.__name__ = run.__qualname__ = name
    return run


_BOTH = f"{_UNARY} {_BINARY}".split()
functions = {
    f"_foreach_{each}": _foreach(each)
    for each in (*_BOTH, *[f"{each}_" for each in _BOTH], "clone", "copy_", "max", "norm", "zero_")
}
"""The functions by their names."""
