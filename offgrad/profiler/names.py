"""Names: which parameter a piece of memory is, or belongs to."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet, ref

from offgrad.autograd.tensor_base import TensorBase
from offgrad.memory import Storage
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import module_registrations, without_wrappers

Name = tuple[Storage, str, str, str]
"""A storage, and op, slot and module: ``"Parameter"``, the parameter's name, that of its module.

The ops are those of `PageLedger`.
"""


class Names:
    """The parameters of the outermost modules that were called."""

    def __init__(self) -> None:
        self._roots: WeakSet[Module] = WeakSet()
        self._parameters: dict[int, tuple[ref[Any], str, str]] = {}  # by id
        self._known = -1  # registrations of modules when they were collected
        self._are_named = False
        self._states: dict[int, int] = {}  # how many an optimizer had, by id

    def add_root(self, module: Module) -> None:
        """Learn of a module that no other one calls."""
        if module not in self._roots:
            self._roots.add(module)
            self._known = -1

    def _collect(self) -> dict[int, tuple[ref[Any], str, str]]:
        if self._known != module_registrations.count:
            self._known = module_registrations.count
            self._are_named = False
            self._parameters = {
                id(parameter): (ref(parameter), without_wrappers(module_name), name)
                for root in list(self._roots)
                for module_name, module in root.named_modules()
                for name, parameter in module._parameters.items()
                if parameter is not None
            }
        return self._parameters

    def parameters(self) -> Iterator[Name]:
        """Yield the parameters, once."""
        for reference, module, name in self._collect().values():
            parameter = reference()
            if parameter is not None and not self._are_named:
                yield parameter._storage, "Parameter", name, module
        self._are_named = True

    def gradients(self) -> Iterator[Name]:
        """Yield the gradients of the parameters."""
        for reference, module, name in self._collect().values():
            parameter = reference()
            grad = None if parameter is None else parameter._grad
            if grad is not None and isinstance(grad, TensorBase):
                yield grad._storage, "Gradient", name, module

    def states(self, optimizer: Any) -> Iterator[Name]:
        """Yield the states of an optimizer, if it has new ones."""
        if self._states.get(id(optimizer)) == len(optimizer.state):
            return
        self._states[id(optimizer)] = len(optimizer.state)
        known = self._collect()
        for parameter, state in list(optimizer.state.items()):
            _, module, name = known.get(id(parameter), (None, "", ""))
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, TensorBase):
                    yield value._storage, "State", f"{name}.{key}" if name else str(key), module
