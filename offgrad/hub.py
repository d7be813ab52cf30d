"""``torch.hub``: offgrad downloads nothing. Weights that lie in the cache folder are loaded."""

import os as _os
from typing import Any as _Any
from urllib.parse import urlparse as _urlparse

from offgrad import _refused
from offgrad._missing import missing as _missing
from offgrad.serialization import load as _load_file

globals().update(
    _refused.functions(
        "offgrad.hub",
        "download_url_to_file help list load",
        "offgrad downloads nothing, and PyTorch's repositories import torch; get the file "
        "yourself, and read its state dict with offgrad.load",
    )
)

_folder: str | None = None


def get_dir() -> str:
    """Return the cache folder: set by `set_dir`, or ``hub`` in TORCH_HOME."""
    if _folder is not None:
        return _folder
    cache = _os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = _os.environ.get("TORCH_HOME", _os.path.join(cache, "torch"))
    return _os.path.expanduser(_os.path.join(home, "hub"))


def set_dir(d: _Any) -> None:
    """Set the cache folder."""
    global _folder
    _folder = _os.path.expanduser(_os.fspath(d))


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: _Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = True,
) -> _Any:
    """Load a state dict that was downloaded before.

    Args:
        url: the address; the file has its last part as name.
        model_dir: the folder of the file; ``checkpoints`` in `get_dir()` if None.
        map_location: as `offgrad.load` takes it.
        progress: accepted.
        check_hash: accepted.
        file_name: the name of the file.
        weights_only: as `offgrad.load` takes it.

    Raises:
        RuntimeError: the file is not there: nothing is downloaded.
    """
    folder = model_dir or _os.path.join(get_dir(), "checkpoints")
    path = _os.path.join(folder, file_name or _os.path.basename(_urlparse(url).path))
    if not _os.path.exists(path):
        raise RuntimeError(
            f"offgrad.hub downloads nothing; get {url} yourself, and put it at {path}"
        )
    return _load_file(path, map_location, weights_only=weights_only)


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.hub")
