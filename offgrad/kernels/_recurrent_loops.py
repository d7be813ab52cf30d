"""The compiled loops of recurrent layers: the steps of some elements of the batch, in order.

The product of the input and its weight stands in `gates` before, for all steps. Each step
multiplies the states by the recurrent weight, in panels, and computes the gates of a row in loops
that are short enough to vectorise: they meet few arrays, and the row stays in the cache. Without
panels the caller multiplies: a single step needs no copy of the weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._fastmath import sigmoid, tanh
from offgrad.kernels._jit import inlined, jit
from offgrad.kernels._panels import add_product


@inlined
def place(array: Any, row: int) -> Any:
    """The address of a row of a C-contiguous matrix."""
    return np.int64(array.ctypes.data) + row * array.shape[1] * array.itemsize


@inlined
def add_panels(
    a: Any, first: int, stride: int, count: int, depth: int, packed: Any, c: Any
) -> None:
    """Add the product of rows of `a`, from `first` on, and a packed matrix to `c`."""
    add_product(
        place(a, first),
        stride,
        count,
        depth,
        place(packed, 0),
        packed.shape[0] // depth,
        place(c, 0),
        c.shape[1],
        c.dtype.type(0),
    )


@inlined
def lstm_row(gates: Any, product: Any, c: Any, cells: Any, hidden: Any) -> None:
    """Activate the gates i, f, g, o in place; write the next cell and o tanh(c)."""
    size = c.size
    for j in range(2 * size):
        gates[j] = sigmoid(gates[j] + product[j])
    g, p = gates[2 * size : 3 * size], product[2 * size : 3 * size]
    for j in range(size):
        g[j] = tanh(g[j] + p[j])
    o, p = gates[3 * size : 4 * size], product[3 * size : 4 * size]
    for j in range(size):
        o[j] = sigmoid(o[j] + p[j])
    i, f = gates[:size], gates[size : 2 * size]
    for j in range(size):
        c[j] = f[j] * c[j] + i[j] * g[j]
    for j in range(size):
        cells[j] = c[j]
    for j in range(size):
        hidden[j] = o[j] * tanh(c[j])


@inlined
def lstm_row_backward(
    gates: Any, cells: Any, before: Any, dhidden: Any, dc: Any, dgates: Any
) -> None:
    """Write the gates' gradient before activation; turn dc into that of the cell before."""
    size = dc.size
    number = type(dc[0])
    one = number(1)
    o, do = gates[3 * size : 4 * size], dgates[3 * size : 4 * size]
    for j in range(size):
        t = tanh(cells[j])
        do[j] = dhidden[j] * t * o[j] * (one - o[j])
        dc[j] += dhidden[j] * o[j] * (one - t * t)
    i, g = gates[:size], gates[2 * size : 3 * size]
    di, dg = dgates[:size], dgates[2 * size : 3 * size]
    for j in range(size):
        di[j] = dc[j] * g[j] * i[j] * (one - i[j])
        dg[j] = dc[j] * i[j] * (one - g[j] * g[j])
    f, df = gates[size : 2 * size], dgates[size : 2 * size]
    for j in range(size):
        df[j] = dc[j] * before[j] * f[j] * (one - f[j])
        dc[j] *= f[j]


@inlined
def gru_row(gates: Any, product: Any, q: Any, h: Any, out: Any) -> None:
    """Activate the gates r, z, n in place; write the candidate's product q and the next state."""
    size = h.size
    for j in range(2 * size):
        gates[j] = sigmoid(gates[j] + product[j])
    p = product[2 * size : 3 * size]
    for j in range(size):
        q[j] = p[j]
    r, n = gates[:size], gates[2 * size : 3 * size]
    for j in range(size):
        n[j] = tanh(n[j] + r[j] * p[j])
    z = gates[size : 2 * size]
    for j in range(size):
        out[j] = n[j] + z[j] * (h[j] - n[j])


@inlined
def gru_row_backward(gates: Any, q: Any, before: Any, dh: Any, dinput: Any, dstate: Any) -> None:
    """Write the gradients of both products; keep in dh what passes by the gates."""
    size = q.size
    number = type(q[0])
    one = number(1)
    r, z, n = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    dz, dn = dinput[size : 2 * size], dinput[2 * size : 3 * size]
    for j in range(size):
        dn[j] = dh[j] * (one - z[j]) * (one - n[j] * n[j])
    for j in range(size):
        dz[j] = dh[j] * (before[j] - n[j]) * z[j] * (one - z[j])
    for j in range(size):
        dh[j] *= z[j]
    dr, dq = dinput[:size], dstate[2 * size : 3 * size]
    for j in range(size):
        dr[j] = dn[j] * q[j] * r[j] * (one - r[j])
    for j in range(size):
        dq[j] = dn[j] * r[j]
    for j in range(2 * size):
        dstate[j] = dinput[j]


@inlined
def _products(all_products: Any, packed: Any, start: int, stop: int, worker: int) -> Any:
    """Return a worker's room for products; without panels, the products of a block."""
    return all_products[worker] if packed.shape[0] > 0 else all_products[0, start:stop]


