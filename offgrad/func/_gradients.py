"""Gradients of functions, and products of vectors with their Jacobians."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from offgrad import autograd
from offgrad.autograd.forward_mode import forward_mode_with, level_of
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, metadata, numpy_dtype
from offgrad.func import _trees
from offgrad.func._batching.batched import (
    Level,
    NotBatchedError,
    batch,
    batch_all,
    batched,
    expanded,
    levels_of,
    unbatched,
)
from offgrad.func._batching.passes import grads_for_all
from offgrad.func._tracking import (
    Tracked,
    check_tensors,
    chosen_arguments,
    outside_inference,
    run,
    split_auxiliary,
    with_arguments,
)


def grad_and_value(
    func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function for the gradient of `func`, and its value.

    Args:
        func: returns a tensor without dimensions.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.

    Returns:
        A function of the same arguments. It returns the gradients in the form of the arguments, and
        the value, with `has_aux` in a pair as `func` returns it.
    """

    @functools.wraps(func)
    @outside_inference
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = "grad_and_value(f)(*args)"
        tracked = Tracked(chosen_arguments(args, argnums, caller), caller)
        result = run(func, with_arguments(args, argnums, tracked.tree), kwargs)
        output, aux = split_auxiliary(result, has_aux, caller)
        if not isinstance(output, TensorBase):
            raise RuntimeError(
                f"{caller}: Expected f(*args) to return a Tensor, got {type(output)}"
            )
        ndim = metadata(output).ndim
        if ndim:
            raise RuntimeError(
                f"{caller}: Expected f(*args) to return a scalar Tensor, got tensor with "
                f"{ndim} dims; use vjp or jacrev for others"
            )
        found = derivatives([output], tracked.tensors, None, tracked.has_outer_history([output]))
        grads = tracked.released(_trees.rebuilt(tracked.tree, found))
        value = tracked.released(output)
        return grads, (value, tracked.released(aux)) if has_aux else value

    return wrapper


def grad(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function for the gradient of `func`.

    Args:
        func: returns a tensor without dimensions.
        argnums: the number of the argument to differentiate by, or a tuple of numbers.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.

    Returns:
        A function of the same arguments. It returns the gradients in the form of the arguments;
        with `has_aux` a pair of these and of what `func` returned second.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        grads, value = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapper


def derivatives(
    outputs: Sequence[Any], inputs: Sequence[Any], grad_outputs: Any, create_graph: bool
) -> list[Any]:
    """Return the gradients, zeros where there is none; the graph stays.

    Within `vmap`, `inputs` are batched, and so are their gradients.
    """
    levels = levels_of(inputs[0]) if inputs else ()
    level = None if grad_outputs is None else _outer_level(grad_outputs, levels)
    chosen = [number for number, each in enumerate(outputs) if each.requires_grad]
    if not chosen:
        return [each.new_zeros(each.shape) for each in inputs]
    results = [unbatched(batched(outputs[number], levels)) for number in chosen]
    plain = [unbatched(each) for each in inputs]
    if level is not None:
        found = _for_all_cotangents(
            results, plain, [grad_outputs[number] for number in chosen], levels, level, create_graph
        )
    else:
        if grad_outputs is not None:
            grad_outputs = [unbatched(batched(grad_outputs[number], levels)) for number in chosen]
        elif levels:
            grad_outputs = [each.new_ones(each.shape) for each in results]
        found = autograd.grad(results, plain, grad_outputs, True, create_graph, allow_unused=True)
    return [
        each.new_zeros(each.shape) if gradient is None else _with_levels(gradient, levels, level)
        for gradient, each in zip(found, inputs, strict=True)
    ]


def _outer_level(grad_outputs: Sequence[Any], levels: Any) -> Level | None:
    """Return the innermost level of cotangents that is none of the function's, or None."""
    found = [level for each in grad_outputs for level in levels_of(each) if level not in levels]
    return max(found, key=lambda level: level.depth) if found else None


def _for_all_cotangents(
    results: list[Any],
    inputs: list[Any],
    grad_outputs: list[Any],
    levels: tuple[Level, ...],
    level: Level,
    create_graph: bool,
) -> Any:
    """Return the gradients for all samples of the cotangents, whose dimension comes first."""
    samples = [expanded(each, level) for each in grad_outputs]
    for each in samples:
        if any(other not in levels for other in levels_of(each)):
            raise NotBatchedError("cotangents of several calls of vmap are not differentiated")
    count = len(levels)
    rows = [unbatched(batched(each, levels)).movedim(count, 0) for each in samples]
    return grads_for_all(results, inputs, rows, True, create_graph)


def _with_levels(gradient: Any, levels: tuple[Level, ...], level: Level | None) -> Any:
    if level is None:
        return batch_all(gradient, levels)
    return batch(batch_all(gradient.movedim(0, len(levels)), levels), level)


@outside_inference
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the outputs of `func`, and a function that multiplies its Jacobian from the left.

    Args:
        func: returns tensors.
        primals: its arguments.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.

    Returns:
        The outputs, and a function of their cotangents, which returns a tuple of gradients; with
        `has_aux` also what `func` returned second.
    """
    tracked = Tracked(primals, "vjp(f, *primals)")
    output, aux = split_auxiliary(run(func, tracked.tree, {}), has_aux, "vjp(f, *primals)")
    outputs = check_tensors(output, "vjp(f, *primals)")

    @outside_inference
    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        """Return the gradients for the cotangents of the outputs."""
        if _trees.structure(cotangents) != _trees.structure(output):
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of "
                f"outputs to the function. cotangents: {_trees.structure(cotangents)}, primal "
                f"output: {_trees.structure(output)}"
            )
        vectors = check_tensors(cotangents, "vjp_fn")
        recorded = tracked.has_outer_history([*outputs, *vectors])
        found = derivatives(outputs, tracked.tensors, vectors, recorded)
        return tracked.released(_trees.rebuilt(tracked.tree, found))

    result = tracked.released(output)
    return (result, vjp_fn, tracked.released(aux)) if has_aux else (result, vjp_fn)


@outside_inference
def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return the outputs of `func`, and the product of its Jacobian with `tangents`.

    It takes two backward passes, so the operations of `func` must be twice differentiable.

    Args:
        func: returns tensors.
        primals: a tuple of its arguments.
        tangents: a tuple of the same structure.
        strict: raise if an output depends on no argument.
        has_aux: whether `func` returns a pair, of which only the first is differentiated.
    """
    caller = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{caller}: Expected primals to be a tuple. E.g. it should be valid to call "
            "f(*primals)."
        )
    if _trees.structure(primals) != _trees.structure(tangents):
        raise RuntimeError(
            f"{caller}: Expected primals and tangents to have the same python structure, got "
            f"{_trees.structure(primals)} and {_trees.structure(tangents)}"
        )
    tracked = Tracked(primals, caller)
    with level_of(map(unbatched, tracked.tensors)):
        output, aux = split_auxiliary(run(func, tracked.tree, {}), has_aux, caller)
        outputs = check_tensors(output, caller)
        product = Linear(outputs, tracked)
    vectors = check_tensors(tangents, caller)
    for primal, vector in zip(tracked.tensors, vectors, strict=True):
        if primal.shape != vector.shape:
            raise RuntimeError(
                f"{caller}: a tangent must have the size of its primal, which is "
                f"{list(primal.shape)}, got {list(vector.shape)}"
            )
    if strict and not all(each.requires_grad for each in outputs):
        raise RuntimeError(f"{caller}: strict=True, but an output depends on no argument")
    found = product(vectors)
    result = tracked.released(output), tracked.released(_trees.rebuilt(output, found))
    return (*result, tracked.released(aux)) if has_aux else result


