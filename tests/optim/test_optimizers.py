"""Optimisers: groups, options, state, and parameters that they do not change."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, nn
from offgrad.optim import (
    SGD,
    Adam,
    AdamW,
    Optimizer,
)

KINDS: list[type[Optimizer]] = [SGD, Adam, AdamW]


def parameter(*values: float) -> Tensor:
    return nn.Parameter(offgrad.tensor(values, dtype=offgrad.float32))


def take_steps(optimizer: Any, params: Sequence[Tensor], count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        sum(((p - 3) ** 2).sum() for p in params).backward()  # type: ignore[union-attr]
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_decreases(kind: Any) -> None:
    p = parameter(0, 10)
    take_steps(kind([p], lr=0.3), [p], 100)
    assert np.abs(p.detach().numpy() - 3).max() < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_without_gradient_are_unchanged(kind: Any) -> None:
    p, idle = parameter(1.0), parameter(2.0)
    optimizer = kind([p, idle], lr=0.1, weight_decay=0.1)
    take_steps(optimizer, [p], 2)
    assert idle.item() == 2
    assert idle._version == 0
    assert p._version == 2
    assert set(optimizer.state) <= {p}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_not_recorded_and_gradients_stay(kind: Any) -> None:
    p = parameter(1, 2)
    optimizer = kind([p], lr=0.1)
    (p * p).sum().backward()
    assert p.grad is not None
    before = p.grad.tolist()
    optimizer.step()
    assert p.is_leaf
    assert p.grad.tolist() == before
    assert optimizer.step(lambda: (p * p).sum()).requires_grad


def test_groups_have_their_own_options() -> None:
    a, b = parameter(1.0), parameter(1.0)
    optimizer = SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    (a + b).sum().backward()
    optimizer.step()
    assert (a.item(), b.item()) == pytest.approx((0.9, 0.5))
    c = parameter(1.0)
    optimizer.add_param_group({"params": [c], "lr": 1.0})
    c.grad = offgrad.ones(1)
    a.grad = b.grad = None
    optimizer.param_groups[2]["lr"] = 0.25
    optimizer.step()
    assert c.item() == 0.75


def test_zero_grad() -> None:
    p = parameter(1.0)
    optimizer = SGD([p], lr=0.1)
    (p * 2).backward()
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is not None
    assert p.grad.tolist() == [0]
    optimizer.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: SGD([], lr=0.1), ValueError),
        (lambda p: SGD(p, lr=0.1), TypeError),
        (lambda p: SGD([3], lr=0.1), TypeError),
        (lambda p: SGD([p * 2], lr=0.1), ValueError),
        (lambda p: SGD([p, ("name", p)], lr=0.1), ValueError),
        (lambda p: SGD([{"params": {p}}], lr=0.1), TypeError),
        (lambda p: SGD([p], fused=True, foreach=True), RuntimeError),
        (lambda p: SGD([p], differentiable=True), NotImplementedError),
        (lambda p: SGD([{"params": [p]}, {"params": [p]}], lr=0.1), ValueError),
        (lambda p: SGD([p], lr=-1), ValueError),
        (lambda p: SGD([p], lr=float("nan")), ValueError),
        (lambda p: SGD([p], lr=0.1, nesterov=True), ValueError),
        (lambda p: AdamW([p], betas=(1.0, 0.9)), ValueError),
        (lambda p: AdamW([p], eps=-1), ValueError),
        (lambda p: Adam([p], weight_decay=-1), ValueError),
    ],
)
def test_misuse(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make(parameter(1.0))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SGD, {"momentum": 0.9}), (AdamW, {"amsgrad": True}), (Adam, {"weight_decay": 0.1})],
)
def test_training_resumes_from_a_state_dict(kind: Any, options: dict[str, Any]) -> None:
    through = [parameter(1, 2), parameter(5)]
    optimizer = kind(through, lr=0.05, **options)
    take_steps(optimizer, through, 3)
    halfway = [nn.Parameter(each.detach().clone()) for each in through]
    state = copy.deepcopy(optimizer.state_dict())
    resumed = kind(halfway, lr=123.0, **options)
    resumed.load_state_dict(state)
    take_steps(optimizer, through, 3)
    take_steps(resumed, halfway, 3)
    for a, b in zip(through, halfway, strict=True):
        assert a.equal(b)
    assert resumed.param_groups[0]["lr"] == 0.05
    with pytest.raises(ValueError, match="doesn't match the size"):
        kind(halfway[:1], **options).load_state_dict(state)


def test_loaded_state_is_a_copy() -> None:
    p, q = parameter(1.0), parameter(1.0)
    first, second = SGD([p], lr=0.1, momentum=0.9), SGD([q], lr=0.1, momentum=0.9)
    take_steps(first, [p], 1)
    second.load_state_dict(first.state_dict())
    take_steps(second, [q], 1)
    mine, theirs = first.state[p]["momentum_buffer"], second.state[q]["momentum_buffer"]
    assert not np.may_share_memory(mine._array, theirs._array)
    assert mine.tolist() != theirs.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_are_views_or_not_contiguous_change_in_place(kind: Any) -> None:
    base = offgrad.ones(3, 2)
    turned = base.detach().T.requires_grad_()
    plain = nn.Parameter(offgrad.ones(2, 3))
    for p in (turned, plain):
        take_steps(kind([p], lr=0.1), [p], 2)
    np.testing.assert_allclose(turned.detach().numpy(), plain.detach().numpy())
    np.testing.assert_allclose(base.numpy().T, plain.detach().numpy())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_views(kind: Any, dtype: str) -> None:
    p = nn.Parameter(offgrad.ones(2, 3, dtype=getattr(offgrad, dtype)))
    q = nn.Parameter(offgrad.ones(2, 3, dtype=getattr(offgrad, dtype)))
    gradient = offgrad.arange(6.0).to(p.dtype).view(3, 2)
    p.grad, q.grad = gradient.T, gradient.T.contiguous()
    for each in (p, q):
        kind([each], lr=0.1).step()
    assert p.equal(q)


def test_adafactor_loads_a_count_that_is_a_number() -> None:
    param = offgrad.ones(2, requires_grad=True)
    optimizer = offgrad.optim.Adafactor([param])
    param.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["step"] = 1.0
    optimizer.load_state_dict(state)
    optimizer.step()
    assert optimizer.state[param]["step"].item() == 2
