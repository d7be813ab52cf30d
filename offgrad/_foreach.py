"""Operations on lists of tensors, ``_foreach_add`` and its like: for averages of weights."""

from collections.abc import Callable, Sequence
from typing import Any

from offgrad._tensor.tensor import Tensor

_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_BINARY = "add sub mul div pow clamp_max clamp_min maximum minimum lerp addcmul addcdiv"

_OPERANDS = {
    "addcdiv": (("tensor1",), ("tensor2",), ("value", "scalars")),
    "addcmul": (("tensor1",), ("tensor2",), ("value", "scalars")),
    "copy_": (("src",),),
    "lerp": (("tensors1",), ("weight", "weights")),
    "norm": (("ord",),),
    "pow": (("exponent",),),
}
"""The names of operands after the list, in order; of other operations see `_OPERAND`."""

_OPERAND = (("other", "scalar", "scalars"),)

_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Operations that take a number under another name."""


def _per_tensor(argument: Any, count: int, name: str) -> list[Any]:
    """Return an argument for each of `count` tensors: an element of a list, or always the same."""
    if not isinstance(argument, (list, tuple)):
        return [argument] * count
    if len(argument) != count:
        raise RuntimeError(
            f"{name}: Tensor lists must have the same number of tensors, got {count} and "
            f"{len(argument)}; lists of numbers, too"
        )
    return list(argument)


def _positional(
    base: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the operands by position, and the other keywords."""
    operands, rest = list(args), dict(kwargs)
    for names in _OPERANDS.get(base, _OPERAND)[len(args) :]:
        given = [each for each in names if each in rest]
        if not given:
            break
        operands.append(rest.pop(given[0]))
    return operands, rest


def _apply(operation: str, tensor: Any, operands: Sequence[Any], keywords: dict[str, Any]) -> Any:
    base = operation.rstrip("_")
    if base in ("addcmul", "addcdiv") and len(operands) == 3:
        *operands, keywords["value"] = operands
    if base in _OF_NUMBERS and not isinstance(operands[0], Tensor):
        operation = operation.replace(base, _OF_NUMBERS[base])
    method = getattr(tensor, operation, None)
    if method is None:  # without a form in place
        return tensor.copy_(getattr(tensor, base)(*operands, **keywords))
    return method(*operands, **keywords)


def _foreach(operation: str) -> Callable[..., Any]:
    """Return the function that calls a method of each tensor of a list.

    Further arguments are one for all, or a list with one for each. It returns the results as a
    tuple; in place, the list.

    Raises:
        TypeError: if the first argument is no list of tensors; ``_foreach_pow`` takes a number.
        RuntimeError: for an empty list, or lists of different lengths.
    """
    name, base = f"_foreach_{operation}", operation.rstrip("_")

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        operands, rest = _positional(operation if operation == "copy_" else base, args, kwargs)
        if operation == "pow" and isinstance(self, (int, float, complex)) and operands:
            return tuple([self**each for each in operands[0]])
        if not isinstance(self, (list, tuple)) or not all(isinstance(x, Tensor) for x in self):
            raise TypeError(f"{name} takes a list of tensors first, got {type(self).__name__}")
        if not self:
            raise RuntimeError(f"{name}: Tensor list must have at least one tensor")
        if base.startswith("addc") and len(operands) == 3 and isinstance(operands[2], Tensor):
            operands[2] = operands[2].tolist()
        columns = [_per_tensor(each, len(self), name) for each in operands]
        results = [
            _apply(operation, tensor, row, dict(rest))
            for tensor, *row in zip(self, *columns, strict=True)
        ]
        return self if operation.endswith("_") else tuple(results)

    run.__name__ = run.__qualname__ = name
    return run


_BOTH = f"{_UNARY} {_BINARY}".split()
functions = {
    f"_foreach_{each}": _foreach(each)
    for each in (
        *_BOTH,
        *[f"{each}_" for each in _BOTH],
        *("clone", "copy_", "max", "mm", "norm", "zero_"),
    )
}
"""The functions by their names."""
