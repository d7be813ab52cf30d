"""Jacobians and Hessians of functions.

Entry ``[i, j]`` of a Jacobian is the derivative of output element i with respect to input element
j; a backward pass computes row i.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.functional.arguments import (
    GRADIENT_INDEPENDENT,
    OUTPUT_UNUSED,
    RESULT_CONSTANT,
    call_function,
    check_real,
    check_recorded,
    fill_missing,
    format_results,
    gradients,
    make_func_inputs,
    value_and_gradient,
)
from offgrad.autograd.gradients import grad
from offgrad.autograd.stacking import Stack
from offgrad.autograd.tensor_base import wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def jacobian(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of `func`, by a backward pass for each output element, or for all.

    Args:
        func: as for `vjp`; its outputs are real.
        inputs: as for `vjp`.
        create_graph: as for `vjp`.
        strict: as for `vjp`.
        vectorize: compute all rows of an output in one backward pass.
        strategy: "reverse-mode", or with `vectorize` "forward-mode", which gives the same.

    Returns:
        A tensor of the shape of the output followed by that of the input, in the dtype of the
        input. For a tuple of inputs, a tuple of these; for a tuple of outputs, a tuple of the
        result for each output: ``[output][input]``. The gradient of L with respect to a complex
        x + iy is dL/dx + i dL/dy.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vjp`; and if an output is complex.
        NotImplementedError: for "forward-mode" without `vectorize`.
    """
    _check_strategy("jacobian", "strategy", strategy, create_graph, strict, vectorize)
    return _jacobian(func, inputs, "jacobian", create_graph, strict, vectorize)


def hessian(
    func: Callable[..., Any],
    inputs: "Tensor | tuple[Tensor, ...]",
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of `func`: the Jacobian of its gradient.

    Args:
        func: takes the inputs, returns a tensor of one element.
        inputs: as for `vjp`; real.
        create_graph: as for `vjp`.
        strict: as for `vhp`.
        vectorize: compute all rows in one backward pass.
        outer_jacobian_strategy: "reverse-mode", or with `vectorize` "forward-mode", which gives the
            same.

    Returns:
        A tensor of the shape of the input twice; for a tuple of inputs a tuple of tuples, in which
        ``[i][j]`` has the shape of input i followed by that of input j.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vhp`; and if an input is complex.
        NotImplementedError: for "forward-mode" without `vectorize`.
    """
    strategy = outer_jacobian_strategy
    _check_strategy("hessian", "outer_jacobian_strategy", strategy, create_graph, strict, vectorize)

    def gradient(*func_inputs: "Tensor") -> Any:
        _, grads = value_and_gradient(func, func_inputs, "hessian", strict)
        return format_results(
            fill_missing(grads, func_inputs, strict, GRADIENT_INDEPENDENT),
            not isinstance(inputs, tuple),
            True,
        )

    return _jacobian(gradient, inputs, "hessian", create_graph, strict, vectorize)


@grad_mode.enable_grad()
def _jacobian(
    func: Callable[..., Any],
    inputs: Any,
    caller: str,
    create_graph: bool,
    strict: bool,
    vectorize: bool,
) -> Any:
    func_inputs, is_single = make_func_inputs(inputs, caller, create_graph)
    outputs, is_one_output = call_function(func, func_inputs, caller, strict)
    for output in outputs:
        check_real(output, caller)
    blocks = []
    for number, output in enumerate(outputs):
        if vectorize:
            rows = _all_rows(output, func_inputs, create_graph)
        else:
            rows = _rows(output, number, func_inputs, create_graph, strict)
        blocks.append(format_results(rows, is_single, create_graph))
    return blocks[0] if is_one_output else tuple(blocks)


def _construct_standard_basis_for(tensors: Any, tensor_numels: Any) -> "tuple[Tensor, ...]":
    """Return for each tensor its part of the unit vectors of all elements: a matrix.

    Args:
        tensors: for their dtypes.
        tensor_numels: their numbers of elements.
    """
    total = sum(tensor_numels)
    blocks, start = [], 0
    for tensor, numel in zip(tensors, tensor_numels, strict=True):
        block = memory.zeros((total, numel), tensor._array.dtype)
        block[range(start, start + numel), range(numel)] = 1
        start += numel
        blocks.append(wrap(block))
    return tuple(blocks)


def _all_rows(output: "Tensor", inputs: "tuple[Tensor, ...]", create_graph: bool) -> "list[Tensor]":
    """Return the Jacobian of `output` with respect to each of `inputs`, by one backward pass."""
    found: Any = (None,) * len(inputs)
    if output.requires_grad and output.numel():
        (units,) = _construct_standard_basis_for((output,), (output.numel(),))
        rows = units.view((output.numel(), *output.shape))
        found = grad(output, inputs, rows, True, create_graph, True, True, True)
    return [
        wrap(memory.zeros(output.shape + x.shape, x._array.dtype))
        if each is None
        else each.reshape(output.shape + x.shape)
        for each, x in zip(found, inputs, strict=True)
    ]


def _rows(
    output: "Tensor",
    number: int,
    inputs: "tuple[Tensor, ...]",
    create_graph: bool,
    strict: bool,
) -> "list[Tensor]":
    """Return the Jacobian of `output`, of this number, with respect to each of `inputs`."""
    unused = OUTPUT_UNUSED.format(output=number)
    size = output.numel()
    recorded: list[list[Tensor]] = [[] for _ in inputs]
    blocks = [memory.zeros((0 if create_graph else size, *x.shape), x.dtype) for x in inputs]
    for element in range(size):
        grad_output = memory.zeros(output.shape, output.dtype)
        grad_output.reshape(-1)[element] = 1
        grads = gradients((output,), inputs, (wrap(grad_output),), create_graph)
        rows = fill_missing(grads, inputs, strict, unused)
        if strict and create_graph:
            check_recorded(rows, RESULT_CONSTANT)
        for row, rows_of_input, block in zip(rows, recorded, blocks, strict=True):
            if create_graph:
                rows_of_input.append(row)
            else:
                block[element] = row._array
    return [
        (Stack.apply(*rows) if rows else wrap(block)).view(output.shape + x.shape)
        for rows, block, x in zip(recorded, blocks, inputs, strict=True)
    ]


def _check_strategy(
    caller: str, name: str, strategy: str, create_graph: bool, strict: bool, vectorize: bool
) -> None:
    """Raise unless the arguments select one backward pass for each row."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(f'{caller}() needs {name} "reverse-mode", got {strategy!r}')
    forward = strategy == "forward-mode"
    if strict and (vectorize or (forward and not create_graph)):
        raise RuntimeError(
            f"{caller}() checks strict=True row by row: it and vectorize=True, or it and "
            '"forward-mode", are not supported together; remove one of them'
        )
    if forward and (create_graph or not vectorize):
        raise NotImplementedError(
            f'{caller}({name}="forward-mode") needs vectorize=True and create_graph=False; use '
            '"reverse-mode" for the same result'
        )
