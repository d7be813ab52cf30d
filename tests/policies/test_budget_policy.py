"""Budget and Last as decisions: text, equality, errors."""

import pickle
from typing import Any

import pytest
from offgrad_storage import PoolStore

from offgrad.policies import (
    Budget,
    Cast,
    Keep,
    Last,
    Offload,
    Policy,
    Spill,
    Store,
    When,
    as_policy,
    parse_policy,
)
from tests.policies.test_policy import context

TEXTS: list[tuple[str, Policy, str]] = [
    ("budget:1MiB", Budget(1 << 20), "1.0 MiB, the rest to disk"),
    ("budget:1MiB,spill=disk", Budget("1MiB", "disk"), "1.0 MiB, the rest to disk"),
    ("budget:0,spill=pool", Budget(0, "pool"), "0 B, the rest to pool"),
    ("budget:4096, spill = zarr:zstd", Budget(4096, "zarr:zstd"), "4.0 KiB, the rest to zarr:zstd"),
    ("last:4", Last(4), "the last 4 stay, others: disk, from 64.0 KiB"),
    ("last:4,then=pool", Last(4, "pool"), "the last 4 stay, others: pool, from 64.0 KiB"),
    ("last:0,then=disk:lz4,min=0", Last(0, Offload("disk", "lz4", 0)), "the last 0 stay, others: "),
    ("last:2,then=cast:float16", Last(2, Cast("float16")), "the last 2 stay, others: "),
]


@pytest.mark.parametrize(("text", "policy", "printed"), TEXTS)
def test_text_equality_and_pickles(text: str, policy: Policy, printed: str) -> None:
    assert parse_policy(text) == as_policy(text) == policy
    assert hash(parse_policy(text)) == hash(policy)
    assert str(policy).startswith(printed)
    assert eval(repr(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    others = [other for _, other, words in TEXTS if words != printed or other != policy]
    assert policy not in [each for each in others if str(each) != str(policy)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("budget", "policy 'budget': budget needs a size, as in budget:512MiB"),
        ("budget:", "policy 'budget:': a size is a number and a unit"),
        ("budget:-1", "a size is a number and a unit"),
        ("budget:much", "a size is a number and a unit"),
        ("budget:1,spill=tape", "unknown store 'tape'"),
        ("budget:1,spill=keep", "unknown store 'keep'"),
        ("budget:1,spill=", "unknown store ''"),
        ("budget:1,spill=disk:int8", "must give back the same bits, but disk:int8 rounds"),
        ("budget:1,spill=disk:lz5", "unknown codec 'lz5'; did you mean lz4?"),
        ("budget:1,then=disk", "unknown option 'then'; known: spill"),
        ("budget:1,min=1", "unknown option 'min'"),
        ("last", "last needs a number of tensors, as in last:8, got None"),
        ("last:", "last needs a number of tensors, as in last:8, got ''"),
        ("last:-1", "last needs a number of tensors, as in last:8, got '-1'"),
        ("last:1.5", "last needs a number of tensors, as in last:8, got '1.5'"),
        ("last:²", "last needs a number of tensors, as in last:8, got '²'"),
        ("last:4,then=dsik", "unknown policy 'dsik'; did you mean disk?"),
        ("last:4,spill=disk", "unknown option 'spill'; known: then, min"),
    ],
)
def test_bad_text_gets_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_policy(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Budget(-1), ValueError, "a size must not be negative, got -1"),
        (lambda: Budget(1.5), TypeError, "a size is an int or text such as '1MiB', got float"),  # type: ignore[arg-type]
        (lambda: Budget(None), TypeError, "got NoneType"),  # type: ignore[arg-type]
        (lambda: Budget(1, None), TypeError, "a store is a name or a store, got NoneType"),  # type: ignore[arg-type]
        (lambda: Budget(1, "disk:bfloat16"), ValueError, "rounds"),
        (lambda: Last(-1), ValueError, "Last takes a number of tensors from 0, got -1"),
        (lambda: Last("4"), TypeError, "Last takes a number of tensors, got str"),  # type: ignore[arg-type]
        (lambda: Last(True), TypeError, "Last takes a number of tensors, got bool"),
        (lambda: Budget(True), TypeError, "a size is an int or text such as '1MiB', got bool"),
        (lambda: Offload("disk", min_nbytes=False), TypeError, "a size is an int or text"),
        (lambda: When("disk", min_nbytes=True), TypeError, "a size is an int or text"),
        (lambda: When("disk", max_nbytes=False), TypeError, "a size is an int or text"),
        (lambda: Last(4, 5), TypeError, "a policy is a name, a store"),
        (lambda: Last(4, {"a": "disk"}), TypeError, "policies by module cannot be nested"),
    ],
)
def test_bad_arguments_get_one_line(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_placements() -> None:
    one = Budget(100, "disk:lz4").place(context())
    assert one == Spill(Store("disk", "lz4"), nbytes=100) != Spill(Store("disk"), nbytes=100)
    assert Budget(100).place(context(nbytes=1)) == Spill(Store("disk"), nbytes=100)
    assert Budget(100).place(context(is_parameter=True)) is None
    assert Last(3).place(context()) == Spill(Store("disk"), last=3)
    assert Last(3).place(context(nbytes=1)) is None, "too small for the nested policy"
    assert Last(3, "keep").place(context()) == Keep()
    assert When("budget:100", op="Gelu*").place(context()) == Spill(Store("disk"), nbytes=100)
    assert as_policy(["last:2,then=pool", "keep"]).place(context()) == Spill(Store("pool"), last=2)


def test_budget_and_last_accept_a_custom_store() -> None:
    with PoolStore() as store, PoolStore() as other:
        policy = Budget("1MiB", store)
        assert policy == Budget(1 << 20, store) != Budget(1 << 20, other)
        assert str(policy) == "1.0 MiB, the rest to PoolStore"
        assert policy.place(context()) == Spill(Store(store), nbytes=1 << 20)
        assert Last(2, store) == Last(2, Offload(store))


def test_lossless_follows_the_codec_of_the_store() -> None:
    assert Budget(1).lossless
    assert Last(1, "disk:lz4").lossless
    assert not Last(1, "disk:int8").lossless


@pytest.mark.parametrize("then", [Budget("1MiB"), Last(2)])
def test_a_cast_refuses_policies_that_keep_tensors_for_a_while(then: Policy) -> None:
    with pytest.raises(ValueError, match="rounds tensors that go to a store at once"):
        Cast("float16", then)
