"""Let einops take offgrad's tensors: ``import offgrad.nn.einops``, then einops as ever.

`Rearrange` and `Reduce` are the layers of ``einops.layers.torch``, for offgrad's modules. Needs the
package einops.
"""

import sys as _sys
from typing import Any as _Any

from einops._backends import TorchBackend as _TorchBackend
from einops.layers import RearrangeMixin as _RearrangeMixin
from einops.layers import ReduceMixin as _ReduceMixin

from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.nn.modules.module import Module as _Module

__all__ = ["Rearrange", "Reduce"]


class _Backend(_TorchBackend):  # type: ignore[misc]
    """What einops calls for PyTorch's tensors, with offgrad in PyTorch's place.

    einops finds it among the subclasses of its backends.
    """

    framework_name = "offgrad"

    def __init__(self) -> None:
        self.torch = _sys.modules["offgrad"]

    def layers(self) -> _Any:
        return _sys.modules[__name__]


class Rearrange(_RearrangeMixin, _Module):  # type: ignore[misc]
    """``einops.rearrange`` with a pattern as a module.

    Args:
        pattern: such as ``"b c h w -> b (h w) c"``.
        axes_lengths: sizes of axes by name.
    """

    def forward(self, input: _Tensor) -> _Tensor:
        """Return the rearranged tensor."""
        result: _Tensor = self._apply_recipe(input)
        return result


class Reduce(_ReduceMixin, _Module):  # type: ignore[misc]
    """``einops.reduce`` with a pattern and a reduction as a module.

    Args:
        pattern: such as ``"b c (h 2) (w 2) -> b c h w"``.
        reduction: "max", "min", "sum", "mean", "prod", "any" or "all".
        axes_lengths: sizes of axes by name.
    """

    def forward(self, input: _Tensor) -> _Tensor:
        """Return the reduced tensor."""
        result: _Tensor = self._apply_recipe(input)
        return result
