"""Recurrent layers as functions: stacks of layers and directions, and single steps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.dtypes import cast, real_floating
from offgrad.ops._nn.recurrent import Gru, Lstm, Rnn
from offgrad.ops._random.dropout import dropout as drop
from offgrad.ops._shape.joining import cat, stack

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import TimeSteps

__all__ = [
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn_relu",
    "rnn_relu_cell",
    "rnn_tanh",
    "rnn_tanh_cell",
]

_PARAMETERS = (
    "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first",
)  # fmt: skip


def _regular_steps(length: int, batch: int, batch_first: bool, reverse: bool) -> "TimeSteps":
    starts = np.arange(length) * (1 if batch_first else batch)
    ordered = starts[::-1].copy() if reverse else starts
    return kernels.TimeSteps(ordered, np.full(length, batch), length if batch_first else 1)


def _packed_steps(counts: Any, reverse: bool) -> "TimeSteps":
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]])
    if reverse:
        return kernels.TimeSteps(starts[::-1].copy(), counts[::-1].copy(), 1)
    return kernels.TimeSteps(starts, counts, 1)


def _stack(
    op: type[Op],
    where: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    **options: Any,
) -> "tuple[Tensor, ...]":
    """Run all layers; return the result and the last states."""
    is_packed = "batch_sizes" in kwargs or (len(args) > 3 and isinstance(args[3], (list, tuple)))
    names = (("data", "batch_sizes", "hx") if is_packed else ("input", "hx")) + _PARAMETERS
    given = dict(zip(names, args, strict=False)) | kwargs
    states = given["hx"]
    hx = [states] if not isinstance(states, (list, tuple)) else list(states)
    x = real_floating(given["data" if is_packed else "input"], where)
    dtype = x._array.dtype
    batch_first = bool(given.get("batch_first", False))
    if is_packed:
        counts = np.ascontiguousarray(given["batch_sizes"]._array, np.int64)
        rows, leading = x, x._array.shape[:1]
    else:
        if x._array.ndim != 3:
            raise RuntimeError(f"{where}: the input must have 3 dimensions, got a {describe(x)}")
        leading = x._array.shape[:2]
        length, batch = reversed(leading) if batch_first else leading
        if not length:
            raise RuntimeError(
                f"{where}: the sequence must have at least one step, got a {describe(x)}"
            )
        rows = x.reshape(leading[0] * leading[1], x._array.shape[2])
    if dtype.itemsize < 4:
        rows, hx = cast(rows, np.float32), [cast(each, np.float32) for each in hx]
    weights = [cast(each, np.float32) if dtype.itemsize < 4 else each for each in given["params"]]
    directions = 2 if given["bidirectional"] else 1
    per_layer = len(weights) // (given["num_layers"] * directions)
    last: list[list[Tensor]] = [[] for _ in hx]
    for layer in range(given["num_layers"]):
        results = []
        for direction in range(directions):
            at = layer * directions + direction
            steps = (
                _packed_steps(counts, direction == 1)
                if is_packed
                else _regular_steps(length, batch, batch_first, direction == 1)
            )
            out, *ends = _one(
                op,
                rows,
                [each[at] for each in hx],
                weights[at * per_layer : (at + 1) * per_layer],
                given["has_biases"],
                {"steps": steps, **options},
            )
            results.append(out)
            for ends_so_far, end in zip(last, ends, strict=True):
                ends_so_far.append(end)
        rows = results[0] if directions == 1 else cat(results, 1)
        if given["dropout"] and given["train"] and layer < given["num_layers"] - 1:
            rows = drop(rows, given["dropout"], True)
    ends = [each[0].unsqueeze(0) if len(each) == 1 else stack(each) for each in last]
    result = rows if is_packed else rows.reshape(*leading, rows._array.shape[1])
    return tuple(cast(each, dtype) for each in (result, *ends))


def _one(
    op: type[Op],
    rows: "Tensor",
    states: "list[Tensor]",
    weights: "Sequence[Tensor]",
    has_biases: bool,
    options: dict[str, Any],
) -> "tuple[Any, ...]":
    """Run one layer in one direction."""
    weights = list(weights)
    if not has_biases:
        weights[2:2] = [None, None]  # type: ignore[list-item]
    if op is Lstm and len(weights) == 4:
        weights.append(None)  # type: ignore[arg-type]
    return op.apply_all(rows, *states, *weights, options=options)


@lower_precision
def lstm(*args: Any, **kwargs: Any) -> "tuple[Tensor, Tensor, Tensor]":
    """Run an LSTM of several layers and directions; return the result, last states, last cells.

    Called as ``lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)`` or, with a packed sequence, as ``lstm(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``.

    Args:
        input: [T, B, I], or [B, T, I] with `batch_first`.
        data, batch_sizes: of a packed sequence.
        hx: the first states [layers * directions, B, P] and cells [layers * directions, B, H].
        params: the weights and biases, layer by layer, and in each direction by direction.
        has_biases: whether `params` has biases.
        num_layers: the number of layers.
        dropout: the probability of dropping a result between layers, while `train` is true.
        train: see `dropout`.
        bidirectional: run each layer in both directions.
        batch_first: see `input`.

    Raises:
        RuntimeError: if shapes do not fit.
    """
    return _stack(Lstm, "lstm", args, kwargs)  # type: ignore[return-value]


def gru(*args: Any, **kwargs: Any) -> "tuple[Tensor, Tensor]":
    """Run a GRU of several layers and directions; the arguments are those of `lstm`, `hx` a tensor.

    Returns the result and the last states.
    """
    return _stack(Gru, "gru", args, kwargs)  # type: ignore[return-value]


@lower_precision
def rnn_tanh(*args: Any, **kwargs: Any) -> "tuple[Tensor, Tensor]":
    """Run an RNN with tanh of several layers and directions; the arguments are those of `gru`."""
    return _stack(Rnn, "rnn_tanh", args, kwargs, is_relu=False)  # type: ignore[return-value]


@lower_precision
def rnn_relu(*args: Any, **kwargs: Any) -> "tuple[Tensor, Tensor]":
    """Run an RNN with relu of several layers and directions; the arguments are those of `gru`."""
    return _stack(Rnn, "rnn_relu", args, kwargs, is_relu=True)  # type: ignore[return-value]


def _step(
    op: type[Op],
    where: str,
    input: "Tensor",
    states: "Sequence[Tensor]",
    weights: "Sequence[Any]",
    **options: Any,
) -> "tuple[Tensor, ...]":
    """Run one step of a batch; return the next states."""
    x = real_floating(input, where)
    if x._array.ndim != 2:
        raise RuntimeError(f"{where}: the input must be [batch, features], got a {describe(x)}")
    batch, features = x._array.shape
    w_ih, w_hh = weights[0], weights[1]
    if features != w_ih._array.shape[1]:
        raise RuntimeError(
            f"{where}: input has inconsistent input_size: got {features} expected "
            f"{w_ih._array.shape[1]}"
        )
    for at, each in enumerate(states):
        size = w_hh._array.shape[1]
        if each._array.shape[0] != batch:
            raise RuntimeError(
                f"{where}: Input batch size {batch} doesn't match hidden{at} batch size "
                f"{each._array.shape[0]}"
            )
        if each._array.shape[1:] != (size,):
            raise RuntimeError(
                f"{where}: hidden{at} has inconsistent hidden_size: got {each._array.shape[1]}, "
                f"expected {size}"
            )
    tensors = [x, *states, *weights, *([None] if op is Lstm else [])]
    dtype = x._array.dtype
    if dtype.itemsize < 4:
        tensors = [None if each is None else cast(each, np.float32) for each in tensors]
    options["steps"] = kernels.TimeSteps(np.zeros(1, np.int64), np.full(1, batch), 1)
    _, *ends = op.apply_all(*tensors, options=options)
    return tuple(cast(each, dtype) for each in ends)


def lstm_cell(
    input: "Tensor",
    hx: "Sequence[Tensor]",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> "tuple[Tensor, Tensor]":
    """Return the next state and cell, [B, H] each, of the input [B, I] and the last ones `hx`.

    Raises:
        RuntimeError: if shapes do not fit.
    """
    return _step(Lstm, "lstm_cell", input, hx, (w_ih, w_hh, b_ih, b_hh))  # type: ignore[return-value]


def gru_cell(
    input: "Tensor",
    hx: "Tensor",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> "Tensor":
    """Return the next state [B, H] of the input [B, I] and the last state."""
    return _step(Gru, "gru_cell", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@lower_precision
def rnn_tanh_cell(
    input: "Tensor",
    hx: "Tensor",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> "Tensor":
    """Return ``tanh(W_ih x + b_ih + W_hh h + b_hh)``."""
    weights = (w_ih, w_hh, b_ih, b_hh)
    return _step(Rnn, "rnn_tanh_cell", input, (hx,), weights, is_relu=False)[0]


@lower_precision
def rnn_relu_cell(
    input: "Tensor",
    hx: "Tensor",
    w_ih: "Tensor",
    w_hh: "Tensor",
    b_ih: "Tensor | None" = None,
    b_hh: "Tensor | None" = None,
) -> "Tensor":
    """Return ``relu(W_ih x + b_ih + W_hh h + b_hh)``."""
    weights = (w_ih, w_hh, b_ih, b_hh)
    return _step(Rnn, "rnn_relu_cell", input, (hx,), weights, is_relu=True)[0]
