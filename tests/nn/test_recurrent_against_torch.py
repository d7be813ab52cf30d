"""Recurrent layers with torch's weights give torch's results, gradients, errors and text."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import offgrad
from tests.nn import against_torch
from tests.nn.against_torch import flat, random_inputs

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

LAYERS: dict[str, Callable[[Any], Any]] = {
    "LSTM": lambda nn: nn.LSTM(3, 4),
    "LSTM of two": lambda nn: nn.LSTM(3, 4, 2, bidirectional=True),
    "LSTM without bias": lambda nn: nn.LSTM(3, 4, bias=False, batch_first=True),
    "LSTM projected": lambda nn: nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True),
    "LSTM by position": lambda nn: nn.LSTM(3, 4, 2, True, True, 0.0, False),
    "GRU": lambda nn: nn.GRU(3, 4),
    "GRU of two": lambda nn: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
    "GRU without bias": lambda nn: nn.GRU(3, 4, bias=False),
    "RNN": lambda nn: nn.RNN(3, 4, 2),
    "RNN with relu": lambda nn: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
    "RNN by position": lambda nn: nn.RNN(3, 4, 1, "relu", False),
    "RNN in double": lambda nn: nn.RNN(3, 4).double(),
}
CELLS: dict[str, Callable[[Any], Any]] = {
    "LSTMCell": lambda nn: nn.LSTMCell(3, 4),
    "GRUCell": lambda nn: nn.GRUCell(3, 4, bias=False),
    "RNNCell": lambda nn: nn.RNNCell(3, 4),
    "RNNCell with relu": lambda nn: nn.RNNCell(3, 4, nonlinearity="relu"),
}
LENGTHS = [2, 5, 1]
close = partial(against_torch.close, tolerance=2e-5)


def pair(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return a layer of offgrad and one of torch with the same weights."""
    mine, theirs = make(offgrad.nn), make(torch.nn)
    assert repr(mine) == repr(theirs)
    state = theirs.state_dict()
    assert list(mine.state_dict()) == list(state)
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    return mine, theirs


def train(result: Any, tensors: list[Any], layer: Any) -> list[Any]:
    """Return the gradients of a loss that weighs all results differently."""
    loss = sum((each * each).sum() * (at + 1) for at, each in enumerate(flat(result)))
    loss.backward()
    return [each.grad for each in (*tensors, *layer.parameters())]


def states_of(layer: Any, *batch: int) -> list[tuple[int, ...]]:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = (count, *batch, layer.proj_size or layer.hidden_size)
    return [hidden, (count, *batch, layer.hidden_size)] if layer.mode == "LSTM" else [hidden]


def run(m: Any, layer: Any, kind: str) -> tuple[Any, list[Any]]:
    """Return results and gradients for a kind of input."""
    if kind == "unbatched":
        x, *hx = random_inputs(m, layer, (5, 3), *states_of(layer))
    else:
        x, *hx = random_inputs(m, layer, (3, 5, 3) if layer.batch_first else (5, 3, 3),
                        *states_of(layer, 3))  # fmt: skip
    states = tuple(hx) if layer.mode == "LSTM" else hx[0]
    given: Any = x
    if kind == "packed":
        rnn = m.nn.utils.rnn
        given = rnn.pack_padded_sequence(x, LENGTHS, layer.batch_first, enforce_sorted=False)
    if kind == "from zeros":
        output, ends = layer(given)
        hx = []
    else:
        output, ends = layer(given, states)
    if kind == "packed":
        output = rnn.pad_packed_sequence(output, layer.batch_first, padding_value=0.5)[0]
    return (output, ends), train((output, ends), [x, *hx], layer)


@pytest.mark.parametrize("kind", ["batched", "from zeros", "unbatched", "packed"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, kind: str) -> None:
    mine, theirs = pair(LAYERS[name])
    assert [len(each) for each in mine.all_weights] == [len(each) for each in theirs.all_weights]
    mine.flatten_parameters()
    (a, da), (b, db) = run(offgrad, mine, kind), run(torch, theirs, kind)
    close(a, b)
    close(da, db)


@pytest.mark.parametrize("name", ["LSTM", "LSTM projected", "GRU of two", "RNN with relu"])
def test_compiled_loops(name: str) -> None:
    """More rows than the NumPy references compute."""
    mine, theirs = pair(LAYERS[name])
    found: list[Any] = []
    for m, layer in ((offgrad, mine), (torch, theirs)):
        (x,) = random_inputs(m, layer, (7, 21, 3))
        result = layer(x)
        found.append((result, train(result, [x], layer)))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1], tolerance=1e-4)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", CELLS)
