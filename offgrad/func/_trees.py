"""Nested tuples, lists and dicts: their leaves as a list, and back."""

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """Return what is in the tuples, lists and dicts of `tree`, in order."""
    return list(_walk(tree))


def _walk(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for each in tree.values():
            yield from _walk(each)
    elif isinstance(tree, (tuple, list)):
        for each in tree:
            yield from _walk(each)
    else:
        yield tree


def rebuilt(tree: Any, values: Any) -> Any:
    """Return `tree` with its leaves replaced by `values`, in order."""
    return _rebuilt(tree, iter(values))


def _rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, dict):
        pairs = [(key, _rebuilt(each, values)) for key, each in tree.items()]
        return type(tree)(pairs)
    if isinstance(tree, (tuple, list)):
        parts = [_rebuilt(each, values) for each in tree]
        return tree._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    return next(values)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to its leaves."""
    return rebuilt(tree, map(function, leaves(tree)))


def structure(tree: Any) -> str:
    """Return the text of a tree with ``*`` for leaves; trees of one structure have one text."""
    return str(mapped(lambda _: _STAR, tree))


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()


def broadcast(prefix: Any, tree: Any) -> list[Any]:
    """Return for each leaf of `tree` the entry of `prefix`, a tree that may end earlier.

    Raises:
        ValueError: if the two do not fit.
    """
    if isinstance(prefix, (dict, tuple, list)):
        if type(prefix) is not type(tree) or len(prefix) != len(tree):
            raise ValueError(f"{structure(prefix)} does not fit {structure(tree)}")
        keys: Any = prefix if isinstance(prefix, dict) else range(len(prefix))
        return [each for key in keys for each in broadcast(prefix[key], tree[key])]
    return [prefix] * len(leaves(tree))
