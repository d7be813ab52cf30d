"""The scope of sessions by module: the calls they apply to, their order, and cleanup."""

import gc
import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from copy import deepcopy
from typing import Any
from weakref import ref

import pytest
from offgrad_storage import PoolStore

import offgrad
from offgrad import Tensor, nn
from offgrad.autograd import saved_tensor
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.nn.modules.module import register_module_forward_pre_hook
from offgrad.policies import (
    ByModule,
    Keep,
    Policy,
    SaveContext,
)


class Recording(Policy):
    """Keeps everything and records the module of each save."""

    def __init__(self) -> None:
        self.modules: list[str] = []

    def place(self, context: SaveContext) -> Keep:
        self.modules.append(context.module)
        return Keep()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Tanh()) for _ in range(2)])
        self.parts = nn.ModuleDict({"a": nn.Sequential(nn.Sigmoid()), "b": nn.Tanh()})
        self.head = nn.Sequential(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.parts["b"](self.parts["a"](x))
        y: Tensor = self.head(x)
        return y


class Hiding(nn.Module):
    """Calls a module that is not registered with it."""

    def __init__(self, hidden: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.hidden = [hidden]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.hidden[0](x).sin()
        return y


def batch() -> Tensor:
    return offgrad.ones(3, requires_grad=True)


def two() -> tuple[Recording, Recording]:
    return Recording(), Recording()


# Which calls


@pytest.mark.parametrize("pattern", ["blocks", "blocks.**", "blo?ks", "b*"])
def test_a_pattern_may_name_a_list_of_modules_though_it_is_never_called(pattern: str) -> None:
    net, policy = Net(), Recording()
    with offgrad.offload({pattern: policy}, model=net):
        net(batch())
    assert policy.modules == ["blocks.0.0", "blocks.1.0"]


@pytest.mark.parametrize("model", [False, True])
def test_a_list_or_dict_of_modules_as_the_module(model: bool) -> None:
    net = Net()
    blocks, parts = two()
    root = net if model else None
    with (
        offgrad.offload(blocks, module=net.blocks, model=root),
        offgrad.offload(parts, module=net.parts, model=root),
    ):
        net(batch())
    assert blocks.modules == ["blocks.0.0", "blocks.1.0"]
    assert parts.modules == ["parts.a.0", "parts.b"]


def test_parts_of_the_module_called_directly() -> None:
    net, policy = Net(), Recording()
    with offgrad.offload(policy, module=net):
        net.blocks[1](batch())
        net.head[0](batch())
        batch().exp()
    assert policy.modules == ["0", ""]


def test_modules_called_by_the_module_are_in_scope_registered_or_not() -> None:
    hidden = nn.Sequential(nn.Tanh())
    net = nn.ModuleDict({"a": Hiding(hidden), "b": nn.Tanh()})
    for by_name in (True, False):
        outer, inner = two()
        session = (
            offgrad.offload({"a": inner}, model=net)
            if by_name
            else offgrad.offload(inner, module=net["a"], model=net)
        )
        with offgrad.offload(outer, model=net), session:
            net["b"](net["a"](batch()))
        assert inner.modules == ["a.Sequential.0", "a"]
        assert outer.modules == ["b"]


def test_a_tied_module_is_in_the_scope_of_its_caller() -> None:
    embedding = nn.Sequential(nn.Tanh())
    net = nn.ModuleDict({"embedding": embedding, "head": Hiding(embedding)})
    outer, inner = two()
    with offgrad.offload(outer, model=net), offgrad.offload({"head": inner}, model=net):
        net["head"](net["embedding"](batch()))
    assert outer.modules == ["embedding.0"]
    assert inner.modules == ["embedding.0", "head"]


def test_a_tied_module_registered_twice_is_in_the_scope_of_its_caller() -> None:
    shared = nn.Tanh()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(shared)
            self.second = nn.Sequential(nn.Sigmoid(), shared)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x))
            return y

    net, policy = Twice(), Recording()
    with offgrad.offload(policy, module=net.second):
        net(batch())
    assert policy.modules == ["second.0", "second.1"]


def test_a_module_matched_by_name_may_be_outside_the_scope_of_its_caller() -> None:
    hidden = nn.Tanh()
    a = nn.ModuleDict({"b": Hiding(hidden), "c": hidden})
    net = nn.ModuleDict({"a": a})
    outer, inner = two()
    with offgrad.offload({"a": outer, "a.b": inner}, model=net):
        a["b"](batch())
    assert (outer.modules, inner.modules) == (["a.c"], ["a.b"])


