"""Dtypes, sizes and devices as objects that print, compare and fail as PyTorch's."""

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import offgrad

NAMES = [
    *["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "uint8", "uint16"],
    *["uint32", "uint64", "int8", "int16", "int32", "int64", "bool", "float8_e4m3fn"],
    *["float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"],
]
ALIASES = ["half", "float", "double", "cfloat", "cdouble", "short", "int", "long"]


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_equals_numpys_in_both_directions(name: str) -> None:
    mine = getattr(offgrad, name)
    numpys = np.dtype(getattr(ml_dtypes, name, name))
    assert mine == numpys
    assert numpys == mine
    assert mine == numpys.type
    assert numpys.type == mine
    assert hash(mine) == hash(numpys)
    assert np.dtype(mine) is numpys
    assert np.zeros(3, dtype=mine).dtype == numpys
    other = offgrad.int8 if name != "int8" else offgrad.int16
    assert mine != other
    assert other != numpys
    assert numpys != other
    assert mine != name
    assert isinstance(mine, offgrad.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_is_one_object(name: str) -> None:
    mine = getattr(offgrad, name)
    assert pickle.loads(pickle.dumps(mine)) is mine
    assert copy.deepcopy(mine) is copy.copy(mine) is mine
    assert offgrad.zeros(2, dtype=mine).dtype is mine
    assert offgrad.zeros(2, dtype=np.dtype(mine)).dtype is mine
    assert offgrad.zeros(2, dtype=mine)._array.dtype == np.dtype(mine)


def test_dtypes_are_not_made_by_users() -> None:
    with pytest.raises(TypeError, match="cannot create"):
        offgrad.dtype("float32")
    with pytest.raises(TypeError, match="base type"):
        type("Mine", (offgrad.dtype,), {})
    with pytest.raises(AttributeError, match="kind"):
        _ = offgrad.float32.kind


@pytest.mark.parametrize("name", NAMES + ALIASES)
def test_attributes_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    mine, theirs = getattr(offgrad, name), getattr(torch, name)
    assert repr(mine) == str(mine) == repr(theirs)
    for each in ("is_floating_point", "is_complex", "is_signed", "itemsize"):
        assert getattr(mine, each) == getattr(theirs, each), each
    assert repr(mine.to_real()) == repr(theirs.to_real())
    try:
        wanted = repr(theirs.to_complex())
    except RuntimeError:
        wanted = "torch.complex32"
    if wanted == "torch.complex32":  # NumPy has none
        with pytest.raises(RuntimeError):
            mine.to_complex()
    else:
        assert repr(mine.to_complex()) == wanted


def _attributes(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in dir(info) if not name.startswith("_")}


# ml_dtypes has another epsilon of float8_e5m2fnuz.
@pytest.mark.parametrize("name", [each for each in NAMES if each != "float8_e5m2fnuz"])
def test_limits_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    mine, theirs = getattr(offgrad, name), getattr(torch, name)
    for function in ("finfo", "iinfo"):
        try:
            want = getattr(torch, function)(theirs)
        except TypeError:
            with pytest.raises(TypeError):
                getattr(offgrad, function)(mine)
            continue
        have = getattr(offgrad, function)(mine)
        assert repr(have) == repr(want)
        assert _attributes(have) == _attributes(want)
    assert repr(offgrad.finfo()) == repr(torch.finfo())


def test_promotion_of_all_pairs_against_torch() -> None:
    torch = pytest.importorskip("torch")
    for first in NAMES:
        for second in NAMES:
            pair = [(getattr(m, first), getattr(m, second)) for m in (offgrad, torch)]
            assert offgrad.can_cast(*pair[0]) == torch.can_cast(*pair[1]), (first, second)
            try:
                want = str(torch.promote_types(*pair[1])).replace("complex32", "complex64")
            except RuntimeError:
                with pytest.raises(RuntimeError, match="types is not supported"):
                    offgrad.promote_types(*pair[0])
            else:
                assert str(offgrad.promote_types(*pair[0])) == want, (first, second)


def test_result_type_and_default_dtype() -> None:
    assert offgrad.result_type(offgrad.tensor(1), 1.0) is offgrad.float32
    assert offgrad.result_type(1, 2) is offgrad.int64
    assert offgrad.get_default_dtype() is offgrad.float32
    try:
        for dtype in (offgrad.float64, np.float64, np.dtype("f8")):
            offgrad.set_default_dtype(offgrad.float32)
            offgrad.set_default_dtype(dtype)
            assert offgrad.get_default_dtype() is offgrad.tensor(1.0).dtype is offgrad.float64
        with pytest.raises(TypeError, match="only floating-point types"):
            offgrad.set_default_dtype(offgrad.int64)
    finally:
        offgrad.set_default_dtype(offgrad.float32)


def _made_on(m: Any, name: str) -> Any:
    with m.device(name):
        return m.zeros(1).device


SIZES = {
    "repr": lambda m: m.zeros(2, 3).shape,
    "size": lambda m: m.zeros(2, 3).size(),
    "dim": lambda m: m.zeros(2, 3).size(-1),
    "dim by name": lambda m: m.zeros(2, 3).size(dim=0),
    "no dimension": lambda m: m.zeros(2).size(1),
    "no stride": lambda m: m.zeros(2).stride(1),
    "no dimensions": lambda m: m.zeros(()).size(0),
    "numel": lambda m: m.zeros(2, 3).shape.numel(),
    "numel of none": lambda m: m.Size().numel(),
    "slice": lambda m: m.Size([2, 3, 4])[1:],
    "item": lambda m: m.Size([2, 3, 4])[1],
    "sum": lambda m: m.Size([2]) + (3,),
    "reflected sum": lambda m: (3,) + m.Size([2]),
    "sum with a list": lambda m: m.Size([2]) + [3],
    "product": lambda m: m.Size([2]) * 2,
    "reflected product": lambda m: 2 * m.Size([2]),
    "of a tensor": lambda m: m.Size((m.tensor(2), True)),
    "of floats": lambda m: m.Size([2.0]),
    "of a number": lambda m: m.Size(3),
    "equality": lambda m: m.Size([2, 3]) == (2, 3) == m.zeros(2, 3).shape,
    "pickle": lambda m: pickle.loads(pickle.dumps(m.Size([2, 3]))),
    "as size": lambda m: m.zeros(m.Size([2, 3])).view(m.Size([3, 2])).shape,
}

DEVICES = {
    "by name": lambda m: m.device(type="cpu", index=0),
    "of a device": lambda m: m.device(m.device("cuda:1")),
    "str": lambda m: str(m.device("cpu:0")) + str(m.device("cpu")),
    "equality": lambda m: (m.device("cpu") == m.device("cpu:0"), m.device("cpu") == "cpu"),
    "hash": lambda m: len({m.device("cpu"), m.device("cpu"), m.device("cpu:0")}),
    "attributes": lambda m: (m.device("cuda:1").type, m.device("cuda:1").index),
    "no index": lambda m: m.device("cuda").index,
    "pickle": lambda m: pickle.loads(pickle.dumps(m.device("cuda:1"))),
    "constant": lambda m: setattr(m.device("cpu"), "index", 1),
    "of a tensor": lambda m: m.zeros(1, device="cpu:0").device,
    "factory": lambda m: m.zeros(1, device="cuda"),
    "to": lambda m: m.zeros(1).to("cuda:0"),
    "to device": lambda m: m.zeros(1).to(m.device("xpu")),
    "to a number": lambda m: m.zeros(1).to(0),
    "to mps": lambda m: m.zeros(1).to("mps"),
    "of no type": lambda m: m.zeros(1, device=1.5),
    "with": lambda m: _made_on(m, "cpu"),
}


ARGUMENTS: list[tuple[Any, ...]] = [
    *[("cpu",), ("cpu:0",), ("cpu", 1), ("cuda",), ("cuda:1",), ("meta",), ("mps",), ("xpu", 2)],
    *[("foo",), ("cpu:x",), ("cpu:",), ("cpu:0", 1), (0,), ("cpu", -1), ("",), (None,), ()],
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=repr)
def test_devices_by_name_against_torch(arguments: tuple[Any, ...]) -> None:
    torch = pytest.importorskip("torch")
    try:
        want = torch.device(*arguments)
    except Exception as error:
        with pytest.raises(type(error)):
            offgrad.device(*arguments)
        return
    have = offgrad.device(*arguments)
    assert repr(have) == repr(want)
    assert str(have) == str(want)


@pytest.mark.parametrize("call", [*SIZES.values(), *DEVICES.values()], ids=[*SIZES, *DEVICES])
def test_sizes_and_devices_against_torch(call: Any) -> None:
    torch = pytest.importorskip("torch")
    try:
        want = call(torch)
    except Exception as error:
        with pytest.raises(type(error)):
            call(offgrad)
        return
    have = call(offgrad)
    assert repr(have) == repr(want)
