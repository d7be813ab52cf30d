"""StoreContract: all tests of the contract."""

from __future__ import annotations

import pytest

from offgrad_storage.testing.helpers import MakeStore
from offgrad_storage.testing.lifetimes import LifetimeContract
from offgrad_storage.testing.values import ValueContract


class StoreContract(ValueContract, LifetimeContract):
    """Tests of the whole contract; give it a ``make_store`` fixture."""

    def test_state_machine(self, make_store: MakeStore) -> None:
        """Any sequence of actions, against a dict."""
        pytest.importorskip("hypothesis")
        from offgrad_storage.testing.machine import run_store_machine

        run_store_machine(make_store)
