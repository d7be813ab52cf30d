"""``torch.overrides``: questions about tensor-like classes. offgrad calls no overrides."""

from collections.abc import Iterable as _Iterable
from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor

globals().update(
    _refused.functions(
        "offgrad.overrides",
        "handle_torch_function get_overridable_functions get_testing_overrides",
        "offgrad calls no __torch_function__",
        NotImplementedError,
    )
)


def has_torch_function(relevant_args: _Iterable[_Any]) -> bool:
    """Return whether a class among those of the arguments defines ``__torch_function__``."""
    return any(hasattr(type(each), "__torch_function__") for each in relevant_args)


def has_torch_function_unary(argument: _Any) -> bool:
    """Return whether the class of the argument defines ``__torch_function__``."""
    return has_torch_function((argument,))


def has_torch_function_variadic(*arguments: _Any) -> bool:
    """Return whether a class among those of the arguments defines ``__torch_function__``."""
    return has_torch_function(arguments)


def is_tensor_like(inp: _Any) -> bool:
    """Return whether `inp` is a tensor, or of a class that defines ``__torch_function__``."""
    return isinstance(inp, _Tensor) or has_torch_function((inp,))


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.overrides")
