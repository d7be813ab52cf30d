"""A store against a dict, under random sequences of actions by hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from offgrad_storage.base import Handle
from offgrad_storage.testing.helpers import check_sums

if TYPE_CHECKING:
    from offgrad_storage.testing.helpers import MakeStore

_shapes = st.sampled_from([(), (0,), (1,), (5, 3), (1024,), (1025,), (30_000,)])
_dtypes = st.sampled_from(["f4", "?", ">i2", "c16"])


def run_store_machine(make_store: MakeStore, examples: int = 15, steps: int = 25) -> None:
    """Run the machine on stores from ``make_store``."""

    class Machine(StoreMachine):
        make = staticmethod(make_store)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """Each rule acts on the store and on the model, a dict of plain arrays."""

    make: MakeStore

    @initialize()
    def start(self) -> None:
        self.store = self.make()
        self.model: dict[int, tuple[Handle, np.ndarray[Any, Any]]] = {}
        self.count = 0

    def teardown(self) -> None:
        """End of an example."""
        if hasattr(self, "store"):
            self.store.close()

    @rule(shape=_shapes, dtype=_dtypes, turned=st.booleans())
    def put(self, shape: tuple[int, ...], dtype: str, turned: bool) -> None:
        self.count += 1
        array = np.random.default_rng(self.count).integers(0, 2, shape).astype(dtype)
        if turned:
            array = array.T
        self.model[self.count] = self.store.put(array), array

    def _any(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), into=st.booleans())
    def get(self, data: st.DataObject, into: bool) -> None:
        handle, expected = self.model[self._any(data)]
        found = handle.get(np.empty_like(expected) if into else None)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def prefetch(self, data: st.DataObject) -> None:
        self.model[self._any(data)][0].prefetch()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def overwrite_source(self, data: st.DataObject) -> None:
        key = self._any(data)
        handle, array = self.model[key]
        handle.wait_captured()
        self.model[key] = handle, array.copy()
        array[...] = 0

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel_prefetch(self, data: st.DataObject) -> None:
        self.store.cancel_prefetch(self.model[self._any(data)][0])

    @rule(trims=st.booleans())
    def flush(self, trims: bool) -> None:
        self.store.trim() if trims else self.store.flush()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        del self.model[self._any(data)]

    @invariant()
    def figures_agree(self) -> None:
        if hasattr(self, "store"):
            stats = self.store.stats()
            assert stats.live_handles == len(self.model)
            assert stats.logical_nbytes == sum(a.nbytes for _, a in self.model.values())
            check_sums(self.store)
