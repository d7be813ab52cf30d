"""Recurrent layers: RNN, LSTM, GRU, and single steps of them."""

import numbers
import warnings
from math import sqrt
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import describe
from offgrad.nn import init
from offgrad.nn.modules._rnn_cells import GRUCell, LSTMCell, RNNCell, RNNCellBase
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter
from offgrad.nn.utils.rnn import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_FUNCTIONS: dict[str, Any] = {
    "LSTM": ops.lstm,
    "GRU": ops.gru,
    "RNN_TANH": ops.rnn_tanh,
    "RNN_RELU": ops.rnn_relu,
}


def apply_permutation(tensor: Tensor, permutation: Tensor, dim: int = 1) -> Tensor:
    """Return `tensor` with the entries of `dim` in another order."""
    return tensor.index_select(dim, permutation)


class RNNBase(Module):
    """Base of the recurrent layers over sequences.

    Input [T, B, input_size], [B, T, input_size] with `batch_first`, [T, input_size], or packed.

    Args:
        mode: ``"LSTM"``, ``"GRU"``, ``"RNN_TANH"`` or ``"RNN_RELU"``.
        input_size: features of the input.
        hidden_size: features of the states.
        num_layers: layers, each with the result of the one before as its input.
        bias: add biases.
        batch_first: sequences stand along the second dimension of input and result.
        dropout: the probability of dropping a result between layers, in training.
        bidirectional: read each sequence forward and backward; the results are concatenated.
        proj_size: features to which an LSTM projects its states; 0 for none.
        device: "cpu" or "meta".
        dtype: of the parameters.

    Raises:
        ValueError, TypeError: for sizes, modes or probabilities out of range.
    """

    __constants__ = [
        "mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout",
        "bidirectional", "proj_size",
    ]  # fmt: skip

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_options(
            mode, num_layers, dropout, proj_size, bias=bias, batch_first=batch_first,
            input_size=input_size, hidden_size=hidden_size,
        )  # fmt: skip
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        self.proj_size = proj_size
        self._all_weights: list[list[str]] = []
        real_size, gates = proj_size or hidden_size, _GATES[mode] * hidden_size
        directions = 2 if bidirectional else 1
        kind = {"device": device, "dtype": dtype}
        for layer in range(num_layers):
            features = real_size * directions if layer else input_size
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                shapes = {"weight_ih": (gates, features), "weight_hh": (gates, real_size)}
                if bias:
                    shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}  # type: ignore[dict-item]
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                self._all_weights.append([name + suffix for name in shapes])
                for name, shape in shapes.items():
                    setattr(self, name + suffix, Parameter(ops.empty(shape, **kind)))
        self.reset_parameters()

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, a list for each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Do nothing: parameters need not lie in one piece of memory."""

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1/sqrt(hidden_size)."""
        bound = 1 / sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        shown = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
            "bidirectional": False,
        }  # fmt: skip
        parts += [
            f"{name}={getattr(self, name)}"
            for name, default in shown.items()
            if getattr(self, name) != default
        ]
        return ", ".join(parts)

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise unless `input` has the dimensions, dtype and features that the layer takes.

        Raises:
            RuntimeError: for other dimensions or another number of features.
            ValueError: for another dtype.
        """
        weight = self._flat_weights[0]
        if input.dtype != weight.dtype and not ops.is_autocast_enabled("cpu"):
            raise ValueError(
                f"the input has another dtype than the weights, {input.dtype} and {weight.dtype}; "
                f"convert one of them: input.to({weight.dtype}) or model.to({input.dtype})"
            )
        expected = 2 if batch_sizes is not None else 3
        if input.dim() != expected:
            raise RuntimeError(
                f"input must have {expected} dimensions, got {input.dim()}: a {describe(input)}"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size, {self.input_size}, got "
                f"{input.shape[-1]}"
            )

    def _batch_of(self, input: Tensor, batch_sizes: Tensor | None) -> int:
        if batch_sizes is not None:
            return int(batch_sizes._array[0])
        return int(input.shape[0 if self.batch_first else 1])

    def get_expected_hidden_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """Return the shape of the first states."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        return count, self._batch_of(input, batch_sizes), self.proj_size or self.hidden_size

    def check_hidden_size(
        self,
        hx: Tensor,
        expected_hidden_size: tuple[int, int, int],
        msg: str = "Expected hidden size {}, got {}",
    ) -> None:
        """Raise RuntimeError unless `hx` has the expected shape."""
        if hx.shape != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(tuple(expected_hidden_size), list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise unless input and first states fit the layer."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """Return the states of the batch in another order."""
        return hx if permutation is None else apply_permutation(hx, permutation)

    def _first_states(self, shape: tuple[int, int, int], input: Tensor) -> Any:
        return input.new_zeros(shape)

    def _check_states_dims(self, is_batched: bool, hx: Any) -> None:
        dims, kind = (3, "batched 3-D") if is_batched else (2, "unbatched 2-D")
        if hx.dim() != dims:
            raise RuntimeError(
                f"For {kind} input, hx should also be {dims}-D but got {hx.dim()}-D tensor"
            )

    def _each_state(self, function: Any, hx: Any) -> Any:
        """Return `function` of the states: of both, where there are two."""
        return function(hx)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the states of all steps, and the last states.

        Args:
            input: see the class.
            hx: the first states [num_layers * directions, B, size]; zeros if None.
        """
        if isinstance(input, PackedSequence):
            data, batch_sizes, sorted_indices, unsorted_indices = input
        else:
            data, batch_sizes, sorted_indices, unsorted_indices = input, None, None, None
            if data.dim() not in (2, 3):
                kind = "RNN" if self.mode.startswith("RNN") else self.mode
                raise ValueError(
                    f"{kind}: Expected input to be 2D or 3D, got {data.dim()}D instead"
                )
        is_batched = batch_sizes is not None or data.dim() == 3
        batch_dim = 0 if self.batch_first else 1
        if not is_batched:
            data = data.unsqueeze(batch_dim)
        if hx is None:
            hx = self._first_states(self.get_expected_hidden_size(data, batch_sizes), data)
        else:
            if batch_sizes is None:
                self._check_states_dims(is_batched, hx)
            if not is_batched:
                hx = self._each_state(lambda each: each.unsqueeze(1), hx)
            hx = self.permute_hidden(hx, sorted_indices)
        self.check_forward_args(data, hx, batch_sizes)
        options = (
            hx, self._flat_weights, self.bias, self.num_layers, self.dropout, self.training,
            self.bidirectional,
        )  # fmt: skip
        function = _FUNCTIONS[self.mode]
        if batch_sizes is None:
            output, *ends = function(data, *options, self.batch_first)
        else:
            output, *ends = function(data, batch_sizes, *options)
            output = PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices)
        hidden = tuple(ends) if self.mode == "LSTM" else ends[0]
        if not is_batched:
            output = output.squeeze(batch_dim)
            hidden = self._each_state(lambda each: each.squeeze(1), hidden)
        return output, self.permute_hidden(hidden, unsorted_indices)


