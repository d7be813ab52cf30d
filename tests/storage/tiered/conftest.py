"""The fixture of the tests of TieredStore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.tiered.gated import Gated


@pytest.fixture
def gated() -> Iterator[Gated]:
    """Room for three arrays of 100 bytes over a gate."""
    gated = Gated(300)
    yield gated
    gated.gate.backend.open.set()
    gated.store.close()
