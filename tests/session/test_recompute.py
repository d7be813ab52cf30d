"""Recompute: outputs of cheap operations are recomputed in backward, not held."""

import pickle
from typing import Any

import numpy as np
import pytest
from offgrad_storage import DiskStore, PoolStore

import offgrad
from offgrad import memory, nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.nn import functional as F
from offgrad.policies import (
    First,
    Offload,
    Recompute,
    SaveContext,
    When,
    parse_policy,
)
from tests.session.backends import RecordingStore
from tests.session.graphs import bits, normal

MIB = 1 << 20


def context(**changes: Any) -> SaveContext:
    facts: dict[str, Any] = {
        "op": "AddmmBackward0",
        "slot": "mat1",
        "module": "",
        "dtype": np.dtype("float32"),
        "shape": (512, 512),
        "nbytes": MIB,
        "is_parameter": False,
        "is_output": False,
        "storage": 1,
        "step": 0,
        "made_by": "GeluBackward0",
        "recompute_ops": 1,
    }
    return SaveContext(**(facts | changes))


def gradients(policy: Any, run: Any) -> tuple[Any, Any]:
    """Return the bits of all gradients of `run` and the session's ledger."""
    with offgrad.offload(policy) as session:
        loss, leaves = run()
    loss.backward()
    return bits(loss, *(each.grad for each in leaves)), session.ledger


def assert_same_as_keep(run: Any) -> Any:
    """Compare recomputing with keeping, bit for bit; return the ledger of recomputing."""
    found, ledger = gradients("recompute", run)
    assert found == gradients("keep", run)[0]
    return ledger


def block() -> Any:
    """LayerNorm, linear, GELU, dropout, linear, with 256 KiB and 1 MiB between them."""
    offgrad.manual_seed(3)
    norm, wide, narrow = nn.LayerNorm(128), nn.Linear(128, 512), nn.Linear(512, 128)
    x = normal(1, 512, 128)
    y = x + narrow(F.dropout(F.gelu(wide(norm(x))), 0.1))
    return y.square().mean(), [x, *norm.parameters(), *wide.parameters(), *narrow.parameters()]


def swiglu() -> Any:
    """The product of two branches, one through SiLU, goes into a matrix product."""
    x = normal(1, 256, 128)
    gate, up, down = normal(2, 128, 256), normal(3, 128, 256), normal(4, 256, 64)
    return ((F.silu(x @ gate) * (x @ up)) @ down).sum(), [x, gate, up, down]


def test_the_policy_recomputes_from_few_operations_only() -> None:
    policy = Recompute(max_ops=2)
    assert policy.place(context()) is policy
    assert policy.place(context(recompute_ops=2)) is policy
    assert policy.place(context(recompute_ops=3)) is None
    assert policy.place(context(recompute_ops=0)) is None
    assert policy.place(context(is_parameter=True)) is None
    assert policy.place(context(nbytes=65535)) is None
    assert Recompute(min_nbytes="2MiB").place(context()) is None
    only_gelu = When(Recompute(), made_by="Gelu")
    assert only_gelu.place(context()) == Recompute()
    assert only_gelu.place(context(made_by="NativeLayerNormBackward0")) is None


