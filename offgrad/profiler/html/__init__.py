"""The HTML report of profiles: one file, which needs no network.

Internal: the modules in this folder.
"""

from offgrad.profiler.html.page import report

__all__ = ["report"]