class Linear:
    """The Jacobian of `outputs` as a function of tangents: derivatives of backward passes.

    The gradients of the inputs are linear in those of the outputs, so their derivative by these
    multiplies by the transpose.
    """

    def __init__(self, outputs: Sequence[Any], tracked: Tracked) -> None:
        self._outputs, self._tracked = outputs, tracked
        levels = levels_of(tracked.tensors[0]) if tracked.tensors else ()
        self._grad_outputs = [
            batched(each.new_zeros(each.shape), levels).requires_grad_(
                is_differentiable(numpy_dtype(each))
            )
            for each in outputs
        ]
        with forward_mode_with("is_transposing"):
            self._grads = derivatives(outputs, tracked.tensors, self._grad_outputs, True)

    def __call__(self, vectors: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs for those of the inputs."""
        recorded = self._tracked.has_outer_history([*self._outputs, *vectors])
        differentiable = [each for each in self._grad_outputs if each.requires_grad]
        products = iter(derivatives(self._grads, differentiable, vectors, recorded))
        return [next(products) if each.requires_grad else each for each in self._grad_outputs]


@outside_inference
def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the outputs of `func`, and a function that multiplies its Jacobian from the right.

    Args:
        func: returns tensors.
        primals: its arguments.
    """
    tracked = Tracked(primals, "linearize(f, *primals)")
    with level_of(map(unbatched, tracked.tensors)):
        output = run(func, tracked.tree, {})
        product = Linear(check_tensors(output, "linearize(f, *primals)"), tracked)

    @outside_inference
    def jvp_fn(*tangents: Any) -> Any:
        """Return the product of the Jacobian with tangents of the arguments."""
        if _trees.structure(tangents) != _trees.structure(primals):
            raise RuntimeError(
                "the tangents must have the structure of the arguments, "
                f"{_trees.structure(primals)}, got {_trees.structure(tangents)}"
            )
        found = product(_trees.leaves(tangents))
        return tracked.released(_trees.rebuilt(output, found))

    return tracked.released(output), jvp_fn
