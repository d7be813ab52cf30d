"""Transforms of parts of a tensor, by distributions, and to factors of correlations."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._size import Size
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap
from offgrad.distributions import constraints
from offgrad.distributions._transform_base import PlainTransform, Transform
from offgrad.distributions.utils import sum_rightmost


class _Joined(Transform):
    """Transforms side by side along a dimension."""

    transforms: list[Transform]
    dim: int

    def __init__(self, tseq: Sequence[Any], cache_size: int) -> None:
        if not all(isinstance(each, Transform) for each in tseq):
            raise TypeError(f"{type(self).__name__} takes transforms, got {tseq!r}")
        super().__init__(cache_size)
        self.transforms = [each.with_cache(cache_size) if cache_size else each for each in tseq]

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(each.bijective for each in self.transforms)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def _join(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._split(x), strict=True)
        return self._join([transform(part) for transform, part in pairs])

    def _inverse(self, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._split(y), strict=True)
        return self._join([transform.inv(part) for transform, part in pairs])


class CatTransform(_Joined):
    """Transforms of parts of a dimension, of `lengths`, 1 each by default."""

    def __init__(
        self,
        tseq: Sequence[Any],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ValueError(
                f"CatTransform needs a length for each of {len(self.transforms)} transforms, got "
                f"{self.lengths}"
            )
        self.dim = dim

    @property
    def event_dim(self) -> int:
        """The number of dimensions of one value."""
        return max(each.event_dim for each in self.transforms)

    @property
    def length(self) -> int:
        """The size of the dimension."""
        return sum(self.lengths)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[self.dim] != self.length:
            raise ValueError(
                f"CatTransform takes {self.length} entries of dimension {self.dim}, got the shape "
                f"{tuple(x.shape)}"
            )
        return x.split(self.lengths, self.dim)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return ops.cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithms of the derivatives' determinants, summed for parts of vectors."""
        found = []
        for transform, own, result in zip(
            self.transforms, self._split(x), self._split(y), strict=True
        ):
            part = transform.log_abs_det_jacobian(own, result)
            found.append(sum_rightmost(part, self.event_dim - transform.event_dim))
        dim = self.dim if self.dim < 0 else self.dim - x.ndim
        dim += self.event_dim
        return ops.cat(found, dim) if dim < 0 else sum(found[1:], found[0])

    @property
    def domain(self) -> Any:
        """The values of the parts."""
        return constraints.cat([each.domain for each in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Any:
        """The results of the parts."""
        return constraints.cat([each.codomain for each in self.transforms], self.dim, self.lengths)


class StackTransform(_Joined):
    """A transform for each entry of a dimension."""

    def __init__(self, tseq: Sequence[Any], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, cache_size)
        self.dim = dim

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[self.dim] != len(self.transforms):
            raise ValueError(
                f"StackTransform takes {len(self.transforms)} entries of dimension {self.dim}, got "
                f"the shape {tuple(x.shape)}"
            )
        return x.unbind(self.dim)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return ops.stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithms of the derivatives' determinants."""
        parts = zip(self.transforms, self._split(x), self._split(y), strict=True)
        return self._join([each.log_abs_det_jacobian(*pair) for each, *pair in parts])

    @property
    def domain(self) -> Any:
        """The values of the parts."""
        return constraints.stack([each.domain for each in self.transforms], self.dim)

    @property
    def codomain(self) -> Any:
        """The results of the parts."""
        return constraints.stack([each.codomain for each in self.transforms], self.dim)


class CumulativeDistributionTransform(Transform):
    """The distribution function of a distribution of numbers."""

    bijective = True
    codomain = constraints.unit_interval
    sign = 1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:
        """The support of the distribution."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.distribution.cdf(x)
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = self.distribution.icdf(y)
        return result

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        result: Tensor = self.distribution.log_prob(x)
        return result


class CorrCholeskyTransform(PlainTransform):
    """Vectors [n (n - 1) / 2] to Cholesky factors [n, n] of correlation matrices.

    The hyperbolic tangents are partial correlations: each takes its part of what is left of a row.
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = float(np.finfo(x._array.dtype).eps)
        parts = _lower(x.tanh().clamp(min=-1 + eps, max=1 - eps))
        left = (1 - parts**2).sqrt().cumprod(-1)[..., :-1]
        one = x.new_ones((*left.shape[:-1], 1))
        identity = ops.eye(parts.shape[-1], dtype=x._array.dtype)
        return (parts + identity) * ops.cat([one, left], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        left = 1 - (y * y).cumsum(-1)[..., :-1]
        left = ops.cat([y.new_ones((*left.shape[:-1], 1)), left], -1)
        return (_vector(y) / _vector(left).sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the derivative's determinant."""
        left = 1 - (y * y).cumsum(-1)
        rows = 0.5 * _vector(left, -2).log().sum(-1)
        tanhs = -2 * (x + ops.softplus(-2 * x) - math.log(2)).sum(-1)
        return rows + tanhs

    def forward_shape(self, shape: Any) -> Any:
        """Return the shape of results for values of a shape."""
        size = _rows(shape[-1])
        return Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Any) -> Any:
        """Return the shape of values for results of a shape."""
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(f"square matrices are needed, got the shape {tuple(shape)}")
        return Size((*shape[:-2], shape[-1] * (shape[-1] - 1) // 2))


def _rows(count: int) -> int:
    """Return the size of the matrix that has so many elements below its diagonal."""
    size = round((0.25 + 2 * count) ** 0.5 + 0.5)
    if size * (size - 1) // 2 != count:
        raise ValueError(f"{count} elements do not fill the triangle below a diagonal")
    return size  # type: ignore[no-any-return]


def _lower(x: Tensor) -> Tensor:
    """Return a matrix of vectors' elements below its diagonal, row by row."""
    size = _rows(x.shape[-1])
    rows, columns = np.tril_indices(size, -1)
    flat = x.new_zeros((*x.shape[:-1], size * size))
    flat = flat.index_copy(-1, wrap((rows * size + columns).astype(np.int64)), x)
    return flat.reshape(*x.shape[:-1], size, size)


def _vector(matrix: Tensor, diagonal: int = -1) -> Tensor:
    """Return the elements below a diagonal of matrices, row by row."""
    rows, columns = np.tril_indices(matrix.shape[-1], diagonal)
    return matrix[..., wrap(rows), wrap(columns)]
