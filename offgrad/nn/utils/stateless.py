"""Calls of a module with other parameters and buffers than its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from offgrad.nn.modules.module import Module

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    parameters_and_buffers: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with the given tensors in place of its parameters and buffers.

    Args:
        module: the module; it is as before afterwards.
        parameters_and_buffers: a dict of tensors by qualified name, or a sequence of such dicts.
            Buffers that the module replaces are replaced there.
        args: the positional arguments, or the only one.
        kwargs: the keyword arguments.
        tie_weights: names of one tensor in the module get one value.
        strict: raise RuntimeError for missing and unexpected names.

    Returns:
        The module's output.
    """
    if isinstance(parameters_and_buffers, Mapping):
        values: Any = parameters_and_buffers
    else:
        values = {}
        for each in parameters_and_buffers:
            repeated = values.keys() & each.keys()
            if repeated:
                raise ValueError(
                    f"{sorted(repeated)} appear in multiple dictionaries, where one is needed"
                )
            values.update(each)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError(f"Expected kwargs to be a dict, but got {type(kwargs)}")
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    with _replaced(module, values, tie_weights, strict):
        return module(*args, **(kwargs or {}))


@contextmanager
def _replaced(module: Module, values: Any, tie_weights: bool, strict: bool) -> Iterator[None]:
    """Put `values` in place of tensors for the block; then put into `values` what is there."""
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    new = _with_tied(own, values) if tie_weights else dict(values)
    if strict:
        missing, unexpected = own.keys() - new.keys(), new.keys() - own.keys()
        if missing or unexpected:
            parts = [
                f"{kind} key(s): {', '.join(map(repr, sorted(names)))}."
                for kind, names in (("Unexpected", unexpected), ("Missing", missing))
                if names
            ]
            raise RuntimeError("Error(s) in functional_call with strict=True: " + " ".join(parts))
    places = {name: _place(module, name) for name in new}
    before: dict[str, Any] = {}
    try:
        for name, value in new.items():
            registry, leaf = places[name]
            before[name] = registry.get(leaf, before)
            registry[leaf] = value
        yield
    finally:
        for name, old in before.items():
            registry, leaf = places[name]
            if name in values and leaf in registry:
                values[name] = registry[leaf]
            if old is before:
                registry.pop(leaf, None)
            else:
                registry[leaf] = old


def _place(module: Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dict in which a tensor is, and its name there."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    for registry in (owner._parameters, owner._buffers):
        if leaf in registry:
            return registry, leaf
    return owner.__dict__, leaf


def _with_tied(own: dict[str, Any], values: Any) -> dict[str, Any]:
    """Return `values`, and for each the other names of the same tensor of the module."""
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    new = dict(values)
    for name, value in values.items():
        for other in names[id(own[name])] if name in own else ():
            if new.setdefault(other, value) is not value:
                raise ValueError(
                    f"functional_call got multiple values for keys {sorted([name, other])}, which "
                    "are one tensor in the module; pass one of them, or tie_weights=False"
                )
    return new
