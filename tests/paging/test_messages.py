"""What errors and reports of memory say about pages."""

import gc
import re
from typing import Any

import pytest

import offgrad
from offgrad import memory, nn, optim
from offgrad.memory import OutOfMemoryError
from offgrad.memory.allocator import counter
from tests.paging.models import WIDTH, mlp, paging
from tests.session.backends import MemoryBackend, memory_store

PAGE = WIDTH * WIDTH * 4

held_before = [0]
"""The bytes that other tests have left in memory, as in caches of models."""


@pytest.fixture(autouse=True)
def note_memory() -> None:
    gc.collect()
    held_before[0] = memory.allocated()


def train(model: nn.Module) -> None:
    """Train two steps."""
    optimizer = optim.AdamW(model.parameters())
    for _ in range(2):
        model(offgrad.ones(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def limited(model: nn.Module, pages: float) -> str:
    """Train within a limit; return the message of the error."""
    gc.collect()
    with memory.limit(held_before[0] + int(pages * PAGE)):
        try:
            train(model)
        except OutOfMemoryError as error:
            return str(error.with_traceback(None))
    return ""


def test_a_limit_below_the_window_names_the_window_that_would_do() -> None:
    with paging("disk", window="64MiB"):
        model = mlp(6)
    message = limited(model, 12)
    assert message.startswith(("reading Parameter", "reading Gradient", "tensor memory"))
    assert "in use hold" in message
    assert "window='64.0 MiB'" in message
    assert "0.weight of [128, 128], takes 256.0 KiB with its gradient and state" in message
    window = message.partition("Pass window='")[2].partition("'")[0]
    with paging("disk", window=window):
        model = mlp(6)
    assert not limited(model, 12)


def test_a_limit_below_a_parameter_and_its_state_says_what_would_do() -> None:
    with paging("disk", window=PAGE):
        model = mlp(6)
    message = limited(model, 3)
    assert "of [128, 128]: tensor memory is limited" in message
    assert "Pass window" not in message
    least = int(message.partition("The limit must be at least ")[2].partition("KiB")[0])
    assert 4 * PAGE <= least * 1024 - held_before[0] <= 5 * PAGE
    assert not limited(model, 5.5)


def test_without_pages_the_advice_is_to_make_some() -> None:
    message = limited(mlp(6), 4)
    assert "offgrad.offload_model(model, 'disk')" in message
    assert "Paged" not in message


def test_pages_are_counted_by_role_and_way() -> None:
    backend = MemoryBackend()
    with paging(memory_store(backend), window=9 * PAGE) as offload:
        model = mlp(8)
    gc.collect()
    train(model)
    (cache,) = offload._caches.values()
    offload.reclaim()
    model[0].weight.sum()
    found = memory.memory_by_holder()
    assert found["pages read ahead"] == cache.table.ahead_nbytes > 0
    offload.reclaim()
    assert "pages read ahead" not in memory.memory_by_holder()
    with offgrad.no_grad():
        model[0].weight.mul_(2)
    page: Any = model[0].weight._storage.page
    offload.reclaim()
    assert page.transit == ""
    with offgrad.no_grad():
        model[0].weight.mul_(2)
    found = memory.memory_by_holder()
    assert found["parameters"] >= PAGE
    backend.gate.clear()
    with offload.lock:
        cache._evict(page)
        assert memory.memory_by_holder()["pages being written"] == PAGE
    backend.gate.set()
    offload.reclaim()
    assert "pages being written" not in memory.memory_by_holder()


def test_an_activation_that_does_not_fit_names_its_operation_and_parameters() -> None:
    with paging("disk", window=2 * PAGE):
        model = mlp(2)
    rows = offgrad.ones(4 * WIDTH, WIDTH)
    with pytest.raises(OutOfMemoryError) as caught, memory.limit(left(0.5)):
        rows * 2
    assert str(caught.value).startswith("forward of MulBackward0 on [512, 128], []: tensor memory")
    with pytest.raises(OutOfMemoryError) as caught, memory.limit(left(2.5)):
        model(rows)
    message = str(caught.value)
    assert message.startswith("forward of AddmmBackward0 on 0.bias of [128], [512, 128], ")
    assert "0.weight of [128, 128]: tensor memory is limited" in message
    assert "Held: " in message


def test_a_gradient_that_does_not_fit_names_its_parameter() -> None:
    with paging("disk", window=PAGE):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
    total = model(offgrad.ones(4, WIDTH)).sum()
    with pytest.raises(OutOfMemoryError) as caught, memory.limit(left(0.5)):
        total.backward()
    message = str(caught.value)
    assert message.startswith("backward of ")
    assert " for the gradient of 0.weight of [128, 128]: " in message.partition("tensor mem")[0]


def test_optimizer_state_that_does_not_fit_names_its_parameter() -> None:
    with paging("disk", window=PAGE, state="keep"):
        model = mlp(1)
    optimizer = optim.AdamW(model.parameters())
    model(offgrad.ones(4, WIDTH)).sum().backward()
    with pytest.raises(OutOfMemoryError) as caught, memory.limit(left(1.5)):
        optimizer.step()
    message = str(caught.value)
    assert message.startswith("new optimizer state of 0.weight of [128, 128]: tensor memory")


def left(pages: float) -> int:
    """Have all memory freed that can be; return the limit that leaves room for some pages."""
    gc.collect()
    while counter.reclaim()[0]:  # pages become packs, which are written next
        pass
    return memory.allocated() + int(pages * PAGE)


def test_a_budget_that_an_error_names_holds_a_step_of_adamw() -> None:
    def step(budget: str) -> str:
        with offgrad.offload_model(f"budget:{budget},spill=disk"):
            model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)])
        optimizer = optim.AdamW(model.parameters())
        try:
            model(offgrad.randn(16, 256)).square().mean().backward()
            optimizer.step()
        except offgrad.OutOfMemoryError as error:
            return str(error)
        return ""

    for budget in ("300KiB", "520KiB", "800KiB"):
        (named,) = re.findall(r"raise the budget to ([\d.]+ [KM]iB) or more", step(budget))
        assert step(named.replace(" ", "")) == ""