def test_the_names_of_another_model_match_nothing() -> None:
    net, other = nn.ModuleDict({"Sequential": nn.Tanh()}), nn.Sequential(nn.Tanh())
    policy = Recording()
    with offgrad.offload({"**": policy}, model=net):
        other(batch())
        assert policy.modules == []
        net["Sequential"](batch())
    assert policy.modules == ["Sequential"]


def test_modules_are_looked_up_when_the_block_begins() -> None:
    net = nn.Sequential(nn.Sequential(nn.Tanh()), nn.Sequential(nn.Sigmoid()))
    policy = Recording()
    session = offgrad.offload({"1": policy}, model=net)
    net[1] = nn.Sequential(nn.Sigmoid())
    with session:
        net(batch())
        net[1] = nn.Sequential(nn.Sequential(nn.Tanh()))
        net(batch())
    assert policy.modules == ["1.0", "1.0.0"]
    delattr(net, "1")
    with pytest.raises(ValueError, match=r"'1' matches none of Sequential; it has '0', '0\.0'"):
        session.__enter__()
    assert saved_tensor.state.hooks == ()


# Which session


@pytest.mark.parametrize("by_name", [False, True])
def test_the_inner_of_two_sessions_for_a_module_applies(by_name: bool) -> None:
    net = Net()
    outer, inner = two()

    def session(policy: Policy) -> Any:
        if by_name:
            return offgrad.offload({"head": policy}, model=net)
        return offgrad.offload(policy, module=net.head)

    with session(outer), session(inner):
        net(batch())
    assert (outer.modules, inner.modules) == ([], ["head.0"])


def test_the_nearer_module_applies_in_either_order_of_the_blocks() -> None:
    net = Net()
    near, far = two()
    sessions = [
        offgrad.offload(near, module=net.blocks[1]),
        offgrad.offload(far, module=net.blocks),
    ]
    for first, second in (sessions, sessions[::-1]):
        near.modules, far.modules = [], []
        with first, second:
            net(batch())
        assert (near.modules, far.modules) == (["blocks.1.0"], ["blocks.0.0"])


def test_an_inner_session_stays_innermost_in_nested_calls() -> None:
    net = nn.Sequential(nn.Sequential(nn.Sequential(nn.Tanh())), nn.Tanh())
    outer, inner = two()
    with (
        offgrad.offload(inner, module=net[0]),
        offgrad.offload({"": outer}, model=net),
    ):
        net(batch())
    assert (outer.modules, inner.modules) == (["1"], ["0.0.0"])


def test_a_module_that_calls_itself() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Hiding(self)

        def forward(self, x: Tensor, depth: int = 1) -> Tensor:
            if not depth:
                return x.tanh()
            self.inner.hidden = [lambda x: self(x, depth - 1)]
            y: Tensor = self.inner(x)
            return y

    net = Nested()
    outer, inner = two()
    with offgrad.offload(inner, module=net.inner), offgrad.offload(outer, module=net):
        net(batch())
    # The tanh is in the outer module, called by the inner one; the sine in the inner one.
    assert (len(outer.modules), len(inner.modules)) == (1, 1)


def test_otherwise_is_the_policy_of_unmatched_modules() -> None:
    net = Net()
    head, rest = two()
    with offgrad.offload(ByModule({"head": head}, otherwise=rest), model=net):
        net(batch()).exp()
    assert head.modules == ["head.0"]
    assert rest.modules == ["blocks.0.0", "blocks.1.0", "parts.a.0", "parts.b", ""]
    assert str(ByModule({"a": "keep"}, otherwise="pool")).endswith(  # type: ignore[arg-type]
        "otherwise pool, from 64.0 KiB)"
    )


def test_one_plan_covers_all_rules_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Tanh())
    plans: list[int] = []
    plan = offgrad.session.OffloadSession.plan

    def counting(self: Any, packed: Any) -> Any:
        plans.append(len(packed))
        return plan(self, packed)

    monkeypatch.setattr(offgrad.session.OffloadSession, "plan", counting)
    with PoolStore() as first, PoolStore() as second:
        with offgrad.offload({"0": first, "1": second, "2": first}, model=net):
            y = net(offgrad.ones(128, 256, requires_grad=True))
        y.sum().backward()
        del y
    assert plans == [3]


# Cleanup


