"""Ten steps of each optimiser beside torch's."""

import inspect
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
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.5, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adamax", {}),
    ("Adamax", {"betas": (0.8, 0.6), "weight_decay": 0.1, "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lambd": 0.1, "alpha": 0.3, "t0": 4, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"momentum_decay": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"betas": (0.8, 0.7), "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {"momentum": 0.8, "alpha": 0.5, "eps": 1e-3}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (0.03, 0.1), "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"beta2_decay": -0.3, "eps": (1e-3, 0.1), "weight_decay": 0.1, "maximize": True}),
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_ten_steps(name: str, options: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(2)
    shapes: list[Any] = [(3, 4), (5,), (), (0,)][: 3 if name == "Adafactor" else 4]
    start = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
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


def trained(m: Any, name: str, options: dict[str, Any], start: Any, steps: int) -> tuple[Any, Any]:
    """Return the parameters and the optimizer after some steps; `start` are NumPy arrays."""
    params = [m.tensor(each).requires_grad_() for each in start]
    optimizer = getattr(m.optim, name)(params, lr=0.05, **options)
    take_steps(m, params, optimizer, steps)
    return params, optimizer


def take_steps(m: Any, params: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        for param in params:
            array = param.detach().numpy()
            param.grad = m.tensor(np.asarray(np.cos(array.real * 3) + array))
        optimizer.step()


def as_arrays(value: Any) -> Any:
    """Return state with tensors as arrays."""
    if isinstance(value, dict):
        return {key: as_arrays(each) for key, each in value.items()}
    return value.numpy() if hasattr(value, "numpy") else value


def as_torch(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_torch(each) for key, each in value.items()}
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "options"), CASES[1::2], ids=str)
def test_state_dicts_go_both_ways(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    start = [rng.standard_normal(shape) for shape in [(3, 4), (5,)]]
    mine, theirs = (trained(m, name, options, start, 3) for m in (offgrad, torch))
    states = [each[1].state_dict() for each in (mine, theirs)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for index, values in states[0]["state"].items():
        assert list(values) == list(states[1]["state"][index])
        for key, value in values.items():
            expected = states[1]["state"][index][key]
            assert str(expected.dtype).endswith(np.dtype(value.dtype).name), key
            np.testing.assert_allclose(value.numpy(), expected.numpy(), 1e-6, err_msg=key)
    # Each library goes on from the other's state.
    groups = {"param_groups": states[0]["param_groups"]}
    mine[1].load_state_dict({"state": as_arrays(states[1]["state"]), **groups})
    theirs[1].load_state_dict({"state": as_torch(as_arrays(states[0]["state"])), **groups})
    for m, (params, optimizer) in ((offgrad, mine), (torch, theirs)):
        take_steps(m, params, optimizer, 3)
    for a, b in zip(mine[0], theirs[0], strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), 1e-6)


COMPLEX = [each for each in CASES if each[0] != "Adafactor"]


@pytest.mark.parametrize(("name", "options"), COMPLEX[::3], ids=str)
def test_complex_parameters(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    shapes: list[Any] = [(3, 2), (4,), ()]
    start = [rng.normal(size=s) + 1j * rng.normal(size=s) for s in shapes]
    results = [trained(m, name, options, start, 5) for m in (offgrad, torch)]
    for mine, theirs in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), 1e-9)
        for key, value in results[0][1].state[mine].items():
            expected = results[1][1].state[theirs][key]
            np.testing.assert_allclose(value.numpy(), expected.numpy(), 1e-6)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_options_groups_and_text(name: str, options: dict[str, Any]) -> None:
    texts = []
    for m in (offgrad, torch):
        first, second = (m.ones(2, requires_grad=True) for _ in range(2))
        groups = [{"params": [("a", first)], "lr": 0.5}, {"params": [("b", second)], "note": 1}]
        optimizer = getattr(m.optim, name)(groups, **options)
        state = optimizer.state_dict()
        signature = inspect.signature(type(optimizer))
        arguments = [(each.name, each.kind, each.default) for each in signature.parameters.values()]
        keys = [list(each) for each in optimizer.param_groups]
        texts.append((repr(optimizer), state["param_groups"], optimizer.defaults, keys, arguments))
    assert texts[0] == texts[1]


