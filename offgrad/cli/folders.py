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
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise ValueError(f"--directory {directory} cannot be written to: it is no folder")
        if not os.path.exists(directory):
            raise ValueError(
                f"--directory {directory} cannot be written to: it does not exist; "
                f"mkdir -p {shlex.quote(directory)} makes it"
            )
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


def use_spill_directory(directory: str | None) -> None:
    """Let all stores of this process, and of those that it starts, write to a folder.

    Raises:
        ValueError: it cannot be written to.
    """
    folder = check_spill_directory(directory)
    if directory is not None:
        os.environ["OFFGRAD_SPILL_DIR"] = str(folder)
