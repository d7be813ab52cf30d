"""Checkpoints of a whole run: see `offgrad.checkpoint`."""

import atexit
import functools
import operator
import os
import random
import re
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from offgrad_storage.interrupts import masked

from offgrad import ops
from offgrad._checkpoint import writer
from offgrad._checkpoint.api import load as _load_file
from offgrad.autograd.tensor_base import TensorBase, alias, metadata
from offgrad.utils.data import DataLoader

__all__ = ["ResumableLoader", "Save", "latest", "load", "save"]

_NAME = re.compile(r"checkpoint-(\d{8,})\.pt")
_CHUNK = 16 << 20

AnyPath = str | os.PathLike[str]


class Save:
    """A checkpoint that is being written, perhaps in the background."""

    def __init__(self, path: Path, write: Callable[[], None], background: bool) -> None:
        self.path = path
        self._write = write
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if not background:
            write()
            return
        self._thread = threading.Thread(target=self._run, name=f"save {path.name}")
        self._thread.start()

    def __repr__(self) -> str:
        state = "writing" if not self.done else "written" if self._error is None else "failed"
        return f"<Save of {self.path}: {state}>"

    @property
    def done(self) -> bool:
        """Whether the file is written, or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait until the file is written; return its path.

        Raises:
            OSError, StoreError: it cannot be written; an older file is as before.
        """
        self.join()
        for folder, each in [*_last_saves.items()]:
            if each is self:  # else its error would hold the frames of this caller
                _last_saves.pop(folder, None)
        if self._error is not None:
            raise self._error
        return self.path

    def join(self) -> None:
        """Wait for the end, whatever it is."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they hold what could not be written
            self._error = error


_last_saves: dict[Path, Save] = {}  # in the background, by folder


@functools.cache
def _wait_at_exit() -> None:
    """Let Python's exit wait for saves before it closes stores.

    Handlers run in reverse order, so this comes after the stores of paged tensors were opened. Some
    stores are closed before the handlers of `atexit` run (see `offgrad_storage`).
    """
    getattr(threading, "_register_atexit", atexit.register)(_end_saves)
    atexit.register(_end_saves)


def _end_saves() -> None:
    """Wait for the saves under way; print the errors that no `Save.wait` has raised."""
    for save in [*_last_saves.values()]:
        try:
            save.wait()
        except Exception as error:
            text = f"offgrad.checkpoint: at exit: {save.path} is not written: {error}"
            print(text, file=sys.stderr)


def save(
    path: AnyPath,
    *,
    step: int | None = None,
    keep_last: int | None = None,
    background: bool = False,
    **state: Any,
) -> Save:
    """Write a checkpoint, as a whole or not at all.

    A process that is killed while it writes leaves an unfinished file, whose name begins with a
    dot. The next `save` in that folder removes those whose writer is dead, and none of a living
    process.

    Args:
        path: of the file; with `step` of a folder, which gets a file for each step.
        step: the number of steps done, from 0; `load` returns it as ``"step"``.
        keep_last: how many files stay in the folder; None for all. Needs `step`.
        background: return as soon as the state is captured; a thread writes the file. Paged tensors
            are captured in their store, and others copied in memory. The next `save` waits for this
            one, and raises its error unless `wait` has.
        state: by name objects with ``state_dict()``, such as modules, optimizers and schedulers; or
            tensors, containers, numbers and text. Random states are added.

    Returns:
        The save; its ``wait()`` returns the path once the file is written.

    Raises:
        ValueError: `keep_last` without `step`, or below 1; a `step` below 0; a name that is taken.
        TypeError: a `step` that is no int; the state has a NumPy array, which `load` would refuse.
        OSError, StoreError: the file cannot be written; older files are as before.
        RuntimeError: the file's folder does not exist; with `step`, it is made.
    """
    if step is not None:
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(
                f"step is a number of steps done, an int, got a {type(step).__name__}"
            ) from None
        if step < 0:
            raise ValueError(f"step is a number of steps done, from 0, got {step}")
    elif Path(path).is_dir():
        raise IsADirectoryError(
            f"{path} is a folder: give step=, for a file of that step in it, or the path of a file"
        )
    if keep_last is not None and (step is None or keep_last < 1):
        raise ValueError(
            f"keep_last is a number of files from 1 in a folder, and needs step=, got {keep_last}"
        )
    taken = {"random"} & state.keys()
    if taken:
        raise ValueError(f"the name {taken.pop()!r} is taken by a checkpoint's own state")
    folder = Path(path) if step is not None else Path(path).parent
    if step is not None:
        folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"checkpoint-{step:08d}.pt" if step is not None else Path(path)
    earlier = _last_saves.pop(folder.resolve(), None)
    if earlier is not None:
        earlier.wait()
    content: dict[str, Any] = {
        name: each.state_dict() if hasattr(each, "state_dict") else each
        for name, each in state.items()
    }
    _check_arrays(content, "")
    content["random"] = _random_states()
    if step is not None:
        content["step"] = step
    if background:
        content = _captured(content)

    def write() -> None:
        try:
            writer.sweep(folder)
            with writer.replacing(str(target)) as file:
                writer.write(content, file, "checkpoint", 2)
                file.flush()
                os.fsync(file.fileno())
        finally:
            content.clear()
        if keep_last is not None:
            others = [each for each in _numbered(folder) if each.name != target.name]
            for old in others[: max(0, len(others) - keep_last + 1)]:
                old.unlink(missing_ok=True)

    if not background:
        return Save(target, write, False)
    _wait_at_exit()
    with masked:  # else Ctrl-C could leave a save that the next one does not know
        result = _last_saves[folder.resolve()] = Save(target, write, True)
    return result


def latest(path: AnyPath) -> Path:
    """Return the file itself, or the one of the last step in a folder.

    Raises:
        FileNotFoundError: there is none.
    """
    place = Path(path)
    if place.is_dir():
        files = _numbered(place)
        if files:
            return files[-1]
        raise FileNotFoundError(
            f"no checkpoint is in {place}: it has no file such as checkpoint-00000001.pt"
        )
    if not place.exists():
        raise FileNotFoundError(f"there is no checkpoint {place}")
    return place


def load(path: AnyPath, *, random_states: bool = True, **state: Any) -> dict[str, Any]:
    """Load a checkpoint into objects; return the rest of it by name.

    Args:
        path: of a file, or of a folder, of which the last step's file is loaded. A background save
            that goes on there ends first.
        random_states: whether to set the states of offgrad's, NumPy's and Python's generators.
        state: by name the objects to load with ``load_state_dict()``.

    Raises:
        FileNotFoundError: there is no checkpoint.
        KeyError: it lacks a name of `state`; nothing is loaded.
        TypeError: an object has no ``load_state_dict()``; nothing is loaded.
        RuntimeError: the file is corrupt; nothing is loaded. Also as an object's own
            ``load_state_dict()``; objects before it are loaded then.
    """
    for name, each in state.items():
        if not callable(getattr(each, "load_state_dict", None)):
            raise TypeError(
                f"load() loads into objects with load_state_dict(), but {name} has the type "
                f"{type(each).__name__}; load() returns other values by name"
            )
    place = Path(path).resolve()
    for folder in (place, place.parent):
        if folder in _last_saves:
            _last_saves[folder].join()
    file = latest(path)
    _verify(file)
    content = _load_file(file, mmap=True)
    missing = state.keys() - content.keys()
    if missing:
        raise KeyError(
            f"checkpoint {file} has no {', '.join(sorted(missing))}; it has "
            f"{', '.join(sorted(content.keys() - {'random'}))}"
        )
    for name, each in state.items():
        each.load_state_dict(content.pop(name))
    states = content.pop("random")
    if random_states:
        _set_random_states(states)
    return {name: _mapped(each, lambda tensor: tensor.clone()) for name, each in content.items()}


def _verify(file: Path) -> None:
    """Raise unless the checksums of all parts are right: mapped parts are not checked later."""
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as part:
                    while part.read(_CHUNK):
                        pass
    except Exception as error:  # a corrupt directory leads zipfile anywhere
        raise RuntimeError(f"checkpoint {file} is truncated or corrupt: {error}") from error


def _numbered(folder: Path) -> list[Path]:
    """Return the files of steps in a folder, the earliest first."""
    found = [(int(match[1]), each) for each in folder.iterdir() if (match := _match(each))]
    return [each for _, each in sorted(found)]


def _match(file: Path) -> "re.Match[str] | None":
    return _NAME.fullmatch(file.name)


# State


def _random_states() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 (the global one)
    return {
        "offgrad": ops.get_rng_state(),
        "numpy": [kind, ops.tensor(np.asarray(keys, np.int64)), position, has_gauss, cached],
        "python": [version, list(numbers), gauss],
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    ops.set_rng_state(states["offgrad"].clone())
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))


def _check_arrays(value: Any, place: str) -> None:
    """Raise for arrays of NumPy, and its numbers, in nested containers."""
    if isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(
            f"a checkpoint holds tensors, containers, numbers and text, got {type(value).__name__} "
            f"of NumPy at {place[1:]!r}: pass offgrad.as_tensor of it, or item() of a number"
        )
    if isinstance(value, dict):
        for key, each in value.items():
            _check_arrays(each, f"{place}.{key}")
    elif type(value) in (list, tuple):
        for number, each in enumerate(value):
            _check_arrays(each, f"{place}.{number}")


def _captured(content: Any) -> Any:
    """Return the content with tensors that later changes do not reach."""
    copies: dict[Any, TensorBase] = {}

    def capture(tensor: Any) -> Any:
        storage, layout = tensor._storage, metadata(tensor)
        offset = tensor._offset if tensor._spec is not None else tensor.data_ptr()
        key = storage.uid, layout.shape, layout.strides, offset
        if key not in copies:
            if tensor._spec is None:
                copies[key] = tensor.detach().clone()
            else:
                copies[key] = alias(tensor)
                copies[key]._storage = storage.snapshot()
        return copies[key]

    return _mapped(content, capture)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers with `change` applied to all tensors."""
    if isinstance(value, TensorBase):
        return change(value)
    if isinstance(value, dict):
        changed = copy(value)  # keeps the class, the order and the attribute _metadata
        for key, each in value.items():
            changed[key] = _mapped(each, change)
        return changed
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, change) for each in value)
    return value


