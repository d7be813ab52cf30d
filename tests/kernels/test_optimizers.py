from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._parallel import BLOCK

Agree = Callable[..., None]
STEPS = 4


def _adam(
    size: int, dtype: Any, amsgrad: bool, decoupled: bool, maximize: bool, weight_decay: float
) -> list[Any]:
    rng = np.random.default_rng(size)
    param = rng.normal(size=size).astype(dtype)
    mean, square = np.zeros_like(param), np.zeros_like(param)
    highest = np.zeros_like(param) if amsgrad else None
    for step in range(1, STEPS + 1):
        grad = rng.normal(size=size).astype(dtype) / step
        kernels.adamw_step(
            param,
            grad,
            mean,
            square,
            lr=1e-2,
            beta1=0.9,
            beta2=0.99,
            eps=1e-8,
            weight_decay=weight_decay,
            step=step,
            maximize=maximize,
            max_exp_avg_sq=highest,
            decoupled=decoupled,
        )
    return [param, mean, square] + ([] if highest is None else [highest])


@pytest.mark.parametrize("size", [0, 1, 33, 150_001])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_numba_equals_numpy(
    size: int, amsgrad: bool, decoupled: bool, dtype: Any, agree: Agree
) -> None:
    results = []
    for backend in ("numba", "numpy"):
        kernels.set_backend(backend)
        results.append(_adam(size, dtype, amsgrad, decoupled, False, 0.1))
    for actual, expected in zip(*results, strict=True):
        agree(actual, expected, 2)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam_against_torch(
    amsgrad: bool, decoupled: bool, maximize: bool, dtype: Any, agree: Agree, backend: str
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(50)
    param = torch.from_numpy(rng.normal(size=50).astype(dtype)).requires_grad_()
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)(
        [param],
        lr=1e-2,
        betas=(0.9, 0.99),
        weight_decay=0.1,
        amsgrad=amsgrad,
        maximize=maximize,
        foreach=False,
    )
    for step in range(1, STEPS + 1):
        param.grad = torch.from_numpy(rng.normal(size=50).astype(dtype) / step)
        optimizer.step()
    state = optimizer.state[param]
    names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if amsgrad else [])
    expected = [param.detach(), *(state[name] for name in names)]
    actual = _adam(50, dtype, amsgrad, decoupled, maximize, 0.1)
    for array, tensor in zip(actual, expected, strict=True):
        agree(array, tensor.numpy())


def _sgd(size: int, dtype: Any, momentum: float, **options: Any) -> list[Any]:
    rng = np.random.default_rng(size)
    param = rng.normal(size=size).astype(dtype)
    buffer = np.full_like(param, np.nan) if momentum else None  # a first step must not read it
    for step in range(STEPS):
        grad = rng.normal(size=size).astype(dtype)
        first = step == 0
        kernels.sgd_step(param, grad, buffer, 0.1, momentum, first_step=first, **options)
    return [param] + ([] if buffer is None else [buffer])


