"""The contract every store must pass, as tests to inherit; needs pytest and hypothesis.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **options: MyStore(tmp_path, **options)

``make_store`` must take the keyword ``allocate``; everything else is tested for you.
"""

from __future__ import annotations

import pytest

from .helpers import DTYPES, MakeStore, assert_same, eventually, sample
from .lifetimes import LifetimeContract
from .values import ValueContract

__all__ = ["DTYPES", "MakeStore", "StoreContract", "assert_same", "eventually", "sample"]


class StoreContract(ValueContract, LifetimeContract):
    """Tests of the whole contract; give it a ``make_store`` fixture."""

    def test_state_machine(self, make_store: MakeStore) -> None:
        """Any sequence of actions, against a dict."""
        pytest.importorskip("hypothesis")
        from .machine import run_store_machine

        run_store_machine(make_store)
