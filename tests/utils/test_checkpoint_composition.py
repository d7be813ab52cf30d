"""Checkpoints with memory limits, sessions, hooks and threads."""

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import (
    DiskStore,
    Handle,
    PoolStore,
    ZarrStore,
)

import offgrad
from offgrad import Tensor, memory, nn
from offgrad.autograd import Function
from offgrad.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from offgrad.policies import (
    Keep,
    Offload,
    Policy,
    SaveContext,
)
from tests.parity.conftest import leaf, lists
from tests.session.helpers import in_threads
from tests.utils.test_checkpoint import Counted, checkpointed, wave

SIDE = 256
NBYTES = SIDE * SIDE * 4


def batch() -> Tensor:
    offgrad.manual_seed(0)
    return offgrad.randn(SIDE, SIDE, requires_grad=True)


def ckpt(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return checkpointed(offgrad, function, *args, **options)


def chain(x: Tensor) -> Tensor:
    for _ in range(6):
        x = x.tanh().sin()
    return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh())
        self.mlp = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Dropout(0.1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mlp(self.attn(x)).exp()
        return y


class Net(nn.Module):
    """Blocks, each a checkpoint if `inside` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.inside = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = ckpt(block, x + 0) if self.inside else block(x + 0)
        return x.sin().sum()


class Recording(Policy):
    """Keeps everything and records the saves."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def place(self, context: SaveContext) -> Keep:
        self.seen.append((context.module, context.op, context.slot))
        return Keep()


def make() -> Net:
    offgrad.manual_seed(1)
    return Net()


def gradients(net: nn.Module, session: Any = None, backward_inside: bool = True) -> list[bytes]:
    x = batch()
    net.zero_grad()
    if session is None:
        net(x).backward()
    else:
        with session:
            loss = net(x)
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
    grads = [each.grad for each in (x, *net.parameters())]
    return [each.numpy().tobytes() for each in grads if each is not None]


# Memory


def test_only_inputs_and_outputs_stay_in_memory() -> None:
    x = batch()
    before = memory.allocated()
    out = ckpt(chain, x + 0)
    assert memory.allocated() - before == 2 * NBYTES  # the input and the output
    del out
    assert memory.allocated() == before


def test_the_memory_of_a_run_in_backward_is_that_of_one_checkpoint() -> None:
    def peak(function: Callable[[Tensor], Tensor]) -> int:
        x = batch()
        memory.reset_peak()
        for _ in range(8):
            x = function(x)
        x.sum().backward()
        return memory.max_allocated()

    assert peak(lambda x: ckpt(chain, x)) < peak(chain) / 2


def test_recomputed_tensors_are_freed_as_they_are_used() -> None:
    x = batch()
    held: list[int] = []

    class RecordMemory(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            held.append(memory.allocated())
            return grad

    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = RecordMemory.apply(x.tanh().sin())
        return x

    ckpt(function, x + 0).sum().backward(retain_graph=True)
    steps = [before - after for before, after in pairwise(held)]
    # Four results are recomputed, the first gradient is allocated, each step frees a result.
    assert steps == [-4 * NBYTES, NBYTES, NBYTES]


def test_a_retained_graph_keeps_no_recomputed_tensors() -> None:
    x = batch()
    out = ckpt(chain, x + 0).sum()
    before = memory.allocated()
    out.backward(retain_graph=True)
    x.grad = None
    assert memory.allocated() == before


def test_the_error_of_a_pass_holds_no_recomputed_tensors() -> None:
    def fail(grad: Tensor) -> None:
        raise ValueError("hook")

    def function(x: Tensor) -> Tensor:
        y = chain(x)
        y.register_hook(fail)
        return chain(y)

    out = ckpt(function, batch() + 0).sum()
    before = memory.allocated()
    with pytest.raises(ValueError, match="hook") as info:
        out.backward()
    assert info.tb is not None
    assert memory.allocated() - before <= 2 * NBYTES  # the gradient and the input of its operation


def test_only_needed_tensors_are_recomputed() -> None:
    first, second = Counted(lambda x: x.tanh()), Counted(lambda x: x.sin())

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return first(a), second(b)

    x, y = leaf(offgrad, 1, 2), leaf(offgrad, 3, 4)
    a, b = ckpt(function, x + 0, y + 0)
    offgrad.autograd.grad(a.sum(), x)
    assert (first.calls, second.calls) == (2, 1)
    offgrad.autograd.grad(b.sum(), y)
    assert (first.calls, second.calls) == (3, 2)


def test_unpacking_twice_gives_the_same_tensor() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * (ctx.saved_tensors[0] + ctx.saved_tensors[0])

    x = leaf(offgrad, 1, 2)
    ckpt(lambda x: Twice.apply(x.exp()).sin(), x + 0).sum().backward()
    y = x.detach().requires_grad_()
    (y.exp() * y.exp()).sin().sum().backward()
    assert x.grad.tolist() == pytest.approx(y.grad.tolist())


def test_it_trains_within_a_limit_that_is_too_low_without() -> None:
    def run(function: Callable[[Tensor], Tensor]) -> None:
        x = batch()
        with memory.limit(memory.allocated() + 24 * NBYTES):
            for _ in range(6):
                x = function(x)
            x.sum().backward()

    run(lambda x: ckpt(chain, x))
    with pytest.raises(offgrad.OutOfMemoryError):
        run(chain)


# Sessions around


def test_a_session_around_gets_the_inputs_alone() -> None:
    policy = Recording()
    x = batch()
    with offgrad.offload(policy):
        ckpt(chain, x + 0).sum().backward()
    assert policy.seen == [("", "Checkpoint", "0")]


@pytest.mark.parametrize("kind", [PoolStore, DiskStore, ZarrStore])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_gradients_with_inputs_in_stores_are_the_same_bits(
    kind: Callable[..., Any], backward_inside: bool, tmp_path: Path
) -> None:
    net = make()
    expected = gradients(net)
    net.inside = True
    assert gradients(net) == expected
    with kind(*([] if kind is PoolStore else [tmp_path])) as store:
        session = offgrad.offload(Offload(store, min_nbytes=0))
        assert gradients(net, session, backward_inside) == expected
        assert session.ledger.as_dict()["logical_nbytes"] == 4 * NBYTES  # three inputs, and sin's


def test_inputs_are_prefetched_in_the_order_of_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = make()
    net.inside = True
    with DiskStore(tmp_path) as store:
        with offgrad.offload(Offload(store, min_nbytes=0), prefetch_nbytes=2 * NBYTES):
            loss = net(batch())
        planned: list[int] = []
        plan = store.plan

        def recording_plan(order: Sequence[Handle]) -> None:
            planned.append(len(order))
            plan(order)

        monkeypatch.setattr(store, "plan", recording_plan)
        loss.backward()
    assert planned == [4]


def test_an_input_stored_before_its_change_in_place_gives_the_gradient(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return x.mul_(2).exp()

    x, y = leaf(offgrad, 1, 2), leaf(offgrad, 1, 2)
    with DiskStore(tmp_path) as store, offgrad.offload(Offload(store, min_nbytes=0)):
        ckpt(function, x + 0).sum().backward()
    function(y + 0).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_recomputation_uses_lossy_inputs_as_stored(tmp_path: Path) -> None:
    net = make()
    net.inside = True
    exact = gradients(net)
    with ZarrStore(tmp_path, codec="int8") as store:
        lossy = gradients(net, offgrad.offload(Offload(store, min_nbytes=0)))
    assert len(lossy) == len(exact)
    assert lossy != exact


# Sessions inside, and by module


def test_a_session_inside_gets_the_tensors_saved_there(tmp_path: Path) -> None:
    calls = []

    def function(x: Tensor) -> Any:
        calls.append(1)
        with offgrad.offload(Offload(store, min_nbytes=0)):
            y = wave(x)
        return y.cos()

    x, y = batch(), batch()
    with DiskStore(tmp_path) as store:
        out = ckpt(function, x + 0)
        assert store.stats().live_handles
        out.sum().backward()
        wave(y + 0).cos().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert x.grad.numpy().tobytes() == y.grad.numpy().tobytes()
        assert len(calls) == 2
        del out
        gc.collect()
        assert not store.stats().live_handles


@pytest.mark.parametrize("backward_inside", [True, False])
def test_policies_by_module_do_not_apply_inside_a_checkpoint(backward_inside: bool) -> None:
    net = make()
    expected = gradients(net)
    net.inside = True
    inner, outer = Recording(), Recording()
    session = offgrad.offload({"blocks.*": inner, "": outer}, model=net)
    assert gradients(net, session, backward_inside) == expected
    assert inner.seen == []
    assert [op for _, op, _ in outer.seen] == ["Checkpoint"] * 3 + ["SinBackward0"]


@pytest.mark.parametrize("backward_inside", [True, False])
def test_policies_of_the_module_that_calls_a_checkpoint_get_its_inputs(
    backward_inside: bool,
) -> None:
    net = make()
    expected = gradients(net)

    class Checkpointed(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return ckpt(self.block, x + 0)  # type: ignore[no-any-return]

    net.blocks[1] = Checkpointed(net.blocks[1])
    policy = Recording()
    session = offgrad.offload(policy, module=net.blocks[1], model=net)
    assert gradients(net, session, backward_inside) == expected
    assert policy.seen == [("blocks.1", "Checkpoint", "0")]


def test_a_session_that_begins_after_forward_gets_nothing() -> None:
    net = make()
    net.inside = True
    policy = Recording()
    loss = net(batch())
    with offgrad.offload(policy), offgrad.offload({"**": policy}, model=net):
        loss.backward()
    assert policy.seen == []


# Hooks


def test_pairs_of_hooks_around_get_the_inputs_and_inside_the_rest() -> None:
    around: list[list[float]] = []
    inside: list[list[float]] = []

    def into(log: list[list[float]]) -> saved_tensors_hooks:
        def pack(tensor: Tensor) -> Tensor:
            log.append(tensor.tolist())
            return tensor.clone()

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def function(x: Tensor) -> Tensor:
        with into(inside):
            y = x.exp()
        return y.sin()

    x = leaf(offgrad, 0, 0)
    with into(around):
        out = ckpt(function, x + 0)
    assert (around, inside) == ([[0, 0]], [[1, 1]])
    with into(around):
        out.sum().backward()
    assert len(around) == 1
    assert inside == [[1, 1]] * 2
    assert x.grad is not None


def test_where_hooks_are_disabled_there_are_no_checkpoints(lib: Any) -> None:
    disabled = lib.autograd.graph.disable_saved_tensors_hooks
    with disabled("not here"), pytest.raises(RuntimeError, match="not here"):
        checkpointed(lib, wave, leaf(lib, 1, 2) * 1)
    out = checkpointed(lib, wave, leaf(lib, 1, 2) * 1)
    with disabled("not here"), pytest.raises(RuntimeError, match="not here"):
        out.sum().backward(retain_graph=True)
    out.sum().backward()


def test_backward_hooks_of_modules_are_called_once(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.Tanh(), lib.nn.Linear(2, 2))
    forward, backward = [], []
    model[1].register_forward_hook(lambda *_: forward.append(1))
    model[1].register_full_backward_hook(lambda *_: backward.append(1))
    x = lib.ones(2, requires_grad=True)
    checkpointed(lib, model, x + 0).sum().backward()
    assert (len(forward), len(backward)) == (2, 1)


def test_hooks_of_tensors_inside_are_called_once(lib: Any) -> None:
    seen = []

    def function(x: Any) -> Any:
        y = x.exp()
        y.register_hook(lambda grad: seen.append(grad.tolist()))
        return y * y

    checkpointed(lib, function, leaf(lib, 0, 0) * 1).sum().backward()
    assert seen == [[2, 2]]


def test_hooks_of_inputs_that_the_function_registers_are_called_once() -> None:
    seen = []

    def function(x: Tensor) -> Tensor:
        x.register_hook(lambda grad: seen.append(grad.tolist()))
        return x.exp()

    ckpt(function, leaf(offgrad, 0, 0) * 1).sum().backward()
    assert seen == [[1, 1]]


# Threads


def test_threads_that_draw_random_numbers_meanwhile(eager_switching: None) -> None:
    def train() -> None:
        for _ in range(15):
            x = offgrad.ones(500, dtype=offgrad.float64, requires_grad=True)
            out = ckpt(lambda x: nn.functional.dropout(nn.functional.dropout(x).exp()), x + 0)
            out.sum().backward()
            dropped = (out == 0).numpy()
            assert x.grad is not None
            assert not x.grad.numpy()[dropped].any()

    in_threads(train, train, train)


def test_threads_that_share_a_graph() -> None:
    x = leaf(offgrad, 0.3, 0.7)
    out = ckpt(lambda x: ckpt(wave, x.sin()) * x, x + 0).sum()
    results: list[Any] = []

    def backward(times: int = 10) -> None:
        for _ in range(times):
            results.extend(lists(offgrad.autograd.grad(out, x, retain_graph=True)))

    backward(1)
    in_threads(backward, backward)
    assert results == [results[0]] * 21


def test_backward_in_another_thread() -> None:
    x = batch()
    out = ckpt(chain, x + 0).sum()
    in_threads(out.backward)
    y = batch()
    chain(y + 0).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.numpy().tobytes() == y.grad.numpy().tobytes()


def test_a_call_without_grad_works_where_hooks_are_disabled() -> None:
    with disable_saved_tensors_hooks("not here"), offgrad.no_grad():
        assert ckpt(wave, leaf(offgrad, 0)).tolist() == 0