def test_recompute_prints_pickles_and_parses() -> None:
    policy = parse_policy("recompute,then=disk,min=1MiB,ops=2")
    assert policy == First([Recompute(2, "1MiB"), Offload("disk")])
    assert parse_policy("recompute") == Recompute()
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert str(Recompute()) == "recompute from at most 4 ops, from 64.0 KiB"
    assert "made by Gelu" in str(When(Recompute(), made_by="Gelu"))
    for text, words in (
        ("recompute:disk", "then=disk"),
        ("recompute,ops=x", "ops is a number"),
        ("recompute,ops=0", "from 1 to 64"),
        ("recompute,to=disk", "then"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_policy(text)
    with pytest.raises(TypeError, match="max_ops"):
        Recompute(True)


@pytest.mark.filterwarnings("ignore:no tensor saved for backward in this block")
def test_only_policies_that_may_recompute_hold_small_leaves() -> None:
    def replays(text: str) -> bool:
        with offgrad.offload(parse_policy(text)):
            node: Any = F.gelu(normal(1, 4)).grad_fn
        return node.replay is not None

    for text in ("disk", "budget:1MiB", "keep", "cast:float16", "last:3", "pool,op=Gelu;disk"):
        assert not replays(text), text
    for text in (
        "recompute",
        "disk,op=Mm;recompute",
        "last:3,then=recompute",
        "recompute,slot=self",
    ):
        assert replays(text), text


@pytest.mark.parametrize("then", ["keep", "disk", "pool:zstd", "zarr", "budget:600KiB", "last:1"])
def test_gradients_are_the_same_bits(then: str) -> None:
    for run in (block, swiglu):
        expected, _ = gradients("keep", run)
        found, ledger = gradients(f"recompute,then={then}", run)
        assert found == expected
        # A recomputed tensor is kept for its second use only if the budget has room.
        recomputed_twice = run is swiglu and then.startswith("budget")
        assert ledger.recomputes == 2 + recomputed_twice
        assert ledger.as_dict()["recomputed_nbytes"] == ledger.recomputed_nbytes > 0


def test_recomputed_outputs_are_neither_held_nor_stored() -> None:
    x, weight, last = normal(1, 512, 128), normal(2, 128, 512), normal(3, 512, 128)
    with PoolStore() as store:

        def held(policy: Any) -> int:
            before = memory.allocated()
            with offgrad.offload(policy):
                loss = (F.gelu(x @ weight) @ last).sum()
            taken = memory.allocated() - before
            loss.backward()
            x.grad = weight.grad = last.grad = None
            return taken

        held("keep")
        assert held("keep") >= 2 * MIB
        assert MIB <= held("recompute") < 1.1 * MIB
        assert held([Recompute(), Offload(store)]) < 0.1 * MIB
        assert store.stats().puts == 1  # the input of GELU


def test_a_chain_is_limited_by_the_number_of_operations() -> None:
    def chain() -> Any:
        x = normal(1, 128, 256)
        y = x.clone()
        for _ in range(12):
            y = F.silu(y)
        return y.sum(), [x]

    expected, _ = gradients("keep", chain)
    for max_ops in (1, 3, 64):
        with PoolStore() as store:
            found, ledger = gradients([Recompute(max_ops), Offload(store)], chain)
            assert found == expected
            # Every (max_ops + 1)-th of the twelve inputs is stored, from the first on.
            assert ledger.writes == -(-12 // (max_ops + 1))


def test_inputs_of_recomputations_are_prefetched() -> None:
    store = RecordingStore()
    with store:
        x, weights = normal(1, 256, 128), [normal(n, 128, 128) for n in range(6)]
        with offgrad.offload([Recompute(), Offload(store)]) as session:
            y = x.clone()
            for weight in weights:
                y = F.gelu(y @ weight)
        y.sum().backward()
        ledger = session.ledger
        assert ledger.recomputes == 5  # no node saves the last output
        # Each input was read once, for the recomputation and for GELU's backward.
        assert ledger.reads == ledger.writes
        assert ledger.hits > ledger.reads


def test_the_input_of_an_output_saved_twice_is_read_once() -> None:
    store = RecordingStore()
    with store:
        x, weights = normal(1, 256, 128), [normal(n, 128, 128) for n in range(6)]
        with offgrad.offload([Recompute(), Offload(store)]) as session:
            y = x.clone()
            for weight in weights:
                y = F.relu(F.silu(y @ weight))  # relu and the next product save the same output
        y.sum().backward()
        ledger = session.ledger
        assert ledger.recomputes == 5  # the last output is alive
        assert ledger.reads == ledger.writes == 7


def test_an_output_changed_in_place_before_it_is_saved_is_not_recomputed() -> None:
    def run() -> Any:
        x, weight = normal(1, 256, 128), normal(2, 128, 128)
        y = F.gelu(x.clone())
        with offgrad.no_grad():
            y.mul_(2)
        return (y.reshape(128, 256).t().reshape(256, 128) @ weight).sum(), [x, weight]

    ledger = assert_same_as_keep(run)
    assert not ledger.recomputes


def test_an_input_of_a_chain_changed_in_place_breaks_the_chain() -> None:
    def run() -> Any:
        x, weight = normal(1, 256, 128), normal(2, 128, 128)
        y = F.gelu(x.clone())
        with offgrad.no_grad():
            y.add_(1)
        return (F.dropout(y, 0.5) @ weight).sum(), [x, weight]

    def seeded() -> Any:
        offgrad.manual_seed(1)
        return run()

    ledger = assert_same_as_keep(seeded)
    assert not ledger.recomputes


def test_parameters_may_change_before_backward() -> None:
    def run() -> Any:
        x, weight = normal(1, 512, 128), normal(2, 128, 128)
        bias = normal(3, 128)
        y = F.layer_norm(x.clone(), (128,), bias=bias) @ weight
        with offgrad.no_grad():
            bias.mul_(5)  # no node saved the bias
        return y.sum(), [x, weight, bias]

    ledger = assert_same_as_keep(run)
    assert ledger.recomputes == 1


def test_the_saved_input_of_the_maker_may_change_if_its_backward_is_not_run() -> None:
    def run(policy: Any) -> Any:
        x, weight = normal(1, 256, 128), normal(2, 128, 128)
        with offgrad.offload(policy):
            h = x.clone()
            y = F.gelu(h) @ weight
        with offgrad.no_grad():
            h.zero_()
        grad = offgrad.autograd.grad(y.sum(), weight, retain_graph=True)[0]
        with pytest.raises(RuntimeError, match="changed in place"):
            y.sum().backward()
        return bits(grad)

    assert run("recompute") == run("keep")


def test_views_of_an_output_are_restored() -> None:
    def run() -> Any:
        x, weight = normal(1, 256, 128), normal(2, 256, 64)
        y = F.silu(x.clone())
        y = y.t().sin().t() + y.reshape(2, 128, 128).transpose(0, 1).cos().sum()
        return (y.t() @ weight).sum(), [x, weight]

    ledger = assert_same_as_keep(run)
    assert ledger.recomputes


def test_an_output_that_got_other_data_is_not_recomputed() -> None:
    def run() -> Any:
        x, weight = normal(1, 256, 128), normal(2, 128, 128)
        y = F.gelu(x.clone())
        y.data = normal(3, 256, 128, grad=False)
        return (y @ weight).sum(), [x, weight]

    ledger = assert_same_as_keep(run)
    assert not ledger.recomputes


def test_nothing_is_recomputed_from_numpy_memory_which_may_change_unseen() -> None:
    def run() -> Any:
        shared, small = np.ones((256, 128), np.float32), np.ones(128, np.float32)
        x, weight = offgrad.from_numpy(shared).requires_grad_(), normal(2, 128, 128)
        y = (F.gelu(x) @ weight + F.silu(offgrad.from_numpy(small) * x) @ weight).sum()
        shared[...] = small[...] = 7
        (grad,) = offgrad.autograd.grad(y, weight)
        return (grad * weight).sum(), [weight]

    ledger = assert_same_as_keep(run)
    assert ledger.recomputes == 1  # of SiLU, whose input is library memory


def test_long_chains_are_not_followed_to_their_beginning() -> None:
    def run() -> Any:
        x, weight = normal(1, 128, 128), normal(2, 128, 128)
        y = x.clone()
        for _ in range(3000):
            y = y + 0.001
        for _ in range(30):
            y = F.silu(y) * y  # as a tree, 10^9 operations
        return (y @ weight).sum(), [x, weight]

    found, _ = gradients("recompute,ops=64", run)
    assert found == gradients("keep", run)[0]


def test_a_part_of_an_output_is_kept() -> None:
    def run() -> Any:
        x, weight = normal(1, 256, 256), normal(2, 128, 64)
        return (F.silu(x.clone())[:, :128] @ weight).sum(), [x, weight]

    ledger = assert_same_as_keep(run)
    assert not ledger.recomputes


def test_a_retained_graph_and_a_second_derivative() -> None:
    def run(policy: Any) -> Any:
        x, weight = normal(1, 256, 128), normal(2, 128, 128)
        with offgrad.offload(policy):
            y = (F.gelu(F.layer_norm(x.clone(), (128,)) @ weight) @ weight).square().sum()
            first: Any = offgrad.autograd.grad(y, x, create_graph=True)[0]
            first.square().sum().backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        return bits(first, x.grad, weight.grad)

    for policy in ("recompute", "recompute,then=disk", "recompute,then=budget:100KiB"):
        assert run(policy) == run("keep")


def test_recomputation_uses_only_tensors_saved_by_the_same_session() -> None:
    x, weight = normal(1, 256, 128), normal(2, 128, 128)
    with DiskStore() as store:
        with offgrad.offload(store):
            h = F.gelu(x.clone())
        with offgrad.offload("recompute") as inner:
            loss = (h @ weight).sum()
        loss.backward()
        assert not inner.ledger.recomputes
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        h = F.gelu(x.clone())
    with offgrad.offload("recompute") as session:
        loss = (h @ weight).sum()
    loss.backward()
    assert not session.ledger.recomputes


def test_nothing_is_recomputed_from_a_freed_maker() -> None:
    x, weight = normal(1, 256, 128), normal(2, 128, 128)
    with offgrad.offload("recompute") as session:
        h = F.gelu(x.clone())
        h.sum().backward()
        loss = (h @ weight).sum()
    (grad,) = offgrad.autograd.grad(loss, weight)
    (expected,) = offgrad.autograd.grad((F.gelu(x) @ weight).sum(), weight)
    assert bits(grad) == bits(expected)
    assert not session.ledger.recomputes


def test_the_maker_may_be_freed_before_the_output_is_used() -> None:
    x, weight = normal(1, 256, 128), normal(2, 128, 128)
    with offgrad.offload("recompute,then=disk") as session:
        h = F.gelu(x.clone())
        side, loss = h.sum(), (h @ weight).sum()
    del h
    side.backward()
    (grad,) = offgrad.autograd.grad(loss, weight)
    (expected,) = offgrad.autograd.grad((F.gelu(x) @ weight).sum(), weight)
    assert bits(grad) == bits(expected)
    assert session.ledger.recomputes == 1


def test_recompute_is_refused_for_tensors_that_cannot_be_recomputed() -> None:
    class Always:
        def place(self, context: SaveContext) -> Any:
            return Recompute()

    with pytest.raises(ValueError, match="recompute_ops is not 0"), offgrad.offload(Always()):
        normal(1, 256, 128) @ normal(2, 128, 128)


def test_leaves_without_other_references_are_not_held_for_recomputation() -> None:
    """Inputs held for recomputation are in no budget, so they must be small."""
    x = normal(1, 8, 15 * 1024)
    base = memory.allocated()
    with offgrad.offload("recompute,then=budget:1MiB"):
        y = x
        for _ in range(40):
            y = y.sin() + offgrad.randn(15 * 1024)
    assert memory.allocated() - base <= MIB + 8 * 15 * 1024 * 4
    y.sum().backward()
