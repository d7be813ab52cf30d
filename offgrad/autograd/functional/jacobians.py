"""Jacobians and Hessians of functions.

Entry ``[i, j]`` of a Jacobian is the derivative of output element i by input element j; a backward
pass gives row i.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.function import Function
from offgrad.autograd.functional.arguments import (
    CONSTANT,
    UNUSED,
    begin,
    call,
    check_connected,
    check_real,
    filled,
    finish,
    gradients,
    slope_of,
)
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
    """Return the Jacobian of `func`, by one backward pass for each element of each output.

    Args:
        func: as for `vjp`; its outputs are real.
        inputs: as for `vjp`.
        create_graph: as for `vjp`.
        strict: as for `vjp`.
        vectorize: not supported.
        strategy: "reverse-mode"; "forward-mode" is not supported.

    Returns:
        A tensor of the shape of the output followed by that of the input, in the dtype of the
        input. For a tuple of inputs it is a tuple, for a tuple of outputs a tuple of what one
        gives: ``[output][input]``. The gradient of L by a complex x + iy is dL/dx + i dL/dy.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vjp`; and if an output is complex.
        NotImplementedError: for `vectorize` and for "forward-mode".
    """
    _check_strategy("jacobian", "strategy", strategy, create_graph, strict, vectorize)
    return _jacobian(func, inputs, "jacobian", create_graph, strict)


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
        vectorize: not supported.
        outer_jacobian_strategy: "reverse-mode"; "forward-mode" is not supported.

    Returns:
        A tensor of the shape of the input twice; for a tuple of inputs a tuple of tuples, in which
        ``[i][j]`` has the shape of input i followed by that of input j.

    Raises:
        TypeError: as `vjp`.
        RuntimeError: as `vhp`; and if an input is complex.
        NotImplementedError: for `vectorize` and for "forward-mode".
    """
    strategy = outer_jacobian_strategy
    _check_strategy("hessian", "outer_jacobian_strategy", strategy, create_graph, strict, vectorize)

    def gradient(*local: "Tensor") -> Any:
        _, found = slope_of(func, local, "hessian", strict)
        return finish(filled(found, local, strict, UNUSED), not isinstance(inputs, tuple), True)

    return _jacobian(gradient, inputs, "hessian", create_graph, strict)


@grad_mode.enable_grad()
def _jacobian(
    func: Callable[..., Any], inputs: Any, caller: str, create_graph: bool, strict: bool
) -> Any:
    local, single = begin(inputs, caller, create_graph)
    outputs, one = call(func, local, caller, strict)
    for output in outputs:
        check_real(output, caller)
    blocks = [
        finish(_rows(output, local, create_graph, strict), single, create_graph)
        for output in outputs
    ]
    return blocks[0] if one else tuple(blocks)


def _rows(
    output: "Tensor", inputs: "tuple[Tensor, ...]", create_graph: bool, strict: bool
) -> "list[Tensor]":
    """Return the Jacobian of `output` by each of `inputs`."""
    size = output.numel()
    recorded: list[list[Tensor]] = [[] for _ in inputs]
    plain = [memory.zeros((0 if create_graph else size, *x.shape), x.dtype) for x in inputs]
    for element in range(size):
        start = memory.zeros(output.shape, output.dtype)
        start.reshape(-1)[element] = 1
        found = gradients((output,), inputs, (wrap(start),), create_graph)
        rows = filled(found, inputs, strict, UNUSED)
        if strict and create_graph:
            check_connected(rows, CONSTANT)
        for row, before, block in zip(rows, recorded, plain, strict=True):
            if create_graph:
                before.append(row)
            else:
                block[element] = row._array
    return [
        (_Stack.apply(*rows) if rows else wrap(block)).view(output.shape + x.shape)
        for rows, block, x in zip(recorded, plain, inputs, strict=True)
    ]


class _Stack(Function):
    """Tensors of one shape, one after the other along a new first dimension; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, *rows: "Tensor") -> "Tensor":
        ctx.set_materialize_grads(False)
        block = memory.zeros((len(rows), *rows[0].shape), rows[0].dtype)
        np.stack([row._array for row in rows], out=block)
        return wrap(block)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        return tuple(
            grad[row] if needed else None for row, needed in enumerate(ctx.needs_input_grad)
        )


def _check_strategy(
    caller: str, name: str, strategy: str, create_graph: bool, strict: bool, vectorize: bool
) -> None:
    """Raise unless what is asked for is one backward pass for each row."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(f'{caller}() knows the {name} "reverse-mode", got {strategy!r}')
    forward = strategy == "forward-mode"
    if strict and (vectorize or (forward and not create_graph)):
        raise RuntimeError(
            f"{caller}() checks strict=True row by row, which neither vectorize=True nor "
            '"forward-mode" computes; drop one of them'
        )
    if forward:
        raise NotImplementedError(
            f'{caller}({name}="forward-mode") needs forward-mode differentiation, which offgrad '
            'does not have; use "reverse-mode", or jvp() for products with a few vectors'
        )
    if vectorize:
        raise NotImplementedError(
            f"{caller}(vectorize=True) needs vmap, which offgrad does not have; leave it out: the "
            "result is the same, computed row by row"
        )
