"""Jacobians and Hessians of functions, as functions."""

import functools
from collections.abc import Callable
from typing import Any

from offgrad import ops
from offgrad.func import _trees
from offgrad.func._gradients import derivatives
from offgrad.func._tracking import (
    Tracked,
    check_tensors,
    chosen_arguments,
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
    """Return a function for the Jacobian of `func`, by a backward pass for each output element.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.
        chunk_size: accepted: rows are computed one by one.

    Returns:
        A function of the same arguments. For each output it returns the form of the arguments, with
        tensors of the shape of the output followed by that of the argument; with `has_aux` a pair
        of this and of what `func` returned second.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = "jacrev(f)(*args)"
        tracked = Tracked(chosen_arguments(args, argnums, caller), caller)
        result = run(func, with_arguments(args, argnums, tracked.tree), kwargs)
        output, aux = split_auxiliary(result, has_aux, caller)
        blocks = [_blocks(each, tracked) for each in check_tensors(output, caller)]
        jacobian = tracked.released(_trees.rebuilt(output, blocks))
        return (jacobian, tracked.released(aux)) if has_aux else jacobian

    return wrapper


def _blocks(output: Any, tracked: Tracked) -> Any:
    """Return the Jacobian of an output, in the form of the arguments."""
    recorded = tracked.has_outer_history([output])
    rows = []
    for number in range(output.numel()):
        unit = output.new_zeros(output.numel())
        unit[number] = 1
        rows.append(derivatives([output], tracked.tensors, [unit.view(output.shape)], recorded))
    blocks = []
    for position, tensor in enumerate(tracked.tensors):
        shape = (*output.shape, *tensor.shape)
        column = [row[position] for row in rows]
        block = ops.stack(column) if column else tensor.new_zeros((0, *tensor.shape))
        blocks.append(block.view(shape))
    return _trees.rebuilt(tracked.tree, blocks)


def jacfwd(
    func: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return what `jacrev` does: forward derivatives come from those of backward.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.
        randomness: accepted: `func` is called once.
    """
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """Return a function for the Hessian of `func`: the Jacobian of its Jacobian.

    Args:
        func: returns tensors.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
    """
    return jacfwd(jacrev(func, argnums), argnums)
