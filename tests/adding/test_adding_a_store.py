"""A new store with a name takes edits of at most three source files.

The test adds a store to a copy of the package, as CONTRIBUTING describes, and uses it by name: in
policies, in text and with a codec.
"""

from pathlib import Path

from tests.adding.copies import Edits, run_in_copy

STORE = '''"""DictStore: arrays as bytes objects in a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.entry import Entry, bytes_of, checksum, verify

Array = NDArray[Any]


class _DictBackend(Backend):
    def __init__(self) -> None:
        super().__init__("DictStore")
        self.data: dict[int, bytes] = {}

    def write(self, entry: Entry, array: Array) -> int:
        data = np.ascontiguousarray(array)
        entry.place, entry.checksum = entry.serial, checksum(data)
        self.data[entry.serial] = data.tobytes()
        return data.nbytes

    def read(self, entry: Entry, out: Array) -> None:
        bytes_of(out)[:] = np.frombuffer(self.data[entry.place], np.uint8)
        verify(checksum(out), entry, self.name)

    def free(self, entry: Entry) -> None:
        self.data.pop(entry.place, None)

    def close(self) -> None:
        self.data.clear()


class DictStore(BackendStore):
    """Keeps arrays as bytes objects; it has no use for a directory."""

    def __init__(self, directory: Path | None = None, **options: Any) -> None:
        super().__init__(_DictBackend(), **options)
'''

EDITS: Edits = {
    "storage/offgrad_storage/dict_store.py": [("", STORE)],
    "storage/offgrad_storage/__init__.py": [
        (
            "    from offgrad_storage.disk import DiskStore",
            "    from offgrad_storage.dict_store import DictStore\n",
        ),
        ("__all__ = [", '    "DictStore",\n'),
    ],
    "offgrad/policies/names.py": [
        (
            '    "disk": NamedStore(lambda: offgrad_storage.DiskStore),',
            '    "dict": NamedStore(lambda: offgrad_storage.DictStore),\n',
        ),
    ],
}

PROGRAM = """
import offgrad
from offgrad.policies import POLICIES, Offload, parse_policy
from offgrad_storage import DictStore

assert "dict" in POLICIES
assert parse_policy("dict:lz4,min=1KiB") == Offload("dict", "lz4", 1024)


def gradient(policy):
    offgrad.manual_seed(0)
    x = offgrad.randn(256, 256, requires_grad=True)
    with offgrad.offload(policy) as session:
        loss = x.sin().cos().exp().sum()
    loss.backward()
    return x.grad, session.ledger


expected, _ = gradient("keep")
for policy in ("dict", "dict:lz4", "budget:300KiB,spill=dict", Offload(DictStore())):
    found, ledger = gradient(policy)
    assert (found == expected).all(), policy
    assert ledger.writes, policy
print("done")
"""


def test_a_new_named_store_takes_three_files(tmp_path: Path) -> None:
    assert len(EDITS) <= 3
    run_in_copy(tmp_path, EDITS, PROGRAM)
