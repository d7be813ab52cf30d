"""One step of Adafactor and Muon, which treat parameters as matrices; on NumPy, in place.

Sources: N. Shazeer, M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
arXiv:1804.04235; K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from offgrad.kernels._arrays import Array, as_float
from offgrad.kernels._products import matmul


@np.errstate(all="ignore")
def adafactor_step(
    param: Array,
    grad: Array,
    row_var: Array | None,
    col_var: Array | None,
    variance: Array | None,
    step: float,
    lr: float,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    d: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Update a parameter and its state in place.

    Args:
        param, grad: parameter and gradient.
        row_var, col_var: of a matrix, the running means of squared gradients of its rows
            [..., rows, 1] and columns [..., 1, columns]; else None.
        variance: of a vector or number, the running mean of the squared gradient; else None.
        step: number of this step; the first is 1.
        lr, beta2_decay, eps1, eps2, d, weight_decay, maximize: as in torch.optim.Adafactor.
    """
    p, g = as_float(param), as_float(grad)
    number = p.dtype.type
    if maximize:
        g = -g
    new_part = number(step**beta2_decay)
    scale = max(eps2, _root_mean_square(p)) * min(lr, 1 / step**0.5)
    if weight_decay:
        p = p * number(1 - lr * weight_decay)
    if row_var is not None and col_var is not None:
        rows, columns = as_float(row_var), as_float(col_var)
        square = np.square(g)
        rows = rows + new_part * (square.mean(-1, keepdims=True) - rows)
        columns = columns + new_part * (square.mean(-2, keepdims=True) - columns)
        row_var[...], col_var[...] = rows, columns
        estimate = np.divide(rows, np.maximum(rows.mean(-2, keepdims=True), number(eps1)))
        estimate = np.multiply(estimate, columns, out=square)
    else:
        assert variance is not None
        old = as_float(variance)
        estimate = np.asarray(old + new_part * (np.square(g) - old))
        variance[...] = estimate
        estimate = estimate.copy()
    np.maximum(estimate, number(eps1 * eps1), out=estimate)
    np.sqrt(estimate, out=estimate)
    change = np.divide(g, estimate, out=estimate)
    factor = scale / max(1.0, _root_mean_square(change) / d)
    param[...] = p - number(factor) * change


def _root_mean_square(array: Array) -> float:
    return float(np.linalg.norm(array.reshape(-1)) / max(1, array.size) ** 0.5)


@np.errstate(all="ignore")
def muon_step(
    param: Array,
    grad: Array,
    momentum_buffer: Array,
    lr: float,
    adjusted_lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    coefficients: tuple[float, float, float],
    eps: float,
    ns_steps: int,
) -> None:
    """Update a matrix and its momentum buffer in place.

    Args:
        param, grad, momentum_buffer: matrix, gradient, and the running mean of gradients.
        lr, weight_decay, momentum, nesterov: as in torch.optim.Muon.
        adjusted_lr: the factor of the orthogonal matrix that is subtracted.
        coefficients, eps, ns_steps: of `_orthogonal`.
    """
    p, g, mean = as_float(param), as_float(grad), as_float(momentum_buffer)
    number = p.dtype.type
    mean = mean + number(1 - momentum) * (g - mean)
    momentum_buffer[...] = mean
    change = g + number(momentum) * (mean - g) if nesterov else mean
    change = _orthogonal(change, coefficients, eps, ns_steps)
    param[...] = p * number(1 - lr * weight_decay) - number(adjusted_lr) * change


def _orthogonal(
    matrix: Array, coefficients: tuple[float, float, float], eps: float, steps: int
) -> Array:
    """Return a matrix with nearly the singular vectors of `matrix`, and singular values near 1.

    It is the Newton-Schulz iteration. As in PyTorch, each result is rounded to bfloat16.
    """
    a, b, c = coefficients
    x = _rounded(matrix.T if len(matrix) > matrix.shape[1] else matrix)
    size = float(_rounded(np.asarray(np.linalg.norm(x))))
    x = _rounded(x / np.float32(max(size, eps)))
    for _ in range(steps):
        gram = _rounded(_product(x, x.T))
        polynomial = _rounded(b * gram + c * _product(gram, gram))
        x = _rounded(a * x + _product(polynomial, x))
    return x.T if len(matrix) > matrix.shape[1] else x


def _product(a: Array, b: Array) -> Array:
    out = np.empty((len(a), b.shape[1]), a.dtype)
    matmul(a, b, out)
    return out


def _rounded(array: Array) -> Array:
    """Return an array as float32, rounded to bfloat16."""
    return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
