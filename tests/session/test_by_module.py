"""Policies by module: offload(policy, module=...), and mappings by patterns of names."""

import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import DiskStore, PoolStore, ZarrStore

import offgrad
from offgrad import Tensor, nn
from offgrad.autograd import Function
from offgrad.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from offgrad.nn.hooks.registry import HookMethods
from offgrad.policies import (
    ByModule,
    Keep,
    Offload,
    Policy,
    SaveContext,
    Store,
)
from offgrad.session import OffloadSession

ANY_OFFLOAD: Any = offgrad.offload
ROWS = 128  # 128 x 256 float32 are 128 KiB: large enough to be stored


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.Linear(256, 256), nn.Tanh())
        self.mlp = nn.Sequential(nn.Linear(256, 256), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mlp(self.attn(x)).exp()
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Sequential(nn.Linear(256, 256), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x).sin().sum()
        return y


class Recording(Policy):
    """Keeps everything and records the module and op of each save."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def place(self, context: SaveContext) -> Keep:
        self.seen.append((context.module, context.op.partition("Backward")[0]))
        return Keep()

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.seen}


def batch() -> Tensor:
    offgrad.manual_seed(0)
    return offgrad.randn(ROWS, 256, requires_grad=True)


def run(net: nn.Module, *sessions: AbstractContextManager[Any]) -> list[bytes]:
    x = batch()
    net.zero_grad()
    with contexts(*sessions):
        net(x).backward()
    grads = [each.grad for each in (x, *net.parameters())]
    return [each.numpy().tobytes() for each in grads if each is not None]


class contexts:
    """Several contexts, the first one outermost."""

    def __init__(self, *managers: AbstractContextManager[Any]) -> None:
        self.managers = managers

    def __enter__(self) -> None:
        for each in self.managers:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self.managers):
            each.__exit__(*error)


def make() -> Net:
    offgrad.manual_seed(1)
    return Net()


@pytest.fixture(autouse=True)
def _calls_are_not_tracked_afterwards() -> Any:
    yield
    offgrad.nn.Identity()(offgrad.ones(1))
    assert HookMethods._call_hooks is None


# Names


def test_the_module_is_part_of_the_context() -> None:
    net = make()
    policy = Recording()
    run(net, offgrad.offload(policy))
    linear = [f"blocks.{n}.{part}.0" for n in range(3) for part in ("attn", "mlp")]
    assert policy.modules == {
        *linear,
        "head.0",
        "head.1",
        *(f"blocks.{n}.attn.1" for n in range(3)),
        *(f"blocks.{n}.mlp.1" for n in range(3)),
        *(f"blocks.{n}" for n in range(3)),
        "",
    }
    assert ("blocks.1", "Exp") in policy.seen
    assert ("", "Sin") in policy.seen


def test_the_module_is_part_of_the_ledger() -> None:
    net = make()
    with PoolStore() as store, offgrad.offload(store) as session:
        net(batch()).backward()
    figures = session.ledger.as_dict()["by_module"]
    assert figures["blocks.2.mlp.1"] == ROWS * 256 * 4
    assert sum(figures.values()) == session.ledger.logical_nbytes
    assert "blocks.0.attn.0" in str(session.ledger)


def test_names_of_a_part_called_alone_are_relative_to_the_model() -> None:
    net = make()
    outermost, model = Recording(), Recording()
    x = batch()
    with offgrad.offload(outermost):
        net.blocks[1](x)
    with offgrad.offload(model, model=net):
        net.blocks[1](x)
    assert outermost.modules == {"", "attn.0", "attn.1", "mlp.0", "mlp.1"}
    assert model.modules == {f"blocks.1{'.' * bool(n)}{n}" for n in outermost.modules}


def test_a_shared_module_is_named_after_its_caller() -> None:
    shared = nn.Sequential(nn.Tanh())
    net = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(nn.Sigmoid(), shared)})
    policy = Recording()
    with offgrad.offload(policy, model=net):
        net["b"](net["a"](batch()))
    assert policy.seen == [("a.0.0", "Tanh"), ("b.0", "Sigmoid"), ("b.1.0", "Tanh")]


def test_unregistered_modules_are_named_by_their_class() -> None:
    net = make()
    hidden = nn.Sequential(nn.Tanh())

    class Wrapper(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = hidden(x)
            return y

    inside, beside = Recording(), Recording()
    with offgrad.offload(inside):
        Wrapper()(batch())
    with offgrad.offload(beside, model=net):
        hidden(batch())
    assert inside.modules == {"Sequential.0"}
    assert beside.modules == {"Sequential.0"}


def test_names_follow_modules_that_move() -> None:
    net = make()
    policy = Recording()
    with offgrad.offload(policy):
        net(batch())
        policy.seen.clear()
        net.blocks[0].first, net.blocks[0].attn = net.blocks[0].attn, nn.Identity()
        net.blocks[0].mlp = nn.Sequential(nn.Identity(), net.blocks[0].mlp)
        net(batch())
    assert {"blocks.0.mlp.1.0", "blocks.0.mlp.1.1"} <= policy.modules
    assert "blocks.0.mlp.0" not in policy.modules


# One module


def test_a_policy_for_one_module() -> None:
    net = make()
    policy = Recording()
    before = run(net)
    assert run(net, offgrad.offload(policy, module=net.blocks[1])) == before
    assert policy.modules == {"blocks.1"} | {
        f"blocks.1.{n}" for n in ("attn.0", "attn.1", "mlp.0", "mlp.1")
    }


def test_the_session_of_a_module_overrides_one_around_it() -> None:
    net = make()
    outer, inner = Recording(), Recording()
    for order in (
        (offgrad.offload(outer), offgrad.offload(inner, module=net.head)),
        (offgrad.offload(inner, module=net.head), offgrad.offload(outer)),
    ):
        outer.seen.clear()
        inner.seen.clear()
        run(net, *order)
        assert inner.modules == {"head.0", "head.1"}
        assert outer.modules.isdisjoint(inner.modules)
        assert ("", "Sin") in outer.seen


def test_nested_modules_innermost_first() -> None:
    net = make()
    outer, inner = Recording(), Recording()
    sessions = (
        offgrad.offload(inner, module=net.blocks[1].mlp),
        offgrad.offload(outer, module=net.blocks[1]),
    )
    for order in (sessions, sessions[::-1]):
        outer.seen.clear()
        inner.seen.clear()
        run(net, *order)
        assert inner.modules == {"blocks.1.mlp.0", "blocks.1.mlp.1"}
        assert outer.modules == {"blocks.1", "blocks.1.attn.0", "blocks.1.attn.1"}


def test_hooks_pushed_inside_the_module_come_first() -> None:
    policy, packed = Recording(), list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    class Careful(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with saved_tensors_hooks(pack, lambda t: t):
                x = x.exp()
            return x.tanh()

    module = Careful()
    with offgrad.offload(policy, module=module):
        module(batch())
    assert len(packed) == 1
    assert policy.seen == [("", "Tanh")]


def test_an_exception_inside_the_module_leaves_nothing() -> None:
    net = make()

    class Boom(nn.Module):
        error: BaseException = ValueError("boom")

        def forward(self, x: Tensor) -> Tensor:
            raise self.error

    boom, policy, outer = Boom(), Recording(), Recording()
    net.blocks[1].mlp = nn.Sequential(nn.Tanh(), boom)
    with offgrad.offload(outer), offgrad.offload(policy, module=net.blocks[1]):
        for error in (ValueError("boom"), KeyboardInterrupt()):
            boom.error = error
            with pytest.raises(type(error)):
                net(batch())
            policy.seen.clear()
            outer.seen.clear()
            batch().exp()
            assert policy.seen == []
            assert outer.seen == [("", "Exp")]


def test_hooks_that_raise_leave_nothing() -> None:
    net = make()

    def fail(*_: Any) -> None:
        raise ValueError("hook")

    policy = Recording()
    with offgrad.offload(policy, module=net.head):
        handles: list[Callable[[], Any]] = [
            lambda: net.head.register_forward_pre_hook(fail),
            lambda: net.head.register_forward_pre_hook(fail, prepend=True),
            lambda: net.head.register_forward_hook(fail),
        ]
        for register in handles:
            with register(), pytest.raises(ValueError, match="hook"):
                net(batch())
            policy.seen.clear()
            batch().exp()
            assert policy.seen == []


def test_the_session_ends_with_its_block() -> None:
    net = make()
    policy = Recording()
    session = offgrad.offload(policy, module=net.head)
    with session, session:
        pass
    run(net)
    assert policy.seen == []
    assert not net.head._forward_pre_hooks
    with session:
        run(net)
    assert policy.modules == {"head.0", "head.1"}


def test_other_threads_that_call_the_module() -> None:
    net = make()
    policy = Recording()
    with offgrad.offload(policy, module=net.head):
        thread = threading.Thread(target=lambda: net(batch()))
        thread.start()
        thread.join()
    assert policy.modules == {"head.0", "head.1"}


def test_disabled_hooks_refuse_a_session_of_a_module() -> None:
    net = make()
    with (
        offgrad.offload("disk", module=net.head),
        disable_saved_tensors_hooks("no offload here"),
        pytest.raises(RuntimeError, match="no offload here"),
    ):
        net(batch())
    run(net)


def test_copies_made_inside_the_session_are_outside_its_scope() -> None:
    net = make()
    policy = Recording()
    with offgrad.offload(policy, module=net.head):
        copy = deepcopy(net)
        copy(batch())
        assert policy.seen == []
    copy(batch())
    assert policy.seen == []


# By name


def test_policies_by_pattern() -> None:
    net = make()
    attention, head = Recording(), Recording()
    before = run(net)
    session = offgrad.offload({"blocks.*.attn": attention, "head": head}, model=net)
    assert run(net, session) == before
    assert attention.modules == {f"blocks.{n}.attn.{m}" for n in range(3) for m in range(2)}
    assert head.modules == {"head.0", "head.1"}


def test_the_innermost_pattern_decides() -> None:
    net = make()
    model, block, mlp = Recording(), Recording(), Recording()
    session = offgrad.offload({"": model, "blocks.1": block, "**.mlp": mlp}, model=net)
    run(net, session)
    assert mlp.modules == {f"blocks.{n}.mlp.{m}" for n in range(3) for m in range(2)}
    assert block.modules == {"blocks.1", "blocks.1.attn.0", "blocks.1.attn.1"}
    assert "blocks.0.attn.0" in model.modules
    assert ("", "Sin") in model.seen


def test_the_first_of_several_patterns_decides() -> None:
    net = make()
    first, second = Recording(), Recording()
    run(net, offgrad.offload({"blocks.1": first, "blocks.*": second}, model=net))
    assert "blocks.1" in first.modules
    assert "blocks.1" not in second.modules
    assert "blocks.2" in second.modules


def test_modules_without_a_pattern_use_the_outer_session() -> None:
    net = make()
    outer, inner = Recording(), Recording()
    run(net, offgrad.offload(outer), offgrad.offload({"head": inner}, model=net))
    assert "blocks.0" in outer.modules
    assert outer.modules.isdisjoint(inner.modules)


def test_a_shared_module_matches_only_the_name_it_is_called_by() -> None:
    shared = nn.Sequential(nn.Tanh())
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    policy = Recording()
    run_through = net(batch())
    assert run_through.grad_fn is not None
    with offgrad.offload({"1.0": policy}, model=net):
        net(batch())
    assert policy.seen == [("1.0.0", "Tanh")]


@pytest.mark.parametrize("kind", [PoolStore, DiskStore, ZarrStore])
def test_gradients_are_the_same_bits(kind: Callable[..., Any], tmp_path: Path) -> None:
    net = make()
    before = run(net)
    with kind(*([] if kind is PoolStore else [tmp_path])) as store:
        session = offgrad.offload({"blocks.*.attn": store, "blocks": "keep"}, model=net)
        assert run(net, session) == before
    ledger = session.ledger
    assert 0 < ledger.kept_nbytes < ledger.logical_nbytes


class Checkpoint(Function):
    """Forward without a graph; backward recomputes it: a checkpoint made by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.save_for_backward(x)
        ctx.module = module
        with offgrad.no_grad():
            return module(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with offgrad.enable_grad():
            ctx.module(x).backward(grad)
        return x.grad, None


def test_parts_recomputed_in_backward_keep_their_names(tmp_path: Path) -> None:
    net = make()
    before = run(net)
    policy = Recording()

    class Checkpointed(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return Checkpoint.apply(x, self.block)  # type: ignore[no-any-return]

    net.blocks[1] = Checkpointed(net.blocks[1])
    with offgrad.offload({"blocks.*.block.mlp": policy}, model=net):
        loss = net(batch())
        assert policy.seen == []
        loss.backward()
    assert policy.modules == {"blocks.1.block.mlp.0", "blocks.1.block.mlp.1"}
    net.zero_grad()
    with DiskStore(tmp_path) as store:
        assert run(net, offgrad.offload({"blocks.1.block": store}, model=net)) == before


# Errors


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("blocks.*.atn", "blocks.0.attn"), ("haed", "head"), ("block.1.mlp", "blocks.1.mlp")],
)
def test_a_pattern_that_matches_nothing_lists_similar_names(pattern: str, near: str) -> None:
    net = make()
    with pytest.raises(ValueError, match=r"match.*Net") as info:
        offgrad.offload({"head": "keep", pattern: "disk"}, model=net)
    assert repr(pattern) in str(info.value)
    assert repr(near) in str(info.value)


def test_a_pattern_without_similar_names_lists_the_names_there_are() -> None:
    net = make()
    with pytest.raises(ValueError, match="'blocks'"):
        offgrad.offload({"zzzzzzzzzzzzzzzzzz": "disk"}, model=net)
    with pytest.raises(ValueError, match="no modules below"):
        offgrad.offload({"a": "disk"}, model=nn.Tanh())


def test_a_star_matches_one_name() -> None:
    net = make()
    with pytest.raises(ValueError, match="matches none"):
        offgrad.offload({"*.attn": "disk"}, model=net)
    offgrad.offload({"**.attn": "disk", "bl*.?.mlp": "disk"}, model=net)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda net: offgrad.offload({"head": "disk"}), ValueError, "model="),
        (lambda net: offgrad.offload({"head": "disk"}, module=net.head), ValueError, "module="),
        (lambda net: offgrad.offload({1: "disk"}, model=net), TypeError, "text"),
        (lambda net: offgrad.offload({"head": "dsik"}, model=net), ValueError, "dsik"),
        (lambda net: ANY_OFFLOAD("disk", module="head"), TypeError, "Module"),
        (lambda net: ANY_OFFLOAD("disk", model=3), TypeError, "Module"),
    ],
)
def test_bad_arguments(
    call: Callable[[Any], OffloadSession], error: type[Exception], match: str
) -> None:
    net = make()
    with pytest.raises(error, match=match):
        call(net)
    assert not net.head._forward_pre_hooks


