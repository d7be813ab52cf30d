"""Kumaraswamy."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.gumbel import EULER
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import AffineTransform, PowerTransform
from offgrad.distributions.uniform import Uniform
from offgrad.distributions.utils import broadcast_all

__all__ = ["Kumaraswamy"]


class Kumaraswamy(TransformedDistribution):
    """Numbers from 0 to 1, whose distribution function is ``1 - (1 - x ** a) ** b``."""

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        a, b = broadcast_all(concentration1, concentration0)
        self.concentration1, self.concentration0 = a, b
        base = Uniform(ops.zeros_like(b), ops.ones_like(b), validate_args=validate_args)
        transforms = [
            PowerTransform(exponent=b.reciprocal()),
            AffineTransform(loc=1.0, scale=-1.0),
            PowerTransform(exponent=a.reciprocal()),
        ]
        super().__init__(base, transforms, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        return Kumaraswamy(
            self.concentration1.expand(batch_shape), self.concentration0.expand(batch_shape)
        )

    def _moment(self, order: int) -> Tensor:
        b, part = self.concentration0, 1 + order / self.concentration1
        return (b.log() + part.lgamma() + b.lgamma() - (part + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN if a concentration is below 1."""
        a, b = self.concentration1, self.concentration0
        mode = ((a - 1) / (a * b - 1)).log() / a
        return mode.exp().masked_fill((a < 1) | (b < 1), float("nan"))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self._moment(2) - self._moment(1) ** 2

    def entropy(self) -> Tensor:
        """Return the entropy."""
        a, b = self.concentration1, self.concentration0
        harmonic = ops.digamma(b + 1) + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
