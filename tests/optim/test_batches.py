"""A step over all parameters gives the bits of steps over one parameter after the other."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from offgrad_storage import interrupts

import offgrad
from offgrad import Tensor, kernels, nn
from offgrad.kernels import _array_tables, _optimizers, _optimizers_moments, _parallel
from offgrad.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    adam,
    batched,
    nadam,
    optimizer,
    sgd,
)
from offgrad.optim import options as optimizer_options
from tests.interrupts import interrupt_everywhere

CASES: list[tuple[type[Any], dict[str, Any]]] = [
    (SGD, {}),
    (SGD, {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1, "maximize": True}),
    (SGD, {"momentum": 0.9, "nesterov": True}),
    (AdamW, {}),
    (AdamW, {"amsgrad": True, "maximize": True}),
    (Adam, {"weight_decay": 0.1}),
    (Adadelta, {"weight_decay": 0.1}),
    (Adagrad, {"lr_decay": 0.1}),
    (Adamax, {}),
    (ASGD, {"t0": 2}),
    (NAdam, {}),
    (RAdam, {"betas": (0.8, 0.7)}),
    (RMSprop, {"centered": True, "momentum": 0.5}),
    (Rprop, {}),
]
SHAPES = [(), (0,), (1,), (7, 3), (128,), (64, 65), (300, 500), (3,)]


def one_by_one(kind: type[Any]) -> type[Any]:
    """Return a subclass that updates parameter by parameter."""

    class OneByOne(kind):  # type: ignore[misc]
        def update(self, *arguments: Any) -> None:
            super().update(*arguments)

    return OneByOne


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    backend, threads = kernels.backend(), kernels.get_num_threads()
    yield
    kernels.set_backend(backend)
    kernels.set_num_threads(threads)


def bits(*tensors: Any) -> list[bytes]:
    return [each.detach().numpy().tobytes() for each in tensors]


def all_bits(optimizer: Any) -> list[Any]:
    """Return the parameters and the states of an optimizer."""
    params = [each for group in optimizer.param_groups for each in group["params"]]
    states = [optimizer.state.get(each, {}) for each in params]
    return [
        bits(*params),
        [{k: bits(v) if isinstance(v, Tensor) else v for k, v in s.items()} for s in states],
    ]


def two_ways(kind: type[Any], options: Any, train: Callable[[Any], None]) -> tuple[Any, Any]:
    """Return what `train` leaves behind, with all parameters at once and one by one."""
    results = []
    for each in (kind, one_by_one(kind)):
        made: list[Any] = []

        def make(params: Any, each: Any = each, made: Any = made) -> Any:
            made.append(each(params, lr=0.07, **options))
            return made[-1]

        train(make)
        results.append(all_bits(made[-1]))
    return results[0], results[1]


def _train(dtypes: list[Any]) -> Callable[[Any], None]:
    def train(make: Any) -> None:
        rng = np.random.default_rng(3)

        def random(shape: Any, dtype: Any) -> Any:
            return offgrad.tensor(np.asarray(rng.standard_normal(shape))).to(dtype)

        params = [nn.Parameter(random(shape, dtype)) for shape in SHAPES for dtype in dtypes]
        turned = random((5, 300), dtypes[0]).T.requires_grad_()
        half = len(params) // 2
        optimizer = make(
            [{"params": [*params[:half], turned]}, {"params": params[half:], "lr": 0.3}]
        )
        for step in range(4):
            for number, param in enumerate([*params, turned]):
                # Parameters miss steps, and have gradients that are not contiguous.
                param.grad = None if (number + step) % 5 == 0 else random(param.shape, param.dtype)
                if param.grad is not None and number % 4 == 1 and param.ndim == 2:
                    param.grad = random(param.shape[::-1], param.dtype).T
            optimizer.step()

    return train


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_bits_of_many_parameters(kind: Any, options: dict[str, Any], threads: int) -> None:
    kernels.set_num_threads(threads)
    dtypes = [offgrad.float32, offgrad.float64, offgrad.float16, offgrad.bfloat16]
    together, alone = two_ways(kind, options, _train(dtypes))
    assert together == alone


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_bits_on_numpy(kind: Any, options: dict[str, Any]) -> None:
    kernels.set_backend("numpy")
    together, alone = two_ways(kind, options, _train([offgrad.float32]))
    assert together == alone


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_parameters_that_share_memory(kind: Any, options: dict[str, Any]) -> None:
    def train(make: Any) -> None:
        base = offgrad.arange(20.0)
        params = [base[at : at + 8].detach().requires_grad_() for at in (0, 4, 12)]
        optimizer = make(params)
        for _ in range(3):
            for param in params:
                param.grad = param.detach() * 2
            optimizer.step()

    together, alone = two_ways(kind, options, train)
    assert together == alone


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_gradients_that_share_memory_with_parameters(kind: Any, options: dict[str, Any]) -> None:
    def train(make: Any) -> None:
        params = [nn.Parameter(offgrad.arange(9.0) + each) for each in range(3)]
        same = offgrad.ones(9)
        params[0].grad, params[1].grad, params[2].grad = same, params[0].detach(), same
        optimizer = make(params)
        for _ in range(3):
            optimizer.step()

    together, alone = two_ways(kind, options, train)
    assert together == alone


def test_a_parameter_that_the_program_put_in_twice() -> None:
    def train(make: Any) -> None:
        param = nn.Parameter(offgrad.ones(3))
        param.grad = offgrad.ones(3)
        optimizer = make([param])
        optimizer.param_groups[0]["params"].append(param)
        optimizer.step()
        assert optimizer.state[param]["step"] == 2

    together, alone = two_ways(AdamW, {}, train)
    assert together == alone


def test_state_of_another_dtype_than_its_parameter() -> None:
    def train(make: Any) -> None:
        params = [nn.Parameter(offgrad.ones(3) * each) for each in range(3)]
        optimizer = make(params)
        for number in range(2):
            for param in params:
                param.grad = offgrad.ones(3).to(param.dtype)
            optimizer.step()
            if number == 0:
                state = optimizer.state[params[1]]
                state["exp_avg"] = state["exp_avg"].double()

    together, alone = two_ways(AdamW, {}, train)
    assert together == alone


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_each_tensor_gets_one_version(kind: Any, options: dict[str, Any]) -> None:
    params = [nn.Parameter(offgrad.ones(3)) for _ in range(3)]
    optimizer = kind(params, lr=0.1, **options)
    for param in params:
        param.grad = offgrad.ones(3)
    for step in (1, 2):
        optimizer.step()
        states = [each for state in optimizer.state.values() for each in state.values()]
        changed = [*params, *(each for each in states if isinstance(each, Tensor))]
        assert {each._version for each in changed} == {step}
        assert {each._storage.changed_by for each in changed} == {kind.__name__}


def test_backward_refuses_a_parameter_that_a_step_changed() -> None:
    first, second = (nn.Parameter(offgrad.ones(3)) for _ in range(2))
    loss = (first * second).sum()
    first.grad = offgrad.ones(3)
    AdamW([second, first]).step()
    with pytest.raises(RuntimeError, match="AdamW"):
        loss.backward()


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [(SGD, {"momentum": 0.9}, "momentum_buffer"), (AdamW, {}, "exp_avg_sq")],
)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [(offgrad.ones(4), "one shape"), (offgrad.ones(6)[::2], "contiguous")],
)
def test_state_that_does_not_fit_changes_nothing(
    kind: Any, options: dict[str, Any], name: str, wrong: Tensor, message: str
) -> None:
    params = [nn.Parameter(offgrad.ones(3)) for _ in range(3)]
    optimizer = kind(params, lr=0.1, **options)
    for param in params:
        param.grad = offgrad.ones(3)
    optimizer.step()
    optimizer.state[params[2]][name] = wrong
    before = all_bits(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert all_bits(optimizer) == before


def test_a_read_only_parameter_changes_nothing() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    params = [nn.Parameter(offgrad.ones(3)), nn.Parameter(offgrad.from_numpy(array))]
    for param in params:
        param.grad = offgrad.ones(3)
    with pytest.raises(ValueError, match="read-only"):
        SGD(params, lr=0.1).step()
    assert params[0].tolist() == [1, 1, 1]


def test_gradients_may_be_read_only() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    param = nn.Parameter(offgrad.ones(3))
    param.grad = offgrad.from_numpy(array)
    SGD([param, nn.Parameter(offgrad.ones(3))], lr=0.5).step()
    assert param.tolist() == [0.5] * 3


@pytest.mark.parametrize(("kind", "options"), [(SGD, {"momentum": 0.9}), (AdamW, {}), (NAdam, {})])
def test_ctrl_c_splits_no_step(kind: Any, options: dict[str, Any]) -> None:
    """After SIGINT at any point, all parameters and states are of the same step."""
    start = [np.ones(shape, np.float32) for shape in [(3,), (2, 2)]]

    def make() -> Any:
        params = [nn.Parameter(offgrad.tensor(each)) for each in start]
        for param in params:
            param.grad = offgrad.ones(*param.shape)
        return kind(params, lr=0.1, **options)

    expected = [all_bits(reference := make())]
    for _ in range(3):
        reference.step()
        expected.append(all_bits(reference))
    current = make()

    def action() -> None:
        current.step()
        current.step()

    def check() -> None:
        nonlocal current
        params, states = all_bits(current)
        count = [each for each, _ in expected].index(params)
        assert count == 0 or states == expected[count][1]
        current.step()
        assert all_bits(current) == expected[count + 1]
        current = make()

    modules = (
        *(adam, batched, nadam, optimizer, optimizer_options, sgd),
        *(_array_tables, _optimizers, _optimizers_moments, _parallel, interrupts),
    )
    assert interrupt_everywhere(modules, action, check) > 50


def test_amsgrad_set_after_the_first_step() -> None:
    param = offgrad.ones(3, requires_grad=True)
    optimizer = offgrad.optim.AdamW([param], lr=0.1)
    param.grad = offgrad.ones(3)
    optimizer.step()
    before = param.detach().clone()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(KeyError, match="set after the first step"):
        optimizer.step()
    assert param.equal(before)


def test_amsgrad_unset_after_the_first_step() -> None:
    found = []
    for unset in (False, True):
        param = offgrad.ones(3, requires_grad=True)
        optimizer = offgrad.optim.AdamW([param], lr=0.1, betas=(0.9, 0.5), amsgrad=True)
        for scale in (4.0, 1.0, 0.5):
            optimizer.param_groups[0]["amsgrad"] = not (unset and scale < 1)
            param.grad = offgrad.full((3,), scale)
            optimizer.step()
        found.append(param.detach())
    assert not found[0].equal(found[1])
