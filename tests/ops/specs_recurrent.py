"""Recurrent layers."""

from typing import Any

import numpy as np

from offgrad.ops._nn import recurrent
from tests.ops.opspec import OpSpec

I, H, P = 1, 2, 1  # noqa: E741
LSTM = (recurrent.Lstm, recurrent.LstmBackward)
GRU = (recurrent.Gru, recurrent.GruBackward)
RNN = (recurrent.Rnn, recurrent.RnnBackward)
COUNTS = np.array([2, 1])


def weights(gates: int, states: int, *, bias: bool = True, size: int = H) -> tuple[Any, ...]:
    biases = ((gates * size,), (gates * size,)) if bias else ()
    return (gates * size, I), (gates * size, states), *biases


def _lstm(m: Any, x: Any, h: Any, c: Any, *params: Any, **options: Any) -> Any:
    given = {"bidirectional": False, "batch_first": False, "num_layers": 1, **options}
    return m.lstm(
        x, (h, c), list(params), len(params) > 3, given["num_layers"], 0.0, False,
        given["bidirectional"], given["batch_first"],
    )  # fmt: skip


def _packed(m: Any, name: str, x: Any, counts: Any, hx: Any, params: Any) -> Any:
    """Run both directions with the same weights and no biases."""
    return getattr(m, name)(x, counts, hx, [*params, *params], False, 1, 0.0, False, True)


def _reference(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, d: Any) -> Any:
    def sigmoid(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    out, state, cell = [], h[0], c[0]
    for row in x:
        i, f, g, o = np.split(row @ w.T + b + state @ u.T + d, 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        state = sigmoid(o) * np.tanh(cell)
        out.append(state)
    return np.stack(out), state[None], cell[None]


SPECS = [
    OpSpec("lstm", LSTM, _lstm, [((2, 2, I), (1, 2, H), (1, 2, H), *weights(4, H))], _reference),
    OpSpec("lstm_projected", LSTM,
           lambda m, *each: _lstm(m, *each, batch_first=True),
           [((1, 2, I), (1, 1, P), (1, 1, H), *weights(4, P), (P, H))], torch=False),
    OpSpec("lstm_no_bias", LSTM,
           lambda m, x, h, c, w, u: m.lstm(x, (h, c), [w, u], False, 1, 0.0, False, False, False),
           [((2, 1, I), (1, 1, H), (1, 1, H), *weights(4, H, bias=False))]),
    OpSpec("lstm_packed", LSTM,
           lambda m, x, n, h, c, *each: _packed(m, "lstm", x, n, (h, c), each),
           [((3, I), COUNTS, (2, 2, 1), (2, 2, 1), *weights(4, 1, bias=False, size=1))]),
    OpSpec("lstm_cell", LSTM, lambda m, x, h, c, *each: m.lstm_cell(x, (h, c), *each),
           [((1, I), (1, H), (1, H), *weights(4, H, bias=False))]),
    OpSpec("gru", GRU,
           lambda m, x, h, *each: m.gru(x, h, list(each), True, 1, 0.0, False, False, True),
           [((2, 2, I), (1, 2, H), *weights(3, H))]),
    OpSpec("gru_packed", GRU, lambda m, x, n, h, *each: _packed(m, "gru", x, n, h, each),
           [((3, I), COUNTS, (2, 2, 1), *weights(3, 1, bias=False, size=1))]),
    OpSpec("gru_cell", GRU, lambda m, *each: m.gru_cell(*each),
           [((1, I), (1, H), *weights(3, H, bias=False))]),
    OpSpec("rnn_tanh", RNN,
           lambda m, x, h, *each: m.rnn_tanh(x, h, list(each), True, 1, 0.0, False, False, False),
           [((2, 1, I), (1, 1, H), *weights(1, H))], third=True),
    OpSpec("rnn_relu_packed", RNN, lambda m, x, n, h, *each: _packed(m, "rnn_relu", x, n, h, each),
           [((3, I), COUNTS, (2, 2, 1), *weights(1, 1, bias=False, size=1))]),
    OpSpec("rnn_tanh_cell", RNN, lambda m, *each: m.rnn_tanh_cell(*each),
           [((2, I), (2, H), *weights(1, H))]),
    OpSpec("rnn_relu_cell", RNN, lambda m, *each: m.rnn_relu_cell(*each),
           [((2, I), (2, H), *weights(1, H))]),
]  # fmt: skip
