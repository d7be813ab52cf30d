"""Codecs: an array to fewer bytes and back, by name.

Internal are the modules below: import the names in `__all__` from this package.
"""

from offgrad_storage.codecs.base import Codec
from offgrad_storage.codecs.names import codec

__all__ = ["Codec", "codec"]
