"""Jacobians and Hessians of functions, as functions."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from offgrad.autograd.forward_mode import level_of
from offgrad.autograd.override_state import state
from offgrad.func import _trees
from offgrad.func._batching import rules
from offgrad.func._batching.batched import (
    Level,
    batch,
    expanded,
    levels_of,
    overrides_enabled,
    unbatched,
)
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
        outputs = check_tensors(output, caller)
        blocks = [
            _trees.rebuilt(tracked.tree, each) for each in _rows(outputs, tracked, chunk_size)
        ]
        jacobian = tracked.released(_trees.rebuilt(output, blocks))
        return (jacobian, tracked.released(aux)) if has_aux else jacobian

    return wrapper


@overrides_enabled()
def _rows(outputs: list[Any], tracked: Tracked, chunk_size: int | None) -> list[list[Any]]:
    """Return for each output its derivatives by each input, from gradients of unit vectors."""
    recorded = tracked.has_outer_history(outputs)
    rows: list[list[Any]] = [[] for _ in tracked.tensors]
    for level, units in _units(outputs, chunk_size):
        found = derivatives(outputs, tracked.tensors, units, recorded)
        for part, each in zip(rows, found, strict=True):
            part.append(expanded(each, level))
    counts = [each.numel() for each in outputs]
    blocks: list[list[Any]] = [[] for _ in outputs]
    for part, tensor in zip(rows, tracked.tensors, strict=True):
        whole = _joined(part) if part else tensor.new_zeros((0, *tensor.shape))
        for block, each, row in zip(blocks, whole.split(counts), outputs, strict=True):
            block.append(each.reshape((*row.shape, *tensor.shape)))
    return blocks


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else public("cat")(parts)


def _units(tensors: list[Any], chunk_size: int | None = None) -> Iterator[tuple[Level, list[Any]]]:
    """Yield the unit vectors of all elements of tensors, batched, with their level: for each tensor
    its part of them.
    """
    rules.install()
    counts = [each.numel() for each in tensors]
    total = sum(counts)
    depth = max([level.depth for each in tensors for level in levels_of(each)], default=-1) + 1
    size = total if chunk_size is None else chunk_size
    for start in range(0, total, max(size, 1)):
        level = Level(min(size, total - start), max(depth, len(state.levels)))
        parts, first = [], 0
        for each, count in zip(tensors, counts, strict=True):
            part = each.detach().new_zeros((level.size, count))
            if count:
                part.diagonal(start - first).fill_(1)
            parts.append(batch(part, level).view(each.shape))
            first += count
        yield level, parts


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
        blocks = [
            _trees.rebuilt(tracked.tree, each)
            for each in _columns(product, outputs, tracked.tensors)
        ]
        jacobian = tracked.released(_trees.rebuilt(output, blocks))
        return (jacobian, tracked.released(aux)) if has_aux else jacobian

    return wrapper


@overrides_enabled()
def _columns(product: Linear, outputs: list[Any], inputs: list[Any]) -> list[list[Any]]:
    """Return for each output its derivatives by each input, from tangents of unit vectors."""
    counts = [each.numel() for each in inputs]
    blocks: list[list[Any]] = [[] for _ in outputs]
    for level, units in _units(inputs):
        for block, output, tangent in zip(blocks, outputs, product(units), strict=True):
            for each, tensor in zip(expanded(tangent, level).split(counts), inputs, strict=True):
                block.append(each.movedim(0, -1).reshape((*output.shape, *tensor.shape)))
    for block, output in zip(blocks, outputs, strict=True):
        if not block:  # no input has elements
            block += [output.new_zeros((*output.shape, *each.shape)) for each in inputs]
    return blocks


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """Return a function for the Hessian of `func`: the Jacobian of its Jacobian.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
    """
    return jacfwd(jacrev(func, argnums), argnums)
