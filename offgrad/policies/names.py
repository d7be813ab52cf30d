"""What policies can name: stores, codecs, sizes; and what to say of other names."""

import difflib
from collections.abc import Iterable
from functools import lru_cache

from offgrad_storage import codec as find_codec
from offgrad_storage.zarr.codec import ZarrCodec

from offgrad.memory import parse_nbytes

STORES = ("pool", "disk", "zarr")
"""The stores that have names."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is none of those known."""
    known = list(known)
    near = difflib.get_close_matches(name.strip().lower(), known, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(f"unknown {kind} {name!r}; {meant}known: {', '.join(known)}")


@lru_cache(maxsize=256)
def store_and_codec(store: str, codec: str | None) -> tuple[str, str | None]:
    """Return the names of a store and its codec, such as of ``"disk:lz4"``, once they are checked.

    Raises:
        ValueError: if either is unknown, or two codecs are named.
        ImportError: if the codec needs numcodecs, and that is missing.
    """
    name, colon, named = store.partition(":")
    if name not in STORES:
        raise unknown("store", name, STORES)
    if colon and codec is not None:
        raise ValueError(f"{store!r} names its codec, and codec={codec!r} another; give one")
    chosen = named if colon else codec
    if chosen is not None:
        find_codec(chosen)
        if name == "zarr":
            ZarrCodec(chosen)
    return name, chosen


@lru_cache(maxsize=256)
def is_lossless(codec: str) -> bool:
    """Return whether a codec gives back what it was given, bit for bit."""
    return find_codec(codec).lossless


def as_nbytes(size: int | str) -> int:
    """Return a number of bytes, 0 included, given as such or as text.

    Raises:
        ValueError: if it is negative, or text that is no size.
        TypeError: if it is neither.
    """
    if isinstance(size, str):
        return 0 if size.strip() == "0" else parse_nbytes(size)
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"a size is an int or text such as '1MiB', got {type(size).__name__}")
    if size < 0:
        raise ValueError(f"a size must not be negative, got {size}")
    return size
