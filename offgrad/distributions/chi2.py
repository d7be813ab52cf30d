"""Chi2."""

from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.gamma import Gamma

__all__ = ["Chi2"]


class Chi2(Gamma):
    """The sum of the squares of `df` standard normal numbers."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    _expanded = ("concentration", "rate")

    @property
    def df(self) -> Tensor:
        """The number of squares."""
        return self.concentration * 2
