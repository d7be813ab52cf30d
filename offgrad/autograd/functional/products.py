"""Products of vectors with Jacobians and Hessians, without computing these.

Backward multiplies a vector with the Jacobian from the left, for the price of about one call of the
function. From the right it takes two backward passes: the first is linear in the gradient it
begins with, and the second, its derivative by that gradient, multiplies by the transpose
(https://j-towns.github.io/2017/06/12/A-new-trick.html).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad.autograd import grad_mode
from offgrad.autograd.functional.arguments import (
    CONSTANT,
    FLAT,
    INDEPENDENT,
    UNUSED,
    begin,
    call,
    check_connected,
    filled,
    finish,
    gradients,
    slope_of,
    vector,
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
    """Return what `func` returns, and the product of `v` with the Jacobian of `func`.

    `func` gets tensors of its own, which require grad whether or not `inputs` do, and runs with
    grad mode on. Neither `.grad` nor the history of anything outside is changed.

    Args:
        func: takes the inputs, returns a tensor or a tuple of tensors.
        inputs: a tensor or a tuple of tensors.
        v: for each output a tensor of its shape; may be None for one output of one element.
        create_graph: record the results, so that they can be differentiated by those of `inputs`
            and `v` that require grad, and by what else `func` uses.
        strict: raise where an output does not depend on an input, instead of returning zeros; and
            with `create_graph`, where the product is a constant.

    Returns:
        The outputs and, in the form of `inputs`, the products: each has the shape of its input.

    Raises:
        TypeError: for anything but tensors and tuples of them.
        RuntimeError: if `v` does not fit, an input is of a dtype without gradients, or `strict`
            finds something.
    """
    local, single = begin(inputs, "vjp", create_graph)
    outputs, one = call(func, local, "vjp", strict)
    start = vector(v, outputs, "output", "vjp", create_graph)
    found = gradients(outputs, local, start, create_graph)
    product = filled(found, local, strict, UNUSED)
    if strict and create_graph:
        check_connected(product, CONSTANT)
    return finish(outputs, one, create_graph), finish(product, single, create_graph)


@grad_mode.enable_grad()
def jvp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return what `func` returns, and the product of the Jacobian of `func` with `v`.

    It differentiates twice, so what `func` does must allow that.

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
        RuntimeError: as `vjp`; and if an output is of a dtype without gradients.
    """
    local, _ = begin(inputs, "jvp", create_graph)
    direction = vector(v, local, "input", "jvp", create_graph)
    outputs, one = call(func, local, "jvp", strict)
    starts = _to_differentiate_by(outputs)
    back = gradients(outputs, local, starts, create_graph=True)
    if strict:
        check_connected(back, UNUSED)
    found = gradients(back, starts, direction, create_graph)
    product = filled(found, outputs, strict, INDEPENDENT)
    if strict and create_graph:
        check_connected(product, CONSTANT)
    return finish(outputs, one, create_graph), finish(product, one, create_graph)


@grad_mode.enable_grad()
def vhp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return what `func` returns, and the product of `v` with the Hessian of `func`.

    Where second derivatives are continuous, the Hessian is symmetric and this is `hvp` at less
    expense.

    Args:
        func: takes the inputs, returns a tensor of one element.
        inputs: as for `vjp`.
        v: for each input a tensor of its shape; may be None for one input of one element.
        create_graph: as for `vjp`.
        strict: raise where the output or its gradient does not depend on an input, instead of
            returning zeros.

    Returns:
        The output and, in the form of `inputs`, the products: each has the shape of its input.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vjp`; and if `func` returns anything but one real element.
    """
    local, single = begin(inputs, "vhp", create_graph)
    direction = vector(v, local, "input", "vhp", create_graph)
    output, slope = slope_of(func, local, "vhp", strict)
    found = gradients(slope, local, direction, create_graph)
    product = filled(found, local, strict, FLAT)
    return finish((output,), True, create_graph), finish(product, single, create_graph)


@grad_mode.enable_grad()
def hvp(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    v: "Tensor | tuple[Tensor, ...] | None" = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """Return what `func` returns, and the product of the Hessian of `func` with `v`.

    It differentiates three times, so what `func` does must allow that.

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
    local, single = begin(inputs, "hvp", create_graph)
    direction = vector(v, local, "input", "hvp", create_graph)
    output, slope = slope_of(func, local, "hvp", strict)
    starts = _to_differentiate_by(local)
    back = gradients(slope, local, starts, create_graph=True)
    if strict:
        check_connected(back, FLAT)
    found = gradients(back, starts, direction, create_graph)
    product = filled(found, local, strict, FLAT)
    return finish((output,), True, create_graph), finish(product, single, create_graph)


def _to_differentiate_by(like: "tuple[Tensor, ...]") -> "tuple[Tensor, ...]":
    """Return zeros that require grad: gradients to begin with, whose values do not matter."""
    return tuple(each.new_zeros(each.shape).requires_grad_() for each in like)
