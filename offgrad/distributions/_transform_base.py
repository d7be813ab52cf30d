"""What all transforms share, and transforms made of others."""

from collections.abc import Sequence
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions import constraints
from offgrad.distributions.utils import sum_rightmost


class Transform:
    """Base class: a subclass defines `_call`, `_inverse` and `log_abs_det_jacobian`.

    Args:
        cache_size: 1 remembers the last value and result, so that the inverse of it is exact.

    Attributes:
        bijective: whether each result has one value.
        domain, codomain: the constraints of values and of results.
        sign: of the derivative of a map of numbers.
    """

    bijective = False
    domain: Any = constraints.real
    codomain: Any = constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._cached: tuple[Any, Any] = (None, None)

    @property
    def event_dim(self) -> int:
        """The number of dimensions of one value."""
        if self.domain.event_dim == self.codomain.event_dim:
            return int(self.domain.event_dim)
        raise ValueError("domain and codomain have different event_dims: read that of one of them")

    @property
    def inv(self) -> "Transform":
        """The inverse."""
        return _Inverse(self)

    @property
    def sign(self) -> Any:
        """The sign of the derivative."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def with_cache(self, cache_size: int = 1) -> Any:
        """Return the transform with another cache size."""
        if self._cache_size == cache_size:
            return self
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._cache_size, new._cached = cache_size, (None, None)
        return new

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size and x is self._cached[0]:
            return self._cached[1]  # type: ignore[no-any-return]
        y = self._call(x)
        if self._cache_size:
            self._cached = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size and y is self._cached[1]:
            return self._cached[0]  # type: ignore[no-any-return]
        x = self._inverse(y)
        if self._cache_size:
            self._cached = x, y
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _call()")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _inverse()")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian()")

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of results for values of a shape."""
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of values for results of a shape."""
        return shape

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class PlainTransform(Transform):
    """A transform without parameters: all of a class are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = object.__hash__


class _Inverse(Transform):
    """The inverse of a transform."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._inv = transform
        self.bijective = transform.bijective
        self.domain, self.codomain = transform.codomain, transform.domain

    @property
    def inv(self) -> Transform:
        """The transform."""
        return self._inv

    @property
    def sign(self) -> Any:
        """The sign of the derivative."""
        return self._inv.sign

    def with_cache(self, cache_size: int = 1) -> Any:
        """Return the inverse with another cache size."""
        return self._inv.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of results for values of a shape."""
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of values for results of a shape."""
        return self._inv.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inverse) and self._inv == other._inv

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"_InverseTransform({self._inv!r})"


class ComposeTransform(Transform):
    """Transforms one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        if cache_size:
            parts = [each.with_cache(cache_size) for each in parts]
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(each.bijective for each in parts)
        self.domain = self._end(self.parts, "domain", "codomain")
        self.codomain = self._end(self.parts[::-1], "codomain", "domain")

    @staticmethod
    def _end(parts: list[Transform], this: str, other: str) -> Any:
        """Return the constraint at one end, with the most dimensions that any part needs."""
        if not parts:
            return constraints.real
        end = getattr(parts[0], this)
        needed = getattr(parts[-1], other).event_dim
        for part in reversed(parts):
            there, here = getattr(part, this).event_dim, getattr(part, other).event_dim
            needed = max(needed + there - here, there)
        extra = needed - end.event_dim
        return constraints.independent(end, extra) if extra > 0 else end

    @property
    def sign(self) -> Any:
        """The sign of the derivative."""
        sign: Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        """The inverse."""
        return ComposeTransform([each.inv for each in reversed(self.parts)])

    def with_cache(self, cache_size: int = 1) -> Any:
        """Return the transforms with another cache size, each of them."""
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        if not self.parts:
            return ops.zeros_like(x)
        points = [x]
        for part in self.parts[:-1]:
            points.append(part(points[-1]))
        points.append(y)
        event = self.domain.event_dim
        total: Any = 0
        for part, before, after in zip(self.parts, points, points[1:], strict=False):
            own = part.log_abs_det_jacobian(before, after)
            total = total + sum_rightmost(own, event - part.domain.event_dim)
            event += part.codomain.event_dim - part.domain.event_dim
        return total  # type: ignore[no-any-return]

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of results for values of a shape."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of values for results of a shape."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        parts = ",\n    ".join(map(repr, self.parts))
        return f"ComposeTransform(\n    {parts}\n)"


class IndependentTransform(Transform):
    """A transform of which some last dimensions belong to one value."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective = base_transform.bijective
        count = reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, count)
        self.codomain = constraints.independent(base_transform.codomain, count)

    def with_cache(self, cache_size: int = 1) -> Any:
        """Return the transform with another cache size, and its base with it."""
        if self._cache_size == cache_size:
            return self
        count = self.reinterpreted_batch_ndims
        return IndependentTransform(self.base_transform, count, cache_size)

    @property
    def sign(self) -> Any:
        """The sign of the derivative."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        own = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_rightmost(own, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of results for values of a shape."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of values for results of a shape."""
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


identity_transform = ComposeTransform([])
