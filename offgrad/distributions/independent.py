"""Independent."""

from typing import Any

from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution
from offgrad.distributions.utils import sum_rightmost

__all__ = ["Independent"]


class Independent(Distribution):
    """A distribution of which some last dimensions of the batch belong to one value."""

    arg_constraints = {}

    def __init__(
        self,
        base_distribution: Any,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch, event = base_distribution.batch_shape, base_distribution.event_shape
        count = reinterpreted_batch_ndims
        if count > len(batch):
            raise ValueError(
                f"reinterpreted_batch_ndims={count} is more than the base distribution has batch "
                f"dimensions: {len(batch)}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = count
        cut = len(batch) - count
        super().__init__(batch[:cut], batch[cut:] + event, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        own = self._event_shape[: self.reinterpreted_batch_ndims]
        new.base_dist = self.base_dist.expand(Size(batch_shape) + own)
        new._batch_shape = Size(batch_shape)
        return new

    @property
    def has_rsample(self) -> bool:
        """Whether samples have gradients."""
        return bool(self.base_dist.has_rsample)

    @property
    def has_enumerate_support(self) -> bool:
        """Whether `enumerate_support` lists all values."""
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        """The constraint of values."""
        base = self.base_dist.support
        count = self.reinterpreted_batch_ndims
        return constraints.independent(base, count) if count else base

    @property
    def mean(self) -> Tensor:
        """The mean."""
        mean: Tensor = self.base_dist.mean
        return mean

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        mode: Tensor = self.base_dist.mode
        return mode

    @property
    def variance(self) -> Tensor:
        """The variance."""
        variance: Tensor = self.base_dist.variance
        return variance

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values without gradients."""
        sample: Tensor = self.base_dist.sample(sample_shape)
        return sample

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        sample: Tensor = self.base_dist.rsample(sample_shape)
        return sample

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability or density."""
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values, if no dimension belongs to a value."""
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError(
                "enumerate_support cannot combine the values of several dimensions"
            )
        values: Tensor = self.base_dist.enumerate_support(expand)
        return values

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
