"""Policies: pure decisions, by name or by class."""

import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from offgrad_storage import PoolStore

import offgrad
from offgrad import nn
from offgrad.policies import (
    POLICIES,
    First,
    Keep,
    Offload,
    Placement,
    Policy,
    SaveContext,
    Store,
)
from offgrad.policies.base import as_policy
from offgrad.policies.names import STORES
from offgrad.session import OffloadSession


def context(**changes: Any) -> SaveContext:
    facts: dict[str, Any] = {
        "op": "GeluBackward0",
        "slot": "self",
        "module": "blocks.0.gelu",
        "dtype": np.dtype(np.float32),
        "shape": (256, 64),
        "nbytes": 65536,
        "is_parameter": False,
        "is_output": False,
        "storage": 7,
        "step": 0,
    }
    return SaveContext(**facts | changes)


def test_keep_keeps() -> None:
    assert Keep().place(context()) == Keep()
    assert Keep().place(context(nbytes=1 << 40)) == Keep()


@pytest.mark.parametrize(
    ("facts", "stored"),
    [
        ({"nbytes": 65536}, True),
        ({"nbytes": 65535}, False),
        ({"nbytes": 1 << 40}, True),
        ({"nbytes": 0}, False),
        ({"is_parameter": True}, False),
        ({"is_output": True}, True),
        ({"dtype": np.dtype(np.int64)}, True),
    ],
)
def test_offload_stores_large_tensors_but_no_parameters(
    facts: dict[str, Any], stored: bool
) -> None:
    assert Offload("disk").place(context(**facts)) == (Store("disk") if stored else None)


def test_offload_with_a_custom_minimum_size() -> None:
    policy = Offload("zarr:zstd", min_nbytes=100)
    assert policy.place(context(nbytes=100)) == Store("zarr:zstd")
    assert policy.place(context(nbytes=99)) is None
    assert policy.place(context(nbytes=100, is_parameter=True)) is None
    assert Offload("disk", min_nbytes="1MiB") == Offload("disk", min_nbytes=1 << 20)
    assert Offload("pool", min_nbytes=0).place(context(nbytes=1)) == Store("pool")


class GeluInputs(Policy):
    """Stores the inputs of GELU in the first block; keeps the rest."""

    def place(self, context: SaveContext) -> Placement:
        if context.op == "GeluBackward0" and context.module.startswith("0"):
            return Store("pool")
        return Keep()


def test_a_custom_policy_sees_op_slot_and_module() -> None:
    seen: list[SaveContext] = []

    class Spy(GeluInputs):
        def place(self, context: SaveContext) -> Placement:
            seen.append(context)
            return super().place(context)

    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 8), nn.GELU()), nn.Sequential(nn.Linear(8, 4), nn.GELU())
    )
    session = offgrad.offload(Spy())
    x = offgrad.randn(3, 4, requires_grad=True)
    for _ in range(2):
        with session:
            model(x).sum().backward()
    gelus = [each for each in seen if each.op == "GeluBackward0"]
    assert [each.module for each in gelus] == ["0.1", "1.1"] * 2
    assert [each.slot for each in gelus] == ["self"] * 4
    assert [each.step for each in gelus] == [0, 0, 1, 1]
    assert gelus[0].shape == (3, 8)
    assert gelus[0].dtype == np.float32
    assert gelus[0].nbytes == 96
    assert not gelus[0].is_parameter
    weights = [each for each in seen if each.is_parameter]
    assert {each.module for each in weights} == {"0.0", "1.0"}
    assert session.ledger.kept_nbytes == session.ledger.logical_nbytes - 2 * 96


def test_outputs_and_parameters_are_distinguished() -> None:
    seen: dict[tuple[str, str], SaveContext] = {}

    class Spy(Keep):
        def place(self, context: SaveContext) -> Placement:
            seen[context.op, context.slot] = context
            return self

    weight = offgrad.randn(4, 4, requires_grad=True)
    data = offgrad.randn(4, 4)
    with offgrad.offload(Spy()):
        hidden = data @ weight.t()
        hidden.tanh().exp().sin()
    assert not seen["MmBackward0", "self"].is_parameter
    assert seen["TanhBackward0", "result"].is_output
    assert not seen["SinBackward0", "self"].is_output
    with offgrad.offload(Spy()):
        offgrad.randn(4, 4, requires_grad=True) @ weight.t()
    assert seen["MmBackward0", "mat2"].is_parameter, "a view of a leaf stays in memory with it"
    assert seen["MmBackward0", "self"].is_parameter


