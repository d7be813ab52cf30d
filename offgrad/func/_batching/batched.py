"""Batched tensors: all samples of a `vmap` in one tensor, which looks like one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from threading import get_ident
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.override_state import state
from offgrad.autograd.tensor_base import TensorBase, metadata, wrap
from offgrad.memory.storage import new_uid

dispatch: Any = None
"""Computes a function of batched tensors; set by the module of that name."""


class NotBatchedError(BaseException):
    """Something needs the elements of one sample; `vmap` then calls its function for each.

    No `Exception`, so that the function does not catch it.
    """


class Level:
    """A call of `vmap`.

    Args:
        size: the number of samples.
        depth: the number of calls of `vmap` around it.
        randomness: ``"error"``, ``"different"`` or ``"same"``.

    Attributes:
        is_active: whether the call still runs.
        has_written: whether a tensor from before the call was changed in place: its function must
            not run once more.
        mode: in which functions draw other numbers for each sample; None if they need not.
    """

    def __init__(self, size: int, depth: int, randomness: str = "error") -> None:
        self.size, self.randomness, self.depth = size, randomness, depth
        self.is_active = True
        self.has_written = False
        self.mode: Any = None
        self._thread, self._first_uid = get_ident(), new_uid()

    def note_write(self, storage: Any) -> None:
        """Note that a storage is changed in place."""
        if storage.uid < self._first_uid and get_ident() == self._thread:
            self.has_written = True


@contextmanager
def overrides_enabled() -> Iterator[None]:
    """A block in which functions look for batched tensors, also within a backward pass."""
    outer, state.enabled = state.enabled, True
    try:
        yield
    finally:
        state.enabled = outer


def check_active(level: Level) -> None:
    """Raise RuntimeError if a tensor's call of `vmap` has ended."""
    if not level.is_active:
        raise RuntimeError(
            "your tensor may have escaped from inside a function being vmapped: it has the values "
            "of all samples, and its call of vmap has ended; return it from the function instead"
        )


def _refused(name: str) -> Any:
    def getter(self: Any) -> Any:
        check_active(self._level)
        raise NotBatchedError(f"the {name} of one sample is asked for within vmap")

    return property(getter)


class BatchedTensor(Tensor):
    """The samples of one call of `vmap`; its shape is that of a sample.

    Functions call `dispatch` for it. Code that reads its elements otherwise gets an error.
    """

    _value: Tensor
    _level: Level

    _requires_grad = _refused("history")
    _grad_fn = _refused("history")
    _base = _refused("base")
    _offset = _refused("memory")

    def __getattr__(self, name: str) -> Any:
        if name == "_array":
            check_active(self._level)
            raise NotBatchedError("the elements of one sample are asked for within vmap")
        raise AttributeError(f"a tensor within vmap has no attribute {name!r}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a function of all samples."""
        return dispatch(func, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:
        return f"BatchedTensor(lvl={self._level.depth + 1}, bdim=0, value={self._value!r})"

    def __iter__(self) -> Iterator[Any]:
        if not metadata(self).ndim:
            raise TypeError("iteration over a 0-d tensor: it has no dimensions")
        return iter(self.unbind(0))

    def __pos__(self) -> "BatchedTensor":
        return self

    __hash__ = object.__hash__


def batch(value: Any, level: Level) -> Any:
    """Return a tensor whose first dimension is that of the samples as a batched tensor."""
    tensor = object.__new__(BatchedTensor)
    tensor._value, tensor._level = value, level
    spec = metadata(value)
    if not len(spec):  # no sample, whose shape counts
        spec = np.broadcast_to(np.empty((), spec.dtype), (1, *spec.shape[1:]))
    tensor._spec = spec[0, ...]
    tensor._storage = value._storage
    return tensor


def is_batched(value: Any, level: Level) -> bool:
    """Return whether a value is a batched tensor of a level."""
    return type(value) is BatchedTensor and value._level is level


def samples_of(value: Any, level: Level) -> Any:
    """Return the samples of a batched tensor, and other values as they are."""
    return value._value if type(value) is BatchedTensor and value._level is level else value


def ndim_of(value: Any) -> int:
    """Return the number of dimensions of a tensor, of a batched one those of a sample."""
    return metadata(value).ndim


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, of a batched one that of a sample."""
    return metadata(value).shape


def aligned(value: Any, level: Level, ndim: int) -> Any:
    """Return the samples of a batched tensor with `ndim` dimensions and that of the samples."""
    if not is_batched(value, level):
        return value
    missing = ndim - ndim_of(value)
    return value._value[(slice(None), *(None,) * missing)] if missing > 0 else value._value


def expanded(value: Any, level: Level, ndim: int = 0) -> Any:
    """Return the samples of a tensor, each the same where it is not batched."""
    if is_batched(value, level):
        return aligned(value, level, ndim)
    missing = max(0, ndim - ndim_of(value))
    shape = (*(1,) * missing, *shape_of(value))
    return ops.expand(ops.reshape(value, shape), (level.size, *shape))


def flattened(value: BatchedTensor, level: Level) -> Any:
    """Return the samples of a batched tensor as rows."""
    return value._value.reshape((level.size, prod(shape_of(value))))


def batched(value: Any, levels: tuple[Level, ...]) -> Any:
    """Return a tensor that is batched at all levels, the innermost outside."""
    if not levels:
        return value
    *outer, level = levels
    samples = expanded(value, level)
    return batch(batched(samples, tuple(outer)), level)


def unbatched(value: Any) -> Any:
    """Return the plain tensor within batched ones, and other values as they are."""
    while type(value) is BatchedTensor:
        value = value._value
    return value


def levels_of(value: Any) -> tuple[Level, ...]:
    """Return the levels at which a tensor is batched, the innermost last."""
    found: list[Level] = []
    while type(value) is BatchedTensor:
        found.append(value._level)
        value = value._value
    return tuple(reversed(found))


def batch_all(value: Any, levels: tuple[Level, ...]) -> Any:
    """Return a plain tensor as a batched one of several levels, whose dimensions come first."""
    for each in levels:
        value = batch(value, each)
    return value


def stand_in(value: Any) -> Any:
    """Return a plain tensor of the shape and dtype of a sample, whose elements must not be read."""
    if type(value) is not BatchedTensor:
        return value
    return wrap(metadata(value), unbatched(value)._storage)


def tensors_in(tree: Any) -> Iterator[Any]:
    """Yield the tensors among arguments, in lists, tuples and dicts as well."""
    for each in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(each, TensorBase):
            yield each
        elif isinstance(each, (list, tuple, dict)):
            yield from tensors_in(each)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of lists, tuples and dicts with `function` applied to its tensors."""
    if isinstance(tree, TensorBase):
        return function(tree)
    if isinstance(tree, dict):
        return {key: mapped(function, each) for key, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [mapped(function, each) for each in tree]
        if hasattr(tree, "_make"):
            return tree._make(parts)
        return type(tree)(parts)
    return tree
