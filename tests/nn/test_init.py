"""Initialisation: bounds, moments, and that it is not recorded."""

import inspect
from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

import offgrad
from offgrad import nn
from offgrad.nn import init


@pytest.mark.parametrize("inputs", [1, 16, 400])
def test_linear_is_uniform_within_one_over_root_of_inputs(inputs: int) -> None:
    layer = nn.Linear(inputs, 300)
    bound = 1 / sqrt(inputs)
    assert layer.bias is not None
    for parameter in (layer.weight, layer.bias):
        values = parameter.detach().numpy()
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.9 * bound
        assert abs(values.mean()) < 0.2 * bound
        assert values.std() == pytest.approx(bound / sqrt(3), rel=0.15)
        assert parameter.is_leaf
        assert parameter.requires_grad
        assert parameter.dtype == offgrad.float32


def test_embedding_and_layer_norm() -> None:
    table = nn.Embedding(500, 20, padding_idx=-1)
    values = table.weight.detach().numpy()
    assert table.padding_idx == 499
    assert not values[499].any()
    assert values[:499].std() == pytest.approx(1, rel=0.05)
    norm = nn.LayerNorm((2, 3))
    assert norm.weight.tolist() == [[1] * 3] * 2
    assert norm.bias.tolist() == [[0] * 3] * 2
    assert nn.LayerNorm(4, bias=False).bias is None
    assert not list(nn.LayerNorm(4, elementwise_affine=False).parameters())
    assert nn.Linear(2, 2, dtype=offgrad.float64).weight.dtype == offgrad.float64
    assert nn.Linear(2, 2, bias=False).bias is None


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda t: init.xavier_uniform_(t, gain=2.0), 2 * sqrt(2 / 120)),
        (init.xavier_normal_, sqrt(2 / 120)),
        (lambda t: init.kaiming_uniform_(t, nonlinearity="relu"), sqrt(2 / 80)),
        (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), sqrt(2 / 40)),
        (lambda t: init.kaiming_normal_(t, a=1.0), sqrt(1 / 80)),
        (lambda t: init.normal_(t, 3.0, 0.02), 0.02),
        (lambda t: init.uniform_(t, -1, 1), 1 / sqrt(3)),
    ],
)
def test_spread(fill: object, std: float) -> None:
    weight = nn.Parameter(offgrad.empty(40, 80))
    assert fill(weight) is weight  # type: ignore[operator]
    assert weight.is_leaf
    assert weight.requires_grad
    assert weight.detach().numpy().std() == pytest.approx(std, rel=0.06)
    assert weight._version == 1


def test_constants() -> None:
    weight = nn.Parameter(offgrad.empty(2, 3))
    assert init.ones_(weight).sum().item() == 6
    assert init.zeros_(weight).sum().item() == 0
    assert init.constant_(weight, 0.5).sum().item() == 3
    assert init.eye_(weight).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_gains_and_errors() -> None:
    assert init.calculate_gain("relu") == sqrt(2)
    assert init.calculate_gain("leaky_relu", 1.0) == 1
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3)
    with pytest.raises(ValueError, match="swishy"):
        init.calculate_gain("swishy")
    with pytest.raises(ValueError, match="Fan in and fan out"):
        init.xavier_uniform_(offgrad.empty(3))
    with pytest.raises(ValueError, match="fan_in"):
        init.kaiming_normal_(offgrad.empty(3, 3), mode="sideways")


def test_seeds_repeat() -> None:
    def weights() -> list[object]:
        offgrad.manual_seed(11)
        return [nn.Linear(3, 3).weight.tolist(), nn.Embedding(3, 3).weight.tolist()]

    assert weights() == weights()
    generator = offgrad.Generator().manual_seed(5)
    first = init.normal_(offgrad.empty(10), generator=generator)
    again = init.normal_(offgrad.empty(10), generator=offgrad.Generator().manual_seed(5))
    assert first.equal(again)
    assert not first.equal(init.normal_(offgrad.empty(10), generator=generator))


def test_truncated_normal() -> None:
    values = init.trunc_normal_(offgrad.empty(20000), 1.0, 2.0, -1.0, 2.0).numpy()
    assert values.min() >= -1
    assert values.max() <= 2
    # Of a normal distribution between -1 and 1/2 deviations.
    assert values.mean() == pytest.approx(0.5719, abs=0.03)
    assert values.std() == pytest.approx(0.8351, abs=0.02)
    with pytest.warns(UserWarning, match="more than 2 std"):
        init.trunc_normal_(offgrad.empty(2), 10.0)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 3, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    values = init.orthogonal_(offgrad.empty(shape), gain=2).numpy().reshape(shape[0], -1)
    small = values @ values.T if values.shape[0] <= values.shape[1] else values.T @ values
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)


def test_sparse() -> None:
    values = init.sparse_(offgrad.empty(10, 200), 0.35, std=0.1).numpy()
    assert ((values == 0).sum(0) == 4).all()
    assert values[values != 0].std() == pytest.approx(0.1, rel=0.1)
    assert len({tuple(column) for column in (values == 0).T}) > 1


@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 2, 3), 1), ((4, 2, 3, 2), 2), ((2, 3, 1, 2, 3), 1)]
)
def test_dirac(shape: tuple[int, ...], groups: int) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    mine = init.dirac_(offgrad.empty(shape), groups)
    theirs = torch.nn.init.dirac_(torch.empty(shape), groups)
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_names_and_arguments_are_torchs() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    for name in init.__all__:
        mine, theirs = getattr(init, name), getattr(torch.nn.init, name)
        if not name.endswith("_"):
            continue
        parameters = [
            [(each.name, each.default) for each in inspect.signature(function).parameters.values()]
            for function in (mine, theirs)
        ]
        assert parameters[0] == parameters[1], name


def test_deprecated_names() -> None:
    with pytest.warns(FutureWarning, match=r"in favor of `nn.init.constant_`"):
        assert init.constant(offgrad.empty(2), 3.0).tolist() == [3, 3]


def test_nothing_to_fill() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        nn.Linear(0, 3)
    assert init.orthogonal_(offgrad.empty(0, 2)).shape == (0, 2)


@pytest.mark.parametrize(
    "run",
    [
        lambda: init.eye_(offgrad.empty(2)),
        lambda: init.sparse_(offgrad.empty(2), 0.5),
        lambda: init.dirac_(offgrad.empty(2, 2)),
        lambda: init.dirac_(offgrad.empty(3, 2, 1), 2),
        lambda: init.orthogonal_(offgrad.empty(2)),
        lambda: init.calculate_gain("leaky_relu", True),
    ],
)
def test_errors(run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"dimensions|groups|number"):
        run()
