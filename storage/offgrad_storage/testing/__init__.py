"""The contract of a store, as tests to inherit; needs pytest.

    import pytest
    from offgrad_storage import BackendStore
    from offgrad_storage.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **options: BackendStore(MyBackend(tmp_path), **options)

``make_store`` must take the keyword ``allocate``, and may be called several times in a test;
all tests are inherited. ``test_state_machine`` is skipped without hypothesis.
"""

from offgrad_storage.testing.contract import StoreContract
from offgrad_storage.testing.helpers import (
    DTYPES,
    MakeStore,
    assert_same,
    eventually,
    sample,
)

__all__ = ["DTYPES", "MakeStore", "StoreContract", "assert_same", "eventually", "sample"]
