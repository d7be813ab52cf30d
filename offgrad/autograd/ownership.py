"""Ownership: whether nobody else holds the memory of a gradient, so that a leaf may keep it."""

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np


def _item_count(items: Sequence[object]) -> int:
    return getrefcount(items[0])


def _attribute_count(owner: Any, name: str) -> int:
    return getrefcount(getattr(owner, name))


class _Owner:
    def __init__(self) -> None:
        self.value = object()


# Versions of Python differ in how many references such a call adds.
_ONE_ITEM = _item_count((object(),))
_ONE_ATTRIBUTE = _attribute_count(_Owner(), "value")


def is_only_holder(items: Sequence[object]) -> bool:
    """Return whether `items` holds the only reference to its first item."""
    return _item_count(items) == _ONE_ITEM


def is_sole_owner(grads: Sequence[Any]) -> bool:
    """Return whether `grads` holds the only references to its one tensor and its memory.

    Every view of memory refers to the array that it is a view of, so their numbers of references
    tell. Weak references to the tensor do not count.
    """
    if not is_only_holder(grads) or _attribute_count(grads[0], "_storage") != _ONE_ATTRIBUTE:
        return False
    storage = grads[0]._storage
    if storage.external or storage.inference or storage.is_noted or storage.successor is not None:
        return False
    # The array is referred to by the tensor and the storage.
    if storage.root is not grads[0]._array:
        return False
    if _attribute_count(storage, "root") != _ONE_ATTRIBUTE + 1:
        return False
    root = storage.root
    if root.base is None:
        return bool(root.flags.owndata)
    # NumPy makes the base of a view the array behind all views of the memory; behind that of pooled
    # memory is the object that returns it to the pool.
    behind = root.base
    return (
        type(behind) is np.ndarray
        and _attribute_count(root, "base") == _ONE_ATTRIBUTE + 1  # and `behind`
        and type(behind.base) is not np.ndarray
        and (behind.base is None or _attribute_count(behind, "base") == _ONE_ATTRIBUTE)
    )
