"""The adaptive softmax."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from tests.nn.against_torch import Case, check, close

LAYERS: dict[str, Case] = {
    "all clusters": (
        lambda nn: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], 2.0, True),
        [(5, 8), np.array([0, 9, 3, 1, 4])],
    ),
    "one cluster": (
        lambda nn: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], 2.0),
        [(2, 8), np.array([0, 1])],
    ),
    "one sample": (
        lambda nn: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4], 2.0),
        [(8,), np.array(7)],
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    check(LAYERS[name])


def test_all_classes() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    mine, theirs = (m.nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], 2.0) for m in (offgrad, torch))
    state = {key: offgrad.tensor(each.numpy()) for key, each in theirs.state_dict().items()}
    mine.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((6, 8)).astype("f")
    close(mine.log_prob(offgrad.tensor(x)), theirs.log_prob(torch.tensor(x)))
    assert mine.predict(offgrad.tensor(x)).tolist() == theirs.predict(torch.tensor(x)).tolist()
    result = mine(offgrad.tensor(x), offgrad.tensor([0, 1, 2, 3, 8, 9]))
    assert result.loss.item() == pytest.approx(-result.output.mean().item())
    mine.reset_parameters()


def _run(shape: Any, target: Any) -> Any:
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], 2.0)
    return layer(offgrad.ones(shape), offgrad.tensor(target))


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (ValueError, "not be empty", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [])),
        (ValueError, "ascending", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [5, 2])),
        (ValueError, "ascending", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [10])),
        (RuntimeError, "Input and target should have the same size", lambda: _run((3, 8), [0, 1])),
        (RuntimeError, "one dimension, or none", lambda: _run((3, 8), [[0], [1], [2]])),
        (RuntimeError, "a target of 0 dimensions", lambda: _run((3, 8), 0)),
        (RuntimeError, "got values from 10 to 10", lambda: _run((1, 8), [10])),
    ],
)
def test_errors(error: type[Exception], match: str, run: Any) -> None:
    with pytest.raises(error, match=match):
        run()
