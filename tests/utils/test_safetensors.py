"""Safetensors files: what comes back, what is refused, and PyTorch's files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

import offgrad
from offgrad import nn
from offgrad.utils.safetensors import (
    load,
    load_file,
    load_model,
    safe_open,
    save,
    save_file,
    save_model,
)

DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64"


def tensors() -> dict[str, Any]:
    found = {
        name: offgrad.tensor([[0, 1, 0], [1, 0, 1]]).to(getattr(offgrad, name))
        for name in DTYPES.split()
    }
    return found | {"empty": offgrad.ones(0, 2), "number": offgrad.tensor(1.5)}


def test_every_dtype(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    written = tensors()
    save_file(written, path, {"note": "text"})
    for read in (load_file(path), load(save(written))):
        assert read.keys() == written.keys()
        for name, value in written.items():
            assert read[name].dtype == value.dtype
            assert read[name].shape == value.shape
            assert read[name].tolist() == value.tolist()


def test_files_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": offgrad.arange(1000.0)}, path)
    held = offgrad.memory.allocated()
    x = load_file(path)["x"]
    assert offgrad.memory.allocated() == held
    x.add_(1)  # in memory only
    assert load_file(path)["x"][1].item() == 1


def test_open_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"b": offgrad.ones(2), "a": offgrad.arange(6.0).view(2, 3)}, path, {"k": "v"})
    with safe_open(path, framework="pt", device="cpu") as file:
        assert file.keys() == ["a", "b"]
        assert sorted(file.offset_keys()) == ["a", "b"]
        assert file.metadata() == {"k": "v"}
        assert file.get_tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
        part = file.get_slice("a")
        assert (part.get_shape(), part.get_dtype()) == ([2, 3], "F32")
        assert part[:, 1:].tolist() == [[1, 2], [4, 5]]
        with pytest.raises(safetensors.SafetensorError, match="does not contain tensor c"):
            file.get_tensor("c")


def test_refused(tmp_path: Path) -> None:
    x = offgrad.ones(2, 3)
    cases: list[tuple[Any, type[Exception], str]] = [
        ({"x": x.t()}, ValueError, "non contiguous"),
        ({"x": x, "row": x[0]}, RuntimeError, "share memory"),
        ({"x": 3}, ValueError, "expected a tensor"),
        ([x], ValueError, "dict"),
    ]
    for bad, kind, message in cases:
        with pytest.raises(kind, match=message):
            save_file(bad, tmp_path / "x.safetensors")
    save_file({"first": x[0], "second": x[1]}, tmp_path / "x.safetensors")  # no byte in common
    (tmp_path / "bad").write_bytes(b"something else")
    with pytest.raises(safetensors.SafetensorError):
        load_file(tmp_path / "bad")
    with pytest.raises(AssertionError, match="CUDA"):
        load_file(tmp_path / "x.safetensors", device="cuda")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight  # type: ignore[assignment]


def test_models(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    first, second = Tied(), Tied()
    save_model(first, path)
    with safe_open(path) as file:
        assert file.keys() == ["embedding.weight"]
        assert file.metadata() == {"head.weight": "embedding.weight"}
    assert load_model(second, path) == ([], [])
    assert second.head.weight.tolist() == first.embedding.weight.tolist()
    other = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="missing keys: weight, bias; unexpected keys: emb"):
        load_model(other, path)
    assert load_model(other, path, strict=False) == (["weight", "bias"], ["embedding.weight"])


def test_pytorchs_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    save_file(tensors(), path)
    read = theirs.load_file(path)
    assert read["bfloat16"].dtype == torch.bfloat16
    for name, value in tensors().items():
        assert read[name].tolist() == value.tolist()
    theirs.save_file({"x": torch.ones(3, dtype=torch.bfloat16), "y": torch.arange(3)}, path)
    ours = load_file(path)
    assert np.dtype(ours["x"].dtype) == np.dtype(offgrad.bfloat16)
    assert ours["y"].tolist() == [0, 1, 2]
