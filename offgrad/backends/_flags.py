"""Flags of a module, set for a block."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def flags_of(name: str, values: dict[str, Any]) -> Iterator[None]:
    """Set attributes of the module `name` for a block."""
    module = vars(sys.modules[name])
    before = {key: module[key] for key in values}
    module.update(values)
    try:
        yield
    finally:
        module.update(before)
