"""The stores of the package `offgrad_storage`, under offgrad's own name."""

from offgrad_storage import *  # noqa: F403
from offgrad_storage import __all__ as __all__
