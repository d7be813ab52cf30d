"""The NumPy references of `_recurrent`: the same arithmetic, a step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._products import matmul

if TYPE_CHECKING:
    from offgrad.kernels._recurrent import TimeSteps


def _product(a: Array, b: Array) -> Array:
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    matmul(a, b, out)
    return out


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    share = 1 / (1 + small)
    return np.where(x < 0, small * share, share)


def _before(steps: TimeSteps, step: int, states: Array, first: Array) -> Array:
    """Return the states before a step: of the step before, and the first ones of new elements."""
    count = int(steps.counts[step])
    if step == 0:
        return first[:count]
    known = states[steps.rows(step - 1)][:count]
    return known if len(known) == count else np.concatenate([known, first[len(known) : count]])


@np.errstate(all="ignore")
def lstm_numpy(
    steps: TimeSteps,
    gates: Array,
    weight: Array,
    projection: Array | None,
    h: Array,
    c: Array,
    cells: Array,
    out: Array,
) -> None:
    size = c.shape[1]
    for step, count in enumerate(steps.counts):
        rows = steps.rows(step)
        values = gates[rows] + _product(h[:count], weight.T)
        i, f, g, o = (values[:, at * size : (at + 1) * size] for at in range(4))
        i[...], f[...], g[...], o[...] = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        gates[rows] = values
        c[:count] = f * c[:count] + i * g
        cells[rows] = c[:count]
        hidden = o * np.tanh(c[:count])
        h[:count] = hidden if projection is None else _product(hidden, projection.T)
        out[rows] = h[:count]


@np.errstate(all="ignore")
def lstm_backward_numpy(
    steps: TimeSteps,
    gates: Array,
    cells: Array,
    first_cells: Array,
    weight: Array,
    projection: Array | None,
    dout: Array,
    dh: Array,
    dc: Array,
    dgates: Array,
    dprojected: Array | None,
) -> None:
    size = dc.shape[1]
    for step in reversed(range(len(steps.starts))):
        rows, count = steps.rows(step), int(steps.counts[step])
        before = _before(steps, step, cells, first_cells)
        i, f, g, o = (gates[rows][:, at * size : (at + 1) * size] for at in range(4))
        total = dh[:count] + dout[rows]
        if projection is not None and dprojected is not None:
            dprojected[rows] = total
            total = _product(total, projection)
        t = np.tanh(cells[rows])
        change = dc[:count] + total * o * (1 - t * t)
        slopes = np.concatenate(
            [
                change * g * i * (1 - i),
                change * before * f * (1 - f),
                change * i * (1 - g * g),
                total * t * o * (1 - o),
            ],
            axis=1,
        )
        dgates[rows] = slopes
        dc[:count] = change * f
        dh[:count] = _product(slopes, weight)


@np.errstate(all="ignore")
def gru_numpy(
    steps: TimeSteps,
    gates: Array,
    weight: Array,
    bias: Array,
    h: Array,
    candidates: Array,
    out: Array,
) -> None:
    size = h.shape[1]
    for step, count in enumerate(steps.counts):
        rows = steps.rows(step)
        product = _product(h[:count], weight.T) + bias
        values = gates[rows]
        both = _sigmoid(values[:, : 2 * size] + product[:, : 2 * size])
        q = product[:, 2 * size :]
        n = np.tanh(values[:, 2 * size :] + both[:, :size] * q)
        gates[rows] = np.concatenate([both, n], axis=1)
        candidates[rows] = q
        h[:count] = n + both[:, size:] * (h[:count] - n)
        out[rows] = h[:count]


@np.errstate(all="ignore")
def gru_backward_numpy(
    steps: TimeSteps,
    gates: Array,
    candidates: Array,
    first_states: Array,
    weight: Array,
    out: Array,
    dout: Array,
    dh: Array,
    dinput: Array,
    dstate: Array,
) -> None:
    size = dh.shape[1]
    for step in reversed(range(len(steps.starts))):
        rows, count = steps.rows(step), int(steps.counts[step])
        before = _before(steps, step, out, first_states)
        r, z, n = (gates[rows][:, at * size : (at + 1) * size] for at in range(3))
        total = dh[:count] + dout[rows]
        dn = total * (1 - z) * (1 - n * n)
        dz = total * (before - n) * z * (1 - z)
        dr = dn * candidates[rows] * r * (1 - r)
        dinput[rows] = np.concatenate([dr, dz, dn], axis=1)
        slopes = np.concatenate([dr, dz, dn * r], axis=1)
        dstate[rows] = slopes
        dh[:count] = total * z + _product(slopes, weight)


@np.errstate(all="ignore")
def rnn_numpy(steps: TimeSteps, weight: Array, h: Array, out: Array, is_relu: bool) -> None:
    for step, count in enumerate(steps.counts):
        rows = steps.rows(step)
        values = out[rows] + _product(h[:count], weight.T)
        h[:count] = np.maximum(values, 0) if is_relu else np.tanh(values)
        out[rows] = h[:count]


@np.errstate(all="ignore")
def rnn_backward_numpy(
    steps: TimeSteps,
    weight: Array,
    out: Array,
    dout: Array,
    dh: Array,
    dgates: Array,
    is_relu: bool,
) -> None:
    for step in reversed(range(len(steps.starts))):
        rows, count = steps.rows(step), int(steps.counts[step])
        values, total = out[rows], dh[:count] + dout[rows]
        slopes = np.where(values == 0, 0, total) if is_relu else total * (1 - values * values)
        dgates[rows] = slopes
        dh[:count] = _product(np.ascontiguousarray(slopes), weight)