@jit
def lstm_loop(
    starts: Any,
    counts: Any,
    stride: int,
    gates: Any,
    cells: Any,
    out: Any,
    h: Any,
    c: Any,
    packed: Any,
    all_products: Any,
    packed_projection: Any,
    all_hidden: Any,
    all_projected: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    products = _products(all_products, packed, start, stop, worker)
    hidden, projected = all_hidden[worker], all_projected[worker]
    zero = gates.dtype.type(0)
    size, states = c.shape[1], h.shape[1]
    for step in range(starts.size):
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        if packed.shape[0] > 0:
            products[:count] = zero
            add_panels(h, start, states, count, states, packed, products)
        for b in range(count):
            row = begin + b * stride
            lstm_row(gates[row], products[b], c[start + b], cells[row], hidden[b])
        if projected.shape[0] > 0:
            projected[:count] = zero
            add_panels(hidden, 0, hidden.shape[1], count, size, packed_projection, projected)
        for b in range(count):
            state, result = h[start + b], out[begin + b * stride]
            source = projected[b] if projected.shape[0] > 0 else hidden[b]
            for j in range(states):
                state[j] = source[j]
                result[j] = source[j]


@jit
def lstm_backward_loop(
    starts: Any,
    counts: Any,
    stride: int,
    gates: Any,
    cells: Any,
    initial: Any,
    dout: Any,
    all_dh: Any,
    dc: Any,
    dgates: Any,
    packed: Any,
    packed_projection: Any,
    all_dhidden: Any,
    dprojected: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    dh, dhidden = all_dh[start:stop], all_dhidden[worker]
    zero = gates.dtype.type(0)
    size, states, four = dc.shape[1], dout.shape[1], gates.shape[1]
    for back in range(starts.size):
        step = starts.size - 1 - back
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        for b in range(count):
            passed, given = dh[b], dout[begin + b * stride]
            for j in range(states):
                passed[j] += given[j]
        if dprojected.shape[0] > 0:
            for b in range(count):
                dprojected[begin + b * stride] = dh[b, :states]
            dhidden[:count] = zero
            add_panels(dh, 0, dh.shape[1], count, states, packed_projection, dhidden)
        for b in range(count):
            row, item = begin + b * stride, start + b
            has_before = step > 0 and item < counts[step - 1]
            before = cells[starts[step - 1] + item * stride] if has_before else initial[item]
            passed = dhidden[b] if dprojected.shape[0] > 0 else dh[b]
            lstm_row_backward(gates[row], cells[row], before, passed[:size], dc[item], dgates[row])
        if packed.shape[0] > 0:
            dh[:count] = zero
            add_panels(dgates, begin, four * stride, count, four, packed, dh)


@jit
def gru_loop(
    starts: Any,
    counts: Any,
    stride: int,
    gates: Any,
    candidates: Any,
    out: Any,
    h: Any,
    bias: Any,
    packed: Any,
    all_products: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    products = _products(all_products, packed, start, stop, worker)
    states, three = h.shape[1], gates.shape[1]
    for step in range(starts.size):
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        if packed.shape[0] > 0:
            for b in range(count):
                products[b, :three] = bias
            add_panels(h, start, states, count, states, packed, products)
        for b in range(count):
            row, item = begin + b * stride, start + b
            gru_row(gates[row], products[b], candidates[row], h[item], out[row])
            h[item] = out[row]


@jit
def gru_backward_loop(
    starts: Any,
    counts: Any,
    stride: int,
    gates: Any,
    candidates: Any,
    initial: Any,
    out: Any,
    dout: Any,
    all_dh: Any,
    dinput: Any,
    dstate: Any,
    packed: Any,
    start: int,
    stop: int,
) -> None:
    dh = all_dh[start:stop]
    states, three = out.shape[1], gates.shape[1]
    for back in range(starts.size):
        step = starts.size - 1 - back
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        for b in range(count):
            row, item = begin + b * stride, start + b
            passed, given = dh[b], dout[row]
            for j in range(states):
                passed[j] += given[j]
            has_before = step > 0 and item < counts[step - 1]
            before = out[starts[step - 1] + item * stride] if has_before else initial[item]
            gru_row_backward(
                gates[row], candidates[row], before, dh[b, :states], dinput[row], dstate[row]
            )
        if packed.shape[0] > 0:
            add_panels(dstate, begin, three * stride, count, three, packed, dh)


@jit
def rnn_loop(
    starts: Any,
    counts: Any,
    stride: int,
    out: Any,
    h: Any,
    is_relu: bool,
    packed: Any,
    all_products: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    products = _products(all_products, packed, start, stop, worker)
    zero = out.dtype.type(0)
    states = h.shape[1]
    for step in range(starts.size):
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        if packed.shape[0] > 0:
            products[:count] = zero
            add_panels(h, start, states, count, states, packed, products)
        for b in range(count):
            result, product = out[begin + b * stride], products[b]
            if is_relu:
                for j in range(states):
                    value = result[j] + product[j]
                    result[j] = zero if value < zero else value
            else:
                for j in range(states):
                    result[j] = tanh(result[j] + product[j])
            h[start + b] = result


@jit
def rnn_backward_loop(
    starts: Any,
    counts: Any,
    stride: int,
    out: Any,
    dout: Any,
    all_dh: Any,
    dgates: Any,
    is_relu: bool,
    packed: Any,
    start: int,
    stop: int,
) -> None:
    dh = all_dh[start:stop]
    number = out.dtype.type
    zero, one = number(0), number(1)
    states = out.shape[1]
    for back in range(starts.size):
        step = starts.size - 1 - back
        count = min(counts[step], stop) - start
        if count <= 0:
            continue
        begin = starts[step] + start * stride
        for b in range(count):
            row = begin + b * stride
            passed, given, result, gradient = dh[b], dout[row], out[row], dgates[row]
            for j in range(states):
                total = passed[j] + given[j]
                if is_relu:
                    gradient[j] = zero if result[j] == zero else total
                else:
                    gradient[j] = total * (one - result[j] * result[j])
        if packed.shape[0] > 0:
            dh[:count] = zero
            add_panels(dgates, begin, states * stride, count, states, packed, dh)
