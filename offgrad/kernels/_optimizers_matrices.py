"""One step of Adafactor and Muon, which treat parameters as matrices; on NumPy, in place.

Sources: N. Shazeer, M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
arXiv:1804.04235; K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import as_float
from offgrad.kernels._products import matmul

_BLOCK = 1 << 16
"""Elements that are rounded at once."""


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
    new_part = number(step**beta2_decay)
    scale = max(eps2, _root_mean_square(p)) * min(lr, 1 / step**0.5)
    estimate = memory.empty(g.shape, g.dtype)
    np.square(g, out=estimate)
    if row_var is not None and col_var is not None:
        rows, columns = as_float(row_var), as_float(col_var)
        rows = rows + new_part * (estimate.mean(-1, keepdims=True) - rows)
        columns = columns + new_part * (estimate.mean(-2, keepdims=True) - columns)
        states = [(row_var, rows), (col_var, columns)]
        share = np.divide(rows, np.maximum(rows.mean(-2, keepdims=True), number(eps1)))
        np.multiply(share, columns, out=estimate)
    else:
        assert variance is not None
        _approach(estimate, as_float(variance), new_part)
        states = [(variance, memory.copy(estimate))]
    np.maximum(estimate, number(eps1 * eps1), out=estimate)
    np.sqrt(estimate, out=estimate)
    change = np.divide(g, estimate, out=estimate)
    factor = number(scale / max(1.0, _root_mean_square(change) / d))
    np.multiply(change, -factor if maximize else factor, out=change)
    # Nothing fails from here on.
    for target, values in states:
        target[...] = values
    _subtract(param, p, number(1 - lr * weight_decay), change)


def _approach(values: Array, mean: Array, share: Any) -> None:
    """Move `mean` towards `values` by a share of the distance; the result replaces `values`."""
    np.subtract(values, mean, out=values)
    np.multiply(values, share, out=values)
    np.add(values, mean, out=values)


def _subtract(param: Array, values: Array, factor: Any, change: Array) -> None:
    """Write ``values * factor - change`` into `param`; `values` is overwritten."""
    if factor != 1:
        np.multiply(values, factor, out=values)
    np.subtract(values, change, out=values)
    if values is not param:
        param[...] = values


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
    p, g = as_float(param), as_float(grad)
    number = p.dtype.type
    mean = memory.copy(g)
    _approach(mean, as_float(momentum_buffer), number(1 - momentum))
    change = mean
    if nesterov:
        change = memory.copy(mean)
        _approach(change, g, number(momentum))
    change = _orthogonal(change, coefficients, eps, ns_steps)
    update = change if change.dtype == p.dtype else memory.empty(p.shape, p.dtype)
    np.multiply(change, number(adjusted_lr), out=update)
    # Nothing fails from here on.
    momentum_buffer[...] = mean
    _subtract(param, p, number(1 - lr * weight_decay), update)


def _orthogonal(
    matrix: Array, coefficients: tuple[float, float, float], eps: float, steps: int
) -> Array:
    """Return a matrix with nearly the singular vectors of `matrix`, and singular values near 1.

    It is the Newton-Schulz iteration. As in PyTorch, each result is rounded to bfloat16.
    """
    a, b, c = coefficients
    is_tall = len(matrix) > matrix.shape[1]
    size = min(matrix.shape)
    x, product, gram, polynomial = (
        memory.empty(shape, np.float32)
        for shape in ((size, max(matrix.shape)), (size, max(matrix.shape)), *[(size, size)] * 2)
    )
    x[...] = matrix.T if is_tall else matrix
    _round(x)
    norm = np.asarray([np.linalg.norm(x)], np.float32)
    _round(norm)
    np.divide(x, np.float32(max(float(norm[0]), eps)), out=x)
    _round(x)
    for _ in range(steps):
        matmul(x, x.T, gram)
        _round(gram)
        matmul(gram, gram, polynomial)
        _weigh(polynomial, c, gram, b)
        matmul(polynomial, x, product)
        _weigh(x, a, product, 1)
    return x.T if is_tall else x


def _weigh(array: Array, weight: float, other: Array, other_weight: float) -> None:
    """Replace an array by a weighted sum of it and another, which is overwritten, rounded."""
    np.multiply(array, np.float32(weight), out=array)
    np.multiply(other, np.float32(other_weight), out=other)
    np.add(array, other, out=array)
    _round(array)


def _round(array: Array) -> None:
    """Round the elements of a C-contiguous float32 array to bfloat16, in place."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        part[...] = part.astype(ml_dtypes.bfloat16)