def _check_options(
    mode: str, num_layers: int, dropout: float, proj_size: int, *, bias: Any, batch_first: Any,
    input_size: Any, hidden_size: Any,
) -> None:  # fmt: skip
    if mode not in _GATES:
        raise ValueError(f"Unrecognized RNN mode: {mode}")
    is_number = isinstance(dropout, numbers.Number) and not isinstance(dropout, bool)
    if not is_number or not 0 <= dropout <= 1:
        raise ValueError(
            f"dropout should be a number in range [0, 1], a probability, got {dropout!r}"
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so one layer has "
            f"none: got dropout={dropout} and num_layers={num_layers}",
            stacklevel=4,
        )
    flags, sizes = {"bias": bias, "batch_first": batch_first}, {"input_size": input_size}
    sizes["hidden_size"] = hidden_size
    for kind, values in ((bool, flags), (int, sizes)):
        for name, value in values.items():
            if not isinstance(value, kind) and not (kind is int and isinstance(value, np.integer)):
                raise TypeError(
                    f"{name} should be of type {kind.__name__}, got: {type(value).__name__}"
                )
    for name, value in {**sizes, "num_layers": num_layers}.items():
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero, got {value}")
    if proj_size < 0:
        raise ValueError(
            f"proj_size should be a positive integer or zero, for no projection, got {proj_size}"
        )
    if proj_size >= hidden_size:
        raise ValueError(
            f"proj_size has to be smaller than hidden_size, got {proj_size} and {hidden_size}"
        )


def _refuse_projection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if "proj_size" in kwargs or len(args) > 7:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


class RNN(RNNBase):
    """Layers of ``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``, or relu by ``nonlinearity="relu"``.

    The arguments are those of `RNNBase` without `mode` and `proj_size`, with `nonlinearity` after
    `num_layers`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 3:
            nonlinearity, args = args[3], args[:3] + args[4:]
        else:
            nonlinearity = kwargs.pop("nonlinearity", "tanh")
        _refuse_projection(args, kwargs)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity {nonlinearity!r}. Select from 'tanh' or 'relu'."
            )
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", *args, **kwargs)
        self.nonlinearity = nonlinearity


class GRU(RNNBase):
    """Gated recurrent units; the arguments are those of `RNNBase` without `mode`, `proj_size`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_projection(args, kwargs)
        super().__init__("GRU", *args, **kwargs)


class LSTM(RNNBase):
    """Long short-term memory; states are pairs of state and cell.

    The arguments are those of `RNNBase` without `mode`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    def get_expected_cell_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """Return the shape of the first cells."""
        count, batch, _ = self.get_expected_hidden_size(input, batch_sizes)
        return count, batch, self.hidden_size

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise unless input, first states and first cells fit the layer."""
        self.check_input(input, batch_sizes)
        for at, expected in enumerate((self.get_expected_hidden_size, self.get_expected_cell_size)):
            message = f"Expected hidden[{at}] size {{}}, got {{}}"
            self.check_hidden_size(hidden[at], expected(input, batch_sizes), message)

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """Return states and cells with the batch in another order."""
        if permutation is None:
            return hx
        return tuple(apply_permutation(each, permutation) for each in hx)

    def _first_states(self, shape: tuple[int, int, int], input: Tensor) -> Any:
        cells = input.new_zeros((*shape[:2], self.hidden_size))
        return input.new_zeros(shape), cells

    def _check_states_dims(self, is_batched: bool, hx: Any) -> None:
        dims, kind = (3, "batched 3-D") if is_batched else (2, "unbatched 2-D")
        if hx[0].dim() != dims or hx[1].dim() != dims:
            raise RuntimeError(
                f"with a {kind} input, hx and cx need {dims} dimensions, got "
                f"{hx[0].dim()} and {hx[1].dim()}"
            )

    def _each_state(self, function: Any, hx: Any) -> Any:
        return tuple(function(each) for each in hx)
