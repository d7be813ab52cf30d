"""The names of operations, derived from the operations, functions and modules themselves."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

from offgrad import nn, ops
from offgrad.autograd.node import Node
from offgrad.autograd.op import Op, registry
from offgrad.nn import functional
from offgrad.policies.op_names import operation, provide, simplified


class LibraryNames:
    """The names of all operations, and of user-defined Functions so far: see `OpNames`."""

    @property
    def nodes(self) -> set[str]:
        return {each.__name__ for each in _nodes(Node)}

    @cached_property
    def recorded_by(self) -> dict[str, list[str]]:
        return _recorded_by(_functions())

    @cached_property
    def functions(self) -> set[str]:
        return {*_functions(), *nn.__all__}

    @cached_property
    def slots(self) -> frozenset[str]:
        return _slots()


def _nodes(node: type[Node]) -> Iterator[type[Node]]:
    for each in node.__subclasses__():
        yield each
        yield from _nodes(each)


def _name(op: type[Op]) -> str:
    return operation(op.__name__)


def _recorded_by(functions: dict[str, FunctionType]) -> dict[str, list[str]]:
    """Return by operation the functions that record it, and the modules that call these.

    A function that is called like an operation stands for this one alone.
    """
    own = {simplified(name): name for name in map(_name, registry)}
    # Two functions may have one name: that of `nn.functional` calls the other.
    public = {
        inspect.unwrap(function)
        for face in (ops, functional)
        for function in vars(face).values()
        if isinstance(function, FunctionType)
    }
    found: dict[str, list[str]] = {}
    for name, function in functions.items():
        same = own.get(simplified(name))
        for each in _operations(function, public, set()) if same is None else (same,):
            found.setdefault(each, []).append(name)
    recorders = {each: frozenset(names) for each, names in found.items()}
    for name in nn.__all__:
        module = getattr(nn, name)
        if isinstance(module, type) and issubclass(module, nn.Module):
            used = {each for code in _codes(module.forward) for each in code.co_names}
            called = used.intersection(functional.__all__)
            for each, names in recorders.items():
                if not called.isdisjoint(names):
                    found[each].append(name)
    return found


def _functions() -> dict[str, FunctionType]:
    return {
        name: function
        for face in (ops, functional)
        for name in face.__all__
        if isinstance(function := getattr(face, name), FunctionType)
    }


def _operations(
    function: Callable[..., Any], functions: "set[FunctionType]", seen: set[object]
) -> set[str]:
    """Return the operations that a function applies, itself or in helpers of its file.

    If there are none, it is composed of others: then those of the public functions it calls.
    """
    function = inspect.unwrap(function)
    if function in seen or not isinstance(function, FunctionType):
        return set()
    seen.add(function)
    found: set[str] = set()
    helpers: list[Callable[..., Any]] = []
    others: list[Callable[..., Any]] = []
    for code in _codes(function):
        found |= {
            operation(each)
            for each in code.co_consts
            if isinstance(each, str) and re.fullmatch(r"\w+Backward\d*", each)
        }
        for name in code.co_names:
            used = function.__globals__.get(name)
            if isinstance(used, type) and issubclass(used, Op):
                found.add(_name(used))
            elif isinstance(used, FunctionType):
                # Functions that look for overrides have got other code.
                original = used.__dict__.get("__original__", used)
                if original in functions:
                    others.append(original)
                elif used.__module__ == function.__module__:
                    helpers.append(used)
    for each in helpers:
        found |= _operations(each, functions, seen)
    if not found:
        for each in others:
            found |= _operations(each, functions, seen)
    return found


def _slots() -> frozenset[str]:
    """Return the names in the code that saves; a few are other words, which does no harm."""
    found: set[str] = set()
    for cls in {base for each in registry for base in each.__mro__ if issubclass(base, Op)}:
        for name, value in vars(cls).items():
            if isinstance(value, FunctionType):
                for code in _codes(value):
                    if "save" in code.co_names:
                        for each in code.co_consts:
                            found |= _texts(each)
            elif name not in ("torch_name", "suffix") and not name.startswith("_"):
                # Such as the slots of a family of operations.
                found |= _texts(value)
    return frozenset(each for each in found if each.isidentifier())


def _texts(value: object) -> set[str]:
    return {each for each in (value if isinstance(value, tuple) else (value,)) if type(each) is str}


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of those defined in it."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]


provide(LibraryNames())
