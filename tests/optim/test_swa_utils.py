"""Averages of models, beside torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

KINDS: dict[str, Any] = {
    "mean": lambda u: {},
    "mean, in place": lambda u: {"multi_avg_fn": u.get_swa_multi_avg_fn()},
    "mean, returned": lambda u: {"avg_fn": u.get_swa_avg_fn()},
    "moving, in place": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.8)},
    "moving, returned": lambda u: {"avg_fn": u.get_ema_avg_fn(0.8)},
    "buffers": lambda u: {"use_buffers": True},
    "own": lambda u: {"avg_fn": lambda average, value, count: average + value * count},
}


def make_model(m: Any) -> Any:
    model = m.nn.Linear(2, 2)
    model.register_buffer("scale", m.ones(2))
    model.register_buffer("count", m.tensor(3))
    return model


@pytest.mark.parametrize("name", KINDS)
def test_averages(name: str) -> None:
    states = []
    for m in (offgrad, torch):
        rng = np.random.default_rng(2)
        model = make_model(m)
        average = m.optim.swa_utils.AveragedModel(model, **KINDS[name](m.optim.swa_utils))
        for step in range(4):
            with m.no_grad():
                for each in (*model.parameters(), model.scale):
                    each.copy_(m.tensor(rng.normal(size=tuple(each.shape))))
                model.count.fill_(step * 4)
            average.update_parameters(model)
        output = average(m.ones(1, 2))
        states.append({k: v.numpy() for k, v in average.state_dict().items()})
        states[-1]["output"] = output.detach().numpy()
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        np.testing.assert_allclose(value, states[1][key], 1e-5, err_msg=key)
        assert value.dtype == states[1][key].dtype


def test_errors() -> None:
    model = make_model(offgrad)
    function = get_ema_avg_fn()
    with pytest.raises(AssertionError, match="one of them"):
        AveragedModel(model, avg_fn=function, multi_avg_fn=get_ema_multi_avg_fn())
    with pytest.raises(ValueError, match="Invalid decay value 2"):
        get_ema_avg_fn(2)
    with pytest.raises(ValueError, match="Invalid decay value -1"):
        get_ema_multi_avg_fn(-1)


def test_update_bn() -> None:
    results = []
    for m in (offgrad, torch):
        rng = np.random.default_rng(3)
        model = m.nn.Sequential(m.nn.BatchNorm1d(3, momentum=0.2), m.nn.Dropout(0.0)).eval()
        batches = [m.tensor(rng.normal(size=(4, 3)).astype(np.float32)) for _ in range(3)]
        m.optim.swa_utils.update_bn([(each, 1) for each in batches], model)
        norm = model[0]
        assert not model.training
        assert norm.momentum == 0.2
        results.append([norm.running_mean.numpy(), norm.running_var.numpy()])
        results[-1].append(norm.num_batches_tracked.numpy())
    np.testing.assert_allclose(np.array(results[0][:2]), np.array(results[1][:2]), 1e-5)
    assert results[0][2] == results[1][2] == 3
