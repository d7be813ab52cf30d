"""``torch.hub``: offgrad downloads nothing. What lies in a folder is loaded."""

import builtins as _builtins
import importlib.util as _importlib_util
import os as _os
import sys as _sys
from collections.abc import Callable as _Callable
from typing import Any as _Any
from urllib.parse import urlparse as _urlparse

from offgrad import _refused
from offgrad._missing import missing as _missing
from offgrad.serialization import load as _load_file

globals().update(
    _refused.functions(
        "offgrad.hub",
        "download_url_to_file",
        "offgrad downloads nothing, and PyTorch's repositories import torch; get the file "
        "yourself, and read its state dict with offgrad.load",
    )
)

_WHY = (
    "offgrad downloads nothing, and PyTorch's repositories import torch; get the folder yourself, "
    "and pass it with source='local'"
)

_folder: str | None = None


def load(repo_or_dir: str, model: str, *args: _Any, source: str = "github", **kwargs: _Any) -> _Any:
    """Return what a function of the file ``hubconf.py`` in a folder returns.

    Args:
        repo_or_dir: the folder.
        model: the name of the function.
        *args: its arguments, as `kwargs`.
        source: must be ``"local"``.
        **kwargs: keywords of the function; those that say how PyTorch downloads are left out.

    Raises:
        RuntimeError: for another source, or if the file or the function is not there.
    """
    options = {key: each for key, each in kwargs.items() if key not in _OF_DOWNLOADS}
    return _entry(repo_or_dir, model, source)(*args, **options)


def list(github: str, *_: _Any, source: str = "github", **__: _Any) -> "_builtins.list[str]":
    """Return the names of the functions of a folder's ``hubconf.py``: see `load`."""
    module = _hubconf(github, source)
    return [
        name for name, each in vars(module).items() if callable(each) and not name.startswith("_")
    ]


def help(github: str, model: str, *_: _Any, source: str = "github", **__: _Any) -> str | None:
    """Return the docstring of a function of a folder's ``hubconf.py``: see `load`."""
    return _entry(github, model, source).__doc__


_OF_DOWNLOADS = ("force_reload", "skip_validation", "trust_repo", "verbose")


def _hubconf(folder: str, source: str) -> _Any:
    """Return the module of a folder's ``hubconf.py``."""
    if source != "local":
        raise RuntimeError(f"offgrad.hub: {_WHY}, got source={source!r}")
    path = _os.path.join(_os.fspath(folder), "hubconf.py")
    if not _os.path.isfile(path):
        raise RuntimeError(f"offgrad.hub: a folder with a file hubconf.py is needed, got {folder}")
    spec = _importlib_util.spec_from_file_location("hubconf", path)
    assert spec is not None
    assert spec.loader is not None
    module = _importlib_util.module_from_spec(spec)
    _sys.path.insert(0, _os.fspath(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        _sys.path.remove(_os.fspath(folder))
    return module


def _entry(folder: str, model: str, source: str) -> _Callable[..., _Any]:
    found = getattr(_hubconf(folder, source), model, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {model} in hubconf of {folder}")
    return found  # type: ignore[no-any-return]


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
