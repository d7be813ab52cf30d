"""Jacobians and Hessians of functions, as functions."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from offgrad.autograd.forward_mode import level_of
from offgrad.func import _trees
from offgrad.func._batching import rules
from offgrad.func._batching.batched import Level, batch, expanded, levels_of, state, unbatched
from offgrad.func._batching.dispatch import public
from offgrad.func._gradients import Linear, derivatives
from offgrad.func._tracking import (
    Tracked,
    check_tensors,
    chosen_arguments,
    outside_inference,
    run,
    split_auxiliary,
    with_arguments,
)


def jacrev(
    func: Callable[..., Any],
    argnums: Any = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """Return a function for the Jacobian of `func`, by a backward pass for all output elements.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.
        chunk_size: the largest number of rows to compute at once; None: all of an output.

    Returns:
        A function of the same arguments. For each output it returns the form of the arguments, with
        tensors of the shape of the output followed by that of the argument; with `has_aux` a pair
        of this and of what `func` returned second.
    """

    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"jacrev: `chunk_size` should be greater than 0, got {chunk_size}")

    @functools.wraps(func)
    @outside_inference
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = "jacrev(f)(*args)"
        tracked = Tracked(chosen_arguments(args, argnums, caller), caller)
        result = run(func, with_arguments(args, argnums, tracked.tree), kwargs)
        output, aux = split_auxiliary(result, has_aux, caller)
        blocks = [_blocks(each, tracked, chunk_size) for each in check_tensors(output, caller)]
        jacobian = tracked.released(_trees.rebuilt(output, blocks))
        return (jacobian, tracked.released(aux)) if has_aux else jacobian

    return wrapper


def _blocks(output: Any, tracked: Tracked, chunk_size: int | None) -> Any:
    """Return the Jacobian of an output, in the form of the arguments."""
    recorded = tracked.has_outer_history([output])
    columns: list[list[Any]] = [[] for _ in tracked.tensors]
    for level, units in _units(output, chunk_size):
        found = derivatives([output], tracked.tensors, [units.view(output.shape)], recorded)
        for column, each in zip(columns, found, strict=True):
            column.append(expanded(each, level))
    blocks = []
    for column, tensor in zip(columns, tracked.tensors, strict=True):
        shape = (*output.shape, *tensor.shape)
        blocks.append(_joined(column, 0).reshape(shape) if column else tensor.new_zeros(shape))
    return _trees.rebuilt(tracked.tree, blocks)


def _joined(parts: list[Any], dim: int) -> Any:
    return parts[0] if len(parts) == 1 else public("cat")(parts, dim)


def _units(tensor: Any, chunk_size: int | None) -> Iterator[tuple[Level, Any]]:
    """Yield the unit vectors of a tensor's elements, batched, with their level."""
    rules.install()
    count = tensor.numel()
    size = count if chunk_size is None else chunk_size
    for start in range(0, count, max(size, 1)):
        number = min(size, count - start)
        depth = max([each.depth for each in levels_of(tensor)], default=-1) + 1
        level = Level(number, max(depth, len(state.levels)))
        units = tensor.detach().new_zeros((number, count))
        units.diagonal(start).fill_(1)
        yield level, batch(units, level)


def jacfwd(
    func: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function for the Jacobian of `func`, by tangents for all input elements.

    The tangents come from derivatives of one backward pass, so the operations of `func` must be
    twice differentiable.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.
        randomness: accepted: `func` is called once.

    Returns:
        A function of the same arguments, which returns what that of `jacrev` does.
    """

    @functools.wraps(func)
    @outside_inference
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = "jacfwd(f)(*args)"
        tracked = Tracked(chosen_arguments(args, argnums, caller), caller)
        with level_of(map(unbatched, tracked.tensors)):
            result = run(func, with_arguments(args, argnums, tracked.tree), kwargs)
            output, aux = split_auxiliary(result, has_aux, caller)
            outputs = check_tensors(output, caller)
            product = Linear(outputs, tracked)
        columns = _columns(product, outputs, tracked.tensors)
        blocks = [_trees.rebuilt(tracked.tree, each) for each in columns]
        jacobian = tracked.released(_trees.rebuilt(output, blocks))
        return (jacobian, tracked.released(aux)) if has_aux else jacobian

    return wrapper


def _columns(product: Linear, outputs: list[Any], inputs: list[Any]) -> list[list[Any]]:
    """Return for each output its derivatives by each input."""
    zeros = [each.new_zeros(each.shape) for each in inputs]
    blocks: list[list[Any]] = [[] for _ in outputs]
    for position, each in enumerate(inputs):
        columns: list[list[Any]] = [[] for _ in outputs]
        for level, units in _units(each, None):
            vectors = [*zeros[:position], units.view(each.shape), *zeros[position + 1 :]]
            for column, tangent in zip(columns, product(vectors), strict=True):
                column.append(expanded(tangent, level).movedim(0, -1))
        for number, output in enumerate(outputs):
            shape = (*output.shape, *each.shape)
            column = columns[number]
            block = _joined(column, -1) if column else output.new_zeros(shape)
            blocks[number].append(block.reshape(shape))
    return blocks


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """Return a function for the Hessian of `func`: the Jacobian of its Jacobian.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
    """
    return jacfwd(jacrev(func, argnums), argnums)
