"""One step of SGD, Adam and AdamW, fused and in place, in torch.optim's order of operations.

Sources: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", arXiv:1711.05101;
S. J. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and beyond", ICLR 2018 (AMSGrad).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offgrad.kernels._array_tables import Columns, arrays_at, update_rows
from offgrad.kernels._arrays import Array, same_shape
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import jit


def adamw_step(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    maximize: bool = False,
    max_exp_avg_sq: Array | None = None,
    decoupled: bool = True,
) -> None:
    """Update `param`, `exp_avg` and `exp_avg_sq` in place from `grad`; all have the same shape.

    Args:
        param, grad, exp_avg, exp_avg_sq: Parameter, gradient, and the running means of the gradient
            and of its square, both zero before the first step.
        lr, beta1, beta2, eps, weight_decay: As in torch.optim.AdamW.
        step: Number of this step; the first is 1.
        maximize: Add the step instead of subtracting it.
        max_exp_avg_sq: For AMSGrad, the running maximum of `exp_avg_sq`, updated too.
        decoupled: False for Adam's weight decay, added to the gradient.
    """
    same_shape(param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    if max_exp_avg_sq is not None:
        same_shape(param=param, max_exp_avg_sq=max_exp_avg_sq)
    adamw_steps(
        [param],
        [grad],
        [exp_avg],
        [exp_avg_sq],
        [max_exp_avg_sq],
        [step],
        lr,
        beta1,
        beta2,
        eps,
        weight_decay,
        maximize,
        decoupled,
    )


def adamw_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    max_exp_avg_sqs: Sequence[Array | None],
    steps: Sequence[float],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    decoupled: bool,
) -> None:
    """`adamw_step` of many parameters, as if one after the other; shapes do not matter, but sizes.

    Args:
        params, grads, exp_avgs, exp_avg_sqs: For each parameter, its arrays.
        max_exp_avg_sqs: For each parameter its array; None for those without AMSGrad.
        steps: For each parameter the number of its step.
        lr, beta1, beta2, eps, weight_decay, maximize, decoupled: As in `adamw_step`.

    Raises:
        ValueError: If a step is below 1 or arrays do not fit together. Nothing has changed then.
    """
    if min(steps) < 1:
        raise ValueError(f"Adam's steps count from 1, got {min(steps)}")
    columns: Columns = {
        "param": params,
        "grad": grads,
        "exp_avg": exp_avgs,
        "exp_avg_sq": exp_avg_sqs,
        "max_exp_avg_sq": max_exp_avg_sqs,
    }
    decay = 1 - lr * weight_decay if decoupled else 1.0
    penalty = 0.0 if decoupled else weight_decay

    def terms(step: float) -> Any:
        step_size = lr / (1 - beta1**step)
        correction = (1 - beta2**step) ** 0.5
        factors = decay, penalty, 1 - beta1, beta2, 1 - beta2, step_size, correction, eps
        return (maximize,), factors

    update_rows(columns, steps, "grad", _adamw_loop, _adamw_step_numpy, terms)


def sgd_step(
    param: Array,
    grad: Array,
    momentum_buffer: Array | None,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    first_step: bool = False,
    maximize: bool = False,
) -> None:
    """Update `param` and any `momentum_buffer` in place from `grad`; all have the same shape.

    Args:
        param, grad: Parameter and gradient.
        momentum_buffer: Running sum of gradients; needed if `momentum` is not 0, else None.
        lr, momentum, dampening, weight_decay, nesterov, maximize: As in torch.optim.SGD.
        first_step: The buffer is uninitialised and becomes the gradient, undampened.
    """
    same_shape(param=param, grad=grad)
    if momentum_buffer is not None:
        same_shape(param=param, momentum_buffer=momentum_buffer)
    sgd_steps(
        [param],
        [grad],
        [momentum_buffer],
        [first_step],
        lr,
        momentum,
        dampening,
        weight_decay,
        nesterov,
        maximize,
    )


def sgd_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffers: Sequence[Array | None],
    first_steps: Sequence[bool],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """`sgd_step` of many parameters, as if one after the other; shapes do not matter, but sizes.

    Args:
        params, grads, momentum_buffers, first_steps: For each parameter, as in `sgd_step`.
        lr, momentum, dampening, weight_decay, nesterov, maximize: As in `sgd_step`.

    Raises:
        ValueError: If buffers are missing or arrays do not fit together. Nothing has changed then.
    """
    has_momentum = momentum != 0
    for each in momentum_buffers:
        if has_momentum != (each is not None):
            raise ValueError(
                f"SGD has a momentum buffer exactly if momentum is not 0; got momentum {momentum} "
                f"and {'no' if each is None else 'a'} buffer"
            )
    columns: Columns = {
        "param": params,
        "grad": grads,
        "momentum_buffer": momentum_buffers,
    }

    def terms(first_step: bool) -> Any:
        # The first step sets the buffer to the whole gradient and ignores its content.
        grad_factor = 1.0 if first_step else 1 - dampening
        return (nesterov, first_step, maximize), (lr, momentum, grad_factor, weight_decay)

    update_rows(columns, first_steps, "grad", _sgd_loop, _sgd_step_numpy, terms)


@np.errstate(all="ignore")
def _adamw_step_numpy(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    max_exp_avg_sq: Array | None,
    maximize: bool,
    decay: float,
    penalty: float,
    one_minus_beta1: float,
    beta2: float,
    one_minus_beta2: float,
    step_size: float,
    correction: float,
    eps: float,
) -> None:
    p, g = as_float(param), as_float(grad)
    m, v = as_float(exp_avg), as_float(exp_avg_sq)
    if maximize:
        g = -g
    if penalty:
        g = g + penalty * p
    p = p * decay
    m = m + one_minus_beta1 * (g - m)
    v = v * beta2 + one_minus_beta2 * g * g
    exp_avg[...] = m
    exp_avg_sq[...] = v
    if max_exp_avg_sq is not None:
        v = np.maximum(as_float(max_exp_avg_sq), v)
        max_exp_avg_sq[...] = v
    param[...] = p - step_size * (m / (np.sqrt(v) / correction + eps))


@np.errstate(all="ignore")
def _sgd_step_numpy(
    param: Array,
    grad: Array,
    momentum_buffer: Array | None,
    nesterov: bool,
    first_step: bool,
    maximize: bool,
    lr: float,
    momentum: float,
    grad_factor: float,
    weight_decay: float,
) -> None:
    p, g = as_float(param), as_float(grad)
    if maximize:
        g = -g
    if weight_decay:
        g = g + weight_decay * p
    if momentum_buffer is not None:
        buffer = (
            grad_factor * g
            if first_step
            else momentum * as_float(momentum_buffer) + grad_factor * g
        )
        momentum_buffer[...] = buffer
        g = g + momentum * buffer if nesterov else buffer
    param[...] = p - lr * g


@jit
def _adamw_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    decay, penalty, one_minus_beta1, beta2, one_minus_beta2, step_size, correction, eps = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq = arrays_at(table, row, numbers)
        amsgrad = table[5, row] != 0
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        # Without a penalty do not add 0 * param: 0 * infinity would be NaN.
        for i in range(param.size):
            p = param[i]
            g = sign * grad[i]
            if penalty != number(0):
                g += penalty * p
            p *= decay
            m = exp_avg[i] + one_minus_beta1 * (g - exp_avg[i])
            v = exp_avg_sq[i] * beta2 + one_minus_beta2 * g * g
            exp_avg[i] = m
            exp_avg_sq[i] = v
            if amsgrad:
                # As torch's maximum: NaN on either side wins.
                highest = max_exp_avg_sq[i]
                v = highest if (highest > v or highest != highest) else v
                max_exp_avg_sq[i] = v
            param[i] = p - step_size * (m / (number(np.sqrt(v)) / correction + eps))


@jit
def _sgd_loop(table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int) -> None:
    lr, momentum, grad_factor, weight_decay = factors
    nesterov, first_step, maximize = options
    for row in range(start, stop):
        param, grad, momentum_buffer = arrays_at(table, row, numbers)
        has_momentum = table[3, row] != 0
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = sign * grad[i]
            if weight_decay != number(0):
                g += weight_decay * param[i]
            if has_momentum:
                # A first step must not read the uninitialised buffer, which may hold NaN.
                buffer = (
                    grad_factor * g
                    if first_step
                    else momentum * momentum_buffer[i] + grad_factor * g
                )
                momentum_buffer[i] = buffer
                g = g + momentum * buffer if nesterov else buffer
            param[i] -= lr * g
