"""Invertible maps of values, with the determinants of their derivatives."""

import math as _math
from collections.abc import Sequence as _Sequence
from typing import Any as _Any

import numpy as _np

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._size import Size as _Size
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.distributions import constraints as _constraints
from offgrad.distributions.utils import sum_rightmost as _sum_rightmost

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


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
    domain: _Any = _constraints.real
    codomain: _Any = _constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._cached: tuple[_Any, _Any] = (None, None)

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
    def sign(self) -> _Any:
        """The sign of the derivative."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def with_cache(self, cache_size: int = 1) -> _Any:
        """Return the transform with another cache size."""
        if self._cache_size == cache_size:
            return self
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._cache_size, new._cached = cache_size, (None, None)
        return new

    def __call__(self, x: _Tensor) -> _Tensor:
        if self._cache_size and x is self._cached[0]:
            return self._cached[1]  # type: ignore[no-any-return]
        y = self._call(x)
        if self._cache_size:
            self._cached = x, y
        return y

    def _inv_call(self, y: _Tensor) -> _Tensor:
        if self._cache_size and y is self._cached[1]:
            return self._cached[0]  # type: ignore[no-any-return]
        x = self._inverse(y)
        if self._cache_size:
            self._cached = x, y
        return x

    def _call(self, x: _Tensor) -> _Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _call()")

    def _inverse(self, y: _Tensor) -> _Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _inverse()")

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian()")

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        return shape

    def inverse_shape(self, shape: _Any) -> _Any:
        """Return the shape of values for results of a shape."""
        return shape

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Plain(Transform):
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
    def sign(self) -> _Any:
        """The sign of the derivative."""
        return self._inv.sign

    def with_cache(self, cache_size: int = 1) -> _Any:
        """Return the inverse with another cache size."""
        return self._inv.with_cache(cache_size).inv

    def __call__(self, x: _Tensor) -> _Tensor:
        return self._inv._inv_call(x)

    def _inv_call(self, y: _Tensor) -> _Tensor:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: _Any) -> _Any:
        """Return the shape of values for results of a shape."""
        return self._inv.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inverse) and self._inv == other._inv

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"_InverseTransform({self._inv!r})"


class ComposeTransform(Transform):
    """Transforms one after the other."""

    def __init__(self, parts: _Sequence[Transform], cache_size: int = 0) -> None:
        if cache_size:
            parts = [each.with_cache(cache_size) for each in parts]
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(each.bijective for each in parts)
        self.domain = self._end(self.parts, "domain", "codomain")
        self.codomain = self._end(self.parts[::-1], "codomain", "domain")

    @staticmethod
    def _end(parts: list[Transform], this: str, other: str) -> _Any:
        """Return the constraint at one end, with the most dimensions that any part needs."""
        if not parts:
            return _constraints.real
        end = getattr(parts[0], this)
        needed = getattr(parts[-1], other).event_dim
        for part in reversed(parts):
            there, here = getattr(part, this).event_dim, getattr(part, other).event_dim
            needed = max(needed + there - here, there)
        extra = needed - end.event_dim
        return _constraints.independent(end, extra) if extra > 0 else end

    @property
    def sign(self) -> _Any:
        """The sign of the derivative."""
        sign: _Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        """The inverse."""
        return ComposeTransform([each.inv for each in reversed(self.parts)])

    def __call__(self, x: _Tensor) -> _Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: _Tensor) -> _Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        if not self.parts:
            return _ops.zeros_like(x)
        points = [x]
        for part in self.parts[:-1]:
            points.append(part(points[-1]))
        points.append(y)
        event = self.domain.event_dim
        total: _Any = 0
        for part, before, after in zip(self.parts, points, points[1:], strict=False):
            own = part.log_abs_det_jacobian(before, after)
            total = total + _sum_rightmost(own, event - part.domain.event_dim)
            event += part.codomain.event_dim - part.domain.event_dim
        return total  # type: ignore[no-any-return]

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: _Any) -> _Any:
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


identity_transform = ComposeTransform([])


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
        self.domain = _constraints.independent(base_transform.domain, count)
        self.codomain = _constraints.independent(base_transform.codomain, count)

    @property
    def sign(self) -> _Any:
        """The sign of the derivative."""
        return self.base_transform.sign

    def _call(self, x: _Tensor) -> _Tensor:
        return self.base_transform(x)  # type: ignore[no-any-return]

    def _inverse(self, y: _Tensor) -> _Tensor:
        return self.base_transform.inv(y)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative's determinant, as magnitude."""
        own = self.base_transform.log_abs_det_jacobian(x, y)
        return _sum_rightmost(own, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: _Any) -> _Any:
        """Return the shape of values for results of a shape."""
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """The last dimensions in another shape."""

    bijective = True

    def __init__(self, in_shape: _Any, out_shape: _Any, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = _Size(in_shape), _Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError(
                f"in_shape {in_shape} and out_shape {out_shape} differ in their number of elements"
            )
        super().__init__(cache_size)
        self.domain = _constraints.independent(_constraints.real, len(self.in_shape))
        self.codomain = _constraints.independent(_constraints.real, len(self.out_shape))

    def _batch(self, x: _Tensor, shape: _Size) -> _Any:
        return _Size(x.shape[: x.ndim - len(shape)])

    def _call(self, x: _Tensor) -> _Tensor:
        return x.reshape(self._batch(x, self.in_shape) + self.out_shape)

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.reshape(self._batch(y, self.out_shape) + self.in_shape)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return 0."""
        return x.new_zeros(self._batch(x, self.in_shape))

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        return _Size(shape[: len(shape) - len(self.in_shape)]) + self.out_shape

    def inverse_shape(self, shape: _Any) -> _Any:
        """Return the shape of values for results of a shape."""
        return _Size(shape[: len(shape) - len(self.out_shape)]) + self.in_shape


class ExpTransform(_Plain):
    """``exp(x)``."""

    codomain = _constraints.positive
    bijective = True
    sign = 1

    def _call(self, x: _Tensor) -> _Tensor:
        return x.exp()

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        return x


class PowerTransform(Transform):
    """``x ** exponent``, of positive numbers."""

    domain = codomain = _constraints.positive
    bijective = True

    def __init__(self, exponent: _Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = _ops.as_tensor(exponent)

    @property
    def sign(self) -> _Any:
        """The sign of the derivative."""
        return self.exponent.sign()

    def _call(self, x: _Tensor) -> _Tensor:
        return x**self.exponent

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        return (self.exponent * y / x).abs().log()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    __hash__ = object.__hash__


class SigmoidTransform(_Plain):
    """``1 / (1 + exp(-x))``."""

    codomain = _constraints.unit_interval
    bijective = True
    sign = 1

    def _call(self, x: _Tensor) -> _Tensor:
        info = _np.finfo(x._array.dtype)
        return x.sigmoid().clamp(float(info.tiny), 1.0 - float(info.eps))

    def _inverse(self, y: _Tensor) -> _Tensor:
        info = _np.finfo(y._array.dtype)
        y = y.clamp(float(info.tiny), 1.0 - float(info.eps))
        return y.log() - _ops.log1p(-y)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        return -_ops.softplus(-x) - _ops.softplus(x)


class SoftplusTransform(_Plain):
    """``log(1 + exp(x))``."""

    codomain = _constraints.positive
    bijective = True
    sign = 1

    def _call(self, x: _Tensor) -> _Tensor:
        return _ops.softplus(x)

    def _inverse(self, y: _Tensor) -> _Tensor:
        return (-_ops.expm1(-y)).log() + y

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        return -_ops.softplus(-x)


class TanhTransform(_Plain):
    """``tanh(x)``; with `cache_size` 1 the inverse of a sample is exact."""

    codomain = _constraints.interval(-1.0, 1.0)
    bijective = True
    sign = 1

    def _call(self, x: _Tensor) -> _Tensor:
        return x.tanh()

    def _inverse(self, y: _Tensor) -> _Tensor:
        return _ops.atanh(y)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        return 2.0 * (_math.log(2.0) - x - _ops.softplus(-2.0 * x))


class AbsTransform(_Plain):
    """``|x|``."""

    codomain = _constraints.positive

    def _call(self, x: _Tensor) -> _Tensor:
        return x.abs()

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y


class AffineTransform(Transform):
    """``loc + scale * x``, of values of `event_dim` dimensions."""

    bijective = True

    def __init__(self, loc: _Any, scale: _Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale = loc, scale
        self._event_dim = event_dim
        if event_dim:
            self.domain = self.codomain = _constraints.independent(_constraints.real, event_dim)

    @property
    def sign(self) -> _Any:
        """The sign of the derivative."""
        if isinstance(self.scale, _Tensor):
            return self.scale.sign()
        return 1 if float(self.scale) > 0 else -1 if float(self.scale) < 0 else 0

    def _call(self, x: _Tensor) -> _Tensor:
        return self.loc + self.scale * x  # type: ignore[no-any-return]

    def _inverse(self, y: _Tensor) -> _Tensor:
        return (y - self.loc) / self.scale  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative."""
        if isinstance(self.scale, _Tensor):
            result = self.scale.abs().log()
        else:
            result = _ops.full_like(x, _math.log(abs(self.scale)))
        batch = x.shape[: x.ndim - self._event_dim]
        return _sum_rightmost(result.expand(x.shape), self._event_dim).expand(batch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        pairs = (self.loc, other.loc), (self.scale, other.scale)
        return all(bool(_ops.as_tensor(a == b).all()) for a, b in pairs)

    __hash__ = object.__hash__


class SoftmaxTransform(_Plain):
    """The softmax of vectors; of the inverses it returns one."""

    domain = _constraints.real_vector
    codomain = _constraints.simplex

    def _call(self, x: _Tensor) -> _Tensor:
        return _ops.softmax(x, -1)

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.log()


class StickBreakingTransform(_Plain):
    """Vectors to parts of 1, one more than elements: each takes its part of what is left."""

    domain = _constraints.real_vector
    codomain = _constraints.simplex
    bijective = True

    def _offsets(self, x: _Tensor) -> _Tensor:
        count = x.shape[-1]
        return _ops.arange(count, 0, -1, dtype=x._array.dtype).log()

    def _call(self, x: _Tensor) -> _Tensor:
        part = SigmoidTransform()(x - self._offsets(x))
        left = (1 - part).cumprod(-1)
        one = x.new_ones((*x.shape[:-1], 1))
        return _ops.cat([part, one], -1) * _ops.cat([one, left], -1)

    def _inverse(self, y: _Tensor) -> _Tensor:
        most = y[..., :-1]
        left = (1 - most.cumsum(-1)).clamp(min=float(_np.finfo(y._array.dtype).tiny))
        return most.log() - left.log() + self._offsets(most)

    def log_abs_det_jacobian(self, x: _Tensor, y: _Tensor) -> _Tensor:
        """Return the logarithm of the derivative's determinant."""
        x = x - self._offsets(x)
        return (-x + _ops.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: _Any) -> _Any:
        """Return the shape of results for values of a shape."""
        return _Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: _Any) -> _Any:
        """Return the shape of values for results of a shape."""
        return _Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_Plain):
    """Matrices to lower triangular ones with a positive diagonal."""

    domain = _constraints.independent(_constraints.real, 2)
    codomain = _constraints.lower_cholesky

    def _call(self, x: _Tensor) -> _Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


__getattr__ = _missing("offgrad.distributions.transforms")
