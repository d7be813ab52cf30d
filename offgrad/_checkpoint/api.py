"""The functions of `offgrad.serialization`. What reads and writes is imported at first use."""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offgrad._warning import warn_program


def save(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Save an object to a file that `load` and ``torch.load`` read.

    Tensors that share memory share it in the file, too. Modules and other objects are pickled by
    the names of their classes, which the reader needs; so save ``state_dict()`` rather than
    modules.

    Args:
        obj: tensors, modules, containers of them, or any other object that can be pickled.
        f: a path, or an open file with ``write``. A path gets the new file as a whole at the end:
            an interrupted save leaves the old one. If it is killed, it also leaves an unfinished
            file beside it, which the next save to this path removes; never one of a living process.
        pickle_module: only `pickle`.
        pickle_protocol: ``torch.load`` with ``weights_only=True`` reads protocol 2.
        _use_new_zipfile_serialization: accepted; the file is a zip file in any case.
        _disable_byteorder_record: accepted.

    Raises:
        RuntimeError: the folder does not exist.
        AttributeError: `f` is neither a path nor a file.
        pickle.PicklingError: an object cannot be pickled.
    """
    from offgrad._checkpoint import writer

    if pickle_module is not pickle:
        raise TypeError(f"save writes with the pickle module only, got {pickle_module!r}")
    if not _use_new_zipfile_serialization:
        warn_program("save writes a zip file, not the format before PyTorch 1.6: readers take both")
    if isinstance(f, (str, os.PathLike)):
        path = os.fspath(f)
        folder = os.path.splitext(os.path.basename(path))[0]
        with writer.replacing(path) as file:
            writer.write(obj, file, folder or "archive", pickle_protocol)
    elif hasattr(f, "write"):
        writer.write(obj, f, "archive", pickle_protocol)
    else:
        raise AttributeError(
            f"save takes a path or an open file with a 'write' attribute, got {type(f).__name__}"
        )


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Load an object that `save` or ``torch.save`` has written.

    Args:
        f: a path, or an open file with ``read`` and ``seek``.
        map_location: where storages go: only to the CPU, as a device, by a dict from the locations
            in the file, or by a function of storage and location. Files from other devices need
            it.
        pickle_module: only `pickle`.
        weights_only: make tensors, containers, numbers, text, and objects of the classes given to
            `add_safe_globals` only; the default. With False any object: the file can then run any
            code, so its source must be trusted.
        mmap: map the file, a path, into memory instead of reading it: the tensors' bytes are read
            when they are used, and changes of them stay in memory. Mapped memory is not counted.
        pickle_load_args: ``encoding`` of text that Python 2 wrote.

    Raises:
        pickle.UnpicklingError: with `weights_only`, the file refers to other objects; or it is no
            checkpoint.
        RuntimeError: the file is truncated or corrupt, or needs another device.
    """
    from offgrad._checkpoint import reader

    encoding = pickle_load_args.pop("encoding", "utf-8")
    if pickle_load_args:
        raise TypeError(f"load has no arguments {sorted(pickle_load_args)}; there is 'encoding'")
    if weights_only is None:
        weights_only = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0") not in ("1", "true")
    if pickle_module not in (None, pickle):
        raise RuntimeError(
            "load reads with the pickle module only; with weights_only=True no other can be given"
        )
    if mmap and not isinstance(f, (str, os.PathLike)):
        raise ValueError("f must be a string or path for mmap=True: a file object has no name")
    options = reader.Options(map_location, weights_only, encoding)
    file, path = reader.open_file(f)
    try:
        return reader.read(file, options, path, bool(mmap))
    finally:
        if path is not None:
            file.close()


def _checked(safe: Any) -> dict[str, Any]:
    from offgrad._checkpoint.unpickler import full_name

    found = {}
    for each in safe:
        value, name = each if isinstance(each, tuple) else (each, None)
        if not callable(value):
            raise TypeError(f"safe globals are classes and functions, got {value!r}")
        found[name or full_name(value)] = value
    return found


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Allow classes and functions in files that are loaded with ``weights_only=True``.

    Args:
        safe_globals: classes and functions; or pairs of one and its full name in files.
    """
    from offgrad._checkpoint import unpickler

    unpickler.safe_globals().update(_checked(safe_globals))


def get_safe_globals() -> list[Any]:
    """Return the classes and functions that the program allows in files."""
    from offgrad._checkpoint import unpickler

    return list(unpickler.safe_globals().values())


def clear_safe_globals() -> None:
    """Allow none of the program's classes and functions any longer."""
    from offgrad._checkpoint import unpickler

    unpickler.safe_globals().clear()


@contextmanager
def safe_globals(safe_globals: list[Any]) -> Iterator[None]:
    """Allow classes and functions, as `add_safe_globals` does, in a block."""
    from offgrad._checkpoint import unpickler

    allowed = unpickler.safe_globals()
    before = dict(allowed)
    allowed.update(_checked(safe_globals))
    try:
        yield
    finally:
        allowed.clear()
        allowed.update(before)


def get_unsafe_globals_in_checkpoint(f: Any) -> list[str]:
    """Return the full names in a file that ``weights_only=True`` does not allow."""
    from offgrad._checkpoint import reader, unpickler

    known = unpickler.known_globals()
    return [each for each in reader.names_in(f) if each not in known]


def get_crc32_options() -> bool:
    """Return whether `load` compares the checksums of what it reads."""
    from offgrad._checkpoint import reader

    return reader.check_sums


def set_crc32_options(compute_crc32: bool) -> None:
    """Set whether `load` compares the checksums of what it reads; `save` always writes them."""
    from offgrad._checkpoint import reader

    reader.check_sums = compute_crc32