class ResumableLoader:
    """Iterates over a `DataLoader`, and continues in the middle of an epoch after `load`.

    After loading, the first epoch draws its order with the random state that its beginning had, and
    passes over the batches that the run has had.

    Attributes:
        loader: the loader.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._begin: Any = None  # random states at the beginning of the epoch
        self._count = 0  # batches of the epoch that the program has had
        self._skip: tuple[Any, int] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        skipped, self._skip = self._skip, None
        if skipped is None:
            self._begin, self._count = _random_states(), 0
            iterator = iter(self.loader)
        else:
            self._begin, self._count = skipped
            with _as_then(self._begin):
                iterator = iter(self.loader)
                for _ in range(self._count):
                    next(iterator)
        for batch in iterator:
            self._count += 1
            yield batch
        self._begin, self._count = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the random states at the beginning of the epoch, and the number of batches."""
        return {"begin": self._begin, "count": self._count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next epoch continue where that of `state_dict` was."""
        begin, count = state_dict["begin"], state_dict["count"]
        self._skip = None if begin is None else (begin, count)


@contextmanager
def _as_then(states: Mapping[str, Any]) -> Iterator[None]:
    """Set random states for the block; those before it are set again at its end."""
    now = _random_states()
    _set_random_states(states)
    try:
        yield
    finally:
        _set_random_states(now)
