"""Codecs by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from offgrad_storage.codecs.base import Codec, Plain
from offgrad_storage.codecs.bits import Downcast, PackBits, Sparse
from offgrad_storage.codecs.floats import BFloat16, Float16
from offgrad_storage.codecs.general import (
    BLOSC_NAMES,
    BLOSC_SHUFFLES,
    Blosc,
    Lz4,
    Zstd,
)
from offgrad_storage.codecs.groups import GroupInt


class Auto(PackBits):
    """Nearly free and lossless: packed bits for bool, all other arrays as they are.

    Dense floating-point tensors gain too little from lossless compression to pay for its time.
    """

    name = "auto"


_CODECS: dict[str, Callable[[], Codec]] = {
    "none": Plain,
    "auto": Auto,
    "lz4": Lz4,
    "zstd": Zstd,
    "packbits": PackBits,
    "sparse": Sparse,
    "downcast": Downcast,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": lambda: GroupInt(8),
    "int4": lambda: GroupInt(4),
}
_BLOSC = {
    f"blosc-{name}-{shuffle}": (name, shuffle) for name in BLOSC_NAMES for shuffle in BLOSC_SHUFFLES
} | {f"blosc-{name}": (name, "shuffle") for name in BLOSC_NAMES}


def codec(name: str | Codec) -> Codec:
    """The codec of that name; a codec is returned as it is.

    Args:
        name: lossless: "none", "auto", "lz4", "zstd", "blosc-NAME[-SHUFFLE]", "packbits" (bool),
            "sparse" (mostly zeros), "downcast" (integers); lossy: "float16", "bfloat16", "int8",
            "int4". NAME is one of lz4, lz4hc, zstd, zlib, blosclz, and SHUFFLE of shuffle (the
            default), bitshuffle, noshuffle.

    Raises:
        ValueError: there is no such codec.
        ImportError: it needs numcodecs (lz4, zstd, blosc), which comes with zarr.
    """
    if isinstance(name, Codec):
        return name
    if name in _CODECS:
        return _CODECS[name]()
    if name in _BLOSC:
        return Blosc(*_BLOSC[name])
    near = difflib.get_close_matches(str(name).lower(), [*_CODECS, *_BLOSC])
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"unknown codec {name!r}; {meant}the names are {', '.join(_CODECS)}, and "
        f"blosc-NAME[-SHUFFLE] with NAME of {', '.join(BLOSC_NAMES)} and SHUFFLE of "
        f"{', '.join(BLOSC_SHUFFLES)}"
    )
