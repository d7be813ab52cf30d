"""The text to train on: the bundled one, or the user's files."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad.cli.compare.text import generate

Bytes = NDArray[np.uint8]

MAX_NBYTES = 64 << 20
"""Reading stops here: short trainings do not reach more."""


def load_text(path: Path | None) -> Bytes:
    """Return the bytes of a file, of all files of a folder, or of the bundled text.

    Args:
        path: a file; a folder, whose files are taken in sorted order, without hidden ones; or None
            for the bundled text, the same on every machine (`offgrad.cli.compare.text`).

    Raises:
        ValueError: if the text is empty or cannot be read.
    """
    if path is None:
        return generate()
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        text = _concatenate(_files(path) if path.is_dir() else [path])
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    if not text.size:
        raise ValueError(f"{path} holds no text")
    return text


def batch(text: Bytes, step: int, batch: int, context: int, seed: int) -> tuple[Any, Any]:
    """Return tokens and targets of a step: int64 [batch, context], from random places of `text`.

    They depend only on the arguments.
    """
    random = np.random.default_rng([seed, step])
    starts = random.integers(0, text.size - context, batch)
    windows = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


def _files(root: Path) -> Iterator[Path]:
    for path in _walk(root):
        if not path.name.startswith(".") and path.is_file():
            yield path


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below `root` in sorted order."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            yield Path(folder, name)


def _concatenate(paths: Iterable[Path]) -> Bytes:
    parts, remaining = [], MAX_NBYTES
    for path in paths:
        with open(path, "rb") as file:
            part = np.frombuffer(file.read(remaining), np.uint8)
        parts.append(part)
        remaining -= part.size
        if remaining <= 0:
            break
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
