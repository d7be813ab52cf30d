"""Codecs: an array to fewer bytes and back, by name."""

from offgrad_storage.codecs.base import Codec
from offgrad_storage.codecs.names import codec

__all__ = ["Codec", "codec"]