# The policy itself


def context(module: str) -> SaveContext:
    return SaveContext("", "", module, np.dtype("f4"), (1 << 20,), 4 << 20, False, False, 0, 0)


def test_by_module_prints_pickles_and_compares_like_other_policies() -> None:
    policy = ByModule({"a.*": "disk", "a": Keep()}, otherwise=Offload("pool"))
    assert policy.place(context("a.b")) == Store("disk")
    assert policy.place(context("a.b.c")) == Store("disk")
    assert policy.place(context("a")) == Keep()
    assert policy.place(context("ab")) == Store("pool")
    assert policy.place(context("")) == Store("pool")
    assert policy == ByModule({"a.*": Offload("disk"), "a": "keep"}, Offload("pool"))
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(pickle.loads(pickle.dumps(policy)))
    assert str(policy) == (
        "by module (a.*: disk, from 64.0 KiB; a: keep; otherwise pool, from 64.0 KiB)"
    )


def test_parts_that_a_wrapper_calls_keep_their_names() -> None:
    model, policy = make(), Recording()

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner.head(self.inner.blocks[2].mlp(x))
            return y

    with offgrad.offload({"head": policy, "blocks.2.mlp": policy}, model=model):
        Wrapper()(batch())
    assert policy.modules == {"blocks.2.mlp.0", "blocks.2.mlp.1", "head.0", "head.1"}


def test_blocks_called_by_unregistered_modules_keep_their_names() -> None:
    class Calling(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.block(x).exp()
            return y

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Tanh()) for _ in range(2)])
            self.calling = [Calling(each) for each in self.blocks]

        def forward(self, x: Tensor) -> Tensor:
            for each in self.calling:
                x = each(x)
            return x

    for model in (None, Outer()):
        policy = Recording()
        outer = model or Outer()
        with offgrad.offload(policy, model=model):
            outer(batch())
        assert policy.seen == [
            ("blocks.0.0", "Tanh"),
            ("Calling", "Exp"),
            ("blocks.1.0", "Tanh"),
            ("Calling", "Exp"),
        ]
