"""Policies of every kind, over stores of every kind."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from offgrad_storage import AbstractArrayStore, StoreError

import offgrad
from offgrad import memory
from offgrad.policies import (
    Budget,
    Cast,
    First,
    Keep,
    Last,
    Offload,
    Placement,
    Recompute,
    SaveContext,
    Store,
    When,
)
from offgrad.session import named_stores
from tests.stress.stores import KEPT, STORES


class Stores:
    """The stores that policies use: each is opened at its first use.

    Attributes:
        folder: in which they write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, AbstractArrayStore] = {}

    def __getitem__(self, name: str) -> AbstractArrayStore:
        if name not in self._made:
            self._made[name] = STORES[name](self.folder, memory.empty)
        return self._made[name]

    @property
    def own(self) -> list[AbstractArrayStore]:
        """The open stores, without those that policies gave by name."""
        return list(self._made.values())

    def trim_kept(self) -> None:
        """Write the packs of stores in which arrays outlive their handles, and drop cached ones."""
        for name in KEPT:
            if name in self._made:
                self._made[name].trim()

    def close(self, failures: bool = False) -> None:
        """Close all open stores, also those that policies gave by name.

        Args:
            failures: whether errors of the background are expected.
        """
        stores, self._made = [store for _, store in self.items()], {}
        for key in [key for key in named_stores._stores if key[1] in (None, str(self.folder))]:
            del named_stores._stores[key]
        for store in stores:
            try:
                store.close()
            except StoreError:
                if not failures:
                    raise

    def items(self) -> list[tuple[str, AbstractArrayStore]]:
        """Return the open stores by name, and those that policies gave by name."""
        named = [
            (f"{name} by name", store)
            for (name, folder, _), store in named_stores._stores.items()
            if folder in (None, str(self.folder))
        ]
        return [*self._made.items(), *named]

    def keeps(self, name: str) -> bool:
        """Return whether arrays outlive their handles in a store."""
        return name in KEPT


def stores_of_process() -> Stores:
    """Return stores in a temporary folder that goes when this process, not a fork of it, ends."""
    folder, owner = tempfile.mkdtemp(), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Stores(Path(folder))


class _BySlot:
    """A policy of one's own: each slot goes to another store."""

    def __init__(self, *stores: AbstractArrayStore) -> None:
        self._stores = stores

    def place(self, context: SaveContext) -> Placement | None:
        number = context.nbytes // 8 + len(context.slot)
        if number % 5 == 0:
            return Keep()
        return Store(self._stores[number % len(self._stores)])


Policies = Callable[[Stores, Random], Any]

_SIZES: list[int | str] = [0, 300, 3_000, 150_000, "1MiB"]


def _everything(store: AbstractArrayStore) -> Offload:
    return Offload(store, min_nbytes=0)


def _by_store(name: str) -> Policies:
    return lambda stores, random: _everything(stores[name])


def _any(stores: Stores, random: Random) -> AbstractArrayStore:
    return stores[random.choice(list(STORES))]


POLICIES: dict[str, Policies] = {
    "keep": lambda stores, random: Keep(),
    **{name: _by_store(name) for name in STORES},
    "pool by name": lambda stores, random: Offload("pool", min_nbytes=0),
    "disk by name": lambda stores, random: Offload("disk", min_nbytes=0),
    "zarr:zstd by name": lambda stores, random: Offload("zarr:zstd", min_nbytes=0),
    "text": lambda stores, random: random.choice(
        [
            "disk,min=1",
            "zarr,min=64",
            "disk:lz4,min=1,op=*Mul*;pool,min=1",
            "budget:2KiB,spill=disk",
            "recompute,then=disk",
            "last:2,then=zarr,min=1",
        ]
    ),
    "budget": lambda stores, random: Budget(random.choice(_SIZES), _any(stores, random)),
    "budget without packs": lambda stores, random: Budget(
        random.choice(_SIZES), stores["disk without packs"]
    ),
    "budget without threads": lambda stores, random: Budget(
        random.choice(_SIZES), stores["own without threads"]
    ),
    "last": lambda stores, random: Last(
        random.choice([0, 1, 3]), _everything(_any(stores, random))
    ),
    "recompute": lambda stores, random: First(
        [Recompute(random.choice([1, 4, 64]), min_nbytes=0), _everything(_any(stores, random))]
    ),
    "recompute, budget": lambda stores, random: First(
        [Recompute(8, min_nbytes=0), Budget(random.choice(_SIZES), _any(stores, random))]
    ),
    "first": lambda stores, random: First(
        [
            When(_everything(stores["disk"]), op=["Mul", "*Linear*", "Sin"]),
            When(_everything(stores["tiered"]), output=True),
            When("keep", max_nbytes=60),
            When(Budget(300, stores["zarr"]), dtype="*float*", slot="self"),
            _everything(stores["own"]),
        ]
    ),
    "own policy": lambda stores, random: _BySlot(
        stores["disk"], stores["own without threads"], stores["zarr:blosc-lz4"], stores["pool"]
    ),
    "by module": lambda stores, random: {
        "first": _everything(stores["disk"]),
        "blocks.*": First([Recompute(4, min_nbytes=0), _everything(stores["zarr"])]),
        "blocks.1": Budget(2_000, stores["disk without packs"]),
    },
    "in one module": lambda stores, random: _everything(_any(stores, random)),
}
"""By name, the function that makes a lossless policy; at random in part."""

LOSSY: dict[str, Policies] = {
    f"cast:{to}": lambda stores, random, to=to: Cast(  # type: ignore[misc]
        to, Offload(random.choice(["pool", "disk"]), min_nbytes=0)
    )
    for to in ("float16", "bfloat16", "int8")
}
"""Policies that round; each gives the same bits over every store."""


def session(
    name: str, stores: Stores, random: Random, model: Any, **options: Any
) -> offgrad.session.OffloadSession:
    """Return a session under a policy, for a model with the modules ``first`` and ``blocks``."""
    policy = (POLICIES | LOSSY)[name](stores, random)
    options |= {"directory": str(stores.folder)}
    if name == "by module":
        options["model"] = model
    elif name == "in one module":
        options["module"] = model.blocks
    return offgrad.offload(policy, **options)
