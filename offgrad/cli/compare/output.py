"""The folder of results: checked before the work, filled at its end, all or nothing."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def check_output(folder: Path, names: tuple[str, ...]) -> None:
    """Check that files of these names can be written into `folder`, which need not exist.

    Raises:
        ValueError: in one line, if not.
    """
    existing = folder
    try:
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise ValueError(f"--output {folder}: {existing} is not a folder")
        for name in names:
            if (folder / name).is_dir():
                raise ValueError(f"--output {folder}: {folder / name} is a folder")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"--output {folder} cannot be written to: {error.strerror}") from None


def write_output(folder: Path, writers: dict[str, Callable[[Path], object]]) -> list[Path]:
    """Call each writer with a path to write to; then give all files their names at once.

    If one fails, nothing is left: no file, and no folder that was not there.

    Returns:
        The files.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in writers}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            write(temporary[name])
        for name, path in temporary.items():
            os.replace(path, folder / name)
    except BaseException:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise
    return [folder / name for name in writers]
