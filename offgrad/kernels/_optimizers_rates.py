"""One step of Adadelta, Adagrad, RMSprop, Rprop and averaged SGD, fused and in place.

The order of operations is torch.optim's. Sources: M. Zeiler, "ADADELTA", arXiv:1212.5701; J. Duchi,
E. Hazan, Y. Singer, "Adaptive subgradient methods", JMLR 12 (2011); A. Graves, "Generating
sequences with recurrent neural networks", arXiv:1308.0850 (centered RMSprop); M. Riedmiller,
H. Braun, "A direct adaptive method for faster backpropagation learning", ICNN 1993 (Rprop);
B. Polyak, A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM 30 (1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offgrad.kernels._array_tables import Columns, arrays_at, update_rows
from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import jit
from offgrad.kernels._optimizers_moments import penalised, penalised_numpy


def adadelta_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    square_avgs: Sequence[Array],
    acc_deltas: Sequence[Array],
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads: Parameters and gradients.
        square_avgs, acc_deltas: The running means of the squares of gradients and of changes.
        lr, rho, eps, weight_decay, maximize: As in torch.optim.Adadelta.
    """
    columns = {"param": params, "grad": grads, "square_avg": square_avgs, "acc_delta": acc_deltas}
    terms = (maximize,), (lr, rho, 1 - rho, eps, weight_decay)
    keys = [None] * len(params)
    update_rows(columns, keys, "grad", _adadelta_loop, _adadelta_step_numpy, lambda _: terms)


def adagrad_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    sums: Sequence[Array],
    steps: Sequence[float],
    lr: float,
    lr_decay: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads: Parameters and gradients.
        sums: The sums of the gradients' squares.
        steps: For each parameter the number of its step; the first is 1.
        lr, lr_decay, eps, weight_decay, maximize: As in torch.optim.Adagrad.
    """

    def terms(step: float) -> Any:
        return (maximize,), (lr / (1 + (step - 1) * lr_decay), eps, weight_decay)

    columns = {"param": params, "grad": grads, "sum": sums}
    update_rows(columns, steps, "grad", _adagrad_loop, _adagrad_step_numpy, terms)


def rmsprop_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    square_avgs: Sequence[Array],
    momentum_buffers: Sequence[Array | None],
    grad_avgs: Sequence[Array | None],
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads: Parameters and gradients.
        square_avgs: The running means of the gradients' squares.
        momentum_buffers: The running sums of the changes; None without momentum.
        grad_avgs: The running means of the gradients; None unless centered.
        lr, alpha, eps, weight_decay, momentum, maximize: As in torch.optim.RMSprop.
    """
    columns: Columns = {
        "param": params,
        "grad": grads,
        "square_avg": square_avgs,
        "momentum_buffer": momentum_buffers,
        "grad_avg": grad_avgs,
    }
    terms = (maximize,), (lr, alpha, 1 - alpha, eps, weight_decay, momentum)
    keys = [None] * len(params)
    update_rows(columns, keys, "grad", _rmsprop_loop, _rmsprop_step_numpy, lambda _: terms)


def rprop_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    prevs: Sequence[Array],
    step_sizes: Sequence[Array],
    eta_minus: float,
    eta_plus: float,
    smallest: float,
    largest: float,
    maximize: bool,
) -> None:
    """Update parameters and their states in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads: Parameters and gradients.
        prevs: The gradients of the step before, 0 where a sign had changed.
        step_sizes: The size of each element's step.
        eta_minus, eta_plus: The factors of a step's size where the sign of the gradient changes,
            and where it does not.
        smallest, largest: The bounds of a step's size.
        maximize: As in torch.optim.Rprop.
    """
    columns = {"param": params, "grad": grads, "prev": prevs, "step_size": step_sizes}
    terms = (maximize,), (eta_minus, eta_plus, smallest, largest)
    keys = [None] * len(params)
    update_rows(columns, keys, "grad", _rprop_loop, _rprop_step_numpy, lambda _: terms)


