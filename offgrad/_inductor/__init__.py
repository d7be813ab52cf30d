"""``torch._inductor``: settings are accepted; nothing is compiled."""

from offgrad._inductor import config
from offgrad._missing import missing

__all__ = ["config"]

__getattr__ = missing("offgrad._inductor")
