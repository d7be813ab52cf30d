"""OneHotCategorical, and with gradients that pass straight through samples."""

from typing import Any

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import CATEGORICAL
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.distribution import Distribution

__all__ = ["OneHotCategorical", "OneHotCategoricalStraightThrough"]


class OneHotCategorical(Distribution):
    """Vectors with 1 at a category and 0 elsewhere."""

    arg_constraints = CATEGORICAL
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
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
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable vector."""
        return self._one_hot(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        """The variance of the elements."""
        return self.probs * (1 - self.probs)

    def _one_hot(self, index: Tensor) -> Tensor:
        values = ops.eye(self._categorical._num_events, dtype=self.probs._array.dtype)
        return values[index]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors."""
        return self._one_hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        return self._categorical.log_prob(self._checked(value).argmax(-1))

    def entropy(self) -> Tensor:
        """Return the entropy."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all vectors."""
        count = self._categorical._num_events
        values = ops.eye(count, dtype=self.probs._array.dtype)
        values = values.view((count,) + (1,) * len(self._batch_shape) + (count,))
        return values.expand((count, *self._batch_shape, count)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples get the gradients of the probabilities.

    (Y. Bengio et al., arXiv:1308.3432.)
    """

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return vectors with gradients to the probabilities."""
        samples, probs = self.sample(sample_shape), self.probs
        return samples + (probs - probs.detach())
