"""Categorical."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions._probabilities import CATEGORICAL, WithLogits

__all__ = ["Categorical"]


class Categorical(WithLogits):
    """The numbers of categories, by unnormalised `probs` or `logits` in the last dimension."""

    arg_constraints = CATEGORICAL
    has_enumerate_support = True
    _is_binary = False

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._check_one(probs, logits)
        name, given = ("probs", probs) if probs is not None else ("logits", logits)
        assert given is not None
        if given.ndim < 1:
            raise ValueError(f"{name} must have at least one dimension, got a number")
        if probs is not None:
            self.probs = probs / probs.sum(-1, keepdim=True)
        else:
            self.logits = given - given.logsumexp(-1, keepdim=True)
        self._num_events: int = given.shape[-1]
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Any:
        """The numbers of the categories."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        """NaN: numbers of categories have no mean."""
        return ops.full(self._batch_shape, float("nan"), dtype=self._param._array.dtype)

    variance = mean

    @property
    def mode(self) -> Tensor:
        """The most probable category."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return numbers of categories."""
        probs = self.probs.detach().reshape(-1, self._num_events)
        count = Size(sample_shape).numel()
        if not count or not probs.shape[0]:
            return ops.zeros(self._extended_shape(sample_shape), dtype=np.int64)
        drawn = ops.multinomial(probs, count, True).T
        return drawn.reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability."""
        index = self._checked(value).long().unsqueeze(-1)
        index, logits = ops.broadcast_tensors(index, self.logits)
        return logits.gather(-1, index[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy."""
        lowest = float(np.finfo(self.logits._array.dtype).min)
        return -(self.logits.clamp(min=lowest) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all numbers of categories."""
        values = ops.arange(self._num_events).view((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