def test_tensor_options() -> None:
    results = []
    for m in (offgrad, torch):
        param = m.ones(3, requires_grad=True)
        lr = m.tensor(0.1)
        betas = m.tensor(0.8), m.tensor(0.9)
        optimizer = m.optim.Adam([param], lr=lr, betas=betas)
        for _ in range(3):
            param.grad = param.detach() * 2
            optimizer.step()
            lr.mul_(0.5)
        assert optimizer.param_groups[0]["lr"] is lr
        results.append(param.detach().numpy())
    np.testing.assert_allclose(results[0], results[1], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "NAdam", "RMSprop"])
def test_16_bit_parameters(name: str, dtype: str) -> None:
    results = []
    for m in (offgrad, torch):
        param = m.tensor([1.0, 2.0, -3.0]).to(getattr(m, dtype)).requires_grad_()
        optimizer = getattr(m.optim, name)([param], lr=0.1)
        for _ in range(3):
            param.grad = param.detach() * 2
            optimizer.step()
        results.append(param.detach().float().numpy())
    np.testing.assert_allclose(results[0], results[1], 0.02, 0.01)


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}]
)
def test_muon(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    start = [rng.normal(size=shape) for shape in [(8, 3), (5, 9)]]
    results = [trained(m, "Muon", options, start, 4) for m in (offgrad, torch)]
    for mine, theirs in zip(results[0][0], results[1][0], strict=True):
        # Both round to bfloat16 after sums in an order of their own.
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), 1e-3, 1e-3)
    texts = [repr(each[1]) for each in results]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.002},
        {"lr": 0.002, "max_iter": 4, "max_eval": 2},
        {"lr": 0.002, "history_size": 8},
        {"line_search_fn": "strong_wolfe"},
        {"line_search_fn": "strong_wolfe", "history_size": 2, "lr": 0.5, "max_iter": 6},
        {"line_search_fn": "strong_wolfe", "lr": 50, "max_eval": 3},
    ],
)
def test_lbfgs_evaluates_the_same_points(options: dict[str, Any]) -> None:
    points: list[Any] = []
    for m in (offgrad, torch):
        x = m.tensor([-1.2, 1.0], dtype=m.float64, requires_grad=True)
        z = m.tensor([1.0 + 2.0j], dtype=m.complex128, requires_grad=True)
        optimizer = m.optim.LBFGS([x, z], **options)
        seen: list[Any] = []

        def closure(x: Any = x, z: Any = z, optimizer: Any = optimizer, seen: Any = seen) -> Any:
            optimizer.zero_grad()
            loss = (1 - x[0]) ** 2 + 9 * (x[1] - x[0] ** 2) ** 2 + ((z - 1j).abs() ** 2).sum()
            loss.backward()
            seen.append([*x.tolist(), z[0].item(), loss.item()])
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        state = optimizer.state_dict()["state"][0]
        counts = (state["n_iter"], state["func_evals"], len(state["ro"]))
        points.append((np.array(seen), losses, counts, sorted(state)))
    assert len(points[0][0]) > 5
    np.testing.assert_allclose(points[0][0], points[1][0], 1e-3, 1e-6)
    assert points[0][2:] == points[1][2:]


