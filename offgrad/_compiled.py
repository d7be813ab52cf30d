"""``torch.compile``: functions and modules run as they are; modules are wrapped as in PyTorch."""

from collections.abc import Callable
from typing import Any

from offgrad.nn.modules.module import Module

__all__ = ["OptimizedModule", "compile"]


class OptimizedModule(Module):
    """What `compile` returns for a module: calls of it are calls of the module.

    It has the module's attributes. As in PyTorch the names of its parameters, and so the keys of
    its state dict, begin with ``_orig_mod.``; the names of modules in ledgers and profiles do not.

    Attributes:
        _orig_mod: the module.
    """

    _orig_mod: Module

    def __init__(self, module: Module) -> None:
        registries = Module().__dict__
        del registries["training"]
        registries["_modules"]["_orig_mod"] = module
        self.__dict__.update(registries)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "_call_hooks" in self.__dict__:
            return super().__call__(*args, **kwargs)
        return self._orig_mod(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self._orig_mod(*args, **kwargs)

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self._orig_mod.training

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is None:  # while it is copied or unpickled
            raise AttributeError(name)
        return module if name == "_orig_mod" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: Any = None,
    name: str | None = None,
    disable: bool = False,
    **further: Any,
) -> Any:
    """Return the function itself, or an `OptimizedModule` of the module: nothing is compiled.

    Without a model, return a decorator that does so. All options are accepted.

    Raises:
        RuntimeError: both `mode` and `options` are given.
        TypeError: `model` cannot be called.
    """
    if mode is not None and options is not None:
        raise RuntimeError("compile: got mode and options; pass one of them")
    if model is None:
        return lambda function: compile(function, disable=disable)
    if not callable(model):
        raise TypeError(f"compile takes a module or function, got {type(model).__name__}")
    if isinstance(model, OptimizedModule):
        return model
    if isinstance(model, Module) and not disable:
        return OptimizedModule(model)
    return model
