"""Modules written for offgrad, as they are or translated to PyTorch."""

import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any


def import_for(lib: Any, name: str) -> Any:
    """Import the module `name` for offgrad or, if `lib` is torch, run its source with torch.

    A process of torch does not import offgrad for it.
    """
    if lib.__name__ != "torch":
        return import_module(name)
    source = _path(name).read_text().replace("import offgrad as torch", "import torch")
    translated = types.ModuleType(f"torch_{name.replace('.', '_')}")
    sys.modules[translated.__name__] = translated  # dataclasses look their module up
    exec(source.replace("from offgrad", "from torch"), translated.__dict__)
    return translated


def _path(name: str) -> Path:
    relative = Path(*name.split(".")).with_suffix(".py")
    for folder in sys.path:
        if (path := Path(folder or ".") / relative).is_file():
            return path
    raise ModuleNotFoundError(f"no folder of sys.path has {relative}")
