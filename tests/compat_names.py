"""Writes the list of PyTorch's public names: ``python -m tests.compat_names``.

They are the names in ``__all__`` of a module. Where there is none, and in `torch` itself, they are
those that `dir` shows, without those that begin with an underscore, and without modules and other
objects that PyTorch has imported from elsewhere.
"""

import contextlib
import importlib
import types
import warnings
from pathlib import Path
from typing import Any

NAMESPACES = """
torch torch.Tensor torch.nn torch.nn.Module torch.nn.functional torch.nn.init torch.nn.utils
torch.nn.utils.rnn torch.nn.utils.parametrize torch.nn.utils.parametrizations torch.optim
torch.optim.Optimizer torch.optim.lr_scheduler torch.optim.swa_utils torch.autograd
torch.autograd.functional torch.autograd.graph torch.autograd.forward_ad torch.linalg torch.special
torch.fft torch.utils.data torch.utils.checkpoint torch.distributions torch.amp torch.random
torch.serialization torch.cuda torch.jit torch.compiler
"""

LAZY = {"torch": ("onnx",)}
"""Modules that are imported at first use: `dir` does not show them before."""

PATH = Path(__file__).parents[1] / "offgrad" / "_pytorch_names.txt"


def resolve(name: str) -> Any:
    """Return the module or class of a full name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return getattr(resolve(owner), last)


def is_imported(value: Any) -> bool:
    """Return whether an object is of Python or another library."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] != "torch"
    module = str(getattr(value, "__module__", None) or "torch").partition(".")[0]
    if isinstance(value, type | types.FunctionType):
        return module not in ("torch", "_C")
    return module in ("typing", "typing_extensions", "collections", "logging")


def names_in(namespace: str) -> list[str]:
    """Return the public names of a namespace of PyTorch, sorted."""
    owner = resolve(namespace)
    listed = getattr(owner, "__all__", ())
    if listed and namespace != "torch":
        return sorted({name for name in listed if not name.startswith("_")})
    found = []
    for name in sorted({*dir(owner), *LAZY.get(namespace, ())}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(owner, name, None)
        if name.startswith("_") or name == "TYPE_CHECKING":
            continue
        if isinstance(owner, type) or name in listed or not is_imported(value):
            found.append(name)
    return found


def listing() -> str:
    """Return the text of the list: a namespace in brackets, then its names."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    parts = [f"# The public names of PyTorch {torch.__version__.partition('+')[0]}."]
    for namespace in NAMESPACES.split():
        with contextlib.suppress(ImportError):
            parts += [f"\n[{namespace}]", *names_in(namespace)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PATH.write_text(listing())
