"""Multinomial."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import CATEGORICAL
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.distribution import Distribution

__all__ = ["Multinomial"]


class Multinomial(Distribution):
    """How often each category came in `total_count` draws."""

    arg_constraints = CATEGORICAL

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs, logits)
        shape = self._categorical.param_shape
        super().__init__(self._categorical.batch_shape, shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        new._categorical = self._categorical.expand(batch_shape)
        new._batch_shape = Size(batch_shape)
        return new

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        """Counts that sum to the number of draws."""
        return constraints.multinomial(self.total_count)

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        probs: Tensor = self._categorical.probs
        return probs

    @property
    def logits(self) -> Tensor:
        """The log-probabilities."""
        logits: Tensor = self._categorical.logits
        return logits

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._categorical.param_shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        """The variance of the counts."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return counts."""
        drawn = self._categorical.sample(Size((self.total_count,)) + Size(sample_shape))
        counts = ops.zeros(self._extended_shape(sample_shape), dtype=self.probs._array.dtype)
        index = drawn.movedim(0, -1)
        return counts.scatter_add(-1, index, ops.ones_like(index, dtype=counts._array.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        value = self._checked(value)
        logits, value = ops.broadcast_tensors(self.logits, value)
        choices = ops.lgamma(value.sum(-1) + 1) - ops.lgamma(value + 1).sum(-1)
        logits = logits.masked_fill((value == 0) & (logits == -float("inf")), 0)
        return choices + (logits * value).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        count = ops.tensor(float(self.total_count), dtype=self.probs._array.dtype)
        own = self.total_count * self._categorical.entropy() - ops.lgamma(count + 1)
        counts = ops.arange(1, self.total_count + 1, dtype=self.probs._array.dtype)
        counts = counts.view((-1,) + (1,) * self.probs.ndim)
        choose = ops.lgamma(count + 1) - ops.lgamma(counts + 1) - ops.lgamma(count - counts + 1)
        log_probs = self.probs.log() * counts + ops.log1p(-self.probs) * (count - counts)
        weights = (choose + log_probs).exp()
        return own + (weights * ops.lgamma(counts + 1)).sum((0, -1))
