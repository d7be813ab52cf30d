"""Exact memory counts need a start without garbage."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collect_before_the_test() -> Iterator[None]:
    """Collect garbage before the test; disable collection during it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
