"""Rules of indexing with brackets, and of tables looked up by positions."""

from typing import Any, NamedTuple

import numpy as np

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.func._batching.arguments import first_name, from_end, named_arguments
from offgrad.func._batching.batched import (
    BatchedTensor,
    Level,
    aligned,
    batch,
    expanded,
    is_batched,
    ndim_of,
    shape_of,
)
from offgrad.func._batching.dispatch import refuse_unbatched, register
from offgrad.ops._indexing.advanced import as_tuple

_INT = (int, np.integer)
_BASIC = (*_INT, slice, type(None), type(Ellipsis))
_POSITIONS = (*_INT, TensorBase, list, np.ndarray)


def _is_mask(part: Any) -> bool:
    """Return whether a part of an index chooses by truth: the size of the result depends on it."""
    if isinstance(part, TensorBase):
        return metadata(part).dtype.kind == "b"
    if isinstance(part, (list, np.ndarray)):
        return np.asarray(part).dtype.kind == "b"
    return isinstance(part, bool)


class _Positions(NamedTuple):
    """An index of slices, then positions side by side, then slices.

    Attributes:
        before: the slices before.
        positions: the numbers and tensors.
        after: the slices after.
        ndim: the number of dimensions of the positions.
    """

    before: tuple[Any, ...]
    positions: tuple[Any, ...]
    after: tuple[Any, ...]
    ndim: int


def _positions(parts: tuple[Any, ...], ndim: int) -> _Positions | None:
    """Return an index of a tensor with `ndim` dimensions in this form; None if it has another."""
    if any(each is None or _is_mask(each) for each in parts):
        return None
    if any(each is Ellipsis for each in parts):
        at = next(number for number, each in enumerate(parts) if each is Ellipsis)
        missing = ndim - len(parts) + 1
        parts = (*parts[:at], *(slice(None),) * missing, *parts[at + 1 :])
    places = [number for number, each in enumerate(parts) if isinstance(each, _POSITIONS)]
    others = all(isinstance(each, (slice, *_POSITIONS)) for each in parts)
    if not places or not others or places[-1] - places[0] + 1 != len(places):
        return None
    chosen = parts[places[0] : places[-1] + 1]
    counts = [
        np.asarray(each).ndim if not isinstance(each, TensorBase) else ndim_of(each)
        for each in chosen
    ]
    return _Positions(parts[: places[0]], chosen, parts[places[-1] + 1 :], max(counts))


def getitem(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x[...]``, but for masks and for positions on both sides of a slice."""
    source, index = args
    parts = as_tuple(index)
    if all(isinstance(each, _BASIC) and not isinstance(each, bool) for each in parts):
        return batch(source._value[(slice(None), *parts)], level)
    found = _positions(parts, ndim_of(source))
    if found is None:
        return NotImplemented
    if not any(is_batched(each, level) for each in found.positions):
        key = (*found.before, *found.positions, *found.after)
        return batch(source._value[(slice(None), *key)], level)
    own = [aligned(each, level, found.ndim) for each in found.positions]
    before = len(found.before)
    if not is_batched(source, level):
        result = source[(*found.before, *own, *found.after)]
        return batch(result.movedim(before, 0) if before else result, level)
    result = source._value[(_numbers(level, found.ndim), *found.before, *own, *found.after)]
    if before:  # the dimensions of positions apart come first
        dims = range(1, 1 + found.ndim)
        result = result.movedim(tuple(dims), tuple([before + each for each in dims]))
    return batch(result, level)


def _numbers(level: Level, ndim: int) -> Any:
    """Return the number of each sample, in a tensor that broadcasts with positions."""
    return ops.arange(level.size).reshape((level.size, *(1,) * ndim))


def setitem(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x[...] = y``, where `getitem` has a rule and no slice stands before positions."""
    target, index, value = args
    refuse_unbatched(func, target, level)
    parts = as_tuple(index)
    key: Any = parts
    if all(isinstance(each, _BASIC) and not isinstance(each, bool) for each in parts):
        key = (slice(None), *parts)
    else:
        found = _positions(parts, ndim_of(target))
        if found is None:
            return NotImplemented
        own = tuple([aligned(each, level, found.ndim) for each in found.positions])
        if not any(is_batched(each, level) for each in found.positions):
            key = (slice(None), *found.before, *own, *found.after)
        elif found.before:
            return NotImplemented
        else:
            key = (_numbers(level, found.ndim), *own, *found.after)
    if is_batched(value, level):
        ndim = target[index].ndim
        if ndim_of(value) > ndim:
            return NotImplemented
        value = aligned(value, level, ndim)
    target._value[key] = value
    return None


def take_along_dim(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``take_along_dim`` along a dimension."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("dim") is None or given.get("out") is not None:
        return NotImplemented
    source, indices = given[first_name(func)], given["indices"]
    ndim = ndim_of(source)
    if ndim != ndim_of(indices):
        return NotImplemented
    dim = from_end(given["dim"], ndim)
    return batch(func(expanded(source, level), expanded(indices, level), dim), level)


def one_hot(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``one_hot`` with a number of classes."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("num_classes", -1) < 0:
        return NotImplemented
    return batch(func(given[first_name(func)]._value, given["num_classes"]), level)


def embedding(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``nn.functional.embedding`` with one table, or one for each sample."""
    given = named_arguments(func, args, kwargs)
    if given is None or first_name(func) != "input" or given.get("max_norm") is not None:
        return NotImplemented
    positions, table = given.pop("input"), given.pop("weight")
    if given.get("scale_grad_by_freq"):
        return NotImplemented
    if not is_batched(table, level):
        return batch(func(positions._value, table, **given), level)
    padding = given.pop("padding_idx", None)
    rows = expanded(positions, level)
    size = shape_of(table)[0]
    if type(rows) is BatchedTensor or bool(((rows < 0) | (rows >= size)).any()):
        return NotImplemented  # which names the position
    first = _numbers(level, ndim_of(positions)) * size
    result = func(rows + first, table._value.flatten(0, 1))
    if padding is not None:  # its row gets no gradient
        is_padding = (rows == padding % size).unsqueeze(-1)
        result = ops.where(is_padding, result.detach(), result)
    return batch(result, level)


def install() -> None:
    """Register the rules."""
    register(getitem, "__getitem__", "getitem")
    register(setitem, "__setitem__", "setitem")
    register(take_along_dim, "take_along_dim")
    register(one_hot, "one_hot")
    register(embedding, "embedding")
