"""Checkpoints: what comes back, what is refused, and files that are not whole."""

import io
import os
import pickle
import random
import stat
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn, serialization
from tests.interrupts import interrupt_everywhere
from tests.processes import start_python

DTYPES = """
float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128
"""


def saved(obj: Any) -> io.BytesIO:
    file = io.BytesIO()
    offgrad.save(obj, file)
    file.seek(0)
    return file


def copied(obj: Any, **options: Any) -> Any:
    return offgrad.load(saved(obj), **options)


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype(dtype: str) -> None:
    x = offgrad.tensor([0, 1, 0, 1]).to(getattr(offgrad, dtype))
    y = copied(x)
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


def test_containers_and_numbers() -> None:
    obj = {
        "a": [1, 2.5, None, True, 3j, "text", b"bytes", 2**80, -5, {1, 2}],
        "o": OrderedDict(z=1, a=(1, (2,))),
        "c": Counter("aab"),
        "dtype": offgrad.float32,
        "shape": offgrad.ones(2, 3).shape,
        "device": offgrad.device("cpu"),
        3: "number as key",
    }
    back = copied(obj)
    assert back == obj
    assert type(back["o"]) is OrderedDict


def test_views_share_memory_and_keep_strides() -> None:
    x = offgrad.arange(6.0).view(2, 3)
    back = copied({"x": x, "t": x.t(), "row": x[1], "last": x[:, 2:], "wide": x[0, :1].expand(4)})
    assert back["t"].stride() == (1, 3)
    assert back["wide"].stride() == (0,)
    back["x"][1, 2] = 9
    assert back["row"].tolist() == [3, 4, 9]
    assert back["last"].tolist() == [[2], [9]]
    other = copied({"x": offgrad.ones(2), "y": offgrad.ones(2)})
    other["x"].zero_()
    assert other["y"].tolist() == [1, 1]


def test_memory_of_arrays_with_gaps_and_negative_strides() -> None:
    array = np.arange(12.0).reshape(3, 4)
    for source in (array[::2, 1:], array[::-1], array.T, np.broadcast_to(array[0], (2, 4)), array):
        x = offgrad.from_numpy(source)
        assert copied({"x": x, "same": x})["x"].tolist() == source.tolist()


def test_flags_parameters_and_attributes() -> None:
    leaf = offgrad.ones(2, requires_grad=True)
    parameter: Any = nn.Parameter(offgrad.ones(3), requires_grad=False)
    parameter.no_decay = True
    tagged: Any = offgrad.ones(2)
    tagged.tag = [1, "x"]
    back = copied([leaf, parameter, tagged, leaf * 2])
    assert back[0].requires_grad
    assert type(back[1]) is nn.Parameter
    assert not back[1].requires_grad
    assert vars(back[1])["no_decay"]
    assert back[2].tag == [1, "x"]
    assert back[3].is_leaf
    assert copied(offgrad.tensor(2)).item() == 2
    assert copied(offgrad.ones(0, 3)).shape == (0, 3)


def test_training_state(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))

    first, second = model(), model()
    optimizer = offgrad.optim.AdamW(first.parameters(), lr=0.1)
    first(offgrad.ones(1, 2)).sum().backward()
    optimizer.step()
    path = tmp_path / "state.pt"
    offgrad.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, path)
    state = offgrad.load(path, map_location="cpu")
    assert state["model"]._metadata == first.state_dict()._metadata  # type: ignore[attr-defined]
    assert str(second.load_state_dict(state["model"])) == "<All keys matched successfully>"
    other = offgrad.optim.AdamW(second.parameters())
    other.load_state_dict(state["optimizer"])
    assert other.param_groups[0]["lr"] == 0.1
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert a.tolist() == b.tolist()
        assert optimizer.state[a]["exp_avg"].tolist() == other.state[b]["exp_avg"].tolist()


class Settings:
    """A class of a program."""

    def __init__(self, width: int = 3) -> None:
        self.width = width

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


