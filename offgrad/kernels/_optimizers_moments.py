"""One step of Adamax, NAdam and RAdam, fused and in place, in torch.optim's order of operations.

Sources: D. Kingma, J. Ba, "Adam: a method for stochastic optimization", arXiv:1412.6980 (Adamax);
T. Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016 workshop; L. Liu et al., "On the
variance of the adaptive learning rate and beyond", arXiv:1908.03265 (RAdam).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offgrad.kernels._array_tables import arrays_at, update_rows
from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import inlined, jit

MOMENTUM_DECAY_BASE = 0.96
"""NAdam's momentum grows with the steps as ``1 - MOMENTUM_DECAY_BASE**(step * decay) / 2``."""


def adamax_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_infs: Sequence[Array],
    steps: Sequence[float],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads, exp_avgs: As in `adamw_steps`.
        exp_infs: The running maxima of the gradients' magnitudes, zero before the first step.
        steps: For each parameter the number of its step; the first is 1.
        lr, beta1, beta2, eps, weight_decay, maximize: As in torch.optim.Adamax.
    """
    columns = {"param": params, "grad": grads, "exp_avg": exp_avgs, "exp_inf": exp_infs}

    def terms(step: float) -> Any:
        return (maximize,), (lr / (1 - beta1**step), 1 - beta1, beta2, eps, weight_decay)

    update_rows(columns, steps, "grad", _adamax_loop, _adamax_step_numpy, terms)


def nadam_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    steps: Sequence[float],
    mu_products: Sequence[float],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    momentum_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads, exp_avgs, exp_avg_sqs, steps: As in `adamw_steps`.
        mu_products: For each parameter the product of its momenta, that of this step included.
        lr, beta1, beta2, eps, weight_decay, momentum_decay, maximize: As in torch.optim.NAdam.
        decoupled: Whether the weight decay shrinks parameters, rather than being in the gradient.
    """
    columns = {"param": params, "grad": grads, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}
    shrink, penalty = _decay(lr, weight_decay, decoupled)

    def terms(key: tuple[float, float]) -> Any:
        step, mu_product = key
        mu = nadam_momentum(step, beta1, momentum_decay)
        mu_next = nadam_momentum(step + 1, beta1, momentum_decay)
        of_grad = lr * (1 - mu) / (1 - mu_product)
        of_mean = lr * mu_next / (1 - mu_product * mu_next)
        correction = 1 - beta2**step
        means = 1 - beta1, beta2, 1 - beta2
        return (maximize,), (shrink, penalty, *means, of_grad, of_mean, correction, eps)

    keys = list(zip(steps, mu_products, strict=True))
    update_rows(columns, keys, "grad", _nadam_loop, _nadam_step_numpy, terms)


def nadam_momentum(step: float, beta1: float, momentum_decay: float) -> float:
    """Return NAdam's momentum of a step."""
    return float(beta1 * (1 - 0.5 * MOMENTUM_DECAY_BASE ** (step * momentum_decay)))


def radam_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    steps: Sequence[float],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads, exp_avgs, exp_avg_sqs, steps: As in `adamw_steps`.
        lr, beta1, beta2, eps, weight_decay, maximize: As in torch.optim.RAdam.
        decoupled: Whether the weight decay shrinks parameters, rather than being in the gradient.
    """
    columns = {"param": params, "grad": grads, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}
    shrink, penalty = _decay(lr, weight_decay, decoupled)

    def terms(step: float) -> Any:
        rectified = _rectification(step, beta2)
        step_size = lr / (1 - beta1**step)
        factor = 0.0 if rectified is None else rectified * (1 - beta2**step) ** 0.5
        means = 1 - beta1, beta2, 1 - beta2
        options = maximize, rectified is not None
        return options, (shrink, penalty, *means, step_size, factor, eps)

    update_rows(columns, steps, "grad", _radam_loop, _radam_step_numpy, terms)


def _rectification(step: float, beta2: float) -> float | None:
    """Return RAdam's factor for the variance of its step, None as long as that is intractable."""
    limit = 2 / (1 - beta2) - 1
    length = limit - 2 * step * beta2**step / (1 - beta2**step)
    if length <= 5:
        return None
    part, whole = (length - 4) * (length - 2) * limit, (limit - 4) * (limit - 2) * length
    return float((part / whole) ** 0.5)


