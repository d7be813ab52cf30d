"""Policies from text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offgrad.policies import (
    POLICIES,
    First,
    Keep,
    Offload,
    Recompute,
    When,
    parse_policy,
)

KNOWN = ", ".join(POLICIES)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("keep", Keep()),
        ("disk", Offload("disk")),
        ("disk:int8", Offload("disk", "int8")),
        ("pool:lz4", Offload("pool", "lz4")),
        ("zarr:blosc-lz4-bitshuffle", Offload("zarr", "blosc-lz4-bitshuffle")),
        ("disk,min=1MiB", Offload("disk", min_nbytes=1 << 20)),
        ("zarr:zstd, min = 0 ", Offload("zarr", "zstd", 0)),
        ("disk,op=Gelu|*Norm*", When("disk", op=["Gelu", "*Norm*"])),
        (
            "zarr,min=1MiB,module=blocks.*,dtype=float32,max=2MiB",
            When(
                Offload("zarr", min_nbytes="1MiB"),
                module="blocks.*",
                dtype="float32",
                max_nbytes="2MiB",
            ),
        ),
        (
            "keep,slot=result; recompute,made_by=Gelu;pool",
            First(
                [
                    When("keep", slot="result"),
                    When(Recompute(), made_by="Gelu"),
                    "pool",
                ]
            ),
        ),
    ],
)
def test_text(text: str, policy: object) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", f"unknown policy ''; known: {KNOWN}, cast"),
        (":", f"unknown policy ''; known: {KNOWN}, cast"),
        ("tape", f"unknown policy 'tape'; known: {KNOWN}, cast"),
        ("Disk", f"unknown policy 'Disk'; did you mean disk? known: {KNOWN}, cast"),
        (" disk", f"unknown policy ' disk'; did you mean disk? known: {KNOWN}, cast"),
        ("dsik:lz4", "unknown policy 'dsik'; did you mean disk?"),
        ("keep:x", "policy 'keep:x': keep has no codec"),
        ("keep,min=1", "policy 'keep,min=1': unknown option 'min'; known: op, slot"),
        ("disk:", "policy 'disk:': unknown codec ''"),
        ("disk:lz5", "policy 'disk:lz5': unknown codec 'lz5'; did you mean lz4?"),
        ("zarr:lz4", "policy 'zarr:lz4': unknown codec 'lz4' of a ZarrStore; there are auto"),
        (
            "disk,mim=1",
            "policy 'disk,mim=1': unknown option 'mim'; did you mean min? known: min, op",
        ),
        ("disk,min", "policy 'disk,min': an option is KEY=VALUE, got 'min'"),
        ("disk,", "policy 'disk,': an option is KEY=VALUE, got ''"),
        ("disk,min=x", "policy 'disk,min=x': a size is a number and a unit"),
        ("disk,min=-1", "policy 'disk,min=-1': a size is a number and a unit"),
        ("disk,min=1,min=2", "policy 'disk,min=1,min=2': min is given twice"),
        ("disk,dtype=floot", "policy 'disk,dtype=floot': unknown dtype 'floot'; did you mean"),
        ("disk,max=1KiB", "policy 'disk,max=1KiB': no tensor has at least"),
        ("disk;", "unknown policy ''"),
        ("disk;dsik", "unknown policy 'dsik'; did you mean disk?"),
        ("cast", "policy 'cast': cast needs a dtype, as in cast:float16"),
        ("cast:", "policy 'cast:': unknown cast ''; known: float16"),
        ("cast:int88", "policy 'cast:int88': unknown cast 'int88'; did you mean int8 or int4?"),
        ("cast:int88,min=1", "unknown cast 'int88'; did you mean int8 or int4?"),
        (
            "cast:int8,then=dsik",
            "policy 'cast:int8,then=dsik': unknown policy 'dsik'; did you mean",
        ),
    ],
)
def test_invalid_text_is_an_error_of_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_policy(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.sampled_from(["pool", "disk", "zarr"]),
    st.none() | st.sampled_from(["none", "auto", "zstd", "bfloat16", "blosc-zstd-noshuffle"]),
    st.none() | st.integers(0, 1 << 40),
)
def test_names_codecs_and_sizes_in_any_combination(
    store: str, codec: str | None, size: int | None
) -> None:
    text = store + (f":{codec}" if codec else "") + (f",min={size}" if size is not None else "")
    expected = Offload(store, codec, 65536 if size is None else size)
    assert parse_policy(text) == expected
    assert str(expected).startswith(text.partition(",")[0])


@given(st.text(":;,=| abdeikmnoprst1", max_size=12))
def test_any_text_is_a_policy_or_a_value_error(text: str) -> None:
    try:
        policy = parse_policy(text)
    except ValueError:
        return
    assert policy == parse_policy(text)
