"""Layers and functions that vmap computes for all samples at once, never for each of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, nn
from offgrad.func import _vmap, functional_call, grad, vmap
from offgrad.func._batching import dispatch
from offgrad.nn import functional as F
from offgrad.nn.utils.parametrizations import weight_norm

SAMPLES = 3


def _floats(*shape: int) -> Tensor:
    return offgrad.from_numpy(np.random.default_rng(7).standard_normal((SAMPLES, *shape)))


def _integers(high: int, *shape: int) -> Tensor:
    return offgrad.from_numpy(np.random.default_rng(8).integers(0, high, (SAMPLES, *shape)))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"called for each sample: {args[0]}")

    monkeypatch.setattr(dispatch, "for_each_sample", refuse)
    monkeypatch.setattr(_vmap._Call, "_one_by_one", refuse)


def _total(result: Any) -> Any:
    """Return a number that depends on all results."""
    if isinstance(result, tuple):
        return sum(_total(each) for each in result if each is not None)
    return result.square().sum()


def _check(function: Callable[..., Any], shared: Any, samples: tuple[Tensor, ...]) -> None:
    """Compare with the loop over samples."""
    found = vmap(function, (None, *(0,) * len(samples)))(shared, *samples)
    wanted = [function(shared, *[each[at] for each in samples]) for at in range(SAMPLES)]
    columns = zip(*wanted, strict=True) if isinstance(found, tuple) else [wanted]
    for own, column in zip(found if isinstance(found, tuple) else [found], columns, strict=True):
        if isinstance(own, dict):
            for key, value in own.items():
                _compare(value, [each[key] for each in column])
        else:
            _compare(own, list(column))


def _compare(found: Any, wanted: list[Any]) -> None:
    expected = np.stack([each.detach().numpy() for each in wanted])
    np.testing.assert_allclose(found.detach().numpy(), expected, 1e-9, 1e-9)


IMAGES = _floats(2, 4, 6, 6)
ROWS = _floats(3, 8)
SEQUENCES = _floats(5, 2, 8)

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "linear": (lambda: nn.Linear(8, 5), (ROWS,)),
    "bilinear": (lambda: nn.Bilinear(8, 8, 3), (ROWS, ROWS)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (IMAGES,)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(4, 6, 3), (IMAGES,)),
    "batch_norm": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (IMAGES,)),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True), (IMAGES,)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (IMAGES,)),
    "layer_norm": (lambda: nn.LayerNorm(8), (ROWS,)),
    "rms_norm": (lambda: nn.RMSNorm(8), (ROWS,)),
    "embedding": (lambda: nn.Embedding(9, 5, padding_idx=2), (_integers(9, 7),)),
    "weight_norm": (lambda: weight_norm(nn.Linear(8, 5)), (ROWS,)),
    "attention": (lambda: nn.MultiheadAttention(8, 2), (SEQUENCES, SEQUENCES, SEQUENCES)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (SEQUENCES,)),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
        (SEQUENCES, SEQUENCES),
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        (SEQUENCES, SEQUENCES),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_each_sample(name: str) -> None:
    offgrad.manual_seed(0)
    make, samples = LAYERS[name]
    layer = make().double()

    def gradients(parameters: Any, *sample: Tensor) -> Any:
        def total(own: Any) -> Any:
            return _total(functional_call(layer, own, sample))

        return (grad(total)(parameters),)

    _check(lambda _, *sample: _total(layer(*sample)), None, samples)
    _check(gradients, dict(layer.named_parameters()), samples)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(8, 4, 2, bidirectional=True),
    "lstm_projected": lambda: nn.LSTM(8, 4, proj_size=3),
    "gru": lambda: nn.GRU(8, 4, batch_first=True),
    "rnn": lambda: nn.RNN(8, 4, bias=False),
    "lstm_cell": lambda: nn.LSTMCell(8, 4),
    "gru_cell": lambda: nn.GRUCell(8, 4),
    "rnn_cell": lambda: nn.RNNCell(8, 4, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_with_the_same_weights(name: str) -> None:
    offgrad.manual_seed(0)
    layer = RECURRENT[name]().double()
    samples = ROWS if name.endswith("cell") else SEQUENCES
    _check(lambda _, sample: _flat(layer(sample)), None, (samples,))
    _check(lambda _, sample: grad(lambda x: _total(layer(x)))(sample), None, (samples,))


def _flat(result: Any) -> Any:
    """Return the tensors of a result: an output and states, alone or in a tuple."""
    if not isinstance(result, tuple):
        return result
    output, states = result
    return (output, *states) if isinstance(states, tuple) else result


SQUARES = _floats(4, 4)
OTHERS = ROWS.flip(0) * 0.7

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "cov": (offgrad.cov, (ROWS,)),
    "cov_of_one": (offgrad.cov, (_floats(8),)),
    "corrcoef": (offgrad.corrcoef, (ROWS,)),
    "gradient": (lambda a: offgrad.gradient(a, spacing=0.5, edge_order=2)[1], (ROWS,)),
    "tensordot": (lambda a, b: offgrad.tensordot(a, b, ([0], [0])), (ROWS, OTHERS)),
    "multi_dot": (lambda a, b: offgrad.linalg.multi_dot([a, b.mT, a]), (ROWS, OTHERS)),
    "dist": (offgrad.dist, (ROWS, OTHERS)),
    "norm": (lambda a: offgrad.norm(a, 3, (0, 1)), (ROWS,)),
    "rot90": (lambda a: offgrad.rot90(a, 3, (1, 0)), (ROWS,)),
    "fliplr": (offgrad.fliplr, (ROWS,)),
    "unsafe_chunk": (lambda a: offgrad.unsafe_chunk(a, 3)[1], (ROWS,)),
    "select_scatter": (lambda a, b: offgrad.select_scatter(a, b[0], 0, 1), (ROWS, OTHERS)),
    "slice_scatter": (lambda a, b: offgrad.slice_scatter(a, b[:2], end=2), (ROWS, OTHERS)),
    "diagonal_scatter": (lambda a, b: offgrad.diagonal_scatter(a, b[0, :3]), (ROWS, OTHERS)),
    "unfold": (lambda a: F.unfold(a, 3, padding=1), (IMAGES,)),
    "unfold_of_one": (lambda a: F.unfold(a[0], 3), (IMAGES,)),
    "fold": (lambda a: F.fold(a, (3, 3), 2), (_floats(2, 8, 4),)),
    "local_response_norm": (lambda a: F.local_response_norm(a, 2), (IMAGES,)),
    "triplet": (lambda a, b: F.triplet_margin_loss(a, b, a * b, swap=True), (ROWS, OTHERS)),
    "cosine_embedding": (
        lambda a, b, c: F.cosine_embedding_loss(a, b, c.sign()),
        (ROWS, OTHERS, _floats(3)),
    ),
    "multi_margin": (F.multi_margin_loss, (ROWS, _integers(8, 3))),
    "multilabel_soft_margin": (
        lambda a, b: F.multilabel_soft_margin_loss(a, b.sigmoid()),
        (ROWS, OTHERS),
    ),
    "solve": (offgrad.linalg.solve, (SQUARES, _floats(4, 2))),
    "chebyshev": (lambda a: offgrad.special.chebyshev_polynomial_t(a, 3), (ROWS,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, samples = FUNCTIONS[name]
    floats = tuple([at for at, each in enumerate(samples) if each.is_floating_point()])
    _check(lambda _, *sample: function(*sample), None, samples)
    if name == "chebyshev":  # it has no gradient
        return

    def gradients(_: Any, *sample: Tensor) -> Any:
        return grad(lambda *own: _total(function(*own)), floats)(*sample)

    _check(gradients, None, samples)
