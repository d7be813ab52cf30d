"""Recurrent layers: LSTM, GRU and RNN over whole sequences, one operation a layer and direction."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.ops._linalg.affine import linear
from offgrad.ops._nn.recurrent_base import Cell, Layer, LayerBackward

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import TimeSteps


class Lstm(Layer):
    """i, f, o = sigmoid(...), g = tanh(...), c' = f c + i g, h' = o tanh(c'), and W_hr h' if given.

    Keeps x, the first states, the weights, the gates, the cells of all rows and the result.
    Source: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation, 1997.
    """

    slots = (
        "input", "hx", "cx", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr",
    )  # fmt: skip
    computed = ("gates", "cells")

    def forward(
        self,
        x: Array,
        hx: Array,
        cx: Array,
        weight_ih: Array,
        weight_hh: Array,
        bias_ih: Array | None,
        bias_hh: Array | None,
        weight_hr: Array | None,
        options: dict[str, Any],
    ) -> tuple[Array, ...]:
        """Return the states [rows, P], the last state [batch, P] and the last cell [batch, H]."""
        self.options = options
        bias = None if bias_ih is None or bias_hh is None else bias_ih + bias_hh
        gates = _input_product(x, weight_ih, bias)
        h, c = memory.copy(hx), memory.copy(cx)
        cells = memory.empty((len(x), c.shape[1]), x.dtype)
        out = memory.empty((len(x), h.shape[1]), x.dtype)
        kernels.lstm(options["steps"], gates, weight_hh, weight_hr, h, c, cells, out)
        inputs = (x, hx, cx, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr)
        self.keep(inputs, gates=gates, cells=cells, output=out)
        return out, h, c


class LstmBackward(LayerBackward):
    """The gradients of an LSTM layer; keeps its inputs and the incoming gradients."""

    slots = Lstm.slots
    states = 2

    def forward(self, *inputs: Any, arrays: Any, options: Any, needs: Any) -> Any:
        """Return the gradients that `needs` asks for; both biases have one."""
        self.options, self.needs = options, needs
        grads, given = inputs[:3], inputs[3:]
        self.keep(grads, given)
        x, hx, cx, weight_ih, weight_hh, _, _, weight_hr = given
        steps, out, gates, cells = options["steps"], arrays["output"], *_of(arrays, "gates cells")
        dh, dc = _start(grads[1], hx), _start(grads[2], cx)
        dgates = memory.empty(gates.shape, gates.dtype)
        dprojected = None if weight_hr is None else memory.empty(out.shape, out.dtype)
        kernels.lstm_backward(
            steps, gates, cells, memory.contiguous(cx), weight_hh, weight_hr,
            _rows(grads[0], out), dh, dc, dgates, dprojected,
        )  # fmt: skip
        need_bias = needs[5] or needs[6]
        return (
            _input_gradient(dgates, weight_ih) if needs[0] else None,
            dh if needs[1] else None,
            dc if needs[2] else None,
            _product(dgates.T, memory.contiguous(x)) if needs[3] else None,
            _product(dgates.T, _before(steps, out, hx)) if needs[4] else None,
            _row_sum(dgates) if need_bias else None,
            _projection_gradient(dprojected, gates, cells) if needs[7] else None,
        )

    @staticmethod
    def spread(results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradient of the biases twice."""
        *others, bias, projection = results
        return *others, bias, bias, projection

    @staticmethod
    def gather(results: "list[Tensor | None]") -> "tuple[Tensor | None, ...]":
        """Return the gradient of the biases once."""
        *others, bias_ih, bias_hh, projection = results
        return *others, bias_hh if bias_ih is None else bias_ih, projection

    @staticmethod
    def cell(options: dict[str, Any]) -> Cell:
        """Return the formula of a step."""

        def step(product: "Tensor", known: "dict[str, Tensor]", h: "Tensor", c: "Tensor") -> Any:
            gates = product + linear(h, known["weight_hh"], known.get("bias_hh"))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (linear(h, known["weight_hr"]) if "weight_hr" in known else h), c

        return step


Lstm.gradient = LstmBackward


class Gru(Layer):
    """r, z = sigmoid(...), n = tanh(W_in x + r (W_hn h + b)), h' = (1 - z) n + z h.

    Keeps x, the first state, the weights, the gates, W_hn h + b of all rows and the result.
    Source: K. Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014,
    with the reset gate after the product, as cuDNN has it.
    """

    slots = ("input", "hx", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
    computed = ("gates", "candidates")

    def forward(
        self,
        x: Array,
        hx: Array,
        weight_ih: Array,
        weight_hh: Array,
        bias_ih: Array | None,
        bias_hh: Array | None,
        options: dict[str, Any],
    ) -> tuple[Array, ...]:
        """Return the states [rows, H] and the last state [batch, H]."""
        self.options = options
        gates = _input_product(x, weight_ih, bias_ih)
        h = memory.copy(hx)
        bias = np.zeros(len(weight_hh), x.dtype) if bias_hh is None else bias_hh
        candidates = memory.empty((len(x), h.shape[1]), x.dtype)
        out = memory.empty((len(x), h.shape[1]), x.dtype)
        kernels.gru(options["steps"], gates, weight_hh, memory.contiguous(bias), h, candidates, out)
        inputs = (x, hx, weight_ih, weight_hh, bias_ih, bias_hh)
        self.keep(inputs, gates=gates, candidates=candidates, output=out)
        return out, h


class GruBackward(LayerBackward):
    """The gradients of a GRU layer; keeps its inputs and the incoming gradients."""

    slots = Gru.slots

    def forward(self, *inputs: Any, arrays: Any, options: Any, needs: Any) -> Any:
        """Return the gradients that `needs` asks for."""
        self.options, self.needs = options, needs
        grads, given = inputs[:2], inputs[2:]
        self.keep(grads, given)
        x, hx, weight_ih, weight_hh, _, _ = given
        steps, out, gates, candidates = (
            options["steps"],
            arrays["output"],
            *_of(arrays, "gates candidates"),
        )
        dh = _start(grads[1], hx)
        dinput, dstate = (memory.empty(gates.shape, gates.dtype) for _ in range(2))
        kernels.gru_backward(
            steps, gates, candidates, memory.contiguous(hx), weight_hh, out,
            _rows(grads[0], out), dh, dinput, dstate,
        )  # fmt: skip
        return (
            _input_gradient(dinput, weight_ih) if needs[0] else None,
            dh if needs[1] else None,
            _product(dinput.T, memory.contiguous(x)) if needs[2] else None,
            _product(dstate.T, _before(steps, out, hx)) if needs[3] else None,
            _row_sum(dinput) if needs[4] else None,
            _row_sum(dstate) if needs[5] else None,
        )

    @staticmethod
    def cell(options: dict[str, Any]) -> Cell:
        """Return the formula of a step."""

        def step(product: "Tensor", known: "dict[str, Tensor]", h: "Tensor") -> Any:
            state_product = linear(h, known["weight_hh"], known.get("bias_hh"))
            (r, z, n), (hr, hz, hn) = product.chunk(3, 1), state_product.chunk(3, 1)
            n = (n + (r + hr).sigmoid() * hn).tanh()
            return (n + (z + hz).sigmoid() * (h - n),)

        return step


Gru.gradient = GruBackward


class Rnn(Layer):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it.

    Keeps x, the first state, the weights and the result.
    """

    slots = Gru.slots
    computed = ()

    def forward(
        self,
        x: Array,
        hx: Array,
        weight_ih: Array,
        weight_hh: Array,
        bias_ih: Array | None,
        bias_hh: Array | None,
        options: dict[str, Any],
    ) -> tuple[Array, ...]:
        """Return the states [rows, H] and the last state [batch, H]."""
        self.options = options
        bias = None if bias_ih is None or bias_hh is None else bias_ih + bias_hh
        out, h = _input_product(x, weight_ih, bias), memory.copy(hx)
        kernels.rnn(options["steps"], weight_hh, h, out, options["is_relu"])
        self.keep((x, hx, weight_ih, weight_hh, bias_ih, bias_hh), output=out)
        return out, h


class RnnBackward(LayerBackward):
    """The gradients of an RNN layer; keeps its inputs and the incoming gradients."""

    slots = Rnn.slots

    def forward(self, *inputs: Any, arrays: Any, options: Any, needs: Any) -> Any:
        """Return the gradients that `needs` asks for; both biases have one."""
        self.options, self.needs = options, needs
        grads, given = inputs[:2], inputs[2:]
        self.keep(grads, given)
        x, hx, weight_ih, weight_hh, _, _ = given
        steps, out = options["steps"], arrays["output"]
        dh, dgates = _start(grads[1], hx), memory.empty(out.shape, out.dtype)
        dout = _rows(grads[0], out)
        kernels.rnn_backward(steps, weight_hh, out, dout, dh, dgates, options["is_relu"])
        return (
            _input_gradient(dgates, weight_ih) if needs[0] else None,
            dh if needs[1] else None,
            _product(dgates.T, memory.contiguous(x)) if needs[2] else None,
            _product(dgates.T, _before(steps, out, hx)) if needs[3] else None,
            _row_sum(dgates) if needs[4] or needs[5] else None,
        )

    @staticmethod
    def spread(results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradient of the biases twice."""
        return *results, results[-1]

    @staticmethod
    def gather(results: "list[Tensor | None]") -> "tuple[Tensor | None, ...]":
        """Return the gradient of the biases once."""
        *others, bias_ih, bias_hh = results
        return *others, bias_hh if bias_ih is None else bias_ih

    @staticmethod
    def cell(options: dict[str, Any]) -> Cell:
        """Return the formula of a step."""

        def step(product: "Tensor", known: "dict[str, Tensor]", h: "Tensor") -> Any:
            total = product + linear(h, known["weight_hh"], known.get("bias_hh"))
            return (total.relu() if options["is_relu"] else total.tanh(),)

        return step


Rnn.gradient = RnnBackward


def _of(arrays: dict[str, Array], names: str) -> list[Array]:
    return [arrays[name] for name in names.split()]


def _input_product(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return x W^T + b for the rows of all steps."""
    out = memory.empty((len(x), len(weight)), x.dtype)
    kernels.matmul(memory.contiguous(x), memory.contiguous(weight).T, out, bias)
    return out


def _input_gradient(dgates: Array, weight: Array) -> Array:
    """Return G W for the rows of all steps."""
    out = memory.empty((len(dgates), weight.shape[1]), dgates.dtype)
    kernels.matmul(dgates, memory.contiguous(weight), out)
    return out


def _product(a: Array, b: Array) -> Array:
    out = memory.empty((a.shape[0], b.shape[1]), a.dtype)
    if a.shape[1] == 1:
        np.multiply(a, b, out=out)  # BLAS takes several times as long
    else:
        kernels.matmul(a, memory.contiguous(b), out)
    return out


def _row_sum(x: Array) -> Array:
    out = memory.empty(x.shape[1], x.dtype)
    kernels.sum_rows(x, out)
    return out


def _start(grad: Array | None, like: Array) -> Array:
    """Return an incoming gradient to write into, zeros for None."""
    return memory.zeros(like.shape, like.dtype) if grad is None else memory.copy(grad)


def _rows(grad: Array | None, like: Array) -> Array:
    """Return an incoming gradient to read, zeros for None."""
    return memory.zeros(like.shape, like.dtype) if grad is None else memory.contiguous(grad)


def _before(steps: "TimeSteps", out: Array, first: Array) -> Array:
    """Return the state before each row."""
    before = memory.empty(out.shape, out.dtype)
    steps.previous(out, first, before)
    return before


def _projection_gradient(dprojected: Array | None, gates: Array, cells: Array) -> Array:
    """Return the gradient of W_hr; the hidden states are o tanh(c)."""
    assert dprojected is not None
    hidden = memory.empty(cells.shape, cells.dtype)
    kernels.elementwise(np.tanh, hidden, cells)
    np.multiply(hidden, gates[:, 3 * cells.shape[1] :], out=hidden)
    return _product(dprojected.T, hidden)
