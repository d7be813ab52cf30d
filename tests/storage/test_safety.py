"""Spilled data is for its owner alone, and nothing that lies on a disk is ever run."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import offgrad_storage
import pytest
from offgrad_storage import (
    StoreError,
    ZarrStore,
    spill_directory,
    sweep,
)
from offgrad_storage.files import spill_directory as directory_module

from tests.storage.faults import (
    ON_DISK,
    assert_readable,
    files_under,
    isolated,
    linux_only,
    make,
    noise,
    outcome,
    put_each,
    written_places,
)

SOME = [noise(5000 + 3000 * seed, seed) for seed in range(10)] + [noise(1 << 20, 20)]


# ---- modes


def check_modes(directory: Path) -> None:
    """With any umask, the modes of file and folder keep other users from reading."""
    seen = 0
    for path in directory.rglob("*"):
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, f"{path} is open to others"
            seen += 1
    for path in files_under(directory):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o600, f"{os.readlink(path) if path.is_symlink() else path}: {mode:o}"
        seen += 1
    assert seen


def spill_openly(kind: str, where: str) -> None:
    directory = Path(where) / "made"
    with make(kind, directory) as store:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        stored, _ = put_each(kind, store, SOME)
        written_places(store, stored, directory)
        check_modes(directory)
        assert_readable(stored)


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize("kind", ["disk", "disk-buffered"])
def test_spilled_bytes_are_for_their_owner_alone(kind: str, umask: int, tmp_path: Path) -> None:
    isolated(spill_openly, kind, tmp_path, umask=umask)


@linux_only
@pytest.mark.parametrize("umask", [0, 0o022])
def test_a_zarr_folder_is_for_its_owner_alone(umask: int, tmp_path: Path) -> None:
    isolated(spill_openly, "zarr", tmp_path, umask=umask)


def spill_without_unnamed_files(where: str) -> None:
    directory = Path(where) / "made"
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "O_TMPFILE")
        patch.setattr(Path, "unlink", _refuse)  # as where an open file keeps its name
        store = make("disk", directory)
    with store:
        stored, _ = put_each("disk", store, SOME)
        assert list(directory.iterdir())
        check_modes(directory)
        assert_readable(stored)


def _refuse(path: Path) -> None:
    raise PermissionError("in use")


@linux_only
@pytest.mark.parametrize("umask", [0, 0o077])
def test_spill_files_with_names_are_for_their_owner_alone(umask: int, tmp_path: Path) -> None:
    isolated(spill_without_unnamed_files, tmp_path, umask=umask)


def make_again_openly(where: str) -> None:
    with make("zarr", Path(where)) as store:
        (folder,) = Path(where).iterdir()
        shutil.rmtree(folder)
        put_each("zarr", store, SOME)
        if folder.exists():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@linux_only
def test_a_folder_deleted_under_a_store_does_not_come_back_open_to_all(tmp_path: Path) -> None:
    isolated(make_again_openly, tmp_path, umask=0)


# ---- symbolic links


def make_precious(tmp_path: Path) -> Path:
    """A folder with files that no store has any business with."""
    folder = tmp_path / "precious"
    for path in (folder / "file", folder / "c" / "0", folder / "zarr.json", folder / "lock"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"precious")
        path.chmod(0o640)
    return folder


def assert_untouched(precious: Path) -> None:
    files = {str(path.relative_to(precious)) for path in precious.rglob("*") if path.is_file()}
    assert files == {"file", "c/0", "zarr.json", "lock"}
    for name in files:
        assert (precious / name).read_bytes() == b"precious", f"{name} was written to"
        assert stat.S_IMODE((precious / name).stat().st_mode) == 0o640


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """Such a folder, checked afterwards."""
    folder = make_precious(tmp_path)
    yield folder
    assert_untouched(folder)


@linux_only
@pytest.mark.parametrize("kind", ON_DISK)
def test_links_in_a_removed_folder_are_not_followed(
    kind: str, tmp_path: Path, precious: Path
) -> None:
    spills = tmp_path / "spills"
    with make(kind, spills) as store:
        stored, _ = put_each(kind, store, SOME)
        for folder in [path for path in spills.rglob("*") if path.is_dir()]:
            (folder / "planted").symlink_to(precious)
            (folder / "planted-file").symlink_to(precious / "file")
        assert_readable(stored)
        stored.clear()
    assert not list(spills.iterdir())


@linux_only
def test_links_where_arrays_will_be_are_not_followed(tmp_path: Path) -> None:
    precious = make_precious(tmp_path)
    spills = tmp_path / "spills"
    with ZarrStore(spills, codec="none") as store:
        store.put(noise(5000)).wait_captured()
        before = set(store.path.iterdir())
        handle = store.put(noise(5000))
        handle.wait_captured()
        written_places(store, [(handle, noise(5000))], spills)
        names = [path.name for path in set(store.path.iterdir()) - before if path.name.isdigit()]
        for number in range(1, 40):
            for name in names:
                planted = store.path / str(int(name) + number).zfill(len(name))
                if not planted.exists():
                    planted.symlink_to(precious)
        stored, _ = put_each("zarr", store, [noise(7000, seed) for seed in range(20)])
        for pair in stored:
            outcome("zarr", *pair)
        stored.clear()
        del handle
    assert_untouched(precious)


@linux_only
def test_links_in_dead_folders_are_not_followed_when_they_are_swept(
    tmp_path: Path, precious: Path
) -> None:
    spills = tmp_path / "spills"
    dead = spills / "offgrad-spill-1-dead"
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    (dead / "folder").symlink_to(precious)
    (dead / "file").symlink_to(precious / "file")
    (spills / "offgrad-spill-2-link").symlink_to(precious)
    (spills / "offgrad-spill-3-file").write_bytes(b"no folder")
    for name in ("fifo", "folder"):
        odd = spills / f"offgrad-spill-4-{name}"
        odd.mkdir()
        (os.mkfifo if name == "fifo" else os.mkdir)(odd / "lock")
    isolated(sweep_there, spills, timeout=30)
    assert not dead.exists()
    assert (spills / "offgrad-spill-2-link").is_symlink()
    assert (spills / "offgrad-spill-3-file").exists()


def sweep_there(where: str) -> None:
    sweep(Path(where))
    for kind in ON_DISK:
        with make(kind, Path(where)) as store:
            assert_readable(put_each(kind, store, SOME)[0])


@linux_only
@pytest.mark.parametrize(
    "kind",
    [
        "disk",
        "disk-buffered",
        "zarr",
    ],
)
def test_a_sweep_at_any_moment_of_its_making_leaves_a_store_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = os.open
    sweeps = 0

    def sweep_after(path: Any, *arguments: Any, **options: Any) -> int:
        nonlocal sweeps
        descriptor: int = real(path, *arguments, **options)
        ours = isinstance(path, str | os.PathLike) and str(path).startswith(str(tmp_path))
        if ours and arguments and arguments[0] & os.O_CREAT:
            sweeps += 1
            monkeypatch.setattr(os, "open", real)
            try:
                sweep(tmp_path)
            finally:
                monkeypatch.setattr(os, "open", sweep_after)
        return descriptor

    monkeypatch.setattr(os, "open", sweep_after)
    with make(kind, tmp_path) as store:
        monkeypatch.setattr(os, "open", real)
        assert sweep(tmp_path) == []
        assert_readable(put_each(kind, store, SOME)[0])


# ---- nothing is run


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.canary,)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that planted code makes if it runs, with an importable module "planted"."""
    path = tmp_path / "canary"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "planted.py").write_text(f"open({str(path)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.chdir(modules)
    pickle.loads(pickle.dumps(Bomb(path)))
    assert path.exists(), "the bomb does not go off"
    path.unlink()
    yield path
    assert not path.exists(), "planted code was run"


def hostile_metadata() -> Iterator[dict[str, Any]]:
    """Metadata of a Zarr array that asks for more than bytes."""
    good: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [1000],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {"offgrad_dtype": "|O"},
    }
    yield good
    for codec in ("planted", "planted:Codec", "planted.Codec", "numcodecs.pickle", "json2"):
        yield good | {"codecs": [{"name": codec, "configuration": {"id": "pickle"}}]}
    for dtype in ("object", "O", "planted:dtype", "__import__('planted')", "vlen-bytes", "string"):
        yield good | {"data_type": dtype}
        yield good | {"attributes": {"offgrad_dtype": dtype}}
    yield good | {"shape": [2**62]}
    yield good | {"shape": [2**40, 2**40]}
    yield good | {"shape": [-1]}
    yield good | {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**60]}},
        "shape": [2**60],
    }
    for name in ("../../../precious", "/etc/passwd"):
        yield good | {
            "chunk_key_encoding": {"name": name},
            "storage_transformers": [{"name": name}],
        }
    yield {"nothing": "of all that"}


