"""Nested policies over stores of every kind: lossless ones give the same bits."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import (
    AbstractArrayStore,
    DiskStore,
    PoolStore,
    TieredStore,
    ZarrStore,
)

import offgrad
from offgrad import memory, nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.nn import functional as F
from offgrad.policies import (
    Budget,
    Cast,
    First,
    Last,
    Offload,
    Policy,
    When,
    parse_policy,
)
from tests.session.bound import KIB64, chain, check_bound
from tests.session.graphs import Bits, bits, check, gradient, normal
from tests.session.graphs import Offload as Open
from tests.session.helpers import settle
from tests.session.scenarios import passes, saves, training

SCENARIOS: list[Callable[[Open], Bits]] = [
    training.gpt,
    saves.views,
    saves.dtypes,
    saves.reused,
    passes.retained,
    passes.partial,
    passes.functions,
    passes.backward_inside,
]

Make = Callable[[Path], AbstractArrayStore]


def tiered(folder: Path) -> AbstractArrayStore:
    """A small RAM tier, a small disk tier, and Zarr for the rest."""
    return TieredStore(
        3000,
        DiskStore(folder, quota=40_000, allocate=memory.empty),
        ZarrStore(folder, codec="zstd", allocate=memory.empty),
        allocate=memory.empty,
        hold=memory.empty,
    )


STORES: dict[str, Make] = {
    "tiered": tiered,
    "lz4 disk": lambda folder: DiskStore(folder, codec="lz4", allocate=memory.empty),
    "zstd zarr": lambda folder: ZarrStore(folder, codec="zstd", allocate=memory.empty),
    "raw zarr": lambda folder: ZarrStore(folder, codec="none", allocate=memory.empty),
    "zstd pool": lambda _: PoolStore(codec="zstd", allocate=memory.empty, hold=memory.empty),
}


def all_of(store: Any) -> Offload:
    return Offload(store, min_nbytes=0)


POLICIES: dict[str, Callable[[Any], Any]] = {
    "offload": all_of,
    "budget": lambda store: Budget(20_000, store),
    "no budget": lambda store: Budget(0, store),
    "last": lambda store: Last(3, all_of(store)),
    "last of last": lambda store: Last(1, Last(4, all_of(store))),
    "first": lambda store: First(
        [
            When(Budget(5000, store), op=["Mm", "Addmm", "*Linear*"]),
            When(Last(2, all_of(store)), output=True),
            When(When(all_of(store), max_nbytes=5000), dtype="float*"),
            [When("keep", max_nbytes=200), Budget("1MB", "zarr")],
        ]
    ),
    "two budgets": lambda store: [When(Budget(3000, store), max_nbytes=2000), Budget(0, store)],
}


@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AbstractArrayStore]:
    """Each store in turn; check afterwards that it is empty."""
    with STORES[request.param](tmp_path) as store:
        yield store
        if not request.session.testsfailed:
            settle(store)
            assert not store.stats().live_handles
            assert not store.stats().stored_nbytes


@pytest.mark.parametrize("policy", POLICIES)
def test_identical_bits(policy: str, any_store: AbstractArrayStore, named_stores: str) -> None:
    made = POLICIES[policy](any_store)
    assert offgrad.policies.as_policy(made).lossless
    for scenario in SCENARIOS:
        check(scenario, scenario, lambda: offgrad.offload(made, directory=named_stores))
    assert any_store.stats().puts


TEXTS = [
    "budget:1MB,spill=zarr",
    "budget:20KB,spill=zarr:zstd",
    "budget:0,spill=disk:lz4",
    "budget:20KB,spill=pool:zstd",
    "last:2,then=zarr:zstd,min=0",
    "last:2,then=budget:4KB",
]


@pytest.mark.parametrize("text", TEXTS)
def test_identical_bits_by_text(text: str, named_stores: str) -> None:
    policy = parse_policy(text)
    for scenario in SCENARIOS:
        check(scenario, scenario, lambda: offgrad.offload(policy, directory=named_stores))


@pytest.mark.parametrize("tensors", [0, 2.5, 6])
@pytest.mark.parametrize("make", [tiered, STORES["lz4 disk"], STORES["zstd zarr"]])
def test_the_bound_holds_for_every_store(make: Make, tensors: float, tmp_path: Path) -> None:
    """The bound excludes the RAM that a store keeps for itself, here almost none."""
    nbytes, x = int(tensors * KIB64), normal(1, 128, 128)
    with make(tmp_path) as store:
        for backwards in (1, 2):
            session = offgrad.offload(Budget(nbytes, store))
            check_bound(chain(x, 12), [x], session, nbytes, backwards)
        assert store.stats().puts


# By module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: Any) -> Any:
        return x + self.two(F.gelu(self.one(x)).tanh()).sigmoid() * x.sin()


def model() -> Any:
    offgrad.manual_seed(3)
    return nn.Sequential(*(Block() for _ in range(6)))


def train(net: Any, session: AbstractContextManager[Any]) -> Bits:
    """Run a retained, a double and a final backward."""
    x = normal(1, 40, 40)
    with session:
        loss = net(x).square().mean()
    (first,) = gradient(loss, x, create_graph=True)
    loss.backward(retain_graph=True)
    (first.square().sum() + loss).backward()
    return bits(loss, first, x.grad, *(each.grad for each in net.parameters()))


@pytest.mark.parametrize("policy", POLICIES)
def test_identical_bits_by_module(
    policy: str, any_store: AbstractArrayStore, named_stores: str
) -> None:
    make = POLICIES[policy]
    made = make(any_store)
    rules = {
        **dict.fromkeys(("0", "4", "5"), made),  # equal budgets share memory
        "1": [When(made, op="*Linear*"), make("disk")],
        "2.two": Budget(10_000, "zarr"),
        "3": Last(1, all_of("zarr")),
    }
    net = model()
    with offgrad.offload("disk", directory=named_stores):  # for modules without a rule
        session = offgrad.offload(rules, model=net, directory=named_stores)
        assert train(net, session) == train(model(), nullcontext())
    assert any_store.stats().puts


def test_casts_inside_a_list_inside_a_mapping(named_stores: str) -> None:
    """Cast tensors are rounded once, as by plain hooks; all others are exact."""
    half = Cast("float16", all_of("disk"))
    rules: dict[str, list[Policy | str]] = {
        "0": [When(half, op="Sigmoid*"), "keep"],
        "2": [When(half, op="Tanh*"), all_of("zarr")],
        "3": [When(half, dtype="int*"), Budget(5000)],
    }
    net = model()
    found = train(net, offgrad.offload(rules, model=net, directory=named_stores))
    assert found == train(rounded_by_hand(), nullcontext())
    assert found != train(model(), nullcontext())


def rounded_by_hand() -> Any:
    """Return the model with plain hooks around two functions."""

    def by_hand() -> AbstractContextManager[Any]:
        return saved_tensors_hooks(lambda x: x.to(offgrad.float16), lambda x: x.to(offgrad.float32))

    class ByHand(Block):
        def __init__(self, block: Any, op: str) -> None:
            nn.Module.__init__(self)
            self.one, self.two, self.op = block.one, block.two, op

        def forward(self, x: Any) -> Any:
            y = F.gelu(self.one(x))
            with by_hand() if self.op == "tanh" else nullcontext():
                y = y.tanh()
            y = self.two(y)
            with by_hand() if self.op == "sigmoid" else nullcontext():
                y = y.sigmoid()
            return x + y * x.sin()

    net = model()
    return nn.Sequential(ByHand(net[0], "sigmoid"), net[1], ByHand(net[2], "tanh"), *net[3:])


def test_a_cast_below_a_budget_is_refused(tmp_path: Path) -> None:
    """In every spelling: values in backward would depend on which entries were evicted."""
    for spill in ("disk:float16", "zarr:int8", "pool:bfloat16"):
        with pytest.raises(ValueError, match="rounds"):
            Budget(1000, spill)
    with DiskStore(tmp_path, codec="float16") as store, pytest.raises(ValueError, match="rounds"):
        Budget(1000, store)
    with DiskStore(tmp_path, codec="float16") as lossy:
        tiers = TieredStore(1000, lossy)
        with pytest.raises(ValueError, match="rounds"):
            Budget(1000, tiers)
