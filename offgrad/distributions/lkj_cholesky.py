"""LKJCholesky."""

import math
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.distributions import constraints
from offgrad.distributions.beta import Beta
from offgrad.distributions.distribution import Distribution, are_numbers, standard_normal
from offgrad.distributions.utils import broadcast_all

__all__ = ["LKJCholesky"]


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices [dim, dim], of density ``det ** (c - 1)``.

    Lewandowski, Kurowicka and Joe (2009); samples come by their onion method.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(
                f"LKJCholesky: dim, the rows of a matrix, must be 2 or more, got {dim}"
            )
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        shape = () if are_numbers(concentration) else self.concentration.shape
        super().__init__(shape, (dim, dim), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the distribution with its parameter expanded."""
        return LKJCholesky(self.dim, self.concentration.expand(batch_shape), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return matrices without gradients."""
        result: Tensor = grad_mode.call(False, self._drawn, sample_shape)
        return result

    def _drawn(self, sample_shape: Any) -> Tensor:
        shape, dtype = self._extended_shape(sample_shape), self.concentration._array.dtype
        row = ops.arange(1, self.dim, dtype=dtype)
        # The squared length of the part of each row left of the diagonal.
        rest = (self.concentration + (self.dim - 2) / 2).unsqueeze(-1) - (row - 1) / 2
        lengths = Beta(row / 2, rest, validate_args=False).sample(sample_shape).sqrt()
        directions = standard_normal(shape, self.concentration).tril(-1)[..., 1:, :]
        directions = directions / ops.norm(directions, dim=-1, keepdim=True)
        below = lengths.unsqueeze(-1) * directions
        lower = ops.cat([below.new_zeros((*shape[:-2], 1, self.dim)), below], -2)
        tiny = float(np.finfo(dtype).tiny)
        diagonal = (1 - (lower**2).sum(-1)).clamp(min=tiny).sqrt()
        return lower + diagonal.diag_embed()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density of the factor."""
        diagonal = self._checked(value).diagonal(dim1=-2, dim2=-1)[..., 1:]
        count = self.dim - 1
        order = self.dim - ops.arange(2, self.dim + 1, dtype=diagonal._array.dtype)
        order = 2 * (self.concentration - 1).unsqueeze(-1) + order
        alpha = self.concentration + count / 2
        constant = count / 2 * math.log(math.pi) + ops.mvlgamma(alpha - 0.5, count)
        return (order * diagonal.log()).sum(-1) - constant + alpha.lgamma() * count
