"""Invertible maps of values, with the determinants of their derivatives."""

import math as _math
from typing import Any as _Any

import numpy as _np

from offgrad import linalg as _linalg
from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._size import Size as _Size
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.distributions import constraints as _constraints
from offgrad.distributions._joined_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    StackTransform,
)
from offgrad.distributions._transform_base import (
    ComposeTransform,
    IndependentTransform,
    Transform,
    identity_transform,
)
from offgrad.distributions._transform_base import PlainTransform as _PlainTransform
from offgrad.distributions.utils import sum_rightmost as _sum_rightmost

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


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


class ExpTransform(_PlainTransform):
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


class SigmoidTransform(_PlainTransform):
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


class SoftplusTransform(_PlainTransform):
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


class TanhTransform(_PlainTransform):
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


class AbsTransform(_PlainTransform):
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


class SoftmaxTransform(_PlainTransform):
    """The softmax of vectors; of the inverses it returns one."""

    domain = _constraints.real_vector
    codomain = _constraints.simplex

    def _call(self, x: _Tensor) -> _Tensor:
        return _ops.softmax(x, -1)

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.log()


class StickBreakingTransform(_PlainTransform):
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


class LowerCholeskyTransform(_PlainTransform):
    """Matrices to lower triangular ones with a positive diagonal."""

    domain = _constraints.independent(_constraints.real, 2)
    codomain = _constraints.lower_cholesky

    def _call(self, x: _Tensor) -> _Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: _Tensor) -> _Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(_PlainTransform):
    """Matrices to positive definite ones, by way of Cholesky factors."""

    domain = _constraints.independent(_constraints.real, 2)
    codomain = _constraints.positive_definite

    def _call(self, x: _Tensor) -> _Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: _Tensor) -> _Tensor:
        return LowerCholeskyTransform().inv(_linalg.cholesky(y))


__getattr__ = _missing("offgrad.distributions.transforms")
