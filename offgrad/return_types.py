"""The classes of results of several tensors, such as of ``max`` along a dimension."""

from offgrad.ops._core.results import RESULTS as _RESULTS

globals().update(_RESULTS)
__all__ = sorted(_RESULTS)
