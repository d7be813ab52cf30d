"""Distributions whose parameter is given as probabilities or as logits."""

from typing import Any, ClassVar

from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.distribution import Distribution, are_numbers
from offgrad.distributions.utils import (
    broadcast_all,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
)

BINARY = {"probs": constraints.unit_interval, "logits": constraints.real}
CATEGORICAL = {"probs": constraints.simplex, "logits": constraints.real_vector}


class WithLogits(Distribution):
    """Base class: sets `probs` or `logits`, and computes the other one at first use."""

    _is_binary: ClassVar[bool] = True

    def _set_probabilities(self, probs: Any, logits: Any) -> Size:
        """Set the binary parameter that is given; return the batch shape.

        Raises:
            ValueError: unless exactly one is given.
        """
        self._check_one(probs, logits)
        name, value = ("probs", probs) if logits is None else ("logits", logits)
        (parameter,) = broadcast_all(value)
        setattr(self, name, parameter)
        return Size() if are_numbers(value) else parameter.shape

    @staticmethod
    def _check_one(probs: Any, logits: Any) -> None:
        if (probs is None) == (logits is None):
            given = "neither" if probs is None else "both"
            raise ValueError(
                f"Either `probs` or `logits` must be specified, but not both, got {given}"
            )

    @property
    def _param(self) -> Tensor:
        parameter: Tensor = self.__dict__["probs" if "probs" in self.__dict__ else "logits"]
        return parameter

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return Size(self._param.shape)

    @lazy_property
    def logits(self) -> Tensor:
        """The log-odds, or log-probabilities."""
        return probs_to_logits(self.probs, self._is_binary)

    @lazy_property
    def probs(self) -> Tensor:
        """The probabilities."""
        return logits_to_probs(self.logits, self._is_binary)
