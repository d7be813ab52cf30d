"""Sobol's sequences."""

import warnings
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor

__all__ = ["SobolEngine"]


class SobolEngine:
    """Points of a Sobol sequence, which fill the unit cube more evenly than random ones.

    Source: S. Joe and F. Y. Kuo, Constructing Sobol sequences with better two-dimensional
    projections, SIAM Journal on Scientific Computing 30, 2635-2654, 2008, by `scipy.stats.qmc`.

    Args:
        dimension: of the cube, from 1 to 21,201.
        scramble: scramble the sequence at random; other numbers than PyTorch's.
        seed: of scrambling; by default from the default generator.

    Raises:
        ValueError: for another dimension.
    """

    MAXBIT = 30
    MAXDIM = 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ValueError(
                f"Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}], got "
                f"{dimension}"
            )
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        if seed is None and scramble:
            seed = int(ops.randint(0, 2**31, (1,)).item())
        self._start = seed
        self.reset()

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """Return the next `n` points, shape [n, dimension], float32 by default.

        Args:
            n: the number of points.
            out: a tensor that takes them.
            dtype: a floating point dtype.

        Raises:
            ValueError: for a negative number.
        """
        if n < 0:
            raise ValueError(f"SobolEngine.draw needs a number of points from 0 on, got {n}")
        kind = ops.get_default_dtype() if dtype is None else dtype
        with warnings.catch_warnings():  # PyTorch leaves the number of points to the program
            warnings.filterwarnings("ignore", message="The balance properties")
            numbers = self._sequence.random(n)
        points = ops.tensor(numbers, dtype=kind)
        points = points.reshape(n, self.dimension)
        self.num_generated += n
        if out is None:
            return points
        out.resize_as_(points).copy_(points)
        return out

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """Return the next ``2**m`` points.

        Raises:
            ValueError: unless the number of points drawn in all is a power of two then.
        """
        count = 2**m
        total = self.num_generated + count
        if total & (total - 1):
            raise ValueError(
                "the balance of Sobol's points needs a power of two of them in all, got "
                f"{self.num_generated} and {count} more; use draw()"
            )
        return self.draw(count, out, dtype)

    def reset(self) -> "SobolEngine":
        """Go back to the begin; return the engine."""
        from scipy.stats import qmc  # slow to import

        rng = None if self._start is None else np.random.default_rng(self._start)
        self._sequence = qmc.Sobol(
            self.dimension, scramble=self.scramble, bits=self.MAXBIT, rng=rng
        )
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> "SobolEngine":
        """Leave out the next `n` points; return the engine."""
        self._sequence.fast_forward(n)
        self.num_generated += n
        return self

    def __repr__(self) -> str:
        text = f"SobolEngine(dimension={self.dimension}"
        if self.scramble:
            text += ", scramble=True"
        return text + (")" if self.seed is None else f", seed={self.seed})")