def test_objects_need_permission() -> None:
    file = saved({"settings": Settings(4), "x": offgrad.ones(1)})
    with pytest.raises(pickle.UnpicklingError, match=r"(?s)Weights only.*refers to.*Settings"):
        offgrad.load(file)
    assert serialization.get_unsafe_globals_in_checkpoint(file) == [f"{__name__}.Settings"]
    file.seek(0)
    assert offgrad.load(file, weights_only=False)["settings"] == Settings(4)
    file.seek(0)
    with serialization.safe_globals([Settings]):
        assert serialization.get_safe_globals() == [Settings]
        assert offgrad.load(file)["settings"] == Settings(4)
    assert serialization.get_safe_globals() == []
    serialization.add_safe_globals([(Settings, f"{__name__}.Settings")])
    file.seek(0)
    try:
        assert offgrad.load(file)["settings"] == Settings(4)
    finally:
        serialization.clear_safe_globals()


def test_whole_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    x = offgrad.ones(1, 2)
    assert copied(model, weights_only=False)(x).tolist() == model(x).tolist()
    with pytest.raises(pickle.UnpicklingError, match=r"Sequential.*not.*safe_globals|refers to"):
        copied(model)


class _Evil:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "evil",
    [
        _Evil(os.system, ("true",)),
        _Evil(eval, ("1",)),
        _Evil(getattr, (offgrad.Tensor, "backward")),
        _Evil(OrderedDict, (), (None, {"update": 3})),
        _Evil(set, ((1,),), {"x": 1}),
        _Evil(Settings, ()),
    ],
    ids=["system", "eval", "getattr", "slots", "build", "class"],
)
def test_no_file_runs_code(evil: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        copied([evil])


def test_tensors_stay_inside_their_storage() -> None:
    content = saved(offgrad.arange(3.0)).getvalue()
    # The pickle says: shape (3,); strides (1,).
    for shape, stride in [(b"K\x04", b"K\x01"), (b"K\x03", b"K\x02")]:
        record = _record(content, "data.pkl").replace(b"K\x03\x85", shape + b"\x85")
        changed = _with_record(content, "data.pkl", record.replace(b"K\x01\x85", stride + b"\x85"))
        with pytest.raises(pickle.UnpicklingError, match="exceeds its storage of 12 bytes"):
            offgrad.load(changed)


def _record(content: bytes, name: str) -> bytes:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(f"archive/{name}")


def _with_record(content: bytes, name: str, data: bytes) -> io.BytesIO:
    import zipfile

    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        for each in old.namelist():
            new.writestr(each, data if each.endswith(name) else old.read(each))
    result.seek(0)
    return result


def test_other_byte_order() -> None:
    content = saved(offgrad.arange(3.0)).getvalue()
    swapped = np.arange(3, dtype=">f4").tobytes()
    other = _with_record(content, "data/0", swapped)
    assert offgrad.load(_with_record(other.getvalue(), "byteorder", b"big")).tolist() == [0, 1, 2]


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    content = saved({"x": offgrad.arange(1000.0)}).getvalue()
    for cut in (10, 500, 3000, len(content) - 5):
        with pytest.raises(RuntimeError, match="truncated or corrupt"):
            offgrad.load(io.BytesIO(content[:cut]))
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    with pytest.raises(RuntimeError, match="data/0 has another checksum"):
        offgrad.load(io.BytesIO(changed))
    serialization.set_crc32_options(False)
    try:
        offgrad.load(io.BytesIO(changed))
    finally:
        serialization.set_crc32_options(True)
    assert serialization.get_crc32_options()
    with pytest.raises(EOFError):
        offgrad.load(io.BytesIO())
    with pytest.raises(pickle.UnpicklingError, match="no checkpoint"):
        offgrad.load(io.BytesIO(b"something else"))
    with pytest.raises(FileNotFoundError):
        offgrad.load(tmp_path / "none.pt")


def test_random_changes_give_one_of_three_errors() -> None:
    content = saved({"x": offgrad.arange(6.0).view(2, 3), "p": nn.Linear(1, 2).state_dict()})
    draw = random.Random(0)
    errors = 0
    for _ in range(300):
        changed = bytearray(content.getvalue())
        for _ in range(draw.choice((1, 1, 3))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            offgrad.load(io.BytesIO(changed))
        except (RuntimeError, pickle.UnpicklingError, EOFError):
            errors += 1
    assert errors > 100


def test_arguments(tmp_path: Path) -> None:
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: offgrad.save(1, tmp_path / "no" / "x.pt"), RuntimeError, "Parent directory"),
        (lambda: offgrad.save(1, 5), AttributeError, "write"),
        (lambda: offgrad.load(5), AttributeError, "read"),
        (lambda: copied(1, mmap=True), ValueError, "string"),
        (lambda: copied(1, map_location="cuda"), RuntimeError, "cpu"),
        (lambda: copied(1, spelling="x"), TypeError, "spelling"),
        (lambda: offgrad.save(lambda: 1, io.BytesIO()), Exception, "lambda"),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
    x = offgrad.ones(1)
    for where in ("cpu", offgrad.device("cpu"), {"cpu": "cpu"}, lambda storage, location: storage):
        assert copied(x, map_location=where).item() == 1


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    offgrad.save([1], path)
    os.chmod(path, 0o640)
    with pytest.raises(Exception, match="lambda"):
        offgrad.save({"x": offgrad.ones(9), "f": lambda: 1}, path)
    assert offgrad.load(path) == [1]
    offgrad.save([2], str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    link = tmp_path / "link.pt"
    link.symlink_to(path)
    offgrad.save([3], link)
    assert link.is_symlink()
    assert offgrad.load(path) == [3]
    offgrad.save([4], os.devnull)
    assert sorted(os.listdir(tmp_path)) == ["link.pt", "x.pt"]


def test_ctrl_c_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, old, new = tmp_path / "x.pt", {"x": offgrad.zeros(9)}, {"x": offgrad.ones(9)}
    offgrad.save(old, path)

    def check() -> None:
        assert offgrad.load(path)["x"].tolist() in ([0.0] * 9, [1.0] * 9)
        assert os.listdir(tmp_path) == ["x.pt"]
        offgrad.save(old, path)

    # zipfile itself raises another error where its writing is interrupted.
    assert interrupt_everywhere([zipfile], lambda: offgrad.save(new, path), check, every=9) > 20


def test_mapped_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    offgrad.save({"x": offgrad.arange(1000.0), "y": offgrad.ones(3)}, path)
    held = offgrad.memory.allocated()
    state = offgrad.load(path, mmap=True)
    assert offgrad.memory.allocated() == held
    assert state["x"].data_ptr() % 64 == 0
    state["x"].add_(1)
    assert state["x"][:2].tolist() == [1, 2]
    assert offgrad.load(path)["x"][:2].tolist() == [0, 1]  # changes stay in memory


def test_a_checkpoint_larger_than_half_of_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    model = nn.Linear(512, 512)
    offgrad.save(model.state_dict(), path)
    with offgrad.memory.limit(offgrad.memory.allocated() + 512 * 512 * 2):
        with pytest.raises(offgrad.OutOfMemoryError):
            offgrad.load(path)
        model.load_state_dict(offgrad.load(path, mmap=True))


LIMITED = """
import resource, sys
sys.path[:0] = {path!r}
import offgrad
from offgrad import nn
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)])  # 128 MiB
used = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")]
limit = (used[0] << 10) + (160 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = sum(p.sum().item() for p in model.parameters())
offgrad.save(model.state_dict(), {file!r})
for p in model.parameters():
    p.data.zero_()
model.load_state_dict(offgrad.load({file!r}, mmap=True))
assert sum(p.sum().item() for p in model.parameters()) == before
try:
    state = [offgrad.load({file!r}), offgrad.load({file!r})]
except offgrad.OutOfMemoryError:
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
def test_a_mapped_checkpoint_needs_no_second_copy_in_memory(tmp_path: Path) -> None:
    code = LIMITED.format(path=[each for each in sys.path if each], file=str(tmp_path / "x.pt"))
    with start_python(code, stdout=-1, stderr=-1) as process:
        out, err = process.communicate(timeout=120)
    assert (out.strip(), process.returncode) == ("refused", 0), err
