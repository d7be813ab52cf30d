"""The names that policies know: stores, codecs, sizes; and the error for other names."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import offgrad_storage

from offgrad.memory import parse_nbytes


def _check_zarr_codec(codec: str) -> None:
    from offgrad_storage.zarr.codec import ZarrCodec  # at first use, as the stores below

    ZarrCodec(codec)


class NamedStore(NamedTuple):
    """A kind of store that policies name.

    Attributes:
        store: returns the class, which is imported at its first use.
        is_in_memory: whether it holds its arrays in tensor memory, not in a directory.
        check_codec: raises ValueError for a codec that its format does not have.
    """

    store: Callable[[], "type[offgrad_storage.BackendStore]"]
    is_in_memory: bool = False
    check_codec: Callable[[str], object] | None = None


STORES: Mapping[str, NamedStore] = {
    "pool": NamedStore(lambda: offgrad_storage.PoolStore, is_in_memory=True),
    "disk": NamedStore(lambda: offgrad_storage.DiskStore),
    "zarr": NamedStore(lambda: offgrad_storage.ZarrStore, check_codec=_check_zarr_codec),
}
"""The stores that have names: policies in text and the stores of a session follow from it."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is not among those known."""
    known = list(known)
    near = difflib.get_close_matches(name.strip().lower(), known, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(f"unknown {kind} {name!r}; {meant}known: {', '.join(known)}")


@lru_cache(maxsize=256)
def store_and_codec(store: str, codec: str | None) -> tuple[str, str | None]:
    """Return the names of a store and its codec, checked: of ``"disk:lz4"``, for example.

    Raises:
        ValueError: if either is unknown, or two codecs are named.
        ImportError: if the codec needs numcodecs, and that is missing.
    """
    name, colon, named = store.partition(":")
    if name not in STORES:
        raise unknown_name("store", name, STORES)
    if colon and codec is not None:
        raise ValueError(f"{store!r} names its codec, and codec={codec!r} another; give one")
    chosen = named if colon else codec
    if chosen is not None:
        offgrad_storage.codec(chosen)
        check_codec = STORES[name].check_codec
        if check_codec is not None:
            check_codec(chosen)
    return name, chosen


@lru_cache(maxsize=256)
def is_lossless(codec: str) -> bool:
    """Return whether a codec gives back the same bits."""
    return offgrad_storage.codec(codec).lossless


def as_nbytes(size: Any) -> int:
    """Return a number of bytes, 0 included, given as an int or as text.

    Raises:
        ValueError: if it is negative, or text that is no size.
        TypeError: if it is neither an int nor text.
    """
    if isinstance(size, str):
        return 0 if size.strip() == "0" else parse_nbytes(size)
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"a size is an int or text such as '1MiB', got {type(size).__name__}")
    if size < 0:
        raise ValueError(f"a size must not be negative, got {size}")
    return size
