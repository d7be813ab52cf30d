"""LocationScale, the base class of distributions with a location and a scale."""

from typing import Any

from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers
from offgrad.distributions.utils import broadcast_all


class LocationScale(Distribution):
    """A real distribution moved by `loc` and scaled by `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        shape = Size() if are_numbers(loc, scale) else self.loc.shape
        super().__init__(shape, validate_args=validate_args)

    def _standardised(self, value: Tensor) -> Tensor:
        return (self._checked(value) - self.loc) / self.scale
