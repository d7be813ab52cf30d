"""The folder of results: checked before the runs, written after them, all or nothing."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def check_output(folder: Path, names: tuple[str, ...]) -> None:
    """Check that files of these names can be written into `folder`, which need not exist.

    Raises:
        ValueError: if not; the message is one line.
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


def write_output(
    folder: Path, writers: dict[str, Callable[[Path], object]], names: Iterable[str] = ()
) -> list[Path]:
    """Call each writer with a temporary path; then rename all files.

    Files of other `names` are of an earlier run: they are removed. After a failure no file is left,
    and no folder that did not exist before.

    Returns:
        The paths of the files.
    """
    new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in writers}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            write(temporary[name])
        for name, path in temporary.items():
            os.replace(path, folder / name)
        for name in set(names) - writers.keys():
            (folder / name).unlink(missing_ok=True)
    except BaseException:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        for each in new_folders:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise
    return [folder / name for name in writers]


def names_of(files: list[Path]) -> str:
    """Return the folder of some files, and their names, as text."""
    return f"{files[0].parent}: {', '.join(path.name for path in files)}"