def test_cell(name: str, batch: tuple[int, ...]) -> None:
    mine, theirs = pair(CELLS[name])
    found: list[Any] = []
    for m, cell in ((offgrad, mine), (torch, theirs)):
        x, h, c = random_inputs(m, cell, (*batch, 3), (*batch, 4), (*batch, 4))
        is_pair = name == "LSTMCell"
        result = cell(x, cell(x, (h, c) if is_pair else h))
        found.append((result, cell(x), train(result, [x, h, *([c] if is_pair else [])], cell)))
    close(found[0], found[1])


def test_functions_take_torchs_arguments() -> None:
    mine, theirs = pair(LAYERS["GRU of two"])
    packing = {"lengths": [3, 2, 1], "batch_first": True}
    found: list[Any] = []
    for m, layer in ((offgrad, mine), (torch, theirs)):
        x, h = random_inputs(m, layer, (3, 5, 3), (4, 3, 4))
        weights = [each for group in layer.all_weights for each in group]
        whole = m.gru(x, h, weights, True, 2, 0.0, True, True, True)
        packed = m.nn.utils.rnn.pack_padded_sequence(x, **packing)
        part = m.gru(packed.data, packed.batch_sizes, h, weights, True, 2, 0.0, True, True)
        found.append((whole, part))
    close(found[0], found[1])


def test_dropout_between_layers() -> None:
    x = offgrad.ones(4, 2, 3)
    layer = offgrad.nn.GRU(3, 50, 2, dropout=0.5)
    a, b = layer(x)[0], layer(x)[0]
    assert not a.equal(b)
    layer.eval()
    assert layer(x)[0].equal(layer(x)[0])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats(kind: str) -> None:
    layer = offgrad.nn.LSTM(3, 4).to(getattr(offgrad, kind))
    output, (h, _) = layer(offgrad.ones(2, 2, 3, dtype=getattr(offgrad, kind)))
    assert output.dtype == h.dtype == getattr(offgrad, kind)
    output.sum().backward()
    assert layer.weight_ih_l0.grad.dtype == output.dtype


@pytest.mark.parametrize("policy", ["keep", "disk", "recompute"])
def test_policies_give_the_same_bits(policy: str) -> None:
    offgrad.manual_seed(0)
    layer = offgrad.nn.LSTM(3, 64, 2)
    x = offgrad.randn(9, 20, 3)
    layer(x)[0].sum().backward()
    expected: list[Any] = [each.grad for each in layer.parameters()]
    layer.zero_grad()
    with offgrad.offload(policy):
        loss = layer(x)[0].sum()
    loss.backward()
    found: list[Any] = [each.grad for each in layer.parameters()]
    for grad, other in zip(found, expected, strict=True):
        assert grad.equal(other)


def _layer_error(nn: Any, m: Any, name: str, shape: Any, *states: Any) -> None:
    hx = tuple(m.zeros(each) for each in states)
    getattr(nn, name)(3, 4)(m.zeros(shape), *([hx[0] if len(hx) == 1 else hx] if hx else []))


