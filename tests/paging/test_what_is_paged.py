"""Gradients, copies and parameters are paged however they were made and lie in memory."""

import gc
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory, nn, optim
from tests.paging.models import WIDTH, paging

pytestmark = pytest.mark.usefixtures("kind_of_cache")

PAGE = WIDTH * WIDTH * 4
LAYERS = 12
WINDOW = 4 * PAGE


class Transposing(nn.Module):
    """A layer whose weight gets its gradient transposed."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(offgrad.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Any) -> Any:
        """Return a product with the transposed weight."""
        weight = self.weight
        if self.form == "copy":
            return x @ weight.t().contiguous()
        return x @ (weight.view(WIDTH, -1).mT if self.form == "view" else weight.T)


def held() -> int:
    """Return the bytes of tensors in memory."""
    gc.collect()
    return memory.allocated()


def layers(form: str = "") -> nn.Sequential:
    """Return a model of `LAYERS` square weights."""
    kinds = [
        Transposing(form) if form else nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)
    ]
    return nn.Sequential(*kinds)


def backward(model: Any) -> None:
    """Give all weights gradients."""
    model(offgrad.ones(2, WIDTH)).square().sum().backward()


@pytest.mark.parametrize("form", ["T", "view", "copy"])
def test_transposed_gradients(form: str) -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(0)
        before = held()
        with paging(placement, window=WINDOW):
            model = layers(form)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            if placement is not None:
                assert held() - before <= WINDOW + PAGE
            optimizer.step()
        results.append([each.detach().clone() for each in model.parameters()])
    assert all(a.equal(b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("form", ["T", "copy"])
def test_gradients_lie_as_their_leaf(form: str) -> None:
    model = layers(form)
    backward(model)
    for each in model.parameters():
        assert each.grad is not None
        assert each.grad.is_contiguous()
    leaf = offgrad.randn(3, 4).t().requires_grad_()
    (leaf * 2).t().contiguous().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.stride() in (leaf.stride(), leaf.contiguous().stride())


ASSIGNMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "autograd.grad": lambda param, grad: grad,
    "clone": lambda param, grad: grad.clone(),
    "product": lambda param, grad: grad * 2,
    "zeros": lambda param, grad: offgrad.zeros_like(param),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_assigned_gradients(name: str) -> None:
    before = held()
    with paging("disk", window=WINDOW):
        model = layers()
    parameters = [*model.parameters()]
    for _ in range(2):
        for param in parameters:
            (grad,) = offgrad.autograd.grad(model(offgrad.ones(2, WIDTH)).sum(), [param])
            param.grad = ASSIGNMENTS[name](param, grad)
            wanted = ASSIGNMENTS[name](param, grad).numpy().copy()
            assert np.array_equal(param.grad.numpy(), wanted)
            del grad, wanted
        assert held() - before <= WINDOW + PAGE
        assert offload_bytes(model) == LAYERS * PAGE
        optim.SGD(parameters, lr=0.1).step()


def offload_bytes(model: Any) -> int:
    """Return the bytes of the gradients that are paged."""
    return sum(each.grad.nbytes for each in model.parameters() if each.grad._storage.is_paged)


def test_copies_of_gradients_and_state() -> None:
    before = held()
    with paging("disk", window=WINDOW):
        model = layers()
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    kept: list[Any] = []
    for each in (model, optimizer.state_dict()):
        kept.append(deepcopy(each))
        assert held() - before <= WINDOW + PAGE
    other, its = deepcopy((model, optimizer))
    assert held() - before <= WINDOW + PAGE
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.equal(b)
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.equal(b.grad)
        for key, value in optimizer.state[a].items():
            assert np.array_equal(value, its.state[b][key])
    for each, own in ((model, optimizer), (other, its)):
        own.zero_grad()
        backward(each)
        own.step()
        assert held() - before <= 2 * WINDOW + PAGE
    assert all(a.equal(b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_parameters_in_another_order(order: tuple[int, ...]) -> None:
    def make() -> nn.ParameterList:
        offgrad.manual_seed(1)
        kept = [int(each) for each in np.argsort(order)]
        shape = [(32, 32, 4, 4)[each] for each in order]
        return nn.ParameterList(
            [nn.Parameter(offgrad.randn(*shape).permute(kept)) for _ in range(LAYERS)]
        )

    before = held()
    model = make()
    strides = model[0].stride()
    wanted = [each.detach().numpy().copy() for each in model]
    offload = offgrad.offload_model(model, "disk", window=WINDOW)
    assert held() - before <= WINDOW + PAGE
    assert all(each._storage.is_paged for each in model)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    for each, array in zip(model, wanted, strict=True):
        assert np.array_equal(each.detach().numpy(), array)
    sum((each * each).sum() for each in model).backward()
    optimizer.step()
    assert model[0].stride() == strides
    offload.bring_back(model)
    for each, array in zip(model, wanted, strict=True):
        assert np.array_equal(each.detach().numpy(), array - np.float32(0.5) * (2 * array))
    assert model[0].stride() == strides


@pytest.mark.parametrize("placement", ["disk", f"budget:{6 * PAGE},spill=disk", "zarr"])
def test_small_pages_stay_within_the_window(placement: str) -> None:
    before = held()
    memory.reset_peak()
    with paging(placement, window=6 * PAGE) as offload:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5 * LAYERS)])
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    assert offload.resident_nbytes <= 6 * PAGE
    assert memory.max_allocated() - before <= 10 * PAGE


def test_the_advice_is_about_the_model_that_holds_most() -> None:
    with memory.limit(memory.allocated() + 16 * PAGE):
        with paging("disk", window=2 * PAGE):
            small = layers()
        with paging("disk", window=6 * PAGE):
            big = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3 * LAYERS)])
        with pytest.raises(offgrad.OutOfMemoryError) as failure:
            nn.utils.parameters_to_vector(big.parameters())
    message = str(failure.value)
    assert f"window='{memory.format_nbytes(6 * PAGE)}'" in message
    assert "More are in use at once" in message
    assert "limit must be at least" not in message
    assert len(small) == LAYERS
