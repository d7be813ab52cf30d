"""Deferred writes: tensors that the program still references are not written."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from offgrad_storage import PoolStore, QuotaExceededError

import offgrad
from offgrad import memory, nn
from offgrad.autograd import Function
from offgrad.policies import (
    Cast,
    Offload,
    Placement,
    SaveContext,
    Store,
    When,
)
from offgrad.utils.checkpoint import checkpoint
from tests.session.backends import RecordingStore
from tests.session.graphs import Normalise, bits, data, gradient, normal
from tests.session.helpers import (
    alive,
    everything,
    settle,
    wait_until,
)

# Held inputs


def test_a_held_input_is_not_written(store: RecordingStore) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    with everything(store) as session:
        loss = (x * w).sum()
    loss.backward()
    assert store.events == []
    assert session.ledger.unique_nbytes == x.nbytes
    assert (session.ledger.kept_nbytes, session.ledger.stored_nbytes) == (0, 0)
    assert session.ledger.hits == 1
    assert bits(w.grad) == bits(x)


def test_buffers_targets_and_masks_are_not_written(store: RecordingStore) -> None:
    model = nn.Sequential(nn.Linear(64, 64), Normalise())
    x, mask = data(1, 32, 64), data(2, 32, 64) > 0
    target = offgrad.tensor(np.arange(32) % 64)

    def step() -> Any:
        hidden = offgrad.where(mask, model(x), x)
        loss = nn.functional.cross_entropy(hidden, target)
        return loss, gradient(loss, list(model.parameters()))

    _, expected = step()
    with everything(store) as session:
        loss, found = step()
    assert bits(*found) == bits(*expected)
    held = {id(each) for each in (x, mask, target, model[1].scale)}
    assert len(held) == 4
    written = {(row.op, row.slot) for row in session.ledger.rows if row.writes}
    # Only tensors that ops made, none that existed before.
    assert written == {("NllLossBackward0", "self"), ("NllLossBackward0", "lse")}
    del loss


def test_frozen_weights_are_not_written(store: RecordingStore) -> None:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.requires_grad_(False)
    x = normal(1, 8, 64)
    with everything(store):
        loss = second(first(x)).sum()
    loss.backward()
    assert store.events == []


def test_unpacking_a_held_input_returns_its_own_memory(store: RecordingStore) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    with everything(store):
        y = x.t() * w
        z = w * x[3:40, None, :].expand(37, 64, 64)
    for node, slot in ((y.grad_fn, "_saved_self"), (z.grad_fn, "_saved_other")):
        saved = getattr(node, slot)
        assert np.shares_memory(saved.numpy(), x.numpy())


VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "slice": lambda x: x[3:40],
    "transpose": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "column": lambda x: x[:, 5],
    "expanded": lambda x: x[:, None, :].expand(64, 3, 64),
    "columns, transposed": lambda x: x[1::3, ::2].t(),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("then", ["held", "dropped", "changed"])
def test_views_of_an_input(view: str, then: str, store: RecordingStore) -> None:
    x = data(2, 64, 64)
    part = VIEWS[view](x)
    w = normal(1, *part.shape)
    expected = bits(part * 2)
    with everything(store):
        loss = (part * w).sum() + (VIEWS[view](x) * w).sum()
    del part
    if then == "dropped":
        del x
    elif then == "changed":
        x.mul_(3)
    for _ in range(2):
        assert bits(*gradient(loss, w, retain_graph=True)) == expected
    assert len(store.all("put")) == (0 if then == "held" else 1)


def test_strided_parts_are_copied_once(store: RecordingStore) -> None:
    w, x = normal(1, 64, 32), data(2, 64, 64)
    with everything(store):
        y, z = x[:, ::2] * w, w * x[:, ::2]
    first, second = y.grad_fn._saved_self, z.grad_fn._saved_other
    assert bits(first) == bits(x[:, ::2])
    assert np.shares_memory(first.numpy(), second.numpy())
    assert not np.shares_memory(first.numpy(), x.numpy())
    assert store.events == []


def test_held_inputs_take_no_prefetch_window(store: RecordingStore) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    with everything(store, prefetch_nbytes=2 * w.nbytes):
        loss = ((w.tanh() * x).tanh() * x.t()).sum()
    loss.backward()
    assert store.events[2:] == [("prefetch", 1), ("prefetch", 0), ("get", 1), ("get", 0)]


# Dropped inputs


@pytest.mark.parametrize("size", [8, 300])  # below and above the minimum size of the memory pool
def test_a_dropped_input_is_written_and_its_memory_freed(size: int, store: RecordingStore) -> None:
    w, x = normal(1, size, size), data(2, size, size)
    expected = bits(x)
    base = alive()
    with everything(store) as session:
        loss = (x * w).sum()
        nbytes = memory.allocated() - base
        del x
        assert memory.allocated() - base == nbytes, "the input counts until it is written"
        assert store.all("put") == []
        other = w.exp()  # any save
    assert store.all("put")[0] == 0
    settle(store)
    wait_until(lambda: memory.allocated() <= base + other.nbytes + loss.nbytes, "it is in memory")
    assert session.ledger.writes == 2
    loss.backward()
    assert bits(w.grad) == expected
    assert store.all("get") == [0]


def test_an_input_dropped_after_the_last_save_is_written_by_backward(
    store: RecordingStore,
) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with everything(store):
        loss = (x * w).sum()
    del x
    loss.backward()
    assert store.all("put") == store.all("get") == [0]
    assert bits(w.grad) == expected


def test_a_dropped_input_whose_graph_is_gone_is_not_written(store: RecordingStore) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    base = alive()
    with everything(store):
        loss = (x * w).sum()
        held = loss.nbytes
        del x, loss
        assert memory.allocated() == base - w.nbytes, held
        (data(3, 64, 64) * w).sum()
    assert store.events == []


def test_an_input_dropped_with_a_cycle_is_written(store: RecordingStore) -> None:
    """The garbage collector clears weak references first."""
    w = normal(1, 64, 64)
    cycle: list[Any] = [data(2, 64, 64)]
    cycle.append(cycle)
    expected = bits(cycle[0])
    with everything(store):
        loss = (cycle[0] * w).sum()
    del cycle
    gc.collect()
    loss.backward()
    assert store.all("put") == [0]
    assert bits(w.grad) == expected


def test_a_dropped_tensor_made_under_no_grad_is_written_at_the_next_save(
    store: RecordingStore,
) -> None:
    w = normal(1, 64, 64)

    def forward() -> Any:
        with offgrad.no_grad():
            mask = w.abs()
        return w * mask

    with everything(store):
        y = forward()
        assert store.events == []
        loss = y.exp().sum()
        assert store.all("put") == [0, 1]
    loss.backward()


def test_unpacking_a_dropped_input_returns_its_memory_until_it_is_written(
    store: RecordingStore,
) -> None:
    w, x = normal(1, 300, 300), data(2, 300, 300)
    array = x.numpy()
    with everything(store):
        y = x * w
        del x
        assert np.shares_memory(y.grad_fn._saved_self.numpy(), array)
    assert store.events == []


def test_no_grad_views_of_a_graph_are_written_at_once(store: RecordingStore) -> None:
    w = normal(1, 64, 64)
    y = w + w
    with offgrad.no_grad():
        view = y.t()
    with everything(store):
        loss = (view * w).sum()
        assert store.all("put") == [0]
    loss.backward()


def test_a_target_saved_by_its_own_change_in_place_is_written_at_once(
    store: RecordingStore,
) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with everything(store):
        x.mul_(w)
        assert store.all("put") == [0]
    assert bits(*gradient(x.sum(), w)) == expected


def test_intermediates_of_an_op_are_written_at_once(store: RecordingStore) -> None:
    logits = normal(1, 16, 64)
    with everything(store) as session:
        loss = nn.functional.cross_entropy(logits, offgrad.tensor(np.arange(16)))
        assert {row.slot for row in session.ledger.rows if row.writes} == {"lse"}
    loss.backward()


# Changed inputs


add: Any = offgrad.add

CHANGES: dict[str, Callable[[Any], object]] = {
    "add_": lambda x: x.add_(1),
    "copy_": lambda x: x.copy_(data(9, 64, 64)),
    "through a view": lambda x: x.t()[3:].mul_(2),
    "detached": lambda x: x.detach().zero_(),
    "item": lambda x: x.__setitem__(3, 7.0),
    "out": lambda x: add(data(8, 64, 64), 1, out=x),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_in_place_gives_the_gradient_of_the_saved_value(
    how: str, store: RecordingStore
) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    before = bits(x)
    with everything(store):
        loss = (x * w).sum()
        with offgrad.no_grad():
            CHANGES[how](x)
        assert store.all("put") == [0]
        after = bits(x)
        assert after != before
        second = (x * w).sum()
    assert bits(*gradient(loss, w)) == before
    assert bits(*gradient(second, w)) == after
    assert store.all("put") == [0]


def test_a_buffer_that_every_step_changes(store: RecordingStore) -> None:
    """Like a running average, with the graphs of all steps alive."""
    model = Normalise()
    x = normal(1, 32, 64)
    losses, scales = [], []
    with everything(store):
        for _ in range(4):
            losses.append(model(x).sum())
            scales.append(model.scale.numpy().copy())
            with offgrad.no_grad():
                model.scale.mul_(0.9).add_(data(7, 64), alpha=0.1)
    assert store.all("put") == [0, 1, 2, 3]
    for loss, scale in zip(losses, scales, strict=True):
        (grad,) = gradient(loss, x)
        assert np.array_equal(grad.numpy(), np.broadcast_to(scale, (32, 64)))


def test_a_saved_input_that_backward_changes(store: RecordingStore) -> None:
    """A second backward gets the saved values, wherever they are held."""

    class Vandal(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x)
            return x * w

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            result = x.clone() * grads[0]
            with offgrad.no_grad():
                x.zero_()
            return None, result

    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with PoolStore(quota=1, allocate=memory.empty, hold=memory.empty) as full:
        for place in (store, full):
            held = x.clone()
            with everything(place):
                loss = Vandal.apply(held, w).sum()
            if place is full:
                # It cannot be written, so backward may not change it either.
                with pytest.raises(QuotaExceededError):
                    loss.backward()
                assert bits(held) == expected
                continue
            for _ in range(2):
                assert bits(*gradient(loss, w, retain_graph=True)) == expected
            del loss, held
    assert store.all("put") == [0]


@pytest.mark.parametrize("how", ["held", "dropped", "a cycle"])
def test_an_input_dropped_while_backward_runs_and_then_changed(
    how: str, store: RecordingStore
) -> None:
    class Vandal(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x)
            return x * w

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if how != "held":
                holder.clear()
                gc.collect()
            (x,) = ctx.saved_tensors
            result = x.clone() * grads[0]
            x.detach().zero_()
            return None, result

    w, inner = normal(1, 64, 64), [data(2, 64, 64)]
    holder: list[Any] = [inner]
    if how == "a cycle":
        inner.append(inner)
    expected = bits(inner[0])
    with everything(store):
        loss = Vandal.apply(inner[0], w).sum()
    del inner
    for _ in range(2):
        assert bits(*gradient(loss, w, retain_graph=True)) == expected
    assert store.all("put") == store.all("get") == [0]


def test_a_change_that_cannot_be_written_does_not_happen() -> None:
    """Each attempt fails until the store has room; backward works meanwhile."""
    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with PoolStore(quota=20_000, allocate=memory.empty, hold=memory.empty) as store:
        blocker = store.put(np.ones(4096, np.float32))
        with everything(store):
            loss = (x * w).sum()
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                x.mul_(2)
            assert bits(x) == expected
        assert bits(*gradient(loss, w, retain_graph=True)) == expected
        del blocker
        x.mul_(2)
        assert bits(x) != expected
        assert bits(*gradient(loss, w)) == expected


def test_a_save_that_finds_the_store_full_keeps_the_released_writes() -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with PoolStore(quota=20_000, allocate=memory.empty, hold=memory.empty) as store:
        blocker = store.put(np.ones(4096, np.float32))
        session = everything(store)
        with session:
            loss = (x * w).sum()
        del x
        for _ in range(2):
            with session, pytest.raises(QuotaExceededError):
                w.exp()
        assert bits(*gradient(loss, w, retain_graph=True)) == expected, "it is in memory"
        del blocker
        assert bits(*gradient(loss, w)) == expected


def test_external_memory_is_written_at_once_and_may_change(store: RecordingStore) -> None:
    """NumPy does not report changes."""
    w, array = normal(1, 64, 64), np.arange(4096, dtype=np.float32).reshape(64, 64)
    x = offgrad.from_numpy(array)
    expected = bits(x, x.t())
    with everything(store):
        loss, other = (x * w).sum(), (x.t() * w).sum()
        assert store.all("put") == [0, 1]  # it might have changed between the saves
        array += 100
    assert bits(*gradient(loss, w), *gradient(other, w)) == expected


def test_a_lossy_store_rounds_held_inputs_too(store: RecordingStore) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    with offgrad.offload(Cast("float16", Offload("pool", min_nbytes=0))) as session:
        loss = (x * w).sum()
    assert session.ledger.writes == 1
    loss.backward()
    assert bits(w.grad) == bits(x.to(offgrad.float16).to(offgrad.float32))


# Shared inputs


def test_a_deferred_input_and_a_saved_tensor_of_the_graph_share_one_array(
    store: RecordingStore,
) -> None:
    puts: list[int] = []

    def run() -> Any:
        w = normal(1, 64, 64)
        y = w.exp()  # saves its result
        loss = (y.detach() * w).sum()
        puts.append(len(store.all("put")))
        z = w + w
        loss = loss + (z.detach() * w).sum() + z.sin().sum()  # saves its input
        puts.append(len(store.all("put")))
        del y, z
        loss = loss + w.cos().sum()
        return loss, w

    loss, w = run()
    expected = bits(*gradient(loss, w))
    puts.clear()
    with everything(store) as session:
        loss, w = run()
    assert [*puts, len(store.all("put"))] == [1, 1, 2]
    # y, z, and w, which is a parameter.
    assert session.ledger.unique_nbytes == 3 * w.nbytes
    assert bits(*gradient(loss, w)) == expected


def test_one_op_defers_an_input_that_another_rounds(store: RecordingStore) -> None:
    class Both:
        def place(self, context: SaveContext) -> Placement:
            return Store("pool", "float16") if context.op == "DivBackward0" else Store(store)

    w, x = normal(1, 64, 64), data(2, 64, 64).abs() + 1
    with offgrad.offload(When(Both(), parameter=False)) as session:
        loss = (x * w).sum()
        other = (w / x).sum()
    assert [(row.op, row.writes) for row in session.ledger.rows] == [
        ("MulBackward0", 0),
        ("DivBackward0", 1),
    ]
    assert bits(*gradient(loss, w)) == bits(x)
    del other


@pytest.mark.parametrize("order", ["held", "dropped between", "dropped after", "changed"])
def test_two_sessions_defer_the_same_input(order: str) -> None:
    w, x = normal(1, 64, 64), data(2, 64, 64)
    expected = bits(x)
    with RecordingStore() as one, RecordingStore() as two:
        first, second = everything(one), everything(two)
        with first:
            loss = (x * w).sum()
            with second:
                other = (x * w).sum()
                if order == "dropped between":
                    del x
        if order == "dropped after":
            del x
        elif order == "changed":
            x.zero_()
        found = bits(*gradient(loss, w, retain_graph=True), *gradient(other, w, retain_graph=True))
        assert found == 2 * expected
        count = 0 if order == "held" else 1
        assert (len(one.all("put")), len(two.all("put"))) == (count, count)
        del loss, other


def test_several_backwards_and_second_derivatives(store: RecordingStore) -> None:
    def run(drop: bool, session: Any) -> Any:
        w, x = normal(1, 64, 64), data(2, 64, 64)
        with session:
            loss = ((x * w).tanh() * x.t() * w).sum()
            if drop:
                del x
            (first,) = gradient(loss, w, create_graph=True)
            square = first.square().sum()
        found = [first, *gradient(square, w, retain_graph=True)]
        loss.backward(retain_graph=True)
        loss.backward()
        return bits(*found, w.grad)

    expected = run(False, nullcontext())
    assert run(False, everything(store)) == expected
    assert run(True, everything(store)) == expected


def test_inputs_of_a_checkpoint(store: RecordingStore) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = data(1, 8, 64)
    expected = bits(*gradient(model(x).sum(), list(model.parameters())))
    for drop in (False, True):
        taken = x.clone()
        with everything(store) as session:
            loss = checkpoint(model, taken, use_reentrant=False).sum()
        assert session.ledger.writes == 0
        if drop:
            del taken
        assert bits(*gradient(loss, list(model.parameters()))) == expected
        assert session.ledger.writes == drop


@pytest.mark.parametrize(
    "around", [lambda run, w, x: run(w, x), partial(checkpoint, use_reentrant=False)]
)
@pytest.mark.parametrize("rule", ["disk", "pool", "budget:1MiB", "budget:0", "last:2"])
def test_external_memory_refilled_before_each_save(
    rule: str, around: Any, named_stores: str
) -> None:
    """Like a loader that reuses one array for all batches."""
    array = np.zeros((128, 256), np.float32)
    x = offgrad.from_numpy(array)
    weights = [normal(seed, 128, 256) for seed in range(3)]
    with offgrad.offload(rule, directory=named_stores) as session:
        losses = []
        for number, w in enumerate(weights):
            array[:] = number + 1
            losses.append(around(lambda w, x: w * x, w, x).sum())
    assert session.ledger.unique_nbytes == session.ledger.logical_nbytes
    sum(losses[1:], losses[0]).backward()
    for number, w in enumerate(weights):
        assert (w.grad == number + 1).all()


@pytest.mark.parametrize("rule", ["disk", "budget:0", "last:0", "recompute,then=budget:0"])
def test_frozen_parameters_stay_in_memory(rule: str, named_stores: str) -> None:
    layer = nn.Linear(256, 256).requires_grad_(False)

    def input_gradient(policy: str) -> Any:
        x = normal(1, 4, 256)
        with offgrad.offload(policy, directory=named_stores) as session:
            loss = layer(x).sum()
        assert not session.ledger.writes
        loss.backward()
        return bits(x.grad)

    assert input_gradient(rule) == input_gradient("keep")
