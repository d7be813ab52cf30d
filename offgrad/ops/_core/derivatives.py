"""Derivatives of fused gradient kernels, taken of the same gradient written in plain operations.

An op whose gradient is one fused kernel makes that gradient a separate op. Its backward is
`differentiate` of a reference that computes the same with differentiable operations, so that
derivatives of any order are right without a second hand-written formula.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd import grad_mode
from offgrad.autograd.gradients import grad as gradients

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def differentiate(
    reference: Callable[..., Any],
    inputs: "Sequence[Tensor]",
    grad_outputs: "Sequence[Tensor | None]",
    needs: Sequence[bool],
) -> "tuple[Tensor | None, ...]":
    """Return the gradients of ``reference(*inputs)`` for those inputs that need one.

    They are recorded if grad mode is on. The reference gets a new view of each input, so that a
    dependence of one input on another does not count here: the engine follows it.
    """
    recorded = grad_mode.state.grad_enabled
    if recorded:
        local = [each.view_as(each) for each in inputs]
    else:
        needed_pairs = zip(inputs, needs, strict=True)
        local = [each.detach().requires_grad_(needed) for each, needed in needed_pairs]
    result = grad_mode.call(True, reference, *local)
    outputs = result if isinstance(result, tuple) else (result,)
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grad_outputs, strict=True)
        if output is not None and grad is not None and output.requires_grad
    ]
    needed_inputs = [
        each for each, needed in zip(local, needs, strict=True) if needed and each.requires_grad
    ]
    if not pairs or not needed_inputs:
        return (None,) * len(needs)
    computed = iter(
        gradients(
            [output for output, _ in pairs],
            needed_inputs,
            [grad for _, grad in pairs],
            create_graph=recorded,
            allow_unused=True,
        )
    )
    return tuple(
        next(computed) if needed and each.requires_grad else None
        for each, needed in zip(local, needs, strict=True)
    )
