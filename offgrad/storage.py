"""The stores, as ``offgrad.storage.DiskStore``; they are a package of their own, offgrad_storage."""

from offgrad_storage import *  # noqa: F403
from offgrad_storage import __all__ as __all__