def _decay(lr: float, weight_decay: float, decoupled: bool) -> tuple[float, float]:
    """Return the factor of parameters, and that of the penalty in their gradients."""
    return (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)


@inlined
def penalised(grad: Any, param: Any, weight_decay: Any) -> Any:
    """Return a gradient with weight decay, in compiled loops.

    Without weight decay it does not add ``0 * param``: 0 * infinity would be NaN.
    """
    if weight_decay != 0:
        return grad + weight_decay * param
    return grad


def penalised_numpy(param: Array, grad: Array, maximize: bool, weight_decay: float) -> Array:
    """Return a gradient as float with weight decay, negated first to `maximize`."""
    grad = as_float(grad)
    if maximize:
        grad = -grad
    return grad + weight_decay * as_float(param) if weight_decay else grad


@np.errstate(all="ignore")
def _adamax_step_numpy(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_inf: Array,
    maximize: bool,
    step_size: float,
    one_minus_beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, weight_decay)
    m = as_float(exp_avg)
    m = m + one_minus_beta1 * (g - m)
    highest = np.maximum(as_float(exp_inf) * beta2, np.abs(g) + eps)
    exp_avg[...] = m
    exp_inf[...] = highest
    param[...] = as_float(param) - step_size * (m / highest)


@np.errstate(all="ignore")
def _nadam_step_numpy(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    maximize: bool,
    shrink: float,
    penalty: float,
    one_minus_beta1: float,
    beta2: float,
    one_minus_beta2: float,
    of_grad: float,
    of_mean: float,
    correction: float,
    eps: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, penalty)
    m, v = as_float(exp_avg), as_float(exp_avg_sq)
    m = m + one_minus_beta1 * (g - m)
    v = v * beta2 + one_minus_beta2 * g * g
    exp_avg[...] = m
    exp_avg_sq[...] = v
    scale = np.sqrt(v / correction) + eps
    param[...] = as_float(param) * shrink - of_grad * (g / scale) - of_mean * (m / scale)


@np.errstate(all="ignore")
def _radam_step_numpy(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    maximize: bool,
    is_rectified: bool,
    shrink: float,
    penalty: float,
    one_minus_beta1: float,
    beta2: float,
    one_minus_beta2: float,
    step_size: float,
    factor: float,
    eps: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, penalty)
    m, v = as_float(exp_avg), as_float(exp_avg_sq)
    m = m + one_minus_beta1 * (g - m)
    v = v * beta2 + one_minus_beta2 * g * g
    exp_avg[...] = m
    exp_avg_sq[...] = v
    change = step_size * m
    if is_rectified:
        change = change * (factor / (np.sqrt(v) + eps))
    param[...] = as_float(param) * shrink - change


@jit
def _adamax_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    step_size, one_minus_beta1, beta2, eps, weight_decay = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, exp_avg, exp_inf = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], weight_decay)
            m = exp_avg[i] + one_minus_beta1 * (g - exp_avg[i])
            before, now = exp_inf[i] * beta2, abs(g) + eps
            # As torch's maximum: NaN on either side wins.
            highest = before if (before > now or before != before) else now
            exp_avg[i] = m
            exp_inf[i] = highest
            param[i] -= step_size * (m / highest)


@jit
def _nadam_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    (
        shrink,
        penalty,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        of_grad,
        of_mean,
        correction,
        eps,
    ) = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, exp_avg, exp_avg_sq = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], penalty)
            m = exp_avg[i] + one_minus_beta1 * (g - exp_avg[i])
            v = exp_avg_sq[i] * beta2 + one_minus_beta2 * g * g
            exp_avg[i] = m
            exp_avg_sq[i] = v
            scale = number(np.sqrt(v / correction)) + eps
            param[i] = param[i] * shrink - of_grad * (g / scale) - of_mean * (m / scale)


@jit
def _radam_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    shrink, penalty, one_minus_beta1, beta2, one_minus_beta2, step_size, factor, eps = factors
    maximize, is_rectified = options
    for row in range(start, stop):
        param, grad, exp_avg, exp_avg_sq = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], penalty)
            m = exp_avg[i] + one_minus_beta1 * (g - exp_avg[i])
            v = exp_avg_sq[i] * beta2 + one_minus_beta2 * g * g
            exp_avg[i] = m
            exp_avg_sq[i] = v
            change = step_size * m
            if is_rectified:
                change *= factor / (number(np.sqrt(v)) + eps)
            param[i] = param[i] * shrink - change
