"""TransformedDistribution."""

from typing import Any

from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution
from offgrad.distributions.independent import Independent
from offgrad.distributions.transforms import ComposeTransform, Transform
from offgrad.distributions.utils import sum_rightmost

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of transformed samples of another one.

    Args:
        base_distribution: the other one.
        transforms: a transform, or several, applied in order.
        validate_args: whether to check values.

    Raises:
        ValueError: for anything but transforms, or a base whose values they do not take.
    """

    arg_constraints = {}

    def __init__(
        self, base_distribution: Any, transforms: Any, validate_args: bool | None = None
    ) -> None:
        if isinstance(transforms, Transform):
            self.transforms = [transforms]
        elif isinstance(transforms, list) and all(isinstance(t, Transform) for t in transforms):
            self.transforms = transforms
        else:
            raise ValueError(
                f"transforms takes a Transform, or several in a list, got {transforms!r}"
            )
        chain = ComposeTransform(self.transforms)
        shape = base_distribution.batch_shape + base_distribution.event_shape
        needed = chain.domain.event_dim
        if len(shape) < needed:
            raise ValueError(
                f"base_distribution needs {needed} dimensions or more, got the shape {shape}"
            )
        expanded = Size(chain.inverse_shape(chain.forward_shape(shape)))
        if expanded != shape:
            batch = expanded[: len(expanded) - len(base_distribution.event_shape)]
            base_distribution = base_distribution.expand(batch)
        missing = needed - len(base_distribution.event_shape)
        if missing > 0:
            base_distribution = Independent(base_distribution, missing)
        self.base_dist = base_distribution
        full = Size(chain.forward_shape(shape))
        extra = len(base_distribution.event_shape) - chain.domain.event_dim
        event = chain.codomain.event_dim + max(extra, 0)
        cut = len(full) - event
        super().__init__(full[:cut], full[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        shape = Size(batch_shape)
        inner = ComposeTransform(self.transforms).inverse_shape(shape + self._event_shape)
        cut = len(inner) - len(self.base_dist.event_shape)
        new.base_dist = self.base_dist.expand(inner[:cut])
        new._batch_shape = shape
        return new

    @property
    def has_rsample(self) -> bool:
        """Whether samples have gradients."""
        return bool(self.base_dist.has_rsample)

    @constraints.dependent_property
    def support(self) -> Any:
        """The constraint of values."""
        if not self.transforms:
            return self.base_dist.support
        codomain = self.transforms[-1].codomain
        missing = len(self._event_shape) - codomain.event_dim
        return constraints.independent(codomain, missing) if missing > 0 else codomain

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values without gradients."""
        return grad_mode.call(False, self._transform, self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters."""
        return self._transform(self.base_dist.rsample(sample_shape))

    def _transform(self, value: Tensor) -> Tensor:
        for transform in self.transforms:
            value = transform(value)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        y = self._checked(value)
        event = len(self._event_shape)
        total: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event += transform.domain.event_dim - transform.codomain.event_dim
            own = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(own, event - transform.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return sum_rightmost(base, event - len(self.base_dist.event_shape)) + total  # type: ignore[no-any-return]

    def _monotone(self, value: Any) -> Any:
        """Return the probability of less, or of more where the transforms decrease."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        value = self._checked(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        result: Tensor = self._monotone(self.base_dist.cdf(value))
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        return self._transform(self.base_dist.icdf(self._monotone(value)))
