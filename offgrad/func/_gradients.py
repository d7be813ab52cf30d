"""Gradients of functions, and products of vectors with their Jacobians."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from offgrad import autograd
from offgrad.autograd.function_node import forward_mode_with
from offgrad.autograd.tensor_base import TensorBase, is_differentiable
from offgrad.func import _trees
from offgrad.func._tracking import (
    Tracked,
    check_tensors,
    chosen_arguments,
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
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        caller = "grad_and_value(f)(*args)"
        tracked = Tracked(chosen_arguments(args, argnums, caller), caller)
        result = run(func, with_arguments(args, argnums, tracked.tree), kwargs)
        output, aux = split_auxiliary(result, has_aux, caller)
        if not isinstance(output, TensorBase):
            raise RuntimeError(
                f"{caller}: Expected f(*args) to return a Tensor, got {type(output)}"
            )
        if output._array.ndim:
            raise RuntimeError(
                f"{caller}: Expected f(*args) to return a scalar Tensor, got tensor with "
                f"{output._array.ndim} dims; use vjp or jacrev for others"
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
    """Return the gradients, zeros where there is none; the graph stays."""
    chosen = [number for number, each in enumerate(outputs) if each.requires_grad]
    if not chosen:
        return [each.new_zeros(each.shape) for each in inputs]
    found = autograd.grad(
        [outputs[number] for number in chosen],
        inputs,
        None if grad_outputs is None else [grad_outputs[number] for number in chosen],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return [
        each.new_zeros(each.shape) if gradient is None else gradient
        for gradient, each in zip(found, inputs, strict=True)
    ]


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
    with forward_mode_with("has_level"):
        output, aux = split_auxiliary(run(func, tracked.tree, {}), has_aux, caller)
    outputs = check_tensors(output, caller)
    vectors = check_tensors(tangents, caller)
    for primal, vector in zip(tracked.tensors, vectors, strict=True):
        if primal.shape != vector.shape:
            raise RuntimeError(
                f"{caller}: a tangent must have the size of its primal, which is "
                f"{list(primal.shape)}, got {list(vector.shape)}"
            )
    if strict and not all(each.requires_grad for each in outputs):
        raise RuntimeError(f"{caller}: strict=True, but an output depends on no argument")
    found = tangents_of(outputs, tracked, vectors)
    result = tracked.released(output), tracked.released(_trees.rebuilt(output, found))
    return (*result, tracked.released(aux)) if has_aux else result


def tangents_of(outputs: Sequence[Any], tracked: Tracked, vectors: Sequence[Any]) -> list[Any]:
    """Return the product of the Jacobian of `outputs` with `vectors`, by two backward passes."""
    recorded = tracked.has_outer_history([*outputs, *vectors])
    dummies = [
        each.new_zeros(each.shape).requires_grad_(is_differentiable(each._array.dtype))
        for each in outputs
    ]
    with forward_mode_with("is_transposing"):
        input_grads = derivatives(outputs, tracked.tensors, dummies, True)
    differentiable = [each for each in dummies if each.requires_grad]
    products = iter(derivatives(input_grads, differentiable, vectors, recorded))
    return [next(products) if each.requires_grad else each for each in dummies]


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the outputs of `func`, and a function that multiplies its Jacobian from the right.

    Args:
        func: returns tensors.
        primals: its arguments.
    """
    tracked = Tracked(primals, "linearize(f, *primals)")
    with forward_mode_with("has_level"):
        output = run(func, tracked.tree, {})
    outputs = check_tensors(output, "linearize(f, *primals)")

    def jvp_fn(*tangents: Any) -> Any:
        """Return the product of the Jacobian with tangents of the arguments."""
        if _trees.structure(tangents) != _trees.structure(primals):
            raise RuntimeError(
                "the tangents must have the structure of the arguments, "
                f"{_trees.structure(primals)}, got {_trees.structure(tangents)}"
            )
        found = tangents_of(outputs, tracked, _trees.leaves(tangents))
        return tracked.released(_trees.rebuilt(output, found))

    return tracked.released(output), jvp_fn