def test_hostile_metadata_under_a_living_store_runs_nothing(tmp_path: Path, canary: Path) -> None:
    with make("zarr", tmp_path / "spills") as store:
        stored, _ = put_each("zarr", store, [noise(1000, seed) for seed in range(3)])
        written_places(store, stored, tmp_path / "spills")
        for metadata in hostile_metadata():
            for path in (tmp_path / "spills").rglob("zarr.json"):
                path.write_text(json.dumps(metadata))
            for pair in stored:
                outcome("zarr", *pair)
            with_new, _ = put_each("zarr", store, [noise(2000)])
            for pair in with_new:
                outcome("zarr", *pair)
        for text in ("", "[" * 100_000, "null", "\x00"):
            for path in (tmp_path / "spills").rglob("zarr.json"):
                path.write_text(text)
            for pair in stored:
                outcome("zarr", *pair)


@linux_only
@pytest.mark.parametrize("kind", [*ON_DISK, "zarr-blosc"])
def test_pickles_in_the_place_of_arrays_are_bytes(kind: str, tmp_path: Path, canary: Path) -> None:
    bomb = pickle.dumps(Bomb(canary))
    spills = tmp_path / "spills"
    with make(kind, spills) as store:
        array = np.frombuffer(bomb + noise(1000).tobytes(), np.uint8)
        handle = store.put(array)  # as a value it is as good as any
        handle.wait_captured()
        assert outcome(kind, handle, array) is None
        stored, _ = put_each(kind, store, SOME)
        for path, offset in written_places(store, stored, spills):
            descriptor = os.open(path, os.O_WRONLY)
            os.pwrite(descriptor, bomb, offset)
            os.close(descriptor)
        for path in files_under(spills):
            if path.name == "zarr.json":
                path.write_bytes(bomb)
        for pair in stored:
            assert outcome(kind, *pair) is not None


