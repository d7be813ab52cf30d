"""One step of SGD, Adam and AdamW, fused and in place, in torch.optim's order of operations.

Sources: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", arXiv:1711.05101;
S. J. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and beyond", ICLR 2018 (AMSGrad).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import (
    Array,
    as_float,
    flat,
    same_shape,
)
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for


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
    if step < 1:
        raise ValueError(f"Adam's steps count from 1, got {step}")
    arrays = [param, grad, exp_avg, exp_avg_sq]
    same_shape(param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    if max_exp_avg_sq is not None:
        same_shape(param=param, max_exp_avg_sq=max_exp_avg_sq)
        arrays.append(max_exp_avg_sq)
    factors = (
        1 - lr * weight_decay if decoupled else 1.0,  # decay
        0.0 if decoupled else weight_decay,  # penalty
        1 - beta1,
        beta2,
        1 - beta2,
        lr / (1 - beta1**step),  # step size
        (1 - beta2**step) ** 0.5,  # correction
        eps,
    )
    if not uses_numba(*arrays):
        _adamw_step_numpy(param, grad, exp_avg, exp_avg_sq, maximize, max_exp_avg_sq, *factors)
        return
    p, g, m, v = flat(param), flat(grad), flat(exp_avg), flat(exp_avg_sq)
    amsgrad = max_exp_avg_sq is not None
    highest = v[:0] if max_exp_avg_sq is None else flat(max_exp_avg_sq)
    numbers = tuple(param.dtype.type(factor) for factor in factors)
    parallel_for(
        lambda start, stop: _adamw_loop(
            start, stop, p, g, m, v, maximize, amsgrad, highest, *numbers
        ),
        p.size,
    )


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
    if (momentum != 0) != (momentum_buffer is not None):
        raise ValueError(
            f"SGD has a momentum buffer exactly if momentum is not 0; got momentum {momentum} and "
            f"{'no' if momentum_buffer is None else 'a'} buffer"
        )
    same_shape(param=param, grad=grad)
    arrays = [param, grad]
    if momentum_buffer is not None:
        same_shape(param=param, momentum_buffer=momentum_buffer)
        arrays.append(momentum_buffer)
    # The first step sets the buffer to the whole gradient and ignores its content.
    grad_factor = 1.0 if first_step else 1 - dampening
    factors = (lr, momentum, grad_factor, weight_decay)
    if not uses_numba(*arrays):
        _sgd_step_numpy(param, grad, momentum_buffer, nesterov, first_step, maximize, *factors)
        return
    p, g = flat(param), flat(grad)
    buffer = p[:0] if momentum_buffer is None else flat(momentum_buffer)
    numbers = tuple(param.dtype.type(factor) for factor in factors)
    parallel_for(
        lambda start, stop: _sgd_loop(
            start, stop, p, g, buffer, momentum != 0, nesterov, first_step, maximize, *numbers
        ),
        p.size,
    )


@np.errstate(all="ignore")
def _adamw_step_numpy(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    maximize: bool,
    max_exp_avg_sq: Array | None,
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
    start: int,
    stop: int,
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    maximize: bool,
    amsgrad: bool,
    max_exp_avg_sq: Any,
    decay: Any,
    penalty: Any,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    step_size: Any,
    correction: Any,
    eps: Any,
) -> None:
    param = param[start:stop]
    grad = grad[start:stop]
    exp_avg = exp_avg[start:stop]
    exp_avg_sq = exp_avg_sq[start:stop]
    max_exp_avg_sq = max_exp_avg_sq[start:stop]
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
def _sgd_loop(
    start: int,
    stop: int,
    param: Any,
    grad: Any,
    momentum_buffer: Any,
    has_momentum: bool,
    nesterov: bool,
    first_step: bool,
    maximize: bool,
    lr: Any,
    momentum: Any,
    grad_factor: Any,
    weight_decay: Any,
) -> None:
    param = param[start:stop]
    grad = grad[start:stop]
    momentum_buffer = momentum_buffer[start:stop]
    number = param.dtype.type
    sign = number(-1) if maximize else number(1)
    for i in range(param.size):
        g = sign * grad[i]
        if weight_decay != number(0):
            g += weight_decay * param[i]
        if has_momentum:
            # A first step must not read the uninitialised buffer, which may hold NaN.
            buffer = (
                grad_factor * g if first_step else momentum * momentum_buffer[i] + grad_factor * g
            )
            momentum_buffer[i] = buffer
            g = g + momentum * buffer if nesterov else buffer
        param[i] -= lr * g
