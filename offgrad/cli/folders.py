"""The folder of spill files, checked before anything starts."""

import os
import shlex
import tempfile
from pathlib import Path

from offgrad_storage import spill_directory


def check_spill_directory(directory: str | None = None) -> Path:
    """Return the folder.

    One that is given must exist: a mistyped name would fill another drive than the one meant.

    Args:
        directory: None for the default, which OFFGRAD_SPILL_DIR sets, and which is made.

    Raises:
        ValueError: it cannot be written to; the message is one line.
    """
    if directory is not None:
        _check_exists(directory)
    try:
        folder = spill_directory(directory)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = error.strerror or str(error)
        if directory is not None:
            raise ValueError(f"--directory {directory} cannot be written to: {reason}") from None
        raise ValueError(
            f"the directory of stores cannot be written to: {error}; set OFFGRAD_SPILL_DIR to "
            "another one"
        ) from None


def _check_exists(directory: str) -> None:
    """Raise ValueError unless there is such a folder; say how to make it, if that is possible."""
    if not directory:
        raise ValueError("--directory needs the name of a folder, got an empty one")
    if os.path.isdir(directory):
        return
    text = f"--directory {directory} cannot be written to"
    try:
        os.stat(directory)
    except FileNotFoundError:
        pass
    except OSError as error:  # such as a name that is too long
        raise ValueError(f"{text}: {error.strerror}") from None
    else:
        raise ValueError(f"{text}: it is no folder")
    parent = _last_existing(directory)
    try:
        os.rmdir(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise ValueError(
            f"{text}: it does not exist, and no folder can be made in {parent}: {error.strerror}"
        ) from None
    raise ValueError(f"{text}: it does not exist; mkdir -p {shlex.quote(directory)} makes it")


def _last_existing(path: str) -> str:
    """Return the longest part of a path that exists, be it a link to nothing."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def use_spill_directory(directory: str | None) -> None:
    """Let all stores of this process, and of those that it starts, write to a folder.

    Raises:
        ValueError: it cannot be written to.
    """
    folder = check_spill_directory(directory)
    if directory is not None:
        os.environ["OFFGRAD_SPILL_DIR"] = str(folder)