def test_a_folder_from_someone_else_runs_nothing_when_a_store_starts_beside_it(
    tmp_path: Path, canary: Path
) -> None:
    spills = tmp_path / "spills"
    for number, metadata in enumerate(hostile_metadata()):
        folder = spills / f"offgrad-spill-{number}-theirs" / "arrays.zarr" / "00000000"
        (folder / "c").mkdir(parents=True)
        (folder / "zarr.json").write_text(json.dumps(metadata))
        (folder.parent / "zarr.json").write_text(json.dumps(metadata))
        (folder / "c" / "0").write_bytes(pickle.dumps(Bomb(canary)))
        np.save(folder / "c" / "1.npy", np.array([Bomb(canary)], object), allow_pickle=True)
        for name in ("__init__.py", "sitecustomize.py", "conftest.py", "planted.py"):
            (folder.parents[1] / name).write_text(f"open({str(canary)!r}, 'w').close()\n")
        (folder.parents[1] / "lock").write_bytes(pickle.dumps(Bomb(canary)))
    assert len(sweep(spills)) == number + 1
    assert not list(spills.iterdir())


def test_a_hostile_folder_that_is_still_locked_is_left_alone(tmp_path: Path, canary: Path) -> None:
    with make("zarr", tmp_path / "spills") as theirs:
        stored, _ = put_each("zarr", theirs, [noise(1000)])
        for path in (tmp_path / "spills").rglob("zarr.json"):
            path.write_text(json.dumps(next(hostile_metadata())))
        with make("zarr", tmp_path / "spills") as store:
            assert_readable(put_each("zarr", store, SOME)[0])
        for pair in stored:
            outcome("zarr", *pair)


