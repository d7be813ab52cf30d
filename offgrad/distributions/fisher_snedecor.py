"""FisherSnedecor."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers, shape_of
from offgrad.distributions.gamma import Gamma
from offgrad.distributions.utils import broadcast_all

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The ratio of two means of squares, of `df1` and `df2` standard normal numbers."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        shape = shape_of(self.df1, are_numbers=are_numbers(df1, df2))
        super().__init__(shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for `df2` up to 2."""
        df2 = self.df2.masked_fill(self.df2 <= 2, float("nan"))
        return df2 / (df2 - 2)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN for `df1` up to 2."""
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return mode.masked_fill(self.df1 <= 2, float("nan"))

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for `df2` up to 4."""
        df1, df2 = self.df1, self.df2.masked_fill(self.df2 <= 4, float("nan"))
        return 2 * df2**2 * (df1 + df2 - 2) / (df1 * (df2 - 2) ** 2 * (df2 - 4))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        halves = self.df1 * 0.5, self.df2 * 0.5
        above, below = (Gamma(each, each).rsample(sample_shape) for each in halves)
        tiny = float(np.finfo(self.df2._array.dtype).tiny)
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        x = self._checked(value)
        half1, half2, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        constant = (half1 + half2).lgamma() - half1.lgamma() - half2.lgamma()
        power = half1 * ratio.log() + (half1 - 1) * x.log()
        return constant + power - (half1 + half2) * ops.log1p(ratio * x)
