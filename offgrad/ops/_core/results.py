"""Results of several tensors with names. They print as PyTorch's, and `return_types` lists them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Result = TypeVar("Result", bound=type[Any])

RESULTS: dict[str, type[Any]] = {}
"""The classes, by the names of `return_types`."""


def _text(self: Any) -> str:
    fields = ",\n".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
    return f"torch.return_types.{type(self).__name__}(\n{fields})"


def result(name: str) -> Callable[[Result], Result]:
    """Return a decorator that makes a class of named tuples the one of `return_types`."""

    def decorate(cls: Result) -> Result:
        cls.__name__ = cls.__qualname__ = name
        cls.__module__ = "offgrad.return_types"
        cls.__repr__ = _text  # type: ignore[assignment]
        RESULTS[name] = cls
        return cls

    return decorate


class Extreme(NamedTuple):
    """Values and their indices along a dimension."""

    values: "Tensor"
    indices: "Tensor"

    @classmethod
    def of(cls, where: str, values: "Tensor", indices: "Tensor") -> "Extreme":
        """Return the result of the operation `where`."""
        made: Extreme = RESULTS[where](values, indices)
        return made


for _name in (
    *("max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode"),
    *("cummax", "cummin"),
):
    result(_name)(type(_name, (Extreme,), {"__slots__": ()}))
