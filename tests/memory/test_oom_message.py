"""The message of OutOfMemoryError: what holds the memory, counted apart, and the fitting remedy."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad import OutOfMemoryError, Tensor, memory, nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.optim import SGD, AdamW

KIB, MIB = 2**10, 2**20
DISK = "offload('disk')"
WEIGHTS_STAY = "optimizer state by offgrad.offload_model(model, 'disk')"


def message(work: Callable[[], Any], room: int) -> str:
    """Return the message of `work` where tensor memory may grow by `room` bytes."""
    with memory.limit(memory.allocated() + room), pytest.raises(OutOfMemoryError) as caught:
        work()
    return str(caught.value)


def held(text: str, purpose: str) -> int:
    """Return the bytes that a message names for a purpose."""
    found = re.search(rf"([\d.]+ [KMGT]?i?B) {purpose}", text)
    assert found is not None, text
    return memory.parse_nbytes(found[1])


def fill() -> list[Tensor]:
    return [offgrad.zeros(512, 512) for _ in range(100)]


def trained(optimizer: Callable[..., Any], *, zero_grad: bool = False) -> tuple[nn.Module, Any]:
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)])
    chosen = optimizer(model.parameters(), lr=0.1)
    with offgrad.offload("disk"):
        loss = model(offgrad.randn(8, 512)).sum()
    loss.backward()
    chosen.step()
    if zero_grad:
        chosen.zero_grad()
    return model, chosen


def test_weights_gradients_and_optimizer_state_are_counted_apart() -> None:
    model, optimizer = trained(AdamW)
    with offgrad.offload("disk"):
        text = message(lambda: model(offgrad.randn(512, 512)), 0)
    assert held(text, "parameters") == 8 * MIB
    assert held(text, "gradients") == 8 * MIB
    assert held(text, "optimizer state") == 16 * MIB
    assert "saved for backward" not in text.split("Held:")[1].split(". ")[0]
    assert WEIGHTS_STAY in text
    assert "an optimizer with less state, such as SGD" in text
    assert DISK not in text
    assert optimizer.state


def test_without_optimizer_state_none_is_blamed() -> None:
    model, _optimizer = trained(SGD, zero_grad=True)
    text = message(lambda: model(offgrad.randn(512, 512)), 0)
    assert held(text, "parameters") == 8 * MIB
    assert WEIGHTS_STAY in text
    assert "such as SGD" not in text


def test_a_parameter_that_is_saved_for_backward_counts_as_a_parameter() -> None:
    model = nn.Linear(1024, 1024, bias=False)
    x = offgrad.ones(64, 1024, requires_grad=True)
    loss = model(x).sum()
    text = message(fill, MIB // 2)
    assert held(text, "parameters") == 4 * MIB
    assert held(text, "saved for backward") == 256 * KIB
    assert "AddmmBackward0" in text or "MmBackward0" in text
    assert "mat2" not in text
    loss.backward()


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.half, copy.deepcopy])
def test_converted_and_copied_tensors_keep_their_role(
    convert: Callable[[nn.Module], nn.Module],
) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(offgrad.ones(256, 256))
    model.register_buffer("mask", offgrad.ones(256, 512))
    (model.weight * 2).sum().backward()
    model = convert(model)
    factor = model.weight.element_size() / 4
    text = message(lambda: offgrad.zeros(512, 512), 0)
    assert held(text, "parameters") >= 256 * KIB * factor
    assert held(text, "gradients") >= 256 * KIB * factor
    assert held(text, "buffers") >= 512 * KIB * factor
    model.weight.data = offgrad.zeros_like(model.weight.data)
    assert model.weight._storage.role == "parameters"


def test_gradients_with_a_graph_are_gradients() -> None:
    x = offgrad.ones(256, 256, requires_grad=True)
    for _ in range(2):
        (x**3).sum().backward(create_graph=True)
    assert x.grad is not None
    assert x.grad._storage.role == "gradients"
    x.grad = None


def test_buffers_are_counted_apart() -> None:
    model = nn.Module()
    model.register_buffer("mask", offgrad.ones(1024, 1024))
    text = message(fill, 0)
    assert held(text, "buffers") == 4 * MIB
    assert WEIGHTS_STAY in text


def activations(depth: int = 8) -> Tensor:
    x = offgrad.ones(256, 1024, requires_grad=True)
    for _ in range(depth):
        x = x.softmax(1)  # which is never recomputed
    return x


def test_saved_tensors_without_a_session_are_to_be_offloaded() -> None:
    text = message(activations, 6 * MIB)
    assert held(text, "saved for backward") >= 4 * MIB
    assert re.search(r"saved for backward \(most: 5.0 MiB by SoftmaxBackward0.result\)", text), text
    assert f"Run the forward pass under offgrad.{DISK}" in text


@pytest.mark.parametrize("policy", ["keep", "disk,max=100KiB", "recompute,min=1GiB"])
def test_a_policy_that_keeps_saved_tensors_is_to_be_replaced(policy: str) -> None:
    def work() -> None:
        with offgrad.offload(policy):
            activations()

    text = message(work, 6 * MIB)
    assert "The policy of the session keeps the tensors saved for backward in memory" in text
    assert f"such as offgrad.{DISK}" in text
    assert "Run the forward pass under" not in text


def test_saved_tensors_outside_the_module_of_a_session_are_to_be_offloaded() -> None:
    inner = nn.Tanh()
    with offgrad.offload("keep", module=inner):
        text = message(activations, 6 * MIB)
    assert f"Run the forward pass under offgrad.{DISK}" in text


def test_copies_in_a_pool_are_memory() -> None:
    def work() -> None:
        with offgrad.offload("pool"):
            activations(20)

    text = message(work, 8 * MIB)
    assert held(text, "copies in the pool store") >= 4 * MIB
    assert f"A pool store is memory, too: use offgrad.{DISK}" in text


def test_inputs_are_to_be_smaller() -> None:
    text = message(fill, 8 * MIB)
    assert held(text, "inputs and other tensors") == 8 * MIB
    assert "Make the batch smaller. Drop tensors that the program no longer needs" in text
    assert DISK not in text


def test_a_request_above_the_limit_needs_a_smaller_batch() -> None:
    _held = activations()
    with memory.limit(2 * MIB), pytest.raises(OutOfMemoryError) as caught:
        offgrad.zeros(4, 1024, 1024)
    text = str(caught.value)
    assert "This one request exceeds the limit: make the batch smaller. Or raise the limit." in text


def test_several_holders_get_several_remedies() -> None:
    model = nn.Linear(1024, 1024, bias=False)
    text = message(activations, 6 * MIB)
    assert WEIGHTS_STAY in text
    assert f"Run the forward pass under offgrad.{DISK}" in text
    assert model.weight.requires_grad


def test_small_tensors_are_counted_together() -> None:
    text = message(lambda: [offgrad.zeros(1000) for _ in range(3000)], 2 * MIB)
    assert held(text, "buffers in use, pending writes and small tensors") >= 1.9 * MIB
    assert "Make the batch smaller" in text


def test_prefetched_arrays_are_counted_apart() -> None:
    """Backward runs out of memory, and arrays that were read ahead hold some of it."""
    seen: list[dict[str, int]] = []
    x = offgrad.ones(256, 1024, requires_grad=True)
    with offgrad.offload("disk") as session:
        y = x
        for _ in range(12):
            y = y.sin()
    y.register_hook(lambda grad: seen.append(memory.memory_by_holder()))
    y.sum().backward()
    assert session.ledger.reads > 0
    assert any(each.get("prefetched for backward", 0) >= MIB for each in seen), seen


def test_tensors_held_by_hooks_are_other_tensors() -> None:
    def work() -> None:
        with saved_tensors_hooks(lambda each: each, lambda each: each):
            activations()

    assert held(message(work, 6 * MIB), "inputs and other tensors") >= 5 * MIB


def test_the_systems_own_limit_has_the_same_message() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        offgrad.empty(2**50)
    text = str(caught.value)
    assert text.startswith("the system has no memory left for 4096.0 TiB of tensor data")
    assert "Make the batch smaller" in text
    assert "raise the limit" not in text
