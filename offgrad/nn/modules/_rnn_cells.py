"""Single steps of recurrent layers: RNN, LSTM and GRU."""

from math import sqrt
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import init
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter


class RNNCellBase(Module):
    """Base of the single steps: input [B, input_size] or [input_size], states likewise.

    Args:
        input_size: features of the input.
        hidden_size: features of the states.
        bias: add biases.
        num_chunks: number of gates.
        device: "cpu" or "meta".
        dtype: of the parameters.
    """

    __constants__ = ["input_size", "hidden_size", "bias"]
    weight_ih: Parameter
    weight_hh: Parameter

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(ops.empty(rows, input_size, **kind))
        self.weight_hh = Parameter(ops.empty(rows, hidden_size, **kind))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(ops.empty(rows, **kind)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1/sqrt(hidden_size)."""
        bound = 1 / sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if not self.bias:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text

    def _check_dims(self, tensor: Tensor, what: str) -> None:
        if tensor.dim() not in (1, 2):
            raise ValueError(
                f"{type(self).__name__}: Expected {what} to be 1D or 2D, got {tensor.dim()}D "
                "instead"
            )

    def _run(self, function: Any, input: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
        """Call `function` with a batch, of one where the input has none; None stands for zeros."""
        is_batched = input.dim() == 2
        x = input if is_batched else input.unsqueeze(0)
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        given = [
            zeros if each is None else each if is_batched else each.unsqueeze(0) for each in states
        ]
        hx = given[0] if len(given) == 1 else tuple(given)
        results = function(x, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        ends = results if isinstance(results, tuple) else (results,)
        return ends if is_batched else tuple(each.squeeze(0) for each in ends)


class RNNCell(RNNCellBase):
    """A step of an RNN with tanh, or relu by ``nonlinearity="relu"``; see `RNNCellBase`."""

    __constants__ = ["input_size", "hidden_size", "bias", "nonlinearity"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state of the input and the last state; zeros if None."""
        self._check_dims(input, "input")
        if hx is not None:
            self._check_dims(hx, "hidden")
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(
                f"Unknown nonlinearity: {self.nonlinearity}; select 'tanh' or 'relu'"
            )
        function = ops.rnn_tanh_cell if self.nonlinearity == "tanh" else ops.rnn_relu_cell
        return self._run(function, input, hx)[0]


class LSTMCell(RNNCellBase):
    """A step of an LSTM; see `RNNCellBase`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next state and cell of the input and the last ones; zeros if None."""
        self._check_dims(input, "input")
        for at, each in enumerate(hx or ()):
            self._check_dims(each, f"hx[{at}]")
        state, cell = self._run(ops.lstm_cell, input, *(hx or (None, None)))
        return state, cell


class GRUCell(RNNCellBase):
    """A step of a GRU; see `RNNCellBase`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state of the input and the last state; zeros if None."""
        self._check_dims(input, "input")
        if hx is not None:
            self._check_dims(hx, "hidden")
        return self._run(ops.gru_cell, input, hx)[0]
