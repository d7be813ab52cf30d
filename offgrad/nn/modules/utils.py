"""Arguments of layers as tuples. Internal, under the names that PyTorch code imports."""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that makes a tuple of an iterable, or of `n` times a value."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove a prefix, such as ``module.``, from the names of a state dict and of its metadata.

    Args:
        state_dict: changed in place; the order of names stays.
        prefix: the prefix.
    """
    for key in list(state_dict):
        if key.startswith(prefix):
            state_dict[key[len(prefix) :]] = state_dict.pop(key)
    metadata: dict[str, Any] = getattr(state_dict, "_metadata", {})
    for key in list(metadata):
        if key and f"{key}.".startswith(prefix):
            metadata[key[len(prefix) :]] = metadata.pop(key)


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """Return the elements in reverse order, each `n` times: a layer's padding for `pad`."""
    return tuple(x for x in reversed(t) for _ in range(n))
