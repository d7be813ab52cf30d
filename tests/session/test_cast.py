"""Cast and lossy codecs: which tensors are rounded, and how close gradients are."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import DiskStore, PoolStore, codec

import offgrad
from offgrad import memory, nn
from offgrad.policies import (
    Budget,
    Cast,
    First,
    Keep,
    Offload,
    Placement,
    SaveContext,
    Store,
    When,
    as_policy,
)
from tests.session.graphs import bits, normal

DTYPES = (
    *(np.bool_, np.uint8, np.int32, np.int64, np.float16, offgrad.bfloat16),
    *(np.float32, np.float64, np.complex64, np.complex128),
)


def context(dtype: Any = np.float32, nbytes: int = 1 << 20, parameter: bool = False) -> SaveContext:
    return SaveContext(
        "ExpBackward0", "result", "", np.dtype(dtype), (1,), nbytes, parameter, True, 0, 0
    )


class Everything:
    """Stores everything on disk, parameters too."""

    def place(self, context: SaveContext) -> Placement:
        return Store("disk")


@pytest.mark.parametrize("to", ["float16", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_dtypes_that_the_codec_rounds_are_cast(to: str, dtype: Any) -> None:
    array = (np.random.default_rng(1).standard_normal(1000) * 100).astype(dtype)
    rounds = codec(to).encode(array) is not None
    exact, rounded = Store("disk"), Store("disk", to)
    assert Cast(to, then="disk").place(context(dtype)) == (rounded if rounds else exact)
    assert Cast(to).place(context(dtype)) == (Store("pool", to) if rounds else None)


def test_parameters_are_never_cast() -> None:
    facts = context(parameter=True)
    assert Cast("float16").place(facts) is None
    assert Cast("float16", then="disk").place(facts) is None
    assert Cast("float16", then=Everything()).place(facts) == Store("disk")
    assert Cast("float16", then=Everything()).place(context()) == Store("disk", "float16")


def test_the_nested_policy_decides_which_tensors_are_stored() -> None:
    policy = Cast(
        "int8",
        then=[
            When("keep", dtype=np.float64),
            When("zarr:zstd", max_nbytes="1MiB"),
            Offload("disk", min_nbytes="2MiB"),
        ],
    )
    assert policy.place(context(np.float64)) == Keep()
    assert policy.place(context()) == Store("zarr", "zstd"), "an explicit codec is kept"
    assert policy.place(context(nbytes=2 << 20)) == Store("disk", "int8")
    assert policy.place(context(nbytes=3 << 19)) is None
    assert policy.place(context(np.int64, 2 << 20)) == Store("disk")


def test_casts_in_lists() -> None:
    policy = First([When("cast:int8", op="Exp"), "cast:float16,then=disk", "disk"])
    assert policy.place(context()) == Store("pool", "int8")
    assert policy.place(context(np.int64)) == Store("disk")


def test_casts_by_text_and_dtype() -> None:
    assert as_policy("cast:float16") == Cast("float16") == Cast(offgrad.float16)
    assert Cast(offgrad.bfloat16) == Cast("bfloat16")
    assert Cast(np.int8, then="disk") == as_policy("cast:int8,then=disk")
    assert as_policy("cast:int8,then=zarr,min=1MiB") == Cast("int8", Offload("zarr", None, 1 << 20))
    small = as_policy("cast:float16,min=0")
    assert small.place(context(nbytes=1)) == Store("pool", "float16")
    assert small.place(context(np.int64)) is None


@pytest.mark.parametrize(
    ("to", "then", "error", "words"),
    [
        ("flaot16", None, ValueError, "unknown cast 'flaot16'; did you mean float16"),
        ("zstd", None, ValueError, "known: float16, bfloat16, int8, int4"),
        (np.float32, None, ValueError, "unknown cast 'float32'"),
        (None, None, ValueError, "cast"),
        ("int8", "dsik", ValueError, "did you mean disk"),
        ("int8", "disk:lz4", ValueError, "without a codec, got disk:lz4"),
        ("int8", "cast:int8", ValueError, "without a codec, got cast to int8"),
        ("int8", "keep", ValueError, "applies to stores without a codec"),
        ("float16", "zarr", ValueError, "unknown codec 'float16' of a ZarrStore"),
        ("int8", {"head": "disk"}, TypeError, "cannot be nested in another policy"),
    ],
)
def test_invalid_casts(to: Any, then: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Cast(to, then)


def test_a_custom_store_cannot_be_cast() -> None:
    with PoolStore() as store:
        with pytest.raises(ValueError, match=r"make it with PoolStore\(codec='int8'\)"):
            Cast("int8", store)
        with pytest.raises(ValueError, match=r"make it with PoolStore\(codec='int8'\)"):
            Cast("int8", [store]).place(context())


def test_casts_print_pickle_and_compare() -> None:
    policy = Cast("float16", then="disk")
    assert str(policy) == "cast to float16 (disk, from 64.0 KiB)"
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert len({policy, Cast("float16", "disk"), Cast("float16"), Cast("int8", "disk")}) == 3
    assert not policy.lossless
    assert not First([policy, "keep"]).lossless


# In sessions


def gradients(policy: Any, directory: str) -> tuple[list[Any], Any]:
    offgrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.Tanh())
    session = offgrad.offload(policy, directory=directory)
    with session:
        loss = model(normal(1, 256, 64, grad=False)).square().mean()
    loss.backward()
    found: list[Any] = [each.grad for each in model.parameters()]
    return [each.numpy() for each in found], session.ledger


@pytest.mark.parametrize(
    ("text", "error", "times"),
    [
        ("cast:float16", 1e-3, 2.0),
        ("cast:bfloat16,then=disk", 1e-2, 2.0),
        ("cast:int8,then=disk", 2e-2, 3.8),
        ("cast:int4", 0.3, 7.5),
        ("disk:float16", 1e-3, 2.0),
        ("pool:bfloat16", 1e-2, 2.0),
        ("zarr:int8", 2e-2, 3.8),
    ],
)
def test_gradients_are_close(text: str, error: float, times: float, named_stores: str) -> None:
    expected, plain = gradients("disk", named_stores)
    found, ledger = gradients(text, named_stores)
    for one, other in zip(expected, found, strict=True):
        assert np.linalg.norm(one - other) <= error * np.linalg.norm(one)
    assert any((one != other).any() for one, other in zip(expected, found, strict=True))
    assert ledger.logical_nbytes == plain.logical_nbytes
    # Disk space is allocated in pages, and a Zarr chunk has a checksum.
    assert ledger.stored_nbytes <= plain.stored_nbytes / times * 1.1
    assert ledger.read_nbytes > 0


@pytest.mark.parametrize("text", ["cast:int8", "cast:int4,then=disk", "zarr:int8", "disk:int4"])
def test_a_second_session_draws_the_same_random_rounding(text: str, named_stores: str) -> None:
    """The store is the same and held other arrays before."""
    first, _ = gradients(text, named_stores)
    second, _ = gradients(text, named_stores)
    assert [each.tobytes() for each in first] == [each.tobytes() for each in second]


def test_a_store_with_a_custom_seed_rounds_reproducibly(tmp_path: Path) -> None:
    def gradient(seed: int) -> Any:
        x = normal(1, 100, 100)
        with DiskStore(tmp_path, codec="int4", seed=seed, allocate=memory.empty) as store:
            with offgrad.offload(Offload(store, min_nbytes=0)):
                loss = x.tanh().sum()
            loss.backward()
        return bits(x.grad)

    assert gradient(3) == gradient(3) != gradient(4)


def test_integers_and_bools_are_restored_exactly(named_stores: str) -> None:
    x = normal(1, 300, 300)
    index = offgrad.tensor(np.random.default_rng(2).integers(0, 300, (300, 300)))
    mask = offgrad.tensor(np.random.default_rng(3).integers(0, 2, (300, 300)).astype(bool))
    found = []
    for policy in ("keep", Cast("int8", Offload("disk", min_nbytes=0))):
        x.grad = None
        with offgrad.offload(policy, directory=named_stores):
            loss = x.gather(1, index * 1).sum() + (x * 1).masked_fill(mask | mask, 0.5).sum()
        loss.backward()
        found.append(bits(loss, x.grad))
    assert found[0] == found[1]


@pytest.mark.parametrize("first", ["Sin", "Cos"])
def test_one_tensor_saved_exactly_and_rounded(first: str, named_stores: str) -> None:
    """The exact save returns exact bits, whether it was first or second."""
    rules = [When(Offload("disk:int4", min_nbytes=0), op="Sin"), Offload("disk", min_nbytes=0)]

    def saved() -> tuple[Any, Any, Any]:
        x = normal(1, 100, 100)
        with offgrad.offload(rules, directory=named_stores):
            y = x * 1
            value = y.detach().numpy().copy()
            two = (y.sin(), y.cos()) if first == "Sin" else (y.cos(), y.sin())[::-1]
        del y
        sin, cos = two
        nodes: Any = sin.grad_fn, cos.grad_fn
        return value, *(each._saved_self.detach().numpy() for each in nodes)

    value, rounded, exact = saved()
    assert np.array_equal(exact, value)
    assert not np.array_equal(rounded, value)
    assert (np.abs(rounded - value) <= codec("int4").max_error(value)).all()


def test_each_codec_has_one_named_store(named_stores: str) -> None:
    from offgrad.session.named_stores import open_store

    disk, lz4 = open_store("disk", named_stores), open_store("disk:lz4", named_stores)
    assert disk is not lz4
    assert lz4 is open_store("disk", named_stores, "lz4")
    assert disk is open_store("disk", named_stores)
    with pytest.raises(ValueError, match="did you mean disk"):
        open_store("dsik")


@pytest.mark.parametrize("policy", ["disk:bfloat16,min=0", "last:0,then=disk:bfloat16,min=0"])
def test_rounding_does_not_depend_on_references_to_the_tensor(
    policy: str, named_stores: str
) -> None:
    def gradient(hold: bool) -> Any:
        x = normal(1, 50, 60)
        held = []
        with offgrad.offload(policy, directory=named_stores):
            y = x.exp()
            if hold:
                held.append(y)
            loss = y.sin().sum()
            del y
        loss.backward()
        return bits(x.grad)

    assert gradient(hold=True) == gradient(hold=False)


def test_a_lossy_store_is_reported_as_lossy() -> None:
    with PoolStore(codec="int8") as rounds, PoolStore(codec="lz4") as exact:
        assert not Store(rounds).lossless
        assert Store(exact).lossless
        with pytest.raises(ValueError, match="must give back the same bits"):
            Budget("1MiB", rounds)
