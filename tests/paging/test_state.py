"""Optimizer state that a program's own optimizer makes, and that of L-BFGS, is paged as well."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from offgrad_storage import StoreError

import offgrad
from offgrad import nn, optim, storage
from offgrad.nn import functional as F
from tests.paging.models import WIDTH, assert_same, batches, mlp, paging, result_of, train
from tests.paging.test_faults import faulty

pytestmark = pytest.mark.usefixtures("kind_of_cache")

PAGE = WIDTH * WIDTH * 4


class Momentum(optim.Optimizer):
    """An optimizer as programs write them: it makes its state in `step`."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @offgrad.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update in place."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state["step"] = 0
                        state["m"] = offgrad.zeros_like(p)
                        state["others"] = [offgrad.ones_like(p), {"last": p.grad.clone()}]
                    state["step"] += 1
                    state["m"].mul_(0.9).add_(p.grad)
                    state["others"][0].mul_(0.5).add_(state["others"][1]["last"])
                    state["others"][1]["last"].copy_(p.grad)
                    p.add_(state["m"] + state["others"][0], alpha=-group["lr"])


class Replacing(optim.Optimizer):
    """An optimizer that makes new state in each step, and defines `update`."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def update(self, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update in place."""
        state["m"] = grad.detach() + 0.9 * state["m"] if state else grad.detach().clone()
        param.sub_(group["lr"] * state["m"])


def states(offload: Any) -> list[Any]:
    """Return the pages of optimizer state."""
    return [each for each in offload._pages() if each.name.role == "optimizer state"]


@pytest.mark.parametrize(("make", "each"), [(Momentum, 3), (Replacing, 1)])
def test_state_of_a_programs_own_optimizer(make: Callable[[Any], Any], each: int) -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement, window=2 * PAGE) as offload:
            model = mlp()
        optimizer = make(model.parameters())
        losses = []
        for x, y in batches(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if offload is not None:
            assert len(states(offload)) == 4 * each
            assert {page.name.serial for page in states(offload)} <= {*range(1, each + 2)}
            assert offload.resident_nbytes <= 2 * PAGE
        plain = [optimizer.state[param] for param in model.parameters()]
        losses += [float(state["m"].sum()) for state in plain]
        results.append(result_of(losses, model))
    assert_same(*results)


def test_state_in_backward() -> None:
    with paging("disk", window=PAGE) as offload:
        model = mlp()
    optim.step_in_backward(Replacing(model.parameters()))
    for x, y in batches(2):
        F.cross_entropy(model(x), y).backward()
    assert len(states(offload)) == 4
    assert offload.resident_nbytes <= PAGE


def test_the_history_of_lbfgs() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement, window=PAGE) as offload:
            model = mlp(2)
        optimizer = optim.LBFGS(model.parameters(), max_iter=3, history_size=4)
        ((x, y),) = batches(1)

        def closure(model: Any = model, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(4)]
        if offload is not None:
            assert len(states(offload)) == 2 * 4 + 2  # the history, a direction and a gradient
            assert sum(each.resident_nbytes for each in states(offload)) <= PAGE
        results.append(result_of(losses, model))
    assert_same(*results)


def test_state_made_before_is_paged_by_the_next_step() -> None:
    counts: list[int] = []
    moved: list[Any] = []

    def change(model: nn.Module, optimizer: Any) -> None:
        counts.extend(len(states(each)) for each in moved)
        if optimizer.state and not moved:
            moved.append(offgrad.offload_model(model, "disk", window=PAGE))

    found = train(None, change=change)
    assert counts == [8, 8]
    assert_same(found, train(None))


def test_what_shares_memory_with_parameters_is_no_state() -> None:
    with paging("disk", gradients="keep", window=PAGE) as offload:
        model = mlp(2)
    optimizer = Momentum(model.parameters())
    (x, y), *_ = batches(1)
    F.cross_entropy(model(x), y).backward()
    for each in model.parameters():
        optimizer.state[each] = {"others": [each.detach(), {"last": each.grad}], "step": 1}
        optimizer.state[each]["m"] = offgrad.zeros_like(each)
    optimizer.step()
    assert len(states(offload)) == 2
    assert all(bool((each != 0).any()) for each in model.parameters())


def test_a_full_drive_after_the_step_is_no_error_of_the_step() -> None:
    results = []
    with faulty() as (backend, store):
        for placement in (store, None):
            offgrad.manual_seed(3)
            with paging(placement, window=4 * PAGE) as offload:  # parameters and gradients
                model = mlp(2)
            optimizer = Replacing(model.parameters())
            for x, y in batches(1):
                F.cross_entropy(model(x), y).backward()
                backend.free_nbytes = 0
                optimizer.step()
                if offload is not None:
                    assert len(states(offload)) == 2
                    with pytest.raises(StoreError):
                        offload.reclaim()
                backend.mend()
            results.append(result_of([], model))
    assert_same(*results)


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8"])
def test_optimizer_state_may_be_stored_rounded(codec: str) -> None:
    def trained(**options: Any) -> tuple[list[float], list[bytes]]:
        offgrad.manual_seed(3)
        with offgrad.offload_model("disk", window=4 * PAGE, **options):
            model = mlp(6)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for x, y in batches(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [each.detach().numpy().tobytes() for each in model.parameters()]

    exact, weights = trained()
    rounded, rounded_weights = trained(state=f"cast:{codec},then=disk")
    assert rounded_weights != weights
    assert rounded == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8"])
def test_the_error_of_rounded_state_is_that_of_its_codec(codec: str) -> None:
    found = []
    for options in ({"state": f"cast:{codec},then=disk"}, {}):
        offgrad.manual_seed(3)
        with offgrad.offload_model("disk", window=4 * PAGE, **options) as offload:
            model = mlp(3)
        optimizer = optim.AdamW(model.parameters())
        (x, y), *_ = batches(1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        offload.reclaim()
        states = [optimizer.state[each] for each in model.parameters()]
        found.append(
            [np.array(each[name]) for each in states for name in ("exp_avg", "exp_avg_sq")]
        )
    rounded = 0
    for stored, exact in zip(*found, strict=True):
        assert (abs(stored - exact) <= storage.codec(codec).max_error(exact)).all()
        rounded += bool((stored != exact).any())
    assert rounded >= 6  # all that are paged


def test_parameters_and_gradients_are_never_rounded() -> None:
    for options in ({"policy": "disk:bfloat16"}, {"policy": "disk", "gradients": "disk:int8"}):
        policy = options.pop("policy")
        model = mlp(1)
        model(offgrad.ones(2, WIDTH)).sum().backward()
        with pytest.raises(ValueError, match="must come back bit for bit"):
            offgrad.offload_model(model, policy, **options)
