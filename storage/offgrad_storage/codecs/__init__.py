"""Codecs: an array to fewer bytes and back, by name."""

from .base import Codec
from .names import codec

__all__ = ["Codec", "codec"]
