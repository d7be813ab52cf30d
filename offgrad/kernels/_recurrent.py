"""Recurrent layers over time: LSTM, GRU, and RNN with tanh or relu; forward and backward.

The rows of all steps stand in one matrix. `TimeSteps` says which rows a step has: one loop serves
sequences that are time-major, batch-major, packed, or read backward. The caller multiplies the
inputs of all steps at once; here each step multiplies the states, by a weight in panels
(`_panels`), and computes its gates. Blocks of the batch are independent: threads take one each and
never wait for each other. Backward computes the gradients of the gates; the caller multiplies
these, for all steps at once.

A single step needs no copy of the weight: it multiplies before the loop. A few rows in several
steps are computed by the NumPy references.

Source: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation, 1997; K. Cho et
al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offgrad import memory
from offgrad.kernels import _panels
from offgrad.kernels import _recurrent_loops as loops
from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._parallel import MAX_RANGES, block_items, in_ranges, num_workers
from offgrad.kernels._products import matmul
from offgrad.kernels._recurrent_numpy import (
    gru_backward_numpy,
    gru_numpy,
    lstm_backward_numpy,
    lstm_numpy,
    rnn_backward_numpy,
    rnn_numpy,
)

MIN_ROWS = 16
"""Rows of several steps together for which the weight is copied."""

BLOCK_ROWS = 16
"""Elements of the batch in a block: with more, each of them reads the weight less often."""

_MIN_BLOCK_ROWS = 4
"""As few elements of the batch are in a block where there are threads enough."""

_PER_ELEMENT = 16
"""Multiplications in the time that kernels spend on an element."""


class TimeSteps(NamedTuple):
    """The rows of each step, in the order of computation.

    Attributes:
        starts: the row of the first element of the batch.
        counts: the number of elements; the first ones of the batch.
        stride: rows from one element to the next.
    """

    starts: Array
    counts: Array
    stride: int

    def rows(self, step: int) -> slice:
        """Return the rows of a step."""
        start, count = int(self.starts[step]), int(self.counts[step])
        return slice(start, start + count * self.stride, self.stride)

    def previous(self, states: Array, first: Array, out: Array) -> None:
        """Write the state before each row into `out`: of the step before, or `first`."""
        length, batch = len(self.starts), len(first)
        if length * batch == len(out):
            # All steps have all elements: two shifted copies.
            by_step = (length, batch) if self.stride == 1 else (batch, length)
            before, after = (each.reshape(*by_step, each.shape[1]) for each in (states, out))
            if self.stride != 1:
                before, after = before.swapaxes(0, 1), after.swapaxes(0, 1)
            if self.starts[0] > self.starts[-1]:
                before, after = before[::-1], after[::-1]
            after[0] = first
            after[1:] = before[:-1]
            return
        for step in range(length):
            rows, count = self.rows(step), int(self.counts[step])
            known = min(count, int(self.counts[step - 1])) if step else 0
            target = out[rows]
            if known:
                target[:known] = states[self.rows(step - 1)][:known]
            target[known:] = first[known:count]


def lstm(
    steps: TimeSteps,
    gates: Array,
    weight: Array,
    projection: Array | None,
    h: Array,
    c: Array,
    cells: Array,
    out: Array,
) -> None:
    """Compute an LSTM layer in one direction.

    Args:
        steps: which rows the steps have.
        gates: [rows, 4 H], the inputs' products with biases, i, f, g, o; overwritten by the gates.
        weight: [4 H, P], that of the states.
        projection: [P, H], or None: then P is H.
        h: [batch, P], the first states; overwritten by the last.
        c: [batch, H], the first cells; overwritten by the last.
        cells: [rows, H], written.
        out: [rows, P], written: the states.
    """
    if not _is_compiled(steps, gates, weight, h, c):
        lstm_numpy(steps, gates, weight, projection, h, c, cells, out)
        return
    dtype, blocks = gates.dtype, _blocks(steps, h, weight)
    body = partial(
        loops.lstm_loop,
        *steps,
        gates,
        cells,
        out,
        h,
        c,
        *_forward_product(steps, blocks, weight, h),
        _packed(projection, True, dtype),
        blocks.scratch(c.shape[1], dtype),
        blocks.scratch(h.shape[1], dtype, projection is not None),
    )
    in_ranges(body, blocks.bounds, blocks.workers)


def lstm_backward(
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
    """Compute the gradients of the gates, before activation, of `lstm`.

    Args:
        steps, gates, cells, weight, projection: of the forward.
        first_cells: [batch, H].
        dout: [rows, P], the gradient of all states.
        dh: [batch, P], the gradient of the last states; overwritten by that of the first.
        dc: [batch, H], likewise for cells.
        dgates: [rows, 4 H], written.
        dprojected: [rows, P], written: the whole gradient of the states; None without projection.
    """
    if not _is_compiled(steps, gates, weight, dout, dh, dc):
        lstm_backward_numpy(
            steps, gates, cells, first_cells, weight, projection, dout, dh, dc, dgates, dprojected
        )
        return
    dtype = gates.dtype
    packed = _packed(None if _is_single(steps) else weight, False, dtype)
    projected_by = _packed(projection, False, dtype)
    projected = np.empty((0, dh.shape[1]), dtype) if dprojected is None else dprojected
    blocks, passed = _blocks(steps, dh, weight), _padded(dh)
    body = partial(
        loops.lstm_backward_loop,
        *steps,
        gates,
        cells,
        first_cells,
        dout,
        passed,
        dc,
        dgates,
        packed,
        projected_by,
        blocks.scratch(dc.shape[1], dtype, projection is not None),
        projected,
    )
    in_ranges(body, blocks.bounds, blocks.workers)
    dh[...] = passed[:, : dh.shape[1]]
    if _is_single(steps):
        matmul(dgates, weight, dh)


def gru(
    steps: TimeSteps,
    gates: Array,
    weight: Array,
    bias: Array,
    h: Array,
    candidates: Array,
    out: Array,
) -> None:
    """Compute a GRU layer in one direction.

    Args:
        steps: which rows the steps have.
        gates: [rows, 3 H], the inputs' products with biases, r, z, n; overwritten by the gates.
        weight: [3 H, H], that of the states.
        bias: [3 H], added to the product of the states.
        h: [batch, H], the first states; overwritten by the last.
        candidates: [rows, H], written: the product of the states that r multiplies.
        out: [rows, H], written: the states.
    """
    if not _is_compiled(steps, gates, weight, h):
        gru_numpy(steps, gates, weight, bias, h, candidates, out)
        return
    blocks = _blocks(steps, h, weight)
    product = _forward_product(steps, blocks, weight, h, bias)
    body = partial(loops.gru_loop, *steps, gates, candidates, out, h, bias, *product)
    in_ranges(body, blocks.bounds, blocks.workers)


def gru_backward(
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
    """Compute the gradients of both products of `gru`.

    Args:
        steps, gates, candidates, weight, out: of the forward.
        first_states: [batch, H].
        dout: [rows, H], the gradient of all states.
        dh: [batch, H], the gradient of the last states; overwritten by that of the first.
        dinput: [rows, 3 H], written: the gradient of the inputs' product.
        dstate: [rows, 3 H], written: the gradient of the states' product.
    """
    arrays = (gates, candidates, first_states)
    if not _is_compiled(steps, gates, weight, dout, dh):
        gru_backward_numpy(steps, *arrays, weight, out, dout, dh, dinput, dstate)
        return
    packed = _packed(None if _is_single(steps) else weight, False, weight.dtype)
    blocks, passed = _blocks(steps, dh, weight), _padded(dh)
    rest = (out, dout, passed, dinput, dstate, packed)
    body = partial(loops.gru_backward_loop, *steps, *arrays, *rest)
    in_ranges(body, blocks.bounds, blocks.workers)
    dh[...] = passed[:, : dh.shape[1]]
    if _is_single(steps):
        product = memory.empty(dh.shape, dh.dtype)
        matmul(dstate, weight, product)
        dh += product


def rnn(steps: TimeSteps, weight: Array, h: Array, out: Array, is_relu: bool) -> None:
    """Compute an RNN layer in one direction, with tanh or relu.

    Args:
        steps: which rows the steps have.
        weight: [H, H], that of the states.
        h: [batch, H], the first states; overwritten by the last.
        out: [rows, H], the inputs' products with biases; overwritten by the states.
        is_relu: relu rather than tanh.
    """
    if not _is_compiled(steps, out, weight, h):
        rnn_numpy(steps, weight, h, out, is_relu)
        return
    blocks = _blocks(steps, h, weight)
    product = _forward_product(steps, blocks, weight, h)
    body = partial(loops.rnn_loop, *steps, out, h, is_relu, *product)
    in_ranges(body, blocks.bounds, blocks.workers)


def rnn_backward(
    steps: TimeSteps,
    weight: Array,
    out: Array,
    dout: Array,
    dh: Array,
    dgates: Array,
    is_relu: bool,
) -> None:
    """Compute the gradient before activation of `rnn`.

    Args:
        steps, weight, out, is_relu: of the forward.
        dout: [rows, H], the gradient of all states.
        dh: [batch, H], the gradient of the last states; overwritten by that of the first.
        dgates: [rows, H], written.
    """
    if not _is_compiled(steps, out, weight, dout, dh):
        rnn_backward_numpy(steps, weight, out, dout, dh, dgates, is_relu)
        return
    packed = _packed(None if _is_single(steps) else weight, False, weight.dtype)
    blocks, passed = _blocks(steps, dh, weight), _padded(dh)
    rest: tuple[Any, ...] = (out, dout, passed, dgates, is_relu, packed)
    in_ranges(partial(loops.rnn_backward_loop, *steps, *rest), blocks.bounds, blocks.workers)
    dh[...] = passed[:, : dh.shape[1]]
    if _is_single(steps):
        matmul(dgates, weight, dh)


def _is_compiled(steps: TimeSteps, *arrays: Array) -> bool:
    return (_is_single(steps) or len(arrays[0]) >= MIN_ROWS) and uses_numba(*arrays)


def _is_single(steps: TimeSteps) -> bool:
    return len(steps.starts) == 1


class _Blocks(NamedTuple):
    """Blocks of the batch, on whose number no bits depend.

    Attributes:
        bounds: their first elements, and the end.
        rows: the most that a block has.
        workers: threads that may compute.
    """

    bounds: Sequence[int]
    rows: int
    workers: int

    def scratch(self, columns: int, dtype: Any, is_used: bool = True) -> Array:
        """Return each worker's room for a product with panels; empty ones if it is not used."""
        shape = self.rows if is_used else 0, _padded_columns(columns, dtype)
        return memory.empty((self.workers, *shape), dtype)