ERRORS: dict[str, Callable[[Any], Any]] = {
    "features": lambda m: _layer_error(m.nn, m, "LSTM", (5, 2, 7)),
    "dims": lambda m: _layer_error(m.nn, m, "GRU", (5, 2, 7, 1)),
    "no steps": lambda m: _layer_error(m.nn, m, "GRU", (0, 2, 3)),
    "state size": lambda m: _layer_error(m.nn, m, "GRU", (5, 2, 3), (1, 3, 4)),
    "cell size": lambda m: _layer_error(m.nn, m, "LSTM", (5, 2, 3), (1, 2, 4), (1, 2, 5)),
    "unbatched state": lambda m: _layer_error(m.nn, m, "GRU", (5, 2, 3), (1, 4)),
    "batched cell": lambda m: _layer_error(m.nn, m, "LSTM", (5, 3), (1, 2, 4), (1, 2, 4)),
    "dtype": lambda m: m.nn.LSTM(3, 4)(m.zeros(2, 2, 3, dtype=m.float64)),
    "cell features": lambda m: m.nn.LSTMCell(3, 4)(m.zeros(2, 7)),
    "cell batch": lambda m: m.nn.GRUCell(3, 4)(m.zeros(2, 3), m.zeros(3, 4)),
    "cell state": lambda m: m.nn.GRUCell(3, 4)(m.zeros(2, 3), m.zeros(2, 5)),
    "cell dims": lambda m: m.nn.RNNCell(3, 4)(m.zeros(2, 2, 3)),
    "nonlinearity": lambda m: m.nn.RNN(3, 4, nonlinearity="gelu"),
    "cell nonlinearity": lambda m: m.nn.RNNCell(3, 4, nonlinearity="gelu")(m.zeros(2, 3)),
    "projection": lambda m: m.nn.LSTM(3, 4, proj_size=4),
    "negative projection": lambda m: m.nn.LSTM(3, 4, proj_size=-1),
    "GRU's projection": lambda m: m.nn.GRU(3, 4, proj_size=2),
    "no states": lambda m: m.nn.LSTM(3, 0),
    "float size": lambda m: m.nn.LSTM(3, 4.0),
    "no layers": lambda m: m.nn.LSTM(3, 4, 0),
    "dropout": lambda m: m.nn.LSTM(3, 4, dropout=2),
    "mode": lambda m: m.nn.RNNBase("FOO", 3, 4),
    "lengths in order": lambda m: m.nn.utils.rnn.pack_padded_sequence(m.zeros(4, 3), [2, 4, 1]),
    "length 0": lambda m: m.nn.utils.rnn.pack_padded_sequence(m.zeros(4, 3), [4, 2, 0]),
    "number of lengths": lambda m: m.nn.utils.rnn.pack_padded_sequence(m.zeros(4, 3), [4, 2]),
    "total length": lambda m: m.nn.utils.rnn.pad_packed_sequence(
        m.nn.utils.rnn.pack_padded_sequence(m.zeros(4, 2), [4, 2]), total_length=3),
    "no sequences": lambda m: m.nn.utils.rnn.pad_sequence([]),
    "no iterable": lambda m: m.nn.utils.rnn.pad_sequence(3),
    "side": lambda m: m.nn.utils.rnn.pad_sequence([m.ones(2)], padding_side="middle"),
    "trailing sizes": lambda m: m.nn.utils.rnn.pad_sequence([m.ones(2, 2), m.ones(3, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    messages = []
    for m in (offgrad, torch):
        with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
            ERRORS[name](m)
        messages.append((caught.type, str(caught.value)))
    assert messages[0][0] is messages[1][0]


def test_dropout_of_one_layer_warns() -> None:
    with pytest.warns(UserWarning, match="one layer has none"):
        offgrad.nn.LSTM(3, 4, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offgrad.nn.LSTM(3, 4, 2, dropout=0.5)


def test_sequences() -> None:
    found: list[Any] = []
    for m in (offgrad, torch):
        rnn = m.nn.utils.rnn
        sequences = [m.arange(6.0).reshape(3, 2) + 10 * at for at in range(3)]
        ragged = [sequences[0][:2], sequences[1], sequences[2][:1]]
        packed = rnn.pack_sequence(ragged, enforce_sorted=False)
        padded, lengths = rnn.pad_packed_sequence(packed, True, -1.0, 4)
        found.append(
            [
                packed.data,
                packed.batch_sizes,
                packed.sorted_indices,
                packed.unsorted_indices,
                padded,
                lengths,
                rnn.unpack_sequence(packed),
                rnn.unpad_sequence(padded, lengths, batch_first=True),
                rnn.pad_sequence(ragged, padding_value=2.0),
                rnn.pad_sequence(ragged, True, padding_side="left"),
                rnn.invert_permutation(m.tensor([2, 0, 1])),
                packed.double().data,
                rnn.PackedSequence((packed.data, packed.batch_sizes)).batch_sizes,
            ]
        )
        assert packed.to("cpu") is packed
        assert not packed.is_cuda
    close(found[0], found[1])
