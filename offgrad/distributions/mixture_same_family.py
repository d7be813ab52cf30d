"""MixtureSameFamily."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.distribution import Distribution

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """A mixture: the last dimension of the components' batch is drawn by a `Categorical`."""

    arg_constraints = {}

    def __init__(
        self,
        mixture_distribution: Any,
        component_distribution: Any,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError("mixture_distribution must be a Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "component_distribution must be a Distribution, got "
                f"{type(component_distribution).__name__}"
            )
        mixed, batch = mixture_distribution.batch_shape, component_distribution.batch_shape[:-1]
        for a, b in zip(reversed(mixed), reversed(batch), strict=False):
            if a != 1 and b != 1 and a != b:
                raise ValueError(
                    f"the mixture's batch_shape {tuple(mixed)} does not broadcast with that of the "
                    f"components but for its last size, {tuple(batch)}"
                )
        count = mixture_distribution._num_events
        if count != component_distribution.batch_shape[-1]:
            raise ValueError(
                f"the mixture has {count} probabilities for "
                f"{component_distribution.batch_shape[-1]} components"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        self._num_component = count
        event = component_distribution.event_shape
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        shape = Size(batch_shape)
        new._mixture_distribution = self._mixture_distribution.expand(shape)
        new._component_distribution = self._component_distribution.expand(
            shape + Size((self._num_component,))
        )
        new._batch_shape = shape
        return new

    @constraints.dependent_property
    def support(self) -> Any:
        """The constraint of values: that of each component."""
        support = self._component_distribution.support
        return _OfComponents(support) if isinstance(support, constraints._Bounded) else support

    @property
    def mixture_distribution(self) -> Any:
        """The distribution of the components' numbers."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Any:
        """The components."""
        return self._component_distribution

    def _weights(self) -> Tensor:
        probs: Tensor = self._mixture_distribution.probs
        return probs.view(probs.shape + (1,) * len(self._event_shape))

    @property
    def _axis(self) -> int:
        return -1 - len(self._event_shape)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self._weights() * self._component_distribution.mean).sum(self._axis)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        components = self._component_distribution
        within = (self._weights() * components.variance).sum(self._axis)
        offsets = components.mean - self.mean.unsqueeze(self._axis)
        return within + (self._weights() * offsets**2).sum(self._axis)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        each = self._component_distribution.cdf(value.unsqueeze(self._axis))
        return (each * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability or density."""
        value = self._checked(value).unsqueeze(self._axis)
        each = self._component_distribution.log_prob(value)
        return ops.logsumexp(each + self._mixture_distribution.logits, -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values."""
        return grad_mode.call(False, self._sample, sample_shape)

    def _sample(self, sample_shape: Any) -> Tensor:
        number = self._mixture_distribution.sample(sample_shape)
        values = self._component_distribution.sample(sample_shape)
        event = len(self._event_shape)
        index = number.view(number.shape + (1,) * (event + 1))
        index = index.expand((*values.shape[: values.ndim - event - 1], 1, *self._event_shape))
        return values.gather(self._axis, index).squeeze(self._axis)

    def __repr__(self) -> str:
        parts = f"{self._mixture_distribution},\n  {self._component_distribution}"
        return f"MixtureSameFamily(\n  {parts})"


class _OfComponents(constraints.Constraint):
    """Values in the support of some component; bounds may differ by component."""

    def __init__(self, base: constraints.Constraint) -> None:
        self._base = base
        self.is_discrete, self.event_dim = base.is_discrete, base.event_dim

    def check(self, value: Any) -> Any:
        """Return whether values lie in it."""
        return self._base.check(value.unsqueeze(-1)).any(-1)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint(base_constraint={self._base!r})"
