"""When and First: policies by facts, and lists of them."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offgrad
from offgrad.policies import (
    ByModule,
    First,
    Keep,
    Offload,
    Placement,
    Policy,
    SaveContext,
    Store,
    When,
    as_policy,
)

MIB = 1 << 20
WHEN: Any = When


def context(**changes: Any) -> SaveContext:
    facts: dict[str, Any] = {
        "op": "GeluBackward0",
        "slot": "self",
        "module": "blocks.0.mlp.gelu",
        "dtype": np.dtype(np.float32),
        "shape": (512, 512),
        "nbytes": MIB,
        "is_parameter": False,
        "is_output": False,
        "storage": 7,
        "step": 0,
    }
    return SaveContext(**facts | changes)


@pytest.mark.parametrize(
    ("conditions", "facts", "holds"),
    [
        ({}, {}, True),
        ({"op": "Gelu"}, {}, True),
        ({"op": "GeluBackward0"}, {}, True),
        ({"op": "Gelu*"}, {}, True),
        ({"op": "gelu"}, {}, True),
        ({"op": "GELU"}, {}, True),
        ({"op": "Gel"}, {}, False),
        ({"op": "G??u"}, {}, True),
        ({"op": ["Relu", "Gelu"]}, {}, True),
        ({"op": ["Relu", "Tanh"]}, {}, False),
        ({"op": "Cubic"}, {"op": "CubicBackward"}, True),
        ({"op": "*Norm*"}, {"op": "NativeLayerNormBackward0"}, True),
        ({"slot": "self"}, {}, True),
        ({"slot": "result"}, {}, False),
        ({"slot": ("result", "s*")}, {}, True),
        ({"dtype": offgrad.float32}, {}, True),
        ({"dtype": np.float32}, {}, True),
        ({"dtype": "float32"}, {}, True),
        ({"dtype": "*float*"}, {}, True),
        ({"dtype": "int*"}, {}, False),
        ({"dtype": [np.int64, offgrad.bool]}, {"dtype": np.dtype(bool)}, True),
        ({"dtype": [np.int64, offgrad.bool]}, {}, False),
        ({"dtype": "*float*"}, {"dtype": np.dtype(offgrad.bfloat16)}, True),
        ({"dtype": offgrad.bfloat16}, {"dtype": np.dtype(offgrad.bfloat16)}, True),
        ({"dtype": "float*"}, {"dtype": np.dtype(">f8")}, True),
        ({"module": "blocks.*"}, {}, True),
        ({"module": "blocks.0.mlp.gelu"}, {}, True),
        ({"module": "blocks.*.mlp"}, {}, True),
        ({"module": "blocks.*.attn"}, {}, False),
        ({"module": "**.gelu"}, {}, True),
        ({"module": "mlp"}, {}, False),
        ({"module": ""}, {}, True),
        ({"module": ["head", "blocks.[0]", "blocks.?"]}, {}, True),
        ({"min_nbytes": MIB}, {}, True),
        ({"min_nbytes": "1MiB"}, {"nbytes": MIB - 1}, False),
        ({"max_nbytes": "1MiB"}, {}, True),
        ({"max_nbytes": MIB}, {"nbytes": MIB + 1}, False),
        ({"parameter": True}, {}, False),
        ({"parameter": True}, {"is_parameter": True}, True),
        ({"parameter": False}, {"is_parameter": True}, False),
        ({"output": True}, {"is_output": True}, True),
        ({"output": False}, {"is_output": True}, False),
        ({"op": "Gelu", "slot": "result"}, {}, False),
        ({"op": "Gelu", "module": "blocks", "min_nbytes": 1, "output": False}, {}, True),
    ],
)
def test_conditions(conditions: dict[str, Any], facts: dict[str, Any], holds: bool) -> None:
    rule = When(Keep(), **conditions)
    assert rule.place(context(**facts)) == (Keep() if holds else None)


def test_a_rule_narrows_its_policy() -> None:
    rule = When("disk:lz4", op="Gelu")
    assert rule.place(context()) == Store("disk", "lz4")
    assert rule.place(context(nbytes=100)) is None
    assert rule.place(context(is_parameter=True)) is None
    everything = When(Offload("disk", min_nbytes=0), max_nbytes=100)
    assert everything.place(context(nbytes=100)) == Store("disk")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: WHEN("dsik"), ValueError, "did you mean disk"),
        (lambda: WHEN(5), TypeError, "a policy is .* got int"),
        (lambda: WHEN({"head": "disk"}), TypeError, "cannot be nested in another policy"),
        (lambda: WHEN(ByModule({"head": "disk"})), TypeError, "module=pattern"),
        (lambda: WHEN("disk", op=5), TypeError, "op is a pattern or a list of them, got int"),
        (lambda: WHEN("disk", slot=[5]), TypeError, "a pattern for slot is text, got int"),
        (lambda: WHEN("disk", module=[]), ValueError, "module needs at least one pattern"),
        (lambda: WHEN("disk", dtype="flaot32"), ValueError, "did you mean float32"),
        (lambda: WHEN("disk", dtype="quad*"), ValueError, "known: bool, uint8"),
        (lambda: WHEN("disk", dtype=np.str_), ValueError, "unknown dtype 'str"),
        (lambda: WHEN("disk", dtype=object()), TypeError, "dtype"),
        (lambda: WHEN("disk", dtype=[]), ValueError, "dtype needs at least one pattern"),
        (lambda: WHEN("disk", min_nbytes="big"), ValueError, "a size is"),
        (lambda: WHEN("disk", max_nbytes=1.5), TypeError, "float"),
        (
            lambda: WHEN("disk", parameter=1),
            TypeError,
            "parameter is True, False or None, got int",
        ),
        (
            lambda: WHEN("disk", output="yes"),
            TypeError,
            "output is True, False or None, got str",
        ),
        (lambda: WHEN("keep", min_nbytes=2, max_nbytes=1), ValueError, "store nothing"),
        (
            lambda: When("pool", max_nbytes=4096),
            ValueError,
            "64.0 KiB and at most 4.0 KiB",
        ),
    ],
)
def test_invalid_conditions(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_the_first_answer_decides() -> None:
    policy = First(
        [
            When("keep", module="head"),
            When("zarr:zstd", slot="result"),
            Offload("disk", min_nbytes="1MiB"),
            "pool",
        ]
    )
    assert policy.place(context(module="head.norm")) == Keep()
    assert policy.place(context(slot="result")) == Store("zarr", "zstd")
    assert policy.place(context()) == Store("disk")
    assert policy.place(context(nbytes=MIB - 1)) == Store("pool")
    assert policy.place(context(nbytes=1000)) is None
    assert policy.place(context(is_parameter=True)) is None


def test_a_list_is_a_first_policy() -> None:
    rules = [When("disk", op="Gelu"), ["cast:float16", "keep"]]
    policy = as_policy(rules)
    assert policy == First(rules) == First([When("disk", op="Gelu"), "cast:float16", "keep"])
    assert offgrad.offload(rules).policy == policy
    assert ByModule({"head": rules}).rules == (("head", policy),)


@pytest.mark.parametrize(
    ("policies", "error", "words"),
    [
        ([], ValueError, "must not be empty"),
        ("disk", TypeError, "a list of policies, got str"),
        ({"head": "disk"}, TypeError, "a list of policies, got dict"),
        (5, TypeError, "a list of policies, got int"),
        (["disk", {"head": "disk"}], TypeError, "cannot be nested in another policy"),
        (["disk", ["dsik"]], ValueError, "did you mean disk"),
        ([len, len], TypeError, "saved_tensors_hooks"),
    ],
)
def test_invalid_lists(policies: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        First(policies)
    if isinstance(policies, list):
        with pytest.raises(error, match=words):
            offgrad.offload(policies)


# Any policies


SLOTS = ("self", "result", "mat1")
RULES = st.builds(
    When,
    st.sampled_from(["disk", "pool:lz4", "keep", "zarr"]),
    slot=st.none() | st.lists(st.sampled_from(SLOTS), min_size=1, max_size=2),
    module=st.none() | st.sampled_from(["blocks.*", "blocks.0", "**.gelu", "head", ""]),
    min_nbytes=st.none() | st.integers(0, MIB),
    parameter=st.none() | st.booleans(),
)
POLICIES = st.recursive(
    RULES | st.sampled_from([Keep(), Offload("disk", min_nbytes=0), Offload("pool")]),
    lambda parts: st.lists(parts, min_size=1, max_size=3).map(First),
    max_leaves=6,
)
CONTEXTS = st.builds(
    context,
    slot=st.sampled_from(SLOTS),
    module=st.sampled_from(["", "head", "blocks.0", "blocks.1.mlp.gelu"]),
    nbytes=st.integers(0, 2 * MIB),
    is_parameter=st.booleans(),
)


class Grouped(Policy):
    """The first answer of two policies, without the flattening of nested lists by `First`."""

    def __init__(self, one: Policy, other: Policy) -> None:
        self.one, self.other = one, other

    def place(self, context: SaveContext) -> Placement | None:
        placement = self.one.place(context)
        return self.other.place(context) if placement is None else placement


@given(POLICIES, POLICIES, POLICIES, CONTEXTS)
def test_first_is_associative(a: Policy, b: Policy, c: Policy, facts: SaveContext) -> None:
    flat = First([a, b, c])
    assert flat == First([First([a, b]), c]) == First([a, First([b, c])])
    for grouped in (Grouped(Grouped(a, b), c), Grouped(a, Grouped(b, c))):
        assert flat.place(facts) == grouped.place(facts)


@given(POLICIES, CONTEXTS)
def test_one_policy_alone_or_twice_decides_the_same(policy: Policy, facts: SaveContext) -> None:
    answer = policy.place(facts)
    assert First([policy]).place(facts) == First([policy, policy]).place(facts) == answer
    assert When(policy).place(facts) == answer
    assert First([policy, "keep"]).place(facts) == (Keep() if answer is None else answer)
    assert First(["keep", policy]).place(facts) == Keep()


@given(POLICIES, POLICIES)
def test_policies_pickle_print_and_compare(a: Policy, b: Policy) -> None:
    copy = pickle.loads(pickle.dumps(a))
    assert copy == a
    assert hash(copy) == hash(a)
    assert str(copy) == str(a)
    assert eval(repr(a), {"When": When, "First": First, "Keep": Keep, "Offload": Offload}) == a
    assert (a == b) == (repr(a) == repr(b))


def test_rules_print_their_conditions() -> None:
    rule = When(
        "disk:lz4",
        op=["Gelu", "Tanh*"],
        slot="self",
        dtype=np.float32,
        module=["blocks.*", ""],
        min_nbytes="1MiB",
        max_nbytes="2MiB",
        parameter=False,
        output=True,
    )
    assert str(rule) == (
        "if op is Gelu or Tanh*, slot is self, dtype is float32, in blocks.* or the model, "
        "at least 1.0 MiB, at most 2.0 MiB, no parameter, an output: disk:lz4, from 64.0 KiB"
    )
    assert str(When("keep", parameter=True, output=False)) == "if a parameter, no output: keep"
    assert str(When("keep")) == "keep"
    assert str(First([When("disk", op="Gelu"), "keep"])) == (
        "first of (if op is Gelu: disk, from 64.0 KiB; keep)"
    )
    assert repr(offgrad.offload(["keep"])) == "<OffloadSession first of (keep)>"


class Plain:
    """An object with the method `place` alone."""

    def place(self, context: SaveContext) -> Placement:
        return Store("pool")


def test_any_object_with_a_place_method_may_be_nested() -> None:
    plain = Plain()
    policy = First([When(plain, op="Tanh"), plain])
    assert policy.place(context()) == Store("pool")
    assert When(plain, op="Tanh").place(context()) is None
    assert policy.lossless


def test_rules_are_lossless_if_their_parts_are() -> None:
    assert First([When("disk", op="Gelu"), "keep"]).lossless
    assert not First(["disk", When("pool:int8", op="Gelu")]).lossless
    assert not ByModule({"head": ["pool:int8"]}).lossless
    assert not ByModule({"head": "disk"}, otherwise=Offload("pool:int8")).lossless
    assert ByModule({"head": Plain()}).lossless


@pytest.mark.parametrize("text", ["disk,op=", "disk,op=|", "disk,op=Gelu||Tanh", "disk,slot="])
def test_no_operation_has_an_empty_name(text: str) -> None:
    with pytest.raises(ValueError, match="has an empty name"):
        as_policy(text)
