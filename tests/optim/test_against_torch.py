"""Ten steps of each optimiser beside torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.8, "nesterov": True}),
    ("SGD", {"maximize": True, "weight_decay": 0.05}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("AdamW", {"amsgrad": True}),
    ("AdamW", {"maximize": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.2, "amsgrad": True}),
    ("Adam", {"maximize": True, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_ten_steps(name: str, options: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(2)
    start = [rng.standard_normal(shape).astype(dtype) for shape in [(3, 4), (5,), (), (0,)]]
    gradients = [[rng.standard_normal(each.shape) for each in start] for _ in range(10)]
    results = []
    for m in (offgrad, torch):
        params = [m.tensor(each, requires_grad=True) for each in start]
        optimizer = getattr(m.optim, name)(params, lr=0.07, **options)
        for step, row in enumerate(gradients):
            for index, (param, gradient) in enumerate(zip(params, row, strict=True)):
                # A parameter may miss a step.
                param.grad = (
                    None if step == 4 and index == 1 else m.tensor(gradient).to(param.dtype)
                )
            optimizer.step()
        results.append([each.detach().numpy() for each in params])
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance)


def test_state_has_torch_s_names() -> None:
    for name, options in CASES:
        keys = []
        for m in (offgrad, torch):
            p = m.ones(2, requires_grad=True)
            optimizer = getattr(m.optim, name)([p], lr=0.1, **options)
            p.grad = m.ones(2)
            optimizer.step()
            state = optimizer.state_dict()
            values = state["state"].get(0, {})
            keys.append({key for key in values if values[key] is not None})
            assert state["param_groups"][0]["params"] == [0]
        assert keys[0] == keys[1], name


def test_loaded_state_gets_the_dtype_of_the_parameter() -> None:
    for lib in (offgrad, torch):
        param = lib.nn.Parameter(lib.ones(2, 3))
        optimizer = lib.optim.AdamW([param], lr=0.1)
        param.grad = lib.ones(2, 3)
        optimizer.step()
        state = optimizer.state_dict()
        values = {
            key: value.double() if isinstance(value, lib.Tensor) and key != "step" else value
            for key, value in state["state"][0].items()
        }
        optimizer.load_state_dict({**state, "state": {0: values}})
        assert optimizer.state[param]["exp_avg"].dtype == lib.float32
        optimizer.step()
        assert param[0, 0].item() == pytest.approx(0.8, abs=0.01)
