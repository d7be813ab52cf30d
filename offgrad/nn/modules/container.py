"""Modules made of modules."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from offgrad.nn.modules.module import Module


class _Numbered(Module):
    """Modules under the names 0, 1, 2 and so on."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.children())

    def _list(self) -> list[Module]:
        return list(self.children())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> "_Numbered": ...
    def __getitem__(self, index: int | slice) -> "Module | _Numbered":
        """Return a module, or a container of the same kind with some of them."""
        if isinstance(index, slice):
            return self._of(self._list()[index])
        return self._list()[index]

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[index]
        setattr(self, name, module)

    def append(self, module: Module) -> "_Numbered":
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def _of(self, modules: list[Module]) -> "_Numbered":
        raise NotImplementedError


class Sequential(_Numbered):
    """Modules called one after the other; given one by one, or as a dict of names."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for index, module in enumerate(modules):
                self.add_module(str(index), module)

    def _of(self, modules: list[Module]) -> "Sequential":
        return Sequential(*modules)

    def forward(self, input: Any) -> Any:
        """Return what the last module makes of what the one before made."""
        for module in self.children():
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules, for a forward of one's own."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _of(self, modules: list[Module]) -> "ModuleList":
        return ModuleList(modules)

    def extend(self, modules: Iterable[Module]) -> "ModuleList":
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def forward(self, *args: Any) -> Any:
        """Raise: a list has no forward."""
        raise NotImplementedError("a ModuleList has no forward; call its modules one by one")


class ModuleDict(Module):
    """A dict of modules, for a forward of one's own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            self.add_module(name, module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        return self.get_submodule(name)

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._modules.keys()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Return names and modules."""
        return self.named_children()

    def values(self) -> Iterable[Module]:
        """Return the modules."""
        return self.children()

    def forward(self, *args: Any) -> Any:
        """Raise: a dict has no forward."""
        raise NotImplementedError("a ModuleDict has no forward; call its modules by name")