def _blocks(steps: TimeSteps, states: Array, weight: Array) -> _Blocks:
    batch = len(states)
    if not batch:
        return _Blocks((0,), 0, 1)
    blocks = max(-(-batch // BLOCK_ROWS), min(num_workers(), batch // _MIN_BLOCK_ROWS))
    rows = -(-batch // (4 * min(blocks, MAX_RANGES))) * 4  # whole tiles of rows
    bounds = [*range(0, batch, rows), batch]
    cost = len(steps.starts) * rows * weight.size // _PER_ELEMENT
    return _Blocks(bounds, rows, num_workers(-(-(len(bounds) - 1) // block_items(cost))))


def _forward_product(
    steps: TimeSteps, blocks: _Blocks, weight: Array, states: Array, bias: Array | None = None
) -> tuple[Array, Array]:
    """Return the weight's panels, and each worker's room for products.

    For a single step there are no panels, and one room with the products.
    """
    if not _is_single(steps):
        return _packed(weight, True), blocks.scratch(weight.shape[0], weight.dtype)
    product = memory.empty((states.shape[0], weight.shape[0]), states.dtype)
    matmul(states, weight.T, product, bias)
    return _packed(None, True, weight.dtype), product[None]


def _packed(weight: Array | None, transposed: bool, dtype: Any = None) -> Array:
    """Return the panels of a weight as one matrix; an empty one without weight."""
    _panels.register()
    if weight is None:
        return np.empty((0, 1), dtype)
    panels = _panels.pack(np.ascontiguousarray(weight), transposed)
    return panels.reshape(-1, panels.shape[2])


def _padded_columns(columns: int, dtype: Any) -> int:
    """Return the columns of a product with panels."""
    wide = _panels.width(np.dtype(dtype))
    return -(-columns // wide) * wide


def _padded(array: Array) -> Array:
    rows, columns = array.shape
    padded = memory.empty((rows, _padded_columns(columns, array.dtype)), array.dtype)
    padded[:, :columns] = array
    return padded