def test_hooks_that_a_module_leaves_open_stay_until_it_closes_them() -> None:
    def generate() -> Generator[Tensor]:
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            yield offgrad.ones(1)

    class Generating(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.generator = generate()
            next(self.generator)
            return x.sin()

    module = Generating()
    outer, inner = two()
    with offgrad.offload(outer):
        with offgrad.offload(inner, module=module):
            module(batch())
            assert inner.modules == []
            batch().exp()
        module.generator.close()
        batch().exp()
    assert inner.modules == []
    assert outer.modules == [""]
    assert saved_tensor.state.hooks == ()


def test_sessions_may_exit_in_another_order() -> None:
    first, second = two()
    one, other = offgrad.offload(first), offgrad.offload(second)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    batch().exp()
    other.__exit__(None, None, None)
    batch().exp()
    assert (first.modules, second.modules) == ([], [""])


def test_copies_are_independent_of_the_session() -> None:
    net = Net()
    policy = Recording()
    with offgrad.offload(policy, module=net.head), offgrad.offload({"blocks": "keep"}, model=net):
        copies = deepcopy(net), pickle.loads(pickle.dumps(net))
    alive = ref(net)
    del net
    gc.collect()
    assert alive() is None
    for copy in copies:
        copy(batch())
        assert "_call_hooks" not in copy.head.__dict__
    assert policy.modules == []


def test_a_session_ended_by_garbage_collection_while_hooks_are_registered() -> None:
    """A session may end wherever memory is allocated, even while the lock is held."""
    module = nn.Tanh()

    def hold() -> Iterator[None]:
        with offgrad.offload("keep", module=module):
            yield

    class Cycle:
        pass

    def work() -> None:
        for threshold in range(1, 60):
            gc.disable()
            cycle: Any = Cycle()
            cycle.itself, cycle.generator = cycle, hold()
            next(cycle.generator)
            del cycle
            gc.set_threshold(threshold, 1000, 1000)
            gc.enable()
            for handle in [register_module_forward_pre_hook(print) for _ in range(5)]:
                handle.remove()
            gc.collect()  # a block ends in the thread that entered it

    thresholds = gc.get_threshold()
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        gc.collect()
    nn.Identity()(offgrad.ones(1))
    assert nn.Module._call_hooks is None


# Patterns


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", [""]),
        ("*", ["a", "b"]),
        ("**", ["", "a", "a.c", "a.c.d", "b"]),
        ("a.*", ["a.c"]),
        ("a.**", ["a", "a.c", "a.c.d"]),
        ("**.c", ["a.c"]),
        ("**.d", ["a.c.d"]),
        ("**.c.**", ["a.c", "a.c.d"]),
        ("*.*.?", ["a.c.d"]),
        ("?", ["a", "b"]),
        ("[ab]", []),
        ("a.", []),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    # Direct matches of the pattern, which take precedence over modules inside them.
    policy = ByModule({pattern: "keep"})
    rules = {name: policy.find(name) for name in ("", "a", "a.c", "a.c.d", "b")}
    assert [name for name, rule in rules.items() if rule and not rule.depth] == names


def test_models_that_contain_themselves() -> None:
    net, policy = Net(), Recording()
    net.blocks[0].parent = net
    with offgrad.offload({"head": policy}, model=net):
        net.head(batch())
    assert policy.modules == ["head.0"]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ByModule(5), TypeError, "mapping.*got int"),
        (lambda: ByModule({}), ValueError, "at least"),
        (lambda: ByModule({"a": {"b": "keep"}}), TypeError, r"'a' is; use patterns .*'a\.name'"),
        (lambda: ByModule({"a": ByModule({"b": "keep"})}), TypeError, "by module itself"),
        (lambda: ByModule({"a": "keep"}, 5), TypeError, "got int"),  # type: ignore[arg-type]
        (lambda: offgrad.offload({}, model=Net()), ValueError, "at least"),
        (lambda: offgrad.offload({"haed": "keep"}, model=Net()), ValueError, "mean 'head'"),
        (lambda: offgrad.offload(), TypeError, r"^offload\(\) missing .*'policy'"),  # type: ignore[call-arg]
        (
            lambda: offgrad.offload("disk", modle=Net()),  # type: ignore[call-arg]
            TypeError,
            r"^offload\(\) got an unexpected keyword argument 'modle'",
        ),
        (
            lambda: offgrad.offload("auto", budgt="1MiB"),  # type: ignore[call-arg]
            TypeError,
            r"^offload\(\) got an unexpected keyword argument 'budgt'",
        ),
    ],
)
def test_bad_policies(call: Callable[[], object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_a_session_ends_where_it_was_entered() -> None:
    session = offgrad.offload("disk")
    errors: list[str] = []

    def leave() -> None:
        with pytest.raises(RuntimeError) as caught:
            session.__exit__(None, None, None)
        errors.append(str(caught.value))

    session.__enter__()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "was entered by another thread" in errors[0]
    session.__exit__(None, None, None)
    offgrad.ones(600, 600, requires_grad=True).square()
    assert not session.ledger.rows
    for context in (session, offgrad.offload_model("disk")):
        with pytest.raises(RuntimeError, match="exited more often than it was entered; use `with`"):
            context.__exit__(None, None, None)
