"""Distribution, the base class."""

import warnings
from typing import Any, ClassVar

import numpy as np

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions.utils import lazy_property

__all__ = ["Distribution", "ExponentialFamily"]


class Distribution:
    """Base class of distributions; a subclass defines what it has of the methods below.

    Args:
        batch_shape: the shape of the parameters: of distributions side by side.
        event_shape: the shape of one value.
        validate_args: whether to check parameters and values; by default they are checked.

    Attributes:
        has_rsample: whether samples have gradients, by `rsample`.
        has_enumerate_support: whether `enumerate_support` lists all values.

    Raises:
        ValueError: if a parameter violates its constraint.
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False
    _validate_args = True

    arg_constraints: ClassVar[dict[str, Any]]

    def __init__(
        self,
        batch_shape: Any = (),
        event_shape: Any = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._validate_parameters()

    def _validate_parameters(self) -> None:
        for name, constraint in getattr(self, "arg_constraints", {}).items():
            is_lazy = isinstance(getattr(type(self), name, None), lazy_property)
            if constraints.is_dependent(constraint) or (name not in self.__dict__ and is_lazy):
                continue
            value = getattr(self, name)
            if not constraint.check(value).all():
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape "
                    f"{tuple(value.shape)}) of {self!r} to satisfy the constraint {constraint!r}, "
                    f"got invalid values:\n{value}"
                )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions check parameters and values by default.

        Raises:
            ValueError: if `value` is no bool.
        """
        if value not in (True, False):
            raise ValueError(f"validate_args is True or False, got {value!r}")
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one value."""
        return self._event_shape

    @property
    def support(self) -> Any:
        """The constraint of values."""
        raise self._lacks("support")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return values without gradients, of shape sample_shape + batch_shape + event_shape."""
        result: Tensor = grad_mode.call(False, self.rsample, sample_shape)
        return result.detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return values with gradients to the parameters, as `sample`."""
        raise self._lacks("rsample")

    def sample_n(self, n: int) -> Tensor:
        """Return `n` values; the old form of `sample`."""
        warnings.warn("sample_n(n) is deprecated: use sample((n,))", stacklevel=2)
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability or density at a value."""
        raise self._lacks("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of at most a value."""
        raise self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value at which `cdf` has a value."""
        raise self._lacks("icdf")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values of a discrete distribution."""
        raise self._lacks("enumerate_support")

    def entropy(self) -> Tensor:
        """Return the entropy, in nats."""
        raise self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """Return the exponential of the entropy."""
        return self.entropy().exp()

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameters expanded to a batch shape."""
        names = [name for name in self.arg_constraints if name in self.__dict__]
        event = len(self._event_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        batch_shape = Size(batch_shape)
        for name in self.__dict__:
            value = getattr(self, name)
            if name in names or (isinstance(value, Tensor) and name in self._expanded):
                own = value.shape[len(self._batch_shape) :] if value.ndim >= event else ()
                setattr(new, name, value.expand(batch_shape + Size(own)))
            else:
                setattr(new, name, value)
        new._batch_shape = batch_shape
        return new

    _expanded: ClassVar[tuple[str, ...]] = ()
    """Tensors that `expand` expands, beside the parameters."""

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        """Return the shape of samples."""
        return Size(sample_shape) + self._batch_shape + self._event_shape  # type: ignore[no-any-return]

    def _validate_sample(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise ValueError(f"log_prob takes a Tensor, got {type(value).__name__}")
        event_start = value.ndim - len(self._event_shape)
        if value.shape[event_start:] != self._event_shape:
            raise ValueError(
                "the last sizes of value must be those of event_shape, "
                f"{self._event_shape}, got {value.shape}"
            )
        try:
            np.broadcast_shapes(value.shape, self._batch_shape + self._event_shape)
        except ValueError:
            raise ValueError(
                f"the value's shape {tuple(value.shape)} does not broadcast with batch_shape + "
                f"event_shape, {tuple(self._batch_shape + self._event_shape)}"
            ) from None
        try:
            support = self.support
        except NotImplementedError:
            return
        if not support.check(value).all():
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) "
                f"to be within the support {support!r} of {self!r}, got invalid values:\n{value}"
            )

    def _checked(self, value: Tensor) -> Tensor:
        """Return a value, after a check unless checks are off."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def _lacks(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {name}")

    def __repr__(self) -> str:
        names = [name for name in self.arg_constraints if name in self.__dict__]
        values = ", ".join(
            f"{name}: {value if value.numel() == 1 else value.size()}"
            for name in names
            for value in [self.__dict__[name]]
        )
        return f"{type(self).__name__}({values})"


class ExponentialFamily(Distribution):
    """Base class of exponential families."""


def shape_of(*tensors: Tensor, are_numbers: bool) -> Size:
    """Return the batch shape of broadcast parameters: none if all were numbers."""
    return Size() if are_numbers else Size(tensors[0].shape)


def are_numbers(*values: Any) -> bool:
    """Return whether all parameters are numbers, not tensors."""
    return not any(isinstance(each, Tensor) for each in values)


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Return standard normal numbers of the dtype of `like`."""
    return ops.randn(tuple(shape), dtype=like._array.dtype)


def open_uniform(shape: Any, like: Tensor) -> Tensor:
    """Return numbers uniform on (0, 1), of the dtype of `like`."""
    dtype = like._array.dtype
    return ops.rand(tuple(shape), dtype=dtype).clamp(min=float(np.finfo(dtype).tiny))
