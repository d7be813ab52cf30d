"""PyTorch reads our files, and we read its files."""

import contextlib
import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch")

DTYPES = """
float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128
uint16 uint32 uint64 float8_e4m3fn float8_e5m2
"""


def content(lib: Any) -> dict[str, Any]:
    x = lib.arange(6.0).view(2, 3)
    tagged = lib.nn.Parameter(lib.ones(2))
    tagged.tag = "t"
    return {
        "x": x,
        "transposed": x.t(),
        "row": x[1],
        "parameter": lib.nn.Parameter(lib.ones(2), requires_grad=False),
        "tagged": tagged,
        "bfloat16": lib.ones(2).bfloat16(),
        "dict": OrderedDict(z=[1, (2.5, "s", None, True, 3j, b"ab")]),
        "size": x.shape,
        "dtype": lib.float32,
        "device": lib.device("cpu"),
        "leaf": lib.ones(1, requires_grad=True),
        "number": lib.tensor(3),
        "empty": lib.ones(0, 3),
        "state": lib.nn.Linear(2, 3).state_dict(),
        "expanded": lib.ones(1).expand(4),
    }


@pytest.mark.parametrize("zip_format", [True, False])
@pytest.mark.parametrize(("source", "target"), [(torch, offgrad), (offgrad, torch)])
def test_files_of_one_in_the_other(source: Any, target: Any, zip_format: bool) -> None:
    written = content(source)
    file = io.BytesIO()
    warns = source is offgrad and not zip_format
    with pytest.warns(UserWarning, match="zip file") if warns else contextlib.nullcontext():
        source.save(written, file, _use_new_zipfile_serialization=zip_format)
    file.seek(0)
    read = target.load(file)
    assert list(read) == list(written)
    for name, value in written.items():
        if isinstance(value, source.Tensor):
            assert isinstance(read[name], target.Tensor)
            assert read[name].tolist() == value.tolist(), name
            assert read[name].shape == value.shape
            assert read[name].stride() == value.stride() or not value.numel()
            assert read[name].requires_grad == value.requires_grad
            assert isinstance(read[name], target.nn.Parameter) == isinstance(
                value, source.nn.Parameter
            )
    assert read["tagged"].tag == "t"
    assert read["dict"] == written["dict"]
    assert read["dtype"] is target.float32
    assert tuple(read["size"]) == (2, 3)
    assert str(read["device"]) == "cpu"
    assert read["state"]._metadata == written["state"]._metadata
    target.nn.Linear(2, 3).load_state_dict(read["state"])
    read["x"][1, 0] = 77
    assert read["transposed"][0, 1] == 77
    assert read["row"][0] == 77


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_dtypes(dtype: str) -> None:
    values = torch.tensor([0, 1, 1]).to(getattr(torch, dtype))
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    ours = offgrad.load(file)
    assert np.asarray(ours._array).astype(np.complex64).real.tolist() == [0, 1, 1]
    back = io.BytesIO()
    offgrad.save(ours, back)
    back.seek(0)
    theirs = torch.load(back)
    assert theirs.dtype == values.dtype
    assert torch.equal(theirs, values)


def test_flagged_views() -> None:
    x = torch.tensor([1 + 2j])
    file = io.BytesIO()
    torch.save([x.conj(), torch.tensor([1 + 2j]).conj().imag], file)
    file.seek(0)
    conjugate, negative = offgrad.load(file)
    assert conjugate.tolist() == [1 - 2j]
    assert negative.tolist() == [-2]


def test_mapped_by_torch(tmp_path: Any) -> None:
    path = tmp_path / "x.pt"
    offgrad.save({"x": offgrad.arange(100.0)}, path)
    assert torch.load(path, mmap=True)["x"].tolist() == list(range(100))
    torch.save({"x": torch.arange(100.0)}, path)
    assert offgrad.load(path, mmap=True)["x"].tolist() == list(range(100))


def test_modules_by_torch() -> None:
    file = io.BytesIO()
    theirs = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.TransformerEncoderLayer(4, 2, 8))
    torch.save(theirs.eval(), file)
    file.seek(0)
    model = offgrad.load(file, weights_only=False)
    assert type(model) is offgrad.nn.Sequential
    assert repr(model) == repr(theirs)
    with torch.no_grad():
        expected = theirs(torch.ones(1, 2)).tolist()
    assert np.allclose(model(offgrad.ones(1, 2)).tolist(), expected, atol=1e-6)


def test_unknown_classes_by_torch() -> None:
    file = io.BytesIO()
    torch.save(torch.fx.Graph(), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match=r"torch\.fx.*state_dict"):
        offgrad.load(file, weights_only=False)
