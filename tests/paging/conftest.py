"""Fixtures: caches of both kinds, whatever the sizes of their pages."""

from typing import Any

import pytest

from offgrad.session.paging import page_table


@pytest.fixture(params=["retaining", "streaming"])
def kind_of_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Caches that hold pages for their next use, or read and write further ahead."""
    times = {"retaining": 1 << 20, "streaming": 0}
    monkeypatch.setattr(page_table, "_STREAMING", times[request.param])
    return request.param
