"""The same lines with offgrad and with torch."""

from typing import Any

import pytest

import offgrad


@pytest.fixture(params=["offgrad", "torch"])
def m(request: pytest.FixtureRequest) -> Any:
    """Return the library."""
    if request.param == "torch":
        return pytest.importorskip("torch", reason="compares with torch, which is not installed")
    return offgrad
