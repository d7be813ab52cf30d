"""The stores of one session: each is opened when a placement needs it first."""

import os
from threading import get_ident

from offgrad_storage import AbstractArrayStore

from offgrad.memory.meta import meters
from offgrad.memory.registry import WeakRegistry
from offgrad.policies import Store
from offgrad.session.named_stores import INFLIGHT_NBYTES, MAX_PACK_NBYTES, open_store, unnamed


class OpenStores:
    """The stores of one session; in a forked child, those that it opened itself.

    Args:
        directory: where stores that the policy names write.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._named: dict[tuple[Store, int, int, int], AbstractArrayStore] = {}
        self._by_process: dict[int, WeakRegistry[AbstractArrayStore]] = {}

    def of(
        self,
        placement: Store,
        max_pack_nbytes: int = MAX_PACK_NBYTES,
        inflight_nbytes: int = INFLIGHT_NBYTES,
    ) -> AbstractArrayStore:
        """Return the store of `placement`; see `open_store` for the bounds."""
        if meters and (meter := meters.get(get_ident())) is not None:
            return meter.store_of(placement, max_pack_nbytes)  # type: ignore[no-any-return]
        key = (placement, max_pack_nbytes, inflight_nbytes, os.getpid())
        store = self._named.get(key)
        if store is None:
            if not isinstance(placement.store, str):
                store = placement.store  # not cached: it would live as long as the session
                unnamed.add(store)
            else:
                named = placement.store, self._directory, placement.codec
                store = open_store(*named, max_pack_nbytes, inflight_nbytes)
                self._named[key] = store
            self._by_process.setdefault(key[-1], WeakRegistry()).add(store)
        return store

    @property
    def are_writing(self) -> bool:
        """Whether a store holds memory for a write, also of an array that is dead."""
        stores = self._by_process.get(os.getpid(), ())
        return any(each.stats().inflight_nbytes for each in stores)