def test_views_of_one_storage_share_its_number() -> None:
    numbers: list[int] = []

    class Spy(Keep):
        def place(self, context: SaveContext) -> Placement:
            numbers.append(context.storage)
            return self

    x = offgrad.randn(4, 4, requires_grad=True) * 1
    other = offgrad.randn(4, 4, requires_grad=True) * 1
    with offgrad.offload(Spy()):
        x.sin()
        x.t().sin()
        x[1:3].sin()
        other.sin()
    assert len(set(numbers[:3])) == 1
    assert numbers[3] != numbers[0]


@pytest.mark.parametrize(
    "name",
    ["pool", "disk", "zarr", "zarr:zstd", "zarr:none", "disk:lz4", "pool:int8", "zarr:blosc-lz4"],
)
def test_names(name: str) -> None:
    policy = as_policy(name)
    assert policy == Offload(name)
    assert policy.place(context()) == Store(name)
    assert str(policy) == f"{name}, from 64.0 KiB"


def test_every_listed_name_is_a_policy() -> None:
    assert POLICIES[:4] == ("keep", "pool", "disk", "zarr")
    assert ("keep", *STORES) == POLICIES
    assert as_policy("keep") == as_policy(policy="keep") == Keep()
    for name in POLICIES:
        assert isinstance(as_policy(name), Policy)


def test_policy_objects_are_used_unchanged_and_stores_become_offload() -> None:
    policy = GeluInputs()
    assert as_policy(policy) is policy

    class Duck:
        def place(self, context: SaveContext) -> Placement:
            return Keep()

    duck: Any = Duck()
    assert as_policy(duck) is duck
    with PoolStore() as store:
        assert as_policy(store) == Offload(store)


@pytest.mark.parametrize("thing", [None, 5, 1.5, ("disk",), b"disk", {"place"}])
def test_other_types_are_refused(thing: Any) -> None:
    for each in (thing, ["disk", thing]):
        with pytest.raises(TypeError, match=type(thing).__name__):
            offgrad.offload(each)


def test_the_error_for_a_pair_of_functions_names_saved_tensors_hooks() -> None:
    pair: tuple[Callable[[Any], Any], ...] = (lambda x: x, lambda x: x)
    with pytest.raises(TypeError, match="saved_tensors_hooks"):
        offgrad.offload(pair)


@pytest.mark.parametrize(
    ("store", "codec", "words"),
    [
        ("dsik", None, "unknown store 'dsik'; did you mean disk"),
        ("tape", None, "known: pool, disk, zarr"),
        ("disk", "lz5", "unknown codec 'lz5'; did you mean lz4"),
        ("disk:", None, "unknown codec ''"),
        ("zarr", "nonsense", "unknown codec 'nonsense'"),
        ("zarr", "lz4", "unknown codec 'lz4' of a ZarrStore"),
        ("zarr:zstd", "zstd", "give one"),
    ],
)
def test_unknown_stores_and_codecs_are_refused_at_once(
    store: str, codec: str | None, words: str
) -> None:
    for kind in (Store, Offload):
        with pytest.raises(ValueError, match=words):
            kind(store, codec)


