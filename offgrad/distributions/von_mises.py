"""VonMises."""

import math
from typing import Any

import numpy as np

from offgrad import special
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers, shape_of
from offgrad.distributions.utils import broadcast_all
from offgrad.ops._random.generators import default_generator

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Angles in radians around `loc`, from -pi to pi, the closer the higher `concentration`."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = False

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        shape = shape_of(self.loc, are_numbers=are_numbers(loc, concentration))
        super().__init__(shape, validate_args=validate_args)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return angles without gradients."""
        shape = tuple(self._extended_shape(sample_shape))
        # A value may consume many uniform numbers.
        stream = default_generator.stream(16 * math.prod(shape))
        loc, concentration = (each._array.astype(np.float64) for each in self._parameters())
        return wrap(stream.vonmises(loc, concentration, shape).astype(self.loc._array.dtype))

    def _parameters(self) -> tuple[Tensor, Tensor]:
        return self.loc.detach(), self.concentration.detach()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        towards = self.concentration * ((self._checked(value) - self.loc).cos() - 1)
        return towards - math.log(2 * math.pi) - special.i0e(self.concentration).log()  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        """The mean direction."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Tensor:
        """The variance of a direction: 1 minus the length of the mean vector."""
        ratio = special.i1e(self.concentration) / special.i0e(self.concentration)
        return 1 - ratio  # type: ignore[no-any-return]
