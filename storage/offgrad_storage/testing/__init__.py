"""The contract every store must pass, as tests to inherit; needs pytest.

    import pytest
    from offgrad_storage import BackendStore
    from offgrad_storage.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **options: BackendStore(MyBackend(tmp_path), **options)

``make_store`` must take the keyword ``allocate``, and may be called several times in a test;
everything else is tested for you. ``test_state_machine`` is skipped without hypothesis.
"""

from __future__ import annotations

import pytest

from offgrad_storage.testing.helpers import (
    DTYPES,
    MakeStore,
    assert_same,
    eventually,
    sample,
)
from offgrad_storage.testing.lifetimes import LifetimeContract
from offgrad_storage.testing.values import ValueContract

__all__ = ["DTYPES", "MakeStore", "StoreContract", "assert_same", "eventually", "sample"]


class StoreContract(ValueContract, LifetimeContract):
    """Tests of the whole contract; give it a ``make_store`` fixture."""

    def test_state_machine(self, make_store: MakeStore) -> None:
        """Any sequence of actions, against a dict."""
        pytest.importorskip("hypothesis")
        from offgrad_storage.testing.machine import run_store_machine

        run_store_machine(make_store)
