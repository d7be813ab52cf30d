"""Policies and stores that users write: what they compute, and how long sessions hold them."""

import gc
from typing import Any
from weakref import ref

from offgrad_storage import Handle, PoolStore

import offgrad
from offgrad.policies import Offload, Placement, Policy, SaveContext, Spill, Store, When
from tests.session.graphs import Bits, bits, normal


def test_operations_of_a_policy_are_not_recorded() -> None:
    """Else their saves would reach the policy, which would compute again, without end."""
    weight = normal(1, 3)

    class Computes(Policy):
        def place(self, context: SaveContext) -> Placement | None:
            assert not offgrad.is_grad_enabled()
            assert not (weight * weight).requires_grad
            return Store("pool")

    x = normal(2, 30)
    with offgrad.offload(Computes()) as session:
        loss = x.exp().sum()
        assert offgrad.is_grad_enabled()
    assert session.ledger.saves == 1
    loss.backward()


def test_operations_of_a_store_are_not_recorded() -> None:
    weight = normal(1, 3)

    class Computes(PoolStore):
        def put(self, array: Any, **options: Any) -> Handle:
            assert not (weight * weight).requires_grad
            return super().put(array, **options)

    x = normal(2, 30)
    with offgrad.offload(Offload(Computes(), min_nbytes=0)) as session:
        loss = x.exp().sum()
    assert session.ledger.writes == 1
    loss.backward()


def test_a_session_does_not_hold_the_stores_of_past_steps() -> None:
    stores: list[ref[PoolStore]] = []

    class NewStores(Policy):
        def place(self, context: SaveContext) -> Placement | None:
            store = PoolStore()
            stores.append(ref(store))
            return Store(store)

    x = normal(1, 30)
    session = offgrad.offload(NewStores())
    for _ in range(2):
        with session:
            loss = x.exp().sum()
        loss.backward()
        del loss
    gc.collect()
    assert len(stores) == 2
    assert all(each() is None for each in stores)


def test_stores_that_compare_equal_are_not_mixed_up() -> None:
    class Equal(PoolStore):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    first, second = Equal(), Equal()
    x = normal(1, 30)
    policy = [When(Offload(first, min_nbytes=0), op="Exp"), Offload(second, min_nbytes=0)]
    with offgrad.offload(policy):
        loss = x.exp().tanh().sum()
    assert (first.stats().live_handles, second.stats().live_handles) == (1, 1)
    loss.backward()


def test_a_tensor_rounded_for_lack_of_room_is_so_whether_or_not_the_program_holds_it() -> None:
    class Rounds(Policy):
        def place(self, context: SaveContext) -> Placement | None:
            return Spill(Store(store), nbytes=1000)

    found: list[Bits] = []
    with PoolStore(codec="int8") as store:
        for is_held in (True, False):
            x = normal(1, 64, 64)
            with offgrad.offload(Rounds()):
                y: Any = x.tanh()
                loss = y.sum()
            if not is_held:
                del y
            loss.backward()
            found.append(bits(x.grad))
    x = normal(1, 64, 64)
    x.tanh().sum().backward()
    assert found[0] == found[1] != bits(x.grad)
