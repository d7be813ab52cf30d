"""The public callables that write to a tensor, found by inspection of the library."""

import inspect
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import offgrad

NOT_WRITERS = {
    "requires_grad_", "detach_", "resize_", "resize_as_", "set_", "share_memory_",
    "resize_as_sparse_", "sparse_resize_", "sparse_resize_and_clear_",
}  # fmt: skip
"""They change a tensor's place in the graph, or its memory, and no memory's contents."""

OTHERS = {"index", "indexOf", "inv", "invert", "is_", "is_none", "is_not", "is_not_none"}
"""Names in `operator` that begin with i and are no in-place operators."""


class Writer(NamedTuple):
    """One callable.

    Attributes:
        name: of the callable, from the library on.
        get: returns it, given the library.
        style: "first" if it writes to its first argument, "out" if to that of ``out=``.
    """

    name: str
    get: Callable[[Any], Callable[..., Any]]
    style: str


def writers() -> Iterator[Writer]:
    """Yield methods, in-place operators, functions, and those with ``out=`` or ``inplace=``."""
    for name in sorted(dir(offgrad.Tensor)):
        is_operator = name.startswith("__i") and name.strip("_") in set(operator.__all__) - OTHERS
        is_method = name.endswith("_") and name[0] != "_" and name not in NOT_WRITERS
        if is_operator or is_method:
            yield Writer(f"Tensor.{name}", partial(_path, "Tensor", name), "first")
    for place in ("", "nn.functional", "nn.init", "fft"):
        module = _path(place, "", offgrad)
        for name in sorted(dir(module)):
            value = getattr(module, name)
            if name[0] == "_" or not inspect.isroutine(value):
                continue
            # Other code runs once a program has defined __torch_function__.
            own = getattr(value, "__original__", value)
            parameters = inspect.signature(own, follow_wrapped=False).parameters
            full = f"{place}.{name}".strip(".")
            if name.endswith("_") and name not in NOT_WRITERS:
                yield Writer(full, partial(_path, place, name), "first")
            if "out" in parameters:
                yield Writer(f"{full}(out=)", partial(_path, place, name), "out")
            if "inplace" in parameters:
                yield Writer(f"{full}(inplace=)", partial(_in_place, place, name), "first")
    for name in sorted(dir(offgrad.nn)):
        value = getattr(offgrad.nn, name)
        if inspect.isclass(value) and "inplace" in inspect.signature(value).parameters:
            yield Writer(f"nn.{name}(inplace=)", partial(_module, name), "first")


def _path(place: str, name: str, lib: Any) -> Any:
    for each in (*place.split("."), name):
        lib = getattr(lib, each) if each else lib
    return lib


def _in_place(place: str, name: str, lib: Any) -> Any:
    return partial(_path(place, name, lib), inplace=True)


def _module(name: str, lib: Any) -> Any:
    kind = getattr(lib.nn, name)
    options = {"Threshold": (0.5, 9.0)}
    return kind(*options.get(name, ()), inplace=True)


def targets(lib: Any) -> Iterator[Any]:
    """Yield tensors to try as the target."""
    yield lib.tensor([[0.25, 0.5], [0.625, 0.75]], dtype=lib.float64)
    yield lib.tensor([[1, 2], [3, 4]], dtype=lib.int64)
    yield lib.tensor([0.25, 0.5], dtype=lib.float64)
    yield lib.tensor([[[0.25], [0.5]]], dtype=lib.float64)
    yield lib.tensor([0.25, 0.5, 0.75], dtype=lib.float64)


def argument_lists(lib: Any, target: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to try after the target, such as those that most callables take."""
    other = target.detach().clone()
    numbers = lib.tensor([0.125, 0.375], dtype=lib.float64)
    row = numbers if target.dtype == lib.float64 else lib.tensor([1, 0], dtype=lib.int64)
    index = lib.tensor([1, 0], dtype=lib.int64)
    indices = lib.tensor([[1, 0], [0, 1]], dtype=lib.int64)
    mask = lib.tensor([[True, False], [True, True]])
    batch = other.reshape(1, *target.shape)
    yield from [
        (), (other,), (2,), (0.5,), (0,), (0, 1), (1, 0), (0.25, 0.75), (other, other),
        (other, 0.5), (0.25, 0.75, None), (row,), (row, row), (other, row), (batch, batch),
        (mask, other), (mask, 2), (0, index, other), (0, index, 2), (0, indices, other),
        (index, row), (indices, other), ((index,), row), (index,), (indices,), (0, indices),
        (0, index), (mask,), (1, 0, other), ([other, other],), (row, other), (2, 2), (0, 2),
        ((2, 2),), ((2, 2), 3), (1, 2, 3), (index, 2), (other, other, other),
        (0.5, lib.tensor(2.0)), (0, 3, (2, 2)), (batch, batch, other), (other, 1),
        (lib.ones(2, 2, dtype=target.dtype), numbers), (0.0, 1.0, "fan_in"),
        (lib.ones(1, 2, 2, dtype=target.dtype), target), ((2,), (1,)), (0, index, other, "amax"),
        (0, indices, other, "amax"), (lambda x: -x,), (other, max), (other, other, max),
        (0, 0, 2), (2 * lib.eye(2, dtype=target.dtype),),
        (other, lib.eye(2, dtype=target.dtype), lib.tensor([1, 2], dtype=lib.int32)),
        (lib.tensor([1, 2], dtype=lib.int32),),
    ]  # fmt: skip
