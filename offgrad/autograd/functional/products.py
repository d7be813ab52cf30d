"""Products of vectors with Jacobians and Hessians, without computing the matrices.

A backward pass multiplies the Jacobian by a vector from the left, at about the cost of one call of
the function. A product from the right takes two passes: the first is linear in its output
gradient, and the second, the derivative of the first with respect to that gradient, multiplies by
the transpose (https://j-towns.github.io/2017/06/12/A-new-trick.html).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad.autograd import grad_mode
from offgrad.autograd.functional.arguments import (
    GRADIENT_INDEPENDENT,
    INPUT_UNUSED,
    OUTPUT_INDEPENDENT,
    RESULT_CONSTANT,
    call_function,
    check_recorded,
    checked_vector,
    fill_missing,
    format_results,
    gradients,
    make_func_inputs,
    value_and_gradient,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


@grad_mode.enable_grad()
def vjp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return the outputs of `func`, and the product of `v` with the Jacobian of `func`.

    `func` gets new tensors over the data of `inputs`, all of which require grad, and runs in grad
    mode. The ``.grad`` and the history of other tensors do not change.

    Args:
        func: takes the inputs, returns a tensor, or several in a tuple.
        inputs: a tensor, or several in a tuple.
        v: for each output a tensor of its shape; may be None for one output of one element.
        create_graph: record the results, so that they can be differentiated with respect to those
            of `inputs` and `v` that require grad, and to other tensors that `func` uses.
        strict: raise if an output does not depend on an input, instead of returning zeros; with
            `create_graph`, also if the product is a constant.

    Returns:
        The outputs and, in the form of `inputs`, the products: each has the shape of its input.

    Raises:
        TypeError: for anything but tensors and tuples of them.
        RuntimeError: if `v` does not fit, an input has a dtype without gradients, or a check of
            `strict` fails.
    """
    func_inputs, is_single = make_func_inputs(inputs, "vjp", create_graph)
    outputs, is_one_output = call_function(func, func_inputs, "vjp", strict)
    grad_output = checked_vector(v, outputs, "output", "vjp", create_graph)
    grads = gradients(outputs, func_inputs, grad_output, create_graph)
    product = fill_missing(grads, func_inputs, strict, INPUT_UNUSED)
    if strict and create_graph:
        check_recorded(product, RESULT_CONSTANT)
    products = format_results(product, is_single, create_graph)
    return format_results(outputs, is_one_output, create_graph), products


@grad_mode.enable_grad()
def jvp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return the outputs of `func`, and the product of the Jacobian of `func` with `v`.

    The operations of `func` must be twice differentiable.

    Args:
        func: as for `vjp`.
        inputs: as for `vjp`.
        v: for each input a tensor of its shape; may be None for one input of one element.
        create_graph: as for `vjp`.
        strict: as for `vjp`.

    Returns:
        The outputs and, in the same form, the products: each has the shape of its output.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vjp`; and if an output has a dtype without gradients.
    """
    func_inputs, _ = make_func_inputs(inputs, "jvp", create_graph)
    direction = checked_vector(v, func_inputs, "input", "jvp", create_graph)
    outputs, is_one_output = call_function(func, func_inputs, "jvp", strict)
    grad_outputs = _zeros_requiring_grad(outputs)
    input_grads = gradients(outputs, func_inputs, grad_outputs, create_graph=True)
    if strict:
        check_recorded(input_grads, INPUT_UNUSED)
    grads = gradients(input_grads, grad_outputs, direction, create_graph)
    product = fill_missing(grads, outputs, strict, OUTPUT_INDEPENDENT)
    if strict and create_graph:
        check_recorded(product, RESULT_CONSTANT)
    products = format_results(product, is_one_output, create_graph)
    return format_results(outputs, is_one_output, create_graph), products


@grad_mode.enable_grad()
def vhp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return the output of `func`, and the product of `v` with the Hessian of `func`.

    Where second derivatives are continuous, the Hessian is symmetric, and this equals `hvp` at a
    lower cost.

    Args:
        func: takes the inputs, returns a tensor of one element.
        inputs: as for `vjp`.
        v: for each input a tensor of its shape; may be None for one input of one element.
        create_graph: as for `vjp`.
        strict: raise if the output or its gradient does not depend on an input, instead of
            returning zeros.

    Returns:
        The output and, in the form of `inputs`, the products: each has the shape of its input.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vjp`; and if `func` returns anything but one real element.
    """
    func_inputs, is_single = make_func_inputs(inputs, "vhp", create_graph)
    direction = checked_vector(v, func_inputs, "input", "vhp", create_graph)
    output, gradient = value_and_gradient(func, func_inputs, "vhp", strict)
    grads = gradients(gradient, func_inputs, direction, create_graph)
    product = fill_missing(grads, func_inputs, strict, GRADIENT_INDEPENDENT)
    products = format_results(product, is_single, create_graph)
    return format_results((output,), True, create_graph), products


@grad_mode.enable_grad()
def hvp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return the output of `func`, and the product of the Hessian of `func` with `v`.

    The operations of `func` must be three times differentiable.

    Args:
        func: as for `vhp`.
        inputs: as for `vjp`.
        v: as for `vhp`.
        create_graph: as for `vjp`.
        strict: as for `vhp`.

    Returns:
        As `vhp`.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vhp`.
    """
    func_inputs, is_single = make_func_inputs(inputs, "hvp", create_graph)
    direction = checked_vector(v, func_inputs, "input", "hvp", create_graph)
    output, gradient = value_and_gradient(func, func_inputs, "hvp", strict)
    grad_outputs = _zeros_requiring_grad(func_inputs)
    input_grads = gradients(gradient, func_inputs, grad_outputs, create_graph=True)
    if strict:
        check_recorded(input_grads, GRADIENT_INDEPENDENT)
    grads = gradients(input_grads, grad_outputs, direction, create_graph)
    product = fill_missing(grads, func_inputs, strict, GRADIENT_INDEPENDENT)
    products = format_results(product, is_single, create_graph)
    return format_results((output,), True, create_graph), products


def _zeros_requiring_grad(like: "tuple[Tensor, ...]") -> "tuple[Tensor, ...]":
    """Return zeros that require grad: output gradients whose values do not matter."""
    return tuple(each.new_zeros(each.shape).requires_grad_() for each in like)
