"""Containers: modules made of other modules."""

import warnings
from collections.abc import Iterable, Iterator, KeysView, Mapping
from itertools import chain, groupby, islice
from typing import Any, Self, overload

from offgrad.nn.hooks.call_stack import module_registrations
from offgrad.nn.modules.module import Module, representation
from offgrad.nn.modules.parameter_containers import (
    ParameterDict,
    ParameterList,
    as_iterable,
    as_pairs,
    as_position,
)

__all__ = [
    "Container",
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
    "Sequential",
]


class Container(Module):
    """A module with the given modules as attributes; deprecated: subclass `Module`."""

    def __init__(self, **kwargs: Any) -> None:
        warnings.warn("nn.Container is deprecated: subclass nn.Module", FutureWarning, stacklevel=2)
        super().__init__()
        for name, module in kwargs.items():
            self.add_module(name, module)


class _Indexed(Module):
    """Base of the containers that name their modules 0, 1, 2 and so on."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    @overload
    def __getitem__(self, idx: int) -> Module: ...
    @overload
    def __getitem__(self, idx: slice) -> Self: ...
    def __getitem__(self, idx: int | slice) -> "Module | Self":
        """Return a module, or for a slice a container of the same class."""
        if isinstance(idx, slice):
            return self._part(idx)
        return next(islice(iter(self), as_position(idx, len(self)), None))

    def __setitem__(self, idx: int, module: Module) -> None:
        setattr(self, list(self._modules)[as_position(idx, len(self))], module)

    def __delitem__(self, idx: int | slice) -> None:
        names = list(self._modules)
        for name in names[idx] if isinstance(idx, slice) else [names[as_position(idx, len(names))]]:
            delattr(self, name)
        self._set_modules(list(self))

    def append(self, module: Module) -> Self:
        """Add a module at the end; return the container."""
        self.add_module(str(len(self)), module)
        return self

    def pop(self, key: int | slice) -> Module:
        """Remove a module, or those of a slice, and return what ``self[key]`` was."""
        value = self[key]
        del self[key]
        return value

    def _set_modules(self, modules: Iterable[Module]) -> None:
        """Name `modules` by their positions."""
        module_registrations.count += 1
        self._modules.clear()
        self._modules.update({str(position): each for position, each in enumerate(modules)})

    def _part(self, part: slice) -> Self:
        raise NotImplementedError


class Sequential(_Indexed):
    """Modules called in order, each with the output of the one before.

    Takes the modules one by one, or one dict of modules by name.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for position, module in enumerate(args):
                self.add_module(str(position), module)

    def _part(self, part: slice) -> Self:
        return type(self)(dict(list(self._modules.items())[part]))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input

    def __add__(self, other: Any) -> "Sequential":
        """Return the modules of both."""
        return Sequential(*self, *_sequential(other))

    def __iadd__(self, other: Any) -> Self:
        return self.extend(list(_sequential(other)))

    def __mul__(self, other: int) -> "Sequential":
        """Return the modules, the same ones, several times over."""
        return Sequential(*list(self) * self._factor(other))

    def __rmul__(self, other: int) -> "Sequential":
        return self * other

    def __imul__(self, other: int) -> Self:
        return self.extend(list(self) * (self._factor(other) - 1))

    def _factor(self, other: Any) -> int:
        if not isinstance(other, int):
            raise TypeError(
                f"unsupported operand type(s) for *: {type(self)} and {type(other)}; the factor "
                "must be an int"
            )
        if other <= 0:
            raise ValueError(
                f"Non-positive multiplication factor {other} for {type(self)}; it must be 1 or more"
            )
        return other

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before that of an index; return the container."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type {Module}, got {type(module).__name__}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}, of {len(self)} modules")
        modules = list(self)
        modules.insert(index, module)
        self._set_modules(modules)
        return self

    def extend(self, sequential: Iterable[Module]) -> Self:
        """Add modules at the end; return the container."""
        for module in sequential:
            self.append(module)
        return self


def _sequential(other: Any) -> Any:
    if not isinstance(other, Sequential):
        raise ValueError(
            f"a Sequential is added to another, got {type(other)}; use extend() for other iterables"
        )
    return other


class ModuleList(_Indexed):
    """A list of modules, for use in a custom `forward`."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self += modules

    def _part(self, part: slice) -> Self:
        return type(self)(list(self)[part])

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> "ModuleList":
        """Return a list of the modules of both."""
        return ModuleList(chain(self, other))

    def insert(self, index: int, module: Module) -> None:
        """Add a module before that of an index."""
        modules = list(self)
        modules.insert(index, module)
        self._set_modules(modules)

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; return the list."""
        for module in list(as_iterable(modules, "ModuleList.extend")):
            self.append(module)
        return self

    def __repr__(self) -> str:
        lines = []
        texts = enumerate(map(repr, self))
        for text, group in groupby(texts, key=lambda each: each[1]):
            positions = [position for position, _ in group]
            text = text.replace("\n", "\n  ")
            if len(positions) > 1:
                lines.append(f"({positions[0]}-{positions[-1]}): {len(positions)} x {text}")
            else:
                lines.append(f"({positions[0]}): {text}")
        return representation(self._get_name(), "", lines)


class ModuleDict(Module):
    """A dict of modules, for use in a custom `forward`."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]  # type: ignore[return-value]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Module:
        """Remove a module and return it."""
        return self._modules.pop(key)  # type: ignore[return-value]

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._modules.keys()

    def items(self) -> Any:
        """Return names and modules."""
        return self._modules.items()

    def values(self) -> Any:
        """Return the modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add the modules of a mapping, or of pairs of names and modules."""
        for name, module in as_pairs(modules, "ModuleDict"):
            self[name] = module
