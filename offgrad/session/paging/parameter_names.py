"""ParameterNames: the numbers and names of paged parameters."""

import itertools
from typing import TYPE_CHECKING
from weakref import ref

from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import without_wrappers

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

_MIN_TO_PRUNE = 64


class ParameterNames:
    """Numbers parameters, and names them by the modules that have them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._names: dict[int, tuple[str, str]] = {}
        self._parameters: dict[int, ref[Tensor]] = {}
        self._originals: dict[int, int] = {}  # of copies
        self._modules: list[ref[Module]] = []
        self._max_known = _MIN_TO_PRUNE

    def __len__(self) -> int:
        return max(len(self._names), len(self._parameters), len(self._modules))

    def add(self, param: "Tensor", module: str, name: str, copied_from: int | None = None) -> int:
        """Return the number of a new parameter of a module."""
        self._prune()
        number = next(self._numbers)
        if copied_from is not None:
            self._originals[number] = self.original(copied_from)
        self._names[number] = module, name
        self._parameters[number] = ref(param)
        return number

    def add_module(self, module: Module) -> None:
        """Note a module whose name and place name the parameters of it and its children."""
        self._prune()
        self._modules.append(ref(module))

    def is_known(self, number: int) -> bool:
        """Return whether a number is that of a parameter that has not been forgotten."""
        return number in self._names

    def name(self, number: int) -> tuple[str, str]:
        """Return the names of a parameter's module and of itself in that."""
        return self._names.get(number, ("", ""))

    def original(self, number: int) -> int:
        """Return the parameter that a copy was made of, or the number itself."""
        return self._originals.get(number, number)

    def parameter(self, number: int) -> "Tensor | None":
        """Return the parameter of a number, while it lives."""
        known = self._parameters.get(number)
        return None if known is None else known()

    def forget(self, number: int) -> None:
        """Forget a parameter."""
        for known in (self._names, self._parameters, self._originals):
            known.pop(number, None)

    def qualify(self) -> None:
        """Replace the class names of modules by qualified names, now that modules have parents."""
        modules = [each for reference in self._modules if (each := reference()) is not None]
        children = {id(each) for module in modules for each in module.children()}
        roots = [each for each in modules if id(each) not in children]
        names: dict[int, tuple[str, str]] = {}
        for root in roots:
            for name, param in root.named_parameters():
                module, _, slot = name.rpartition(".")
                names.setdefault(id(param), (without_wrappers(module), slot))
        for number in list(self._parameters):
            tensor = self.parameter(number)
            if tensor is not None and id(tensor) in names:
                self._names[number] = names[id(tensor)]

    def _prune(self) -> None:
        """Now and then, forget parameters and modules that have died."""
        if max(len(self._parameters), len(self._modules)) < self._max_known:
            return
        for number in [each for each, known in self._parameters.items() if known() is None]:
            self.forget(number)
        self._modules = [each for each in self._modules if each() is not None]
        live = max(len(self._parameters), len(self._modules))
        self._max_known = max(_MIN_TO_PRUNE, 2 * live)