def errors(m: Any) -> list[str]:
    """Return the classes of the errors of bad arguments."""
    make, x = m.optim, m.ones(2, 2, requires_grad=True)
    calls = [
        lambda: make.SGD([]),
        lambda: make.SGD(x),
        lambda: make.SGD([3]),
        lambda: make.SGD([x * 2]),
        lambda: make.SGD([{"params": {x}}]),
        lambda: make.SGD([{"params": [x]}, {"params": [x]}]),
        lambda: make.SGD([("a", x), m.ones(1)]),
        lambda: make.SGD([{"params": [("a", x)]}, {"params": [m.ones(1)]}]),
        lambda: make.SGD([x]).add_param_group([x]),
        lambda: make.SGD([{"lr": 1}]),
        lambda: make.SGD([x], lr=-1),
        lambda: make.SGD([x], momentum=-1),
        lambda: make.SGD([x], nesterov=True),
        lambda: make.SGD([x], lr=m.tensor([0.1, 0.2])),
        lambda: make.SGD([x], fused=True, foreach=True),
        lambda: make.Adam([x], betas=(0.9, 1.0)),
        lambda: make.Adam([x], eps=-1),
        lambda: make.Adam([x], lr=m.tensor(0.1), foreach=True),
        lambda: make.Adam([x], betas=(m.tensor(0.1), 0.9)),
        lambda: make.Adadelta([x], rho=2),
        lambda: make.RMSprop([x], alpha=-1),
        lambda: make.Rprop([x], etas=(1, 0)),
        lambda: make.NAdam([x], momentum_decay=-1),
        lambda: make.Adafactor([x], beta2_decay=1),
        lambda: make.Adafactor([x], d=0.5),
        lambda: make.Adafactor([x], lr=-0.5),
        lambda: make.LBFGS([{"params": [x]}, {"params": [m.ones(1)]}]),
        lambda: make.Muon([m.ones(3)]),
        lambda: make.Muon([x], adjust_lr_fn="any"),
        lambda: make.SGD([x]).load_state_dict(make.SGD([x, m.ones(1)]).state_dict()),
        lambda: make.SGD([x]).load_state_dict({"state": {}, "param_groups": []}),
    ]
    found = []
    for call in calls:
        try:
            call()  # type: ignore[no-untyped-call]
        except Exception as error:
            found.append(type(error).__name__)
        else:
            found.append("none")
    return found


def test_errors() -> None:
    assert errors(offgrad) == errors(torch)


SPARSE: list[tuple[str, dict[str, Any]]] = [
    ("SparseAdam", {}),
    ("SparseAdam", {"betas": (0.8, 0.6), "eps": 1e-4, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("LBFGS", {"max_iter": 3}),
]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(("name", "options"), SPARSE, ids=str)
def test_sparse_gradients(name: str, options: dict[str, Any]) -> None:
    results = []
    for m in (offgrad, torch):
        torch_like: Any = m
        layer = torch_like.nn.Embedding(5, 2, sparse=True, _weight=m.arange(10.0).reshape(5, 2) / 9)
        optimizer: Any = getattr(m.optim, name)(layer.parameters(), **options)
        for step in range(4):
            index = m.tensor([0, step, 3, 0])

            def closure(optimizer: Any = optimizer, layer: Any = layer, index: Any = index) -> Any:
                optimizer.zero_grad()
                loss = (layer(index) ** 2).sum()
                loss.backward()
                return loss

            closure()
            optimizer.step(*[closure] * (name == "LBFGS"))
        state = optimizer.state_dict()["state"][0]
        buffers = {
            key: np.asarray(value.to_dense() if hasattr(value, "to_dense") else value).tolist()
            for key, value in state.items()
            if key in ("step", "exp_avg", "exp_avg_sq", "sum", "momentum_buffer")
        }
        other = getattr(m.optim, name)(layer.parameters(), **options)
        other.load_state_dict(optimizer.state_dict())
        assert other.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
        results.append((layer.weight.detach().numpy(), buffers))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=2e-5)
    assert results[0][1].keys() == results[1][1].keys()
    for key, value in results[0][1].items():
        np.testing.assert_allclose(value, results[1][1][key], rtol=2e-5)


def test_sparse_and_dense_gradients_have_their_optimizers() -> None:
    for m in (offgrad, torch):
        weight: Any = m.ones(3, 2, requires_grad=True)
        m.nn.functional.embedding(m.tensor([0]), weight, sparse=True).sum().backward()
        for name in ("Adam", "AdamW", "RMSprop", "Rprop"):
            with pytest.raises(RuntimeError, match="does not support sparse gradients"):
                getattr(m.optim, name)([weight]).step()
        weight.grad = m.ones(3, 2)
        with pytest.raises(RuntimeError, match="does not support dense gradients"):
            m.optim.SparseAdam([weight]).step()
        with pytest.raises(ValueError, match="SparseAdam"):
            m.optim.SparseAdam([m.ones(2).to_sparse()])
