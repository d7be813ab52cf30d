"""What a replay runs: a session on simulated stores, with simulated memory."""

from collections.abc import Callable, Mapping
from typing import Any

import offgrad_storage

from offgrad.memory.meter import ArrayMeter
from offgrad.policies import Store
from offgrad.policies.names import STORES, store_and_codec
from offgrad.prediction.drive import Drive
from offgrad.prediction.estimate_pool import encoded_nbytes, has_known_sizes
from offgrad.prediction.simulated_store import Encoded, SimulatedPool, SimulatedStore
from offgrad.session.named_stores import INFLIGHT_NBYTES, MAX_PACK_NBYTES
from offgrad.session.open_stores import OpenStores
from offgrad.session.session import OffloadSession


class SimulatedMemory:
    """Counts the memory of a replay's session, and notes the peak with the program's own.

    Attributes:
        meter: counts what the session holds.
        rest_nbytes: the program's own memory.
        peak_nbytes: of both.
    """

    def __init__(self) -> None:
        self.meter = ArrayMeter()
        self._counter = self.meter.counter
        self._counter.observers[self] = lambda count, *_: self._note(count)
        self.rest_nbytes = self.peak_nbytes = 0
        self._is_moving = False

    def own(self, owner: Any, nbytes: int) -> None:
        """Count `nbytes` until `owner` dies. `set_rest` follows, without these."""
        if nbytes:
            self._is_moving = True
            self._counter.add(owner, nbytes)

    def set_rest(self, nbytes: int) -> None:
        """Set the program's own memory."""
        self.rest_nbytes, self._is_moving = nbytes, False
        self._note(self._counter.allocated)

    def reset_peak(self) -> None:
        """Forget the peak."""
        self.peak_nbytes = 0
        self._note(self._counter.allocated)

    def _note(self, nbytes: int) -> None:
        if not self._is_moving:
            self.peak_nbytes = max(self.peak_nbytes, self.rest_nbytes + nbytes)


class SimulatedStores(OpenStores):
    """Simulated stores, one for each that a session would open.

    Attributes:
        unknown_sizes: the stores whose codecs make arrays smaller by an unknown amount; they count
            as if not encoded.

    Args:
        drive: of all stores.
        ratios: returns the encoded bytes for each byte of an array, as measured, from the name of
            the codec and the array's attributes; 1 if that is not known.
    """

    def __init__(self, drive: Drive, ratios: Callable[[str, Mapping[str, object]], float]) -> None:
        super().__init__(None)
        self._drive, self._ratios = drive, ratios
        self._simulated: dict[tuple[str, str | None, int], SimulatedStore] = {}
        self.unknown_sizes: set[str] = set()

    def of(
        self,
        placement: Store,
        max_pack_nbytes: int = MAX_PACK_NBYTES,
        inflight_nbytes: int = INFLIGHT_NBYTES,
    ) -> SimulatedStore:
        store, codec = placement.store, None
        if isinstance(store, str):
            name, codec_name = store_and_codec(store, placement.codec)
            is_pool = STORES[name].is_in_memory
            codec = None if codec_name is None else offgrad_storage.codec(codec_name)
        else:
            name = type(store).__name__
            is_pool = isinstance(store, offgrad_storage.PoolStore)
            executor = getattr(store, "_executor", None)
            codec = None if executor is None else executor._encoder.codec
            codec_name = None if codec is None else codec.name
        title = name if codec_name is None else f"{name}:{codec_name}"
        key = (name, codec_name, 0 if is_pool else max_pack_nbytes)
        if key not in self._simulated:
            encoded = None if codec_name is None else self._encoder(codec, codec_name, title)
            kind = SimulatedPool if is_pool else SimulatedStore
            self._simulated[key] = kind(self._drive, key[2], encoded, name in ("zarr", "ZarrStore"))
        return self._simulated[key]

    def _encoder(self, codec: Any, codec_name: str, title: str) -> Encoded:
        def encoded(array: Any, attributes: Mapping[str, object]) -> int:
            nbytes: int | None = encoded_nbytes(codec, array.shape, array.dtype)
            if nbytes is not None:
                return nbytes
            ratio = self._ratios(codec_name, attributes)
            if ratio != 1:
                return max(1, int(array.nbytes * ratio))
            if not has_known_sizes(codec):
                self.unknown_sizes.add(title)
            return int(array.nbytes)

        return encoded

    def moved_nbytes(self) -> tuple[int, int]:
        """Return the bytes written to drives, and read from them, so far: see `StoreStats`."""
        figures = [
            each.stats() for each in self._simulated.values() if not isinstance(each, SimulatedPool)
        ]
        return (
            sum(each.written_nbytes for each in figures),
            sum(each.read_nbytes for each in figures),
        )

    @property
    def puts(self) -> int:
        """The arrays that drives got so far."""
        return sum(each.puts for each in self._simulated.values())

    @property
    def are_writing(self) -> bool:
        return False


class SimulatedSession(OffloadSession):
    """A session whose stores are simulated."""

    def __init__(self, stores: SimulatedStores, prefetch_nbytes: int) -> None:
        self._open_stores = lambda _: stores
        super().__init__("keep", prefetch_nbytes=prefetch_nbytes)
