"""Activation and dropout layers."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from tests.nn.against_torch import Case, check

PLAIN = "ReLU RReLU Hardtanh ReLU6 Sigmoid Hardsigmoid Tanh SiLU Mish Hardswish ELU CELU SELU GELU"
PLAIN += " Hardshrink LeakyReLU LogSigmoid Softplus Softshrink PReLU Softsign Tanhshrink"
DROPOUTS = "Dropout Dropout1d AlphaDropout FeatureAlphaDropout"
X = [(3, 4)]
WIDE = [np.random.default_rng(0).uniform(-7, 7, (4, 6)).astype("f")]


def _layer(name: str, *args: Any) -> Any:
    return lambda nn: getattr(nn, name)(*args)


LAYERS: dict[str, Case] = {
    **{name: (_layer(name), WIDE) for name in PLAIN.split()},
    "Threshold": (lambda nn: nn.Threshold(0.1, 20), X),
    "RReLU of": (lambda nn: nn.RReLU(0.1, 0.2), X),
    "Hardtanh of": (lambda nn: nn.Hardtanh(-2, 0.5), X),
    "ELU of": (lambda nn: nn.ELU(0.5), X),
    "CELU of": (lambda nn: nn.CELU(2.0), X),
    "GLU": (lambda nn: nn.GLU(), X),
    "GLU of": (lambda nn: nn.GLU(0), [(4, 3)]),
    "GELU of": (lambda nn: nn.GELU("tanh"), X),
    "LeakyReLU of": (lambda nn: nn.LeakyReLU(0.2), X),
    "Softplus of": (lambda nn: nn.Softplus(2, 1), X),
    "Softshrink of": (lambda nn: nn.Softshrink(0.1), X),
    "Hardshrink of": (lambda nn: nn.Hardshrink(0.1), X),
    "PReLU of": (lambda nn: nn.PReLU(4, 0.1), X),
    "Softmin": (lambda nn: nn.Softmin(1), X),
    "Softmax": (lambda nn: nn.Softmax(-1), X),
    "LogSoftmax": (lambda nn: nn.LogSoftmax(0), X),
    "Softmax2d": (lambda nn: nn.Softmax2d(), [(2, 3, 2, 2)]),
    "Softmax2d of one": (lambda nn: nn.Softmax2d(), [(3, 2, 2)]),
    **{name: (_layer(name, 0.2), X) for name in DROPOUTS.split()},
    "Dropout2d": (lambda nn: nn.Dropout2d(), [(2, 3, 2, 2)]),
    "Dropout3d": (lambda nn: nn.Dropout3d(), [(2, 3, 2, 2, 2)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    check(LAYERS[name], is_random="Dropout" in name or "RReLU" in name)


INPLACE = "ReLU RReLU Hardtanh ReLU6 Hardsigmoid SiLU Mish Hardswish ELU CELU SELU LeakyReLU"


@pytest.mark.parametrize("name", [*INPLACE.split(), *DROPOUTS.split()])
def test_in_place(name: str) -> None:
    layer = getattr(nn, name)(inplace=True).eval()
    x = offgrad.tensor([[-1.0, 0.5, 2.0]])
    expected = getattr(nn, name)().eval()(x)
    assert layer(x) is x
    assert x.equal(expected)
    if name not in ("Hardsigmoid", "Hardswish"):
        assert "inplace=True" in repr(layer)


@pytest.mark.parametrize("name", ["Softmax", "Softmin", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2), (2, 3, 1, 2)])
def test_implicit_dimension(name: str, shape: tuple[int, ...]) -> None:
    x = offgrad.randn(*shape)
    layer = getattr(nn, name)
    with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
        y = layer()(x)
    assert caught[0].filename == __file__
    assert y.equal(layer(0 if len(shape) in (1, 3) else 1)(x))


def _drop(name: str, x: Any, p: float = 0.25) -> Any:
    offgrad.manual_seed(1)
    return getattr(nn, name)(p)(x)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Dropout1d", (40, 50, 3)), ("Dropout1d", (2000, 3)), ("Dropout2d", (40, 50, 2, 2)),
     ("Dropout3d", (40, 50, 2, 1, 2)), ("Dropout3d", (2000, 2, 1, 2))],
)  # fmt: skip
def test_dropped_channels(name: str, shape: tuple[int, ...]) -> None:
    x = offgrad.ones(shape, requires_grad=True)
    y = _drop(name, x)
    channels = y.detach().numpy().reshape(2000, -1)
    assert (channels == channels[:, :1]).all()
    assert set(np.unique(channels)) == {0, np.float32(1 / 0.75)}
    assert (channels == 0).mean() == pytest.approx(0.25, abs=0.05)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(y.detach())


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(name: str) -> None:
    offgrad.manual_seed(0)
    y = _drop(name, offgrad.randn(4000, 10)).numpy()
    assert y.mean() == pytest.approx(0, abs=0.05)
    assert y.std() == pytest.approx(1, abs=0.05)
    (low,) = np.unique(y)[np.unique(y, return_counts=True)[1] > 100]
    assert (y == low).mean() == pytest.approx(0.25, abs=0.02)
    assert not _drop(name, offgrad.randn(3, 3), 1.0).any()


def test_native_dropout() -> None:
    y, mask = offgrad.native_dropout(offgrad.ones(1000), 0.5, True)
    assert mask.dtype == offgrad.bool
    assert y.equal(mask * 2.0)
    y, mask = offgrad.native_dropout(offgrad.ones(3), 0.5, False)
    assert mask.all()
    assert y.equal(offgrad.ones(3))


def test_random_slopes() -> None:
    offgrad.manual_seed(0)
    y = nn.RReLU(0.2, 0.4)(offgrad.full((1000,), -1.0)).numpy()
    assert y.min() < -0.39
    assert y.max() > -0.21


def test_gumbel_softmax() -> None:
    offgrad.manual_seed(0)
    logits = offgrad.tensor([0.2, 0.3, 0.5]).log().expand(4000, 3).clone().requires_grad_()
    soft = nn.functional.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.sum(1).detach().numpy(), 1, 1e-5)
    hard = nn.functional.gumbel_softmax(logits, hard=True)
    assert set(np.unique(hard.detach().numpy().round(5))) == {0, 1}
    np.testing.assert_allclose(hard.mean(0).detach().numpy(), [0.2, 0.3, 0.5], atol=0.03)
    (hard * offgrad.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (ValueError, "got 2", lambda: nn.Dropout(2)),
        (ValueError, "probability has", lambda: nn.functional.dropout(offgrad.ones(2), -1)),
        (ValueError, "probability has", lambda: nn.functional.dropout1d(offgrad.ones(1, 1), 2)),
        (ValueError, "probability has", lambda: nn.functional.alpha_dropout(offgrad.ones(2), 2)),
        (RuntimeError, "dropout1d takes", lambda: nn.Dropout1d()(offgrad.ones(2))),
        (RuntimeError, "at least 2 dim",
         lambda: nn.functional.feature_alpha_dropout(offgrad.ones(2), training=True)),
        (AssertionError, "must be greater", lambda: nn.Hardtanh(2, 1)),
        (ValueError, "Softmax2d takes", lambda: nn.Softmax2d()(offgrad.ones(2, 2))),
        (RuntimeError, "channel", lambda: nn.PReLU(3)(offgrad.ones(2, 4))),
    ],
)  # fmt: skip
def test_errors(error: type[Exception], match: str, run: Any) -> None:
    with pytest.raises(error, match=match):
        run()


@pytest.mark.parametrize(
    "run",
    [
        lambda: nn.Dropout2d()(offgrad.ones(2, 3)),
        lambda: nn.Dropout2d()(offgrad.ones(2, 3, 4)),
        lambda: nn.Dropout3d()(offgrad.ones(2, 3, 4)),
        lambda: nn.functional.gumbel_softmax(offgrad.ones(2), eps=1e-3),
    ],
)
def test_warnings(run: Any) -> None:
    with pytest.warns(UserWarning, match=r"deprecated|dropout1d"):
        run()


def test_deprecated_names_of_hardtanh() -> None:
    with pytest.warns(FutureWarning, match="min_value"):
        assert repr(nn.Hardtanh(min_value=-3)) == "Hardtanh(min_val=-3, max_val=1.0)"
