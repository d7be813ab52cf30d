"""The bases of losses."""

from offgrad._tensor.tensor import Tensor
from offgrad.nn._reduction import legacy_reduction
from offgrad.nn.modules.module import Module

_Flag = bool | None


class _Loss(Module):
    """A loss that is reduced: ``"mean"``, ``"sum"`` or ``"none"``.

    `size_average` and `reduce` are legacy forms of `reduction`.
    """

    __constants__ = ["reduction"]

    reduction: str

    def __init__(
        self, size_average: _Flag = None, reduce: _Flag = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.reduction = legacy_reduction(size_average, reduce, reduction)


class _WeightedLoss(_Loss):
    """A loss with a factor for each class or element, in a buffer."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: _Flag = None,
        reduce: _Flag = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
