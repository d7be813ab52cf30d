"""In-place forms that change some elements: as the other form, but for time and memory."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, memory
from offgrad.autograd.op import add_op_observer, remove_op_observer

Change = Callable[[Tensor], Tensor]

ROWS = offgrad.tensor([4, 0, 4, 2])
PLACES = offgrad.tensor([[0, 5], [3, 3], [0, 1]])
VALUES = offgrad.tensor(np.random.default_rng(0).standard_normal((4, 3)))
PAIRS = offgrad.tensor(np.random.default_rng(1).standard_normal((3, 2)))
MASK = offgrad.tensor(np.random.default_rng(2).random((6, 3)) > 0.5)
SEVEN = offgrad.tensor(7.0, dtype=offgrad.float64)

CHANGES: dict[str, Change] = {
    "index_add_": lambda x: x.index_add_(0, ROWS, VALUES, alpha=2),
    "index_copy_": lambda x: x.index_copy_(0, ROWS, VALUES),
    "index_fill_": lambda x: x.index_fill_(0, ROWS, 3),
    "index_fill_ columns": lambda x: x.index_fill_(1, offgrad.tensor([-1, 0]), SEVEN),
    "index_reduce_": lambda x: x.index_reduce_(0, ROWS, VALUES, "amax"),
    "index_reduce_ without self": lambda x: x.index_reduce_(
        0, ROWS, VALUES, "prod", include_self=False
    ),
    "index_reduce_ mean": lambda x: x.index_reduce_(0, ROWS, VALUES, "mean"),
    "masked_fill_": lambda x: x.masked_fill_(MASK, float("nan")),
    "masked_fill_ rows": lambda x: x.masked_fill_(MASK[:, :1], SEVEN),
    "masked_scatter_": lambda x: x.masked_scatter_(MASK, offgrad.arange(18.0).double()),
    "put_": lambda x: x.put_(PLACES, PAIRS),
    "put_ added": lambda x: x.put_(PLACES - 6, PAIRS, accumulate=True),
    "scatter_": lambda x: x.scatter_(0, PLACES, PAIRS),
    "scatter_ number": lambda x: x.scatter_(0, PLACES, -1),
    "scatter_ product": lambda x: x.scatter_(0, PLACES, PAIRS, reduce="multiply"),
    "scatter_add_": lambda x: x.scatter_add_(0, PLACES, PAIRS),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, PLACES, PAIRS, "amin"),
    "scatter_reduce_ mean": lambda x: x.scatter_reduce_(0, PLACES, PAIRS, "mean"),
    "scatter_reduce_ sum": lambda x: x.scatter_reduce_(0, PLACES, PAIRS, "sum"),
    "scatter_reduce_ sum without self": lambda x: x.scatter_reduce_(
        0, PLACES, PAIRS, "sum", include_self=False
    ),
}


SOURCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_add_": lambda x, source: x.index_add_(0, ROWS, source, alpha=2),
    "index_copy_": lambda x, source: x.index_copy_(0, ROWS, source),
    "index_fill_": lambda x, source: x.index_fill_(0, ROWS, source[0, 0]),
    "index_put_": lambda x, source: x.index_put_((ROWS,), source),
    "index_put_ added": lambda x, source: x.index_put_((ROWS,), source, accumulate=True),
    "masked_fill_": lambda x, source: x.masked_fill_(MASK, source[0, 0]),
    "masked_scatter_": lambda x, source: x.masked_scatter_(MASK, source),
    "put_": lambda x, source: x.put_(PLACES, source[:3, :2]),
    "put_ added": lambda x, source: x.put_(PLACES, source[:3, :2], accumulate=True),
    "scatter_": lambda x, source: x.scatter_(0, PLACES, source),
    "scatter_add_": lambda x, source: x.scatter_add_(0, PLACES, source),
    "scatter_reduce_": lambda x, source: x.scatter_reduce_(0, PLACES, source, "amax"),
    "scatter_reduce_ sum": lambda x, source: x.scatter_reduce_(0, PLACES, source, "sum"),
    "setitem": lambda x, source: setitem(x, ROWS, source),
    "setitem by a mask": lambda x, source: setitem(x, MASK, source[0, 0]),
    "setitem of columns": lambda x, source: setitem(x, (slice(None), [2, 0]), source[0, :2]),
}
"""Changes to what is computed of a source of shape (4, 3)."""


def setitem(x: Tensor, index: Any, value: Tensor) -> Tensor:
    x[index] = value
    return x


def start() -> Tensor:
    return offgrad.tensor(np.random.default_rng(3).standard_normal((6, 3)))


@pytest.mark.parametrize("name", CHANGES)
def test_recorded_and_not_recorded_give_the_same_bits(name: str) -> None:
    plain, leaf = start(), start().requires_grad_()
    version = plain._version
    assert CHANGES[name](plain) is plain
    assert plain._version == version + 1
    recorded = CHANGES[name](leaf * 1)
    assert recorded.requires_grad
    assert plain.numpy().tobytes() == recorded.detach().numpy().tobytes()


@pytest.mark.parametrize("name", CHANGES)
def test_columns_of_a_larger_tensor(name: str) -> None:
    plain, wide = start(), offgrad.zeros(6, 5, dtype=offgrad.float64)
    wide[:, 1:4] = plain
    CHANGES[name](plain)
    CHANGES[name](wide[:, 1:4])
    assert wide[:, 1:4].numpy().tobytes() == plain.numpy().tobytes()
    assert not wide[:, ::4].any()


@pytest.mark.parametrize("name", CHANGES)
def test_a_saved_value_is_missed(name: str) -> None:
    leaf, changed = offgrad.ones(6, 3, dtype=offgrad.float64).requires_grad_(), start()
    loss = (leaf * changed).sum()
    CHANGES[name](changed)
    with pytest.raises(RuntimeError, match=name.split()[0]):
        loss.backward()


def derivatives(
    change: Callable[[Tensor, Tensor], Tensor], make: Callable[[Tensor], Tensor], has_history: bool
) -> list[Tensor]:
    """Return the changed target, and first and second derivatives by its first value, if that
    has a history, and by the source.
    """
    x, source = start().requires_grad_(has_history), VALUES.clone().requires_grad_()
    target = make(x * x)
    out = change(target, source * source)
    assert out is target
    leaves = [x, source] if has_history else [source]
    grads = offgrad.autograd.grad(out.pow(3).sum(), leaves, create_graph=True)
    total = sum((grad.square().sum() for grad in grads), offgrad.zeros(()).double())
    second = offgrad.autograd.grad(total, leaves, allow_unused=True)
    return [out, *grads, *[each for each in second if each is not None]]


MAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().clone().t(),
    "view": lambda x: (x * 1).view(6, 3),
    "columns": lambda x: offgrad.cat([x, x], 1)[:, 1:4],
}


@pytest.mark.parametrize("has_history", [True, False])
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("name", SOURCES)
def test_derivatives_are_those_of_a_changed_copy(name: str, make: str, has_history: bool) -> None:
    found = derivatives(SOURCES[name], MAKES[make], has_history)
    add_op_observer(observer := lambda apply, *args: apply(*args))  # ends the short way
    try:
        expected = derivatives(SOURCES[name], MAKES[make], has_history)
    finally:
        remove_op_observer(observer)
    assert len(found) == len(expected)
    for ours, general in zip(found, expected, strict=True):
        offgrad.testing.assert_close(ours, general)


@pytest.mark.parametrize("name", SOURCES)
def test_a_failing_pack_hook_changes_nothing(name: str) -> None:
    source = VALUES.clone().requires_grad_()
    target = start()
    before, version = target.clone(), target._version

    def fail(tensor: Tensor) -> Tensor:
        raise OSError("no space")

    with (
        offgrad.autograd.graph.saved_tensors_hooks(fail, lambda packed: packed),
        pytest.raises(OSError, match="no space"),
    ):
        SOURCES[name](target, source)
    assert target.equal(before)
    assert target._version == version
    assert not target.requires_grad


def test_hooks_may_run_the_operation_on_the_target() -> None:
    """What a pack hook computes out of place is no part of the change that it is called for."""
    leaf, ones = offgrad.zeros(4).requires_grad_(), offgrad.ones(2)
    x, seen = leaf * 1, []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(x.index_add(0, offgrad.tensor([3]), offgrad.tensor([100.0])))
        return tensor

    with offgrad.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        x.index_add_(0, offgrad.tensor([0, 1]), ones)
    assert seen[0].tolist() == [0, 0, 0, 100]
    assert x.tolist() == [1, 1, 0, 0]


def test_a_limit_names_the_recorded_change() -> None:
    x = offgrad.zeros(1000, 100).requires_grad_() * 1
    values = offgrad.ones(100, 1000).t()
    with (
        memory.limit(memory.allocated() + values.nbytes // 2),
        pytest.raises(offgrad.OutOfMemoryError, match="forward of IndexAddBackward0"),
    ):
        x.index_add_(0, offgrad.arange(1000), values)
    assert x._version == 0
    assert x.grad_fn is not None
    assert x.grad_fn.name() == "MulBackward0"


def test_a_failing_recorded_change_changes_nothing() -> None:
    source = VALUES.clone().requires_grad_()
    target = start().requires_grad_() * 1
    before, version, node = target.detach().clone(), target._version, target.grad_fn
    changes: list[Callable[[], Tensor]] = [
        lambda: target.index_add_(0, ROWS + 9, source),
        lambda: target.index_put_((ROWS + 9,), source),
        lambda: target.index_put_((ROWS,), source[:, :2]),
        lambda: target.scatter_add_(0, PLACES + 9, source),
    ]
    for change in changes:
        with pytest.raises((RuntimeError, IndexError)):
            change()
        assert target.equal(before)
        assert target._version == version
        assert target.grad_fn is node


def test_leaves_and_their_views_are_not_changed() -> None:
    leaf = start().requires_grad_()
    before = leaf.detach().clone()
    for target in (leaf, leaf[:], leaf.view(6, 3)):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            target.index_add_(0, ROWS, VALUES)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            target[ROWS] = VALUES
    assert leaf.equal(before)


def test_views_and_bases_follow_a_recorded_change() -> None:
    source = VALUES.clone().requires_grad_()
    base = offgrad.zeros(6, 3, dtype=offgrad.float64)
    row, flat = base[4], base.view(-1)
    flat.view(6, 3).index_add_(0, ROWS, source)
    (row.sum() + base.sum() + flat[0] * 5).backward()
    assert source.grad is not None
    assert source.grad.tolist() == [[2, 2, 2], [6, 1, 1], [2, 2, 2], [1, 1, 1]]


LARGE = [
    "index_add_", "index_copy_", "index_fill_", "masked_fill_", "put_", "scatter_",
    "scatter_add_", "scatter_reduce_",
]  # fmt: skip


def large_change(name: str) -> Change:
    """Return a change of few of 1000 rows of 2000; no other test holds its tensors."""
    rows = offgrad.arange(0, 1000, 10)
    values = offgrad.ones(100, 2000)
    places = offgrad.zeros(3, 2000, dtype=offgrad.int64)
    mask = offgrad.zeros(1000, 1).bool()
    changes: dict[str, Change] = {
        "index_add_": lambda x: x.index_add_(0, rows, values),
        "index_copy_": lambda x: x.index_copy_(0, rows, values),
        "index_fill_": lambda x: x.index_fill_(0, rows, 3),
        "masked_fill_": lambda x: x.masked_fill_(mask, 3),
        "put_": lambda x: x.put_(rows, values[:, 0]),
        "scatter_": lambda x: x.scatter_(0, places, values),
        "scatter_add_": lambda x: x.scatter_add_(0, places, values),
        "scatter_reduce_": lambda x: x.scatter_reduce_(0, places, values, "sum"),
    }
    return changes[name]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", LARGE)
def test_no_memory_of_the_target_s_size(name: str, recorded: bool) -> None:
    x, change = offgrad.zeros(1000, 2000), large_change(name)
    x = x.requires_grad_(recorded) * 1
    gc.collect()
    memory.reset_peak()
    before = memory.allocated()
    change(x)
    assert memory.max_allocated() - before < x.nbytes / 4, name


@pytest.mark.parametrize("policy", ["pool", "disk"])
@pytest.mark.parametrize("name", LARGE)
def test_a_stored_value_is_from_before(name: str, policy: str) -> None:
    leaf, changed = offgrad.ones(1000, 2000).requires_grad_(), offgrad.rand(1000, 2000)
    before = changed.clone()
    with offgrad.offload(policy):
        product = leaf * changed
    large_change(name)(changed)
    assert not changed.equal(before) or name == "masked_fill_"
    product.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.equal(before)


def test_the_source_may_lie_in_the_target() -> None:
    x = offgrad.arange(6.0).reshape(6, 1)
    x.index_add_(0, offgrad.tensor([1, 2, 3]), x[:3])
    assert x.flatten().tolist() == [0, 1, 3, 5, 4, 5]


def test_an_error_changes_nothing() -> None:
    x = start()
    before, version = x.clone(), x._version
    changes: list[Callable[[], Tensor]] = [
        lambda: x.index_add_(0, offgrad.tensor([9]), VALUES[:1]),
        lambda: x.scatter_add_(0, PLACES + 9, PAIRS),
        lambda: x.masked_fill_(offgrad.ones(2, 6, 3).bool(), 1),
        lambda: x.scatter_reduce_(0, PLACES, PAIRS[:1], "sum", include_self=False),
        lambda: x.put_(PLACES, PAIRS[:1]),
    ]
    for change in changes:
        with pytest.raises((RuntimeError, IndexError)):
            change()
        assert x.equal(before)
        assert x._version == version


def test_a_limit_that_is_too_low_changes_nothing() -> None:
    x = offgrad.zeros(1000, 100)
    values = offgrad.ones(100, 1000).t()  # copied before it is added
    version = x._version
    with (
        memory.limit(memory.allocated() + values.nbytes // 2),
        pytest.raises(offgrad.OutOfMemoryError),
    ):
        x.index_add_(0, offgrad.arange(1000), values)
    assert x._version == version
    assert not x.any()
    x.index_add_(0, offgrad.arange(1000), values)
    assert x.min() == 1