def asgd_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    averages: Sequence[Array],
    rates: Sequence[tuple[float, float]],
    lambd: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Update parameters and their averages in place; rows of arrays as in `adamw_steps`.

    Args:
        params, grads: Parameters and gradients.
        averages: The running means of the parameters.
        rates: For each parameter, the learning rate `eta` and the weight `mu` of the new value in
            its average.
        lambd, weight_decay, maximize: As in torch.optim.ASGD.
    """

    def terms(rate: tuple[float, float]) -> Any:
        eta, mu = rate
        return (maximize, mu == 1), (1 - lambd * eta, eta, mu, weight_decay)

    columns = {"param": params, "grad": grads, "ax": averages}
    update_rows(columns, rates, "grad", _asgd_loop, _asgd_step_numpy, terms)


@np.errstate(all="ignore")
def _adadelta_step_numpy(
    param: Array,
    grad: Array,
    square_avg: Array,
    acc_delta: Array,
    maximize: bool,
    lr: float,
    rho: float,
    one_minus_rho: float,
    eps: float,
    weight_decay: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, weight_decay)
    accumulated = as_float(acc_delta)
    square = as_float(square_avg) * rho + one_minus_rho * g * g
    delta = np.sqrt(accumulated + eps) / np.sqrt(square + eps) * g
    square_avg[...] = square
    acc_delta[...] = accumulated * rho + one_minus_rho * delta * delta
    param[...] = as_float(param) - lr * delta


@np.errstate(all="ignore")
def _adagrad_step_numpy(
    param: Array,
    grad: Array,
    total: Array,
    maximize: bool,
    rate: float,
    eps: float,
    weight_decay: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, weight_decay)
    squares = as_float(total) + g * g
    total[...] = squares
    param[...] = as_float(param) - rate * (g / (np.sqrt(squares) + eps))


@np.errstate(all="ignore")
def _rmsprop_step_numpy(
    param: Array,
    grad: Array,
    square_avg: Array,
    momentum_buffer: Array | None,
    grad_avg: Array | None,
    maximize: bool,
    lr: float,
    alpha: float,
    one_minus_alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, weight_decay)
    square = as_float(square_avg) * alpha + one_minus_alpha * g * g
    square_avg[...] = square
    if grad_avg is not None:
        mean = as_float(grad_avg)
        mean = mean + one_minus_alpha * (g - mean)
        grad_avg[...] = mean
        square = square - mean * mean
    change = g / (np.sqrt(square) + eps)
    if momentum_buffer is not None:
        change = as_float(momentum_buffer) * momentum + change
        momentum_buffer[...] = change
    param[...] = as_float(param) - lr * change


@np.errstate(all="ignore")
def _rprop_step_numpy(
    param: Array,
    grad: Array,
    prev: Array,
    step_size: Array,
    maximize: bool,
    eta_minus: float,
    eta_plus: float,
    smallest: float,
    largest: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, 0.0)
    agreement = g * as_float(prev)
    factor = np.where(agreement > 0, eta_plus, np.where(agreement < 0, eta_minus, 1)).astype(
        g.dtype
    )
    size = np.clip(as_float(step_size) * factor, smallest, largest)
    g = np.where(agreement < 0, 0, g).astype(g.dtype)
    step_size[...] = size
    prev[...] = g
    param[...] = as_float(param) - np.sign(g) * size


@np.errstate(all="ignore")
def _asgd_step_numpy(
    param: Array,
    grad: Array,
    average: Array,
    maximize: bool,
    takes_param: bool,
    shrink: float,
    eta: float,
    mu: float,
    weight_decay: float,
) -> None:
    g = penalised_numpy(param, grad, maximize, weight_decay)
    p = as_float(param) * shrink - eta * g
    mean = as_float(average)
    param[...] = p
    average[...] = p if takes_param else mean + (p - mean) * mu


@jit
def _adadelta_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    lr, rho, one_minus_rho, eps, weight_decay = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, square_avg, acc_delta = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], weight_decay)
            square = square_avg[i] * rho + one_minus_rho * g * g
            delta = number(np.sqrt(acc_delta[i] + eps)) / number(np.sqrt(square + eps)) * g
            square_avg[i] = square
            acc_delta[i] = acc_delta[i] * rho + one_minus_rho * delta * delta
            param[i] -= lr * delta


@jit
def _adagrad_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    rate, eps, weight_decay = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, total = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], weight_decay)
            squares = total[i] + g * g
            total[i] = squares
            param[i] -= rate * (g / (number(np.sqrt(squares)) + eps))


@jit
def _rmsprop_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    lr, alpha, one_minus_alpha, eps, weight_decay, momentum = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, square_avg, momentum_buffer, grad_avg = arrays_at(table, row, numbers)
        has_momentum, is_centered = table[4, row] != 0, table[5, row] != 0
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        # A loop for each kind: with a condition inside, LLVM masks accesses to the array that is
        # missing, and these are slow.
        if has_momentum and is_centered:
            for i in range(param.size):
                g = penalised(sign * grad[i], param[i], weight_decay)
                square = square_avg[i] * alpha + one_minus_alpha * g * g
                mean = grad_avg[i] + one_minus_alpha * (g - grad_avg[i])
                change = g / (number(np.sqrt(square - mean * mean)) + eps)
                change += momentum_buffer[i] * momentum
                square_avg[i], grad_avg[i], momentum_buffer[i] = square, mean, change
                param[i] -= lr * change
        elif is_centered:
            for i in range(param.size):
                g = penalised(sign * grad[i], param[i], weight_decay)
                square = square_avg[i] * alpha + one_minus_alpha * g * g
                mean = grad_avg[i] + one_minus_alpha * (g - grad_avg[i])
                square_avg[i], grad_avg[i] = square, mean
                param[i] -= lr * (g / (number(np.sqrt(square - mean * mean)) + eps))
        elif has_momentum:
            for i in range(param.size):
                g = penalised(sign * grad[i], param[i], weight_decay)
                square = square_avg[i] * alpha + one_minus_alpha * g * g
                change = g / (number(np.sqrt(square)) + eps) + momentum_buffer[i] * momentum
                square_avg[i], momentum_buffer[i] = square, change
                param[i] -= lr * change
        else:
            for i in range(param.size):
                g = penalised(sign * grad[i], param[i], weight_decay)
                square = square_avg[i] * alpha + one_minus_alpha * g * g
                square_avg[i] = square
                param[i] -= lr * (g / (number(np.sqrt(square)) + eps))


@jit
def _rprop_loop(
    table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int
) -> None:
    eta_minus, eta_plus, smallest, largest = factors
    (maximize,) = options
    for row in range(start, stop):
        param, grad, prev, step_size = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = sign * grad[i]
            agreement = g * prev[i]
            factor = eta_plus if agreement > 0 else (eta_minus if agreement < 0 else number(1))
            length = step_size[i] * factor
            length = smallest if length < smallest else (largest if length > largest else length)
            g = number(0) if agreement < 0 else g
            step_size[i] = length
            prev[i] = g
            # NaN stays NaN.
            direction = number(1) if g > 0 else (number(-1) if g < 0 else g)
            param[i] -= direction * length


@jit
def _asgd_loop(table: Any, numbers: Any, factors: Any, options: Any, start: int, stop: int) -> None:
    shrink, eta, mu, weight_decay = factors
    maximize, takes_param = options
    for row in range(start, stop):
        param, grad, average = arrays_at(table, row, numbers)
        number = param.dtype.type
        sign = number(-1) if maximize else number(1)
        for i in range(param.size):
            g = penalised(sign * grad[i], param[i], weight_decay)
            p = param[i] * shrink - eta * g
            param[i] = p
            average[i] = p if takes_param else average[i] + (p - average[i]) * mu