def test_stores_and_codecs_are_names_or_stores() -> None:
    for kind in (Store, Offload):
        with pytest.raises(TypeError, match="a store is a name or a store, got int"):
            kind(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a codec is given by name, got int"):
            kind("disk", 5)  # type: ignore[arg-type]


def test_a_custom_store_cannot_be_given_a_codec() -> None:
    with PoolStore() as store:
        for kind in (Store, Offload):
            with pytest.raises(ValueError, match=r"PoolStore\(codec='lz4'\)"):
                kind(store, "lz4")


def test_lossless_follows_the_codec() -> None:
    assert Store("disk").lossless
    assert Store("zarr", "zstd").lossless
    assert not Store("disk", "int8").lossless
    assert not Offload("zarr:bfloat16").lossless
    assert Keep().lossless


@pytest.mark.parametrize("size", [-1, "many", "-1MiB", ""])
def test_min_nbytes_must_be_a_size(size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        Offload("disk", min_nbytes=size)
    with pytest.raises(TypeError, match="float"):
        Offload("disk", min_nbytes=1.5)  # type: ignore[arg-type]


def test_tensors_without_an_answer_are_kept() -> None:
    class Silent(Policy):
        def place(self, context: SaveContext) -> None:
            return None

    with offgrad.offload(Silent()) as session:
        offgrad.randn(4, requires_grad=True).exp()
    assert session.ledger.kept_nbytes == session.ledger.logical_nbytes == 16


@pytest.mark.parametrize("wrong", ["disk", True, Offload("disk")])
def test_the_error_for_a_wrong_placement_names_the_policy_and_the_op(wrong: Any) -> None:
    class Wrong(Policy):
        def place(self, context: SaveContext) -> Placement:
            return wrong  # type: ignore[no-any-return]

        def __str__(self) -> str:
            return "the wrong one"

    x = offgrad.randn(4, requires_grad=True)
    with pytest.raises(TypeError, match=r"the wrong one.*ExpBackward0"), offgrad.offload(Wrong()):
        x.exp()
    x.exp().sum().backward()


def test_printing() -> None:
    assert str(Keep()) == "keep"
    assert str(Store("zarr:zstd")) == str(Store("zarr", "zstd")) == "zarr:zstd"
    assert str(Offload("disk", min_nbytes=1 << 20)) == "disk, from 1.0 MiB"
    with PoolStore() as store:
        assert str(Store(store)) == "PoolStore"
        assert str(Offload(store)) == "PoolStore, from 64.0 KiB"
    assert repr(offgrad.offload("keep")) == "<OffloadSession keep>"
    assert repr(Offload("disk")) == "Offload('disk')"
    assert (
        repr(Offload("disk", "lz4", 3 << 20)) == "Offload('disk', codec='lz4', min_nbytes='3MiB')"
    )
    assert repr(Offload("pool", min_nbytes=1)) == "Offload('pool', min_nbytes=1)"


def test_equality_and_hash() -> None:
    assert Keep() == Keep()
    assert Offload("disk") == Offload("disk", None, 65536)
    assert Offload("disk") != Offload("disk", min_nbytes=1)
    assert Offload("disk:lz4") == Offload("disk", "lz4") != Offload("disk")
    assert Offload("disk") != Offload("zarr")
    different: set[object] = {Keep(), Keep(), Offload("disk"), Offload("disk"), Store("disk")}
    assert len(different) == 3


@pytest.mark.parametrize(
    "policy", [Keep(), Offload("disk"), Offload("zarr:zstd", min_nbytes=5), Store("pool")]
)
def test_pickling(policy: Any) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_offload_has_three_fields() -> None:
    assert asdict(Offload("disk:lz4")) == {"store": "disk", "codec": "lz4", "min_nbytes": 65536}


def test_a_subclass_may_choose_the_store_of_offload() -> None:
    class ToPool(Offload):
        def __post_init__(self) -> None:
            super().__post_init__()
            object.__setattr__(self, "store", "pool")

    policy = ToPool("disk")
    assert policy.place(context()) == Store("pool")
    assert str(policy).startswith("pool")


def test_a_policy_with_any_attribute_can_be_nested() -> None:
    class Duck:
        def place(self, context: SaveContext) -> None:
            return None

        def __getattr__(self, name: str) -> str:
            return name

    assert First([Duck()]).place(context()) is None


def test_contexts_pickle_and_are_immutable() -> None:
    facts = context()
    assert pickle.loads(pickle.dumps(facts)) == facts
    with pytest.raises(AttributeError):
        facts.op = "other"  # type: ignore[misc]


def test_offload_is_the_session() -> None:
    assert offgrad.offload is OffloadSession


@pytest.mark.parametrize("size", [0, -1, "", "many", "5 parsecs"])
def test_prefetch_nbytes_must_be_a_size(size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        offgrad.offload("disk", prefetch_nbytes=size)
    with pytest.raises(TypeError, match=r"a size is an int or text.*bool"):
        offgrad.offload("disk", prefetch_nbytes=True)


def test_a_class_is_not_a_policy() -> None:
    with pytest.raises(TypeError, match="got the class Keep"):
        as_policy(Keep)


def test_a_session_exited_more_often_than_entered_is_an_error() -> None:
    session = offgrad.offload("keep")
    with session:
        pass
    with pytest.raises(RuntimeError, match="exited more often than it was entered"):
        session.__exit__(None, None, None)
    with session:
        offgrad.randn(8, requires_grad=True).sin()
    assert session.ledger.saves == 1
