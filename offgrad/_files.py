"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path`, with its suffix, to write to; then move that file to `path`.

    If the block raises, what was in `path` stays, and the new file is removed.
    """
    target = Path(path)
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
