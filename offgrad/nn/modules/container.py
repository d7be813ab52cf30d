"""Containers: modules made of other modules."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, overload

from offgrad.nn.modules.module import Module


class _Indexed(Module):
    """Base of the containers that name their modules 0, 1, 2 and so on."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._module_list())

    def _module_list(self) -> list[Module]:
        """Return all modules; one that was added twice is there twice, unlike in `children`."""
        return [module for module in self._modules.values() if module is not None]

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> "_Indexed": ...
    def __getitem__(self, index: int | slice) -> "Module | _Indexed":
        """Return a module, or for a slice a container of the same class."""
        if isinstance(index, slice):
            return self._with_modules(self._module_list()[index])
        position = range(len(self))[index]
        return next(islice(self._modules.values(), position, None))  # type: ignore[return-value]

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[index]
        setattr(self, name, module)

    def append(self, module: Module) -> "_Indexed":
        self.add_module(str(len(self)), module)
        return self

    def _with_modules(self, modules: list[Module]) -> "_Indexed":
        raise NotImplementedError


class Sequential(_Indexed):
    """Modules called in order, each with the output of the one before.

    Takes the modules one by one, or one dict of modules by name.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for index, module in enumerate(modules):
                self.add_module(str(index), module)

    def _with_modules(self, modules: list[Module]) -> "Sequential":
        return Sequential(*modules)

    def forward(self, input: Any) -> Any:
        for module in self._module_list():
            input = module(input)
        return input


class ModuleList(_Indexed):
    """A list of modules, for use in a custom `forward`."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _with_modules(self, modules: list[Module]) -> "ModuleList":
        return ModuleList(modules)

    def extend(self, modules: Iterable[Module]) -> "ModuleList":
        for module in modules:
            self.append(module)
        return self

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError("a ModuleList has no forward; call its modules one by one")


class ModuleDict(Module):
    """A dict of modules, for use in a custom `forward`."""

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
        return self._modules.keys()

    def items(self) -> Iterable[tuple[str, Module]]:
        return self._modules.items()  # type: ignore[return-value]

    def values(self) -> Iterable[Module]:
        return self._modules.values()  # type: ignore[return-value]

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError("a ModuleDict has no forward; call its modules by name")
