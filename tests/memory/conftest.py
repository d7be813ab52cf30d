"""Exact counts need a start without garbage."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_garbage_of_others() -> Iterator[None]:
    """Collect before the test, and not during it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