@pytest.mark.parametrize("codec", ["planted", "planted:Codec", "numcodecs.pickle", "pickle"])
def test_the_name_of_a_codec_names_no_module(codec: str, tmp_path: Path, canary: Path) -> None:
    with pytest.raises((ValueError, StoreError)):
        ZarrStore(tmp_path / "spills", codec=codec)


# ---- capabilities of the package

FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
    *("runpy", "code", "codeop", "jsonpickle", "copyreg"),
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {"Pickle", "fromregex", "load", "loadtxt", "genfromtxt", "unpackb"}


def source_files() -> list[Path]:
    """Of the package, without ``testing``, which no store imports."""
    (root,) = offgrad_storage.__path__
    return [path for path in sorted(Path(root).rglob("*.py")) if "testing" not in path.parts]


@pytest.mark.parametrize("path", source_files(), ids=lambda path: path.name)
def test_the_source_has_no_means_to_run_data(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found = {alias.name.partition(".")[0] for alias in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=str(module), level=0):
                found = {module.partition(".")[0]} & FORBIDDEN_MODULES
            case ast.Call(func=ast.Name(id="compile"), args=[*_, ast.Name(id="_ONLY_AST")]):
                continue  # a syntax tree, no code
            case ast.Call(func=ast.Name(id=name)):
                found = {name} & FORBIDDEN_CALLS
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name)):
                found = {name} & FORBIDDEN_ATTRIBUTES
            case ast.Attribute(attr="Pickle"):
                found = {"Pickle"}
            case ast.keyword(arg="allow_pickle", value=value):
                harmless = isinstance(value, ast.Constant) and value.value is False
                found = set() if harmless else {"allow_pickle"}
            case _:
                continue
        assert not found, f"{path.name}:{getattr(node, 'lineno', '?')} uses {found}"


def test_the_check_of_the_source_finds_violations(tmp_path: Path) -> None:
    lines = [
        "import pickle",
        "import os, marshal as m",
        "from shelve import open",
        "from numcodecs import Blosc; import numcodecs; numcodecs.Pickle()",
        "eval('1')",
        "import numpy as np; np.load('x')",
        "f(allow_pickle=True)",
    ]
    for number, line in enumerate(lines):
        path = tmp_path / f"{number}.py"
        path.write_text(line)
        with pytest.raises(AssertionError, match="uses"):
            test_the_source_has_no_means_to_run_data(path)


def test_the_default_directory_is_looked_at_without_being_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precious: Path
) -> None:
    """A file or a dangling link where the directory should be is an error, not followed."""
    wanted = tmp_path / "spills"
    wanted.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("OFFGRAD_SPILL_DIR", str(wanted))
    with pytest.raises(OSError, match="File exists"):
        spill_directory()
    assert not (tmp_path / "nowhere").exists()
    assert directory_module.sweep(precious) == []


@pytest.mark.parametrize(("store", "items"), [("DiskStore", 1 << 20), ("ZarrStore", 1 << 18)])
def test_exit_without_close(store: str, items: int, tmp_path: Path, run_python: Any) -> None:
    ran = run_python(
        f"""
        import sys
        import numpy as np
        from offgrad_storage import {store}
        store = {store}(sys.argv[1])
        handles = [store.put(np.ones({items})) for _ in range(10)]
        handles[0].prefetch()
        sys.kept = handles[5]
        """,
        tmp_path,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not list(tmp_path.iterdir())