SGD = [
    {"momentum": 0.0},
    {"momentum": 0.0, "weight_decay": 0.1, "maximize": True},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.parametrize("size", [0, 1, 33, 150_001])
@pytest.mark.parametrize("options", SGD)
def test_sgd_numba_equals_numpy(
    size: int, options: dict[str, Any], dtype: Any, agree: Agree
) -> None:
    results = []
    for backend in ("numba", "numpy"):
        kernels.set_backend(backend)
        results.append(_sgd(size, dtype, **options))
    for actual, expected in zip(*results, strict=True):
        agree(actual, expected)


@pytest.mark.parametrize("options", SGD)
def test_sgd_against_torch(options: dict[str, Any], dtype: Any, agree: Agree, backend: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(40)
    param = torch.from_numpy(rng.normal(size=40).astype(dtype)).requires_grad_()
    optimizer = torch.optim.SGD([param], lr=0.1, foreach=False, **options)
    for _ in range(STEPS):
        param.grad = torch.from_numpy(rng.normal(size=40).astype(dtype))
        optimizer.step()
    agree(_sgd(40, dtype, **options)[0], param.detach().numpy())


def test_nan_and_infinity_stay_where_they_are(dtype: Any, backend: str) -> None:
    param = np.array([np.inf, 1, 1, np.nan], dtype=dtype)
    grad = np.array([0, np.nan, 1, 0], dtype=dtype)
    mean, square, highest = np.zeros_like(param), np.zeros_like(param), np.zeros_like(param)
    kernels.adamw_step(
        param, grad, mean, square, 0.1, 0.9, 0.99, 1e-8, 0.0, 1, max_exp_avg_sq=highest
    )
    np.testing.assert_allclose(param, [np.inf, np.nan, 0.9, np.nan], rtol=1e-6)
    assert np.isnan(highest[1])


SIZES = [0, 1, 33, BLOCK - 1, 5, BLOCK, 2 * BLOCK + 7, 16]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_of_many_parameters(amsgrad: bool, threads: int, dtype: Any, backend: str) -> None:
    kernels.set_num_threads(threads)
    results = []
    for together in (False, True):
        rng = np.random.default_rng(8)
        columns: list[Any] = [
            [rng.normal(size=each).astype(dtype) ** 2 for each in SIZES] for _ in range(5)
        ]
        if not amsgrad:
            columns[4] = [None for _ in SIZES]
        steps = [1 + number % 3 for number, _ in enumerate(SIZES)]
        if together:
            rest: Any = (steps, 1e-2, 0.9, 0.99, 1e-8, 0.1, False, True)
            kernels.adamw_steps(*columns, *rest)
        else:
            for p, g, mean, square, highest, step in zip(*columns, steps, strict=True):
                kernels.adamw_step(
                    p, g, mean, square, 1e-2, 0.9, 0.99, 1e-8, 0.1, step, max_exp_avg_sq=highest
                )
        arrays = [each for column in columns for each in column]
        results.append([each.tobytes() for each in arrays if each is not None])
    assert results[0] == results[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_of_many_parameters(momentum: float, dtype: Any, backend: str) -> None:
    results = []
    for together in (False, True):
        rng = np.random.default_rng(8)
        params, grads, buffers = (
            [rng.normal(size=each).astype(dtype) for each in SIZES] for _ in range(3)
        )
        used: Any = buffers if momentum else [None for _ in SIZES]
        firsts = [number % 2 == 0 for number, _ in enumerate(SIZES)]
        if together:
            kernels.sgd_steps(params, grads, used, firsts, 0.1, momentum, 0.0, 0.1, False, False)
        else:
            for param, grad, buffer, first in zip(params, grads, used, firsts, strict=True):
                kernels.sgd_step(param, grad, buffer, 0.1, momentum, 0.0, 0.1, first_step=first)
        results.append([each.tobytes() for each in [*params, *buffers]])
    assert results[0] == results[1]


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_to_maximize_is_to_minimize_the_negative(
    amsgrad: bool, decoupled: bool, dtype: Any, backend: str
) -> None:
    results = []
    for sign in (1, -1):
        rng = np.random.default_rng(4)
        arrays: list[Any] = [rng.normal(size=1001).astype(dtype) ** 2 for _ in range(5)]
        arrays[1] *= sign
        highest = arrays[4] if amsgrad else None
        rest: Any = (1e-2, 0.9, 0.99, 1e-8, 0.1, 2, sign < 0, highest, decoupled)
        kernels.adamw_step(*arrays[:4], *rest)
        results.append([each.tobytes() for each in (arrays[0], *arrays[2:])])
    assert results[0] == results[1]


OTHERS: list[tuple[Any, int, tuple[Any, ...]]] = [
    (kernels.adadelta_steps, 2, (0.1, 0.9, 1e-6, 0.1, True)),
    (kernels.adagrad_steps, 1, ([1.0, 2.0], 0.1, 0.1, 1e-10, 0.0, False)),
    (kernels.adamax_steps, 2, ([1.0, 2.0], 0.1, 0.9, 0.99, 1e-8, 0.1, True)),
    (kernels.asgd_steps, 1, ([(0.1, 1), (0.2, 0.5)], 0.1, 0.1, False)),
    (kernels.nadam_steps, 2, ([1.0, 2.0], [0.5, 0.3], 0.1, 0.9, 0.99, 1e-8, 0.1, 4e-3, True, True)),
    (kernels.radam_steps, 2, ([1.0, 9.0], 0.1, 0.9, 0.99, 1e-8, 0.1, False, False)),
    (kernels.rmsprop_steps, 3, (0.1, 0.9, 1e-8, 0.1, 0.9, False)),
    (kernels.rprop_steps, 2, (0.5, 1.2, 0.2, 0.4, True)),
]


@pytest.mark.parametrize(("kernel", "states", "rest"), OTHERS)
def test_other_optimizers_on_numba_and_numpy(
    kernel: Any, states: int, rest: Any, dtype: Any, agree: Agree
) -> None:
    results = []
    for backend in ("numba", "numpy"):
        kernels.set_backend(backend)
        rng = np.random.default_rng(3)
        sizes = (33, 2 * BLOCK + 7)
        columns = [[rng.normal(size=each).astype(dtype) for each in sizes] for _ in range(2)]
        columns += [
            [rng.random(size=each).astype(dtype) + (number == 0) for each in sizes]
            for number in range(states)
        ]
        kernel(*columns, *rest)
        results.append([each for column in columns for each in column])
    for actual, expected in zip(*results, strict=True):
        agree(actual, expected, 4)


def test_rows_that_share_memory_come_one_by_one(backend: str) -> None:
    """The second gradient is the first parameter, as it is after its step."""
    memory = np.ones(8, np.float32)
    first, second = memory[:4], memory[4:]
    kernels.sgd_steps(
        [first, second, memory[2:6]],
        [np.ones(4, np.float32), first, np.ones(4, np.float32)],
        [None, None, None],
        [False, False, False],
        0.5,
        0.0,
        0.0,
        0.0,
        False,
        False,
    )
    np.testing.assert_array_equal(memory, [0.5, 0.5, 0, 0, 0.25, 0.25, 0.75, 0.75])


def test_errors_of_many_parameters_change_nothing() -> None:
    x = [np.ones(3, np.float32) for _ in range(3)]
    gaps = [*x[:2], np.ones(6, np.float32)[::2]]
    sizes = [*x[:2], np.ones(4, np.float32)]
    fixed = [*x[:2], np.ones(3, np.float32)]
    fixed[2].flags.writeable = False
    g = [np.ones(3, np.float32) for _ in range(3)]
    none: list[Any] = [None] * 3
    rest: Any = (0.1, 0.0, 0.0, 0.0, False, False)
    for params, message in ((gaps, "contiguous"), (sizes, r"\(4,\)"), (fixed, "read-only")):
        with pytest.raises(ValueError, match=message):
            kernels.sgd_steps(params, g, none, [False] * 3, *rest)
    assert [each.tolist() for each in x] == [[1, 1, 1]] * 3


def test_errors() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="count from 1, got 0"):
        kernels.adamw_step(x, x, x, x, 0.1, 0.9, 0.99, 1e-8, 0.0, 0)
    with pytest.raises(ValueError, match=r"got momentum 0\.9 and no buffer"):
        kernels.sgd_step(x, x, None, 0.1, 0.9)
    with pytest.raises(ValueError, match=r"param \(3,\), grad \(4,\)"):
        kernels.sgd_step(x, np.zeros(4, np.float32), None, 0.1)
