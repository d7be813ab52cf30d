"""Methods that fill a tensor with a number or with random numbers, in place."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dtypes import category, element
from offgrad.ops._random.generators import default_generator
from offgrad.ops._random.samples import check_range, largest_integer

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _drawn(tensor: Any, make: Any, generator: Any, dtype: Any = None) -> Any:
    """Return random numbers of the shape of `tensor`, where it is, and of its dtype by default."""
    kind = tensor._array.dtype if dtype is None else dtype
    return make(tensor._array.shape, dtype=kind, generator=generator, device=tensor.device)


class Fills(TensorBase):
    """Methods that write over the elements; random ones draw from `generator` or the default."""

    def zero_(self: Any) -> "Tensor":
        """Fill with zeros."""
        return self.copy_(0, name="zero_")

    def fill_(self: Any, value: Any) -> "Tensor":
        """Fill with one number, or a tensor without dimensions."""
        if not isinstance(value, TensorBase):
            value = wrap(element(value, self._array.dtype, "fill_"))
        elif value._array.ndim:
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor or a number, got "
                f"{describe(value)}; use copy_()"
            )
        return self.copy_(value, name="fill_")

    def normal_(self: Any, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with normal numbers of mean `mean` and standard deviation `std`."""
        if std < 0:
            raise RuntimeError(f"normal_ expects std >= 0.0, but found std {std}")
        sample = _drawn(self, ops.randn, generator)
        return self.copy_(sample * std + mean, name="normal_")

    def uniform_(self: Any, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with numbers uniform on [from_, to)."""
        if to < from_:
            raise RuntimeError(f"uniform_: from must be at most to, got from={from_} > to={to}")
        sample = _drawn(self, ops.rand, generator)
        return self.copy_(sample * (to - from_) + from_, name="uniform_")

    def bernoulli_(self: Any, p: Any = 0.5, *, generator: Any = None) -> "Tensor":
        """Fill with ones with probability `p`, a number or a tensor that broadcasts, and zeros."""
        probabilities = p._array if isinstance(p, TensorBase) else np.asarray(p)
        if not self.is_meta and not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise RuntimeError(f"bernoulli_: p must be in [0, 1], got p={p}")
        sample = _drawn(self, ops.rand, generator, ops.get_default_dtype())
        return self.copy_(sample < p, name="bernoulli_")

    def exponential_(self: Any, lambd: Any = 1.0, *, generator: Any = None) -> "Tensor":
        """Fill with numbers of the exponential distribution of rate `lambd`."""
        if not lambd > 0:
            raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
        sample = _drawn(self, ops.rand, generator)
        return self.copy_(ops.log1p(-sample) / -lambd, name="exponential_")

    def cauchy_(
        self: Any, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None
    ) -> "Tensor":
        """Fill with numbers of the Cauchy distribution."""
        if not sigma > 0:
            raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
        sample = self._uniform(generator, "cauchy_")
        return self.copy_(ops.tan((sample - 0.5) * np.pi) * sigma + median, name="cauchy_")

    def log_normal_(
        self: Any, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None
    ) -> "Tensor":
        """Fill with numbers whose logarithms are normal, of mean `mean` and deviation `std`."""
        if not std > 0:
            raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
        sample = _drawn(self, ops.randn, generator)
        return self.copy_(ops.exp(sample * std + mean), name="log_normal_")

    def geometric_(self: Any, p: Any, *, generator: Any = None) -> "Tensor":
        """Fill with the number of trials, each true with probability `p`, up to the first true."""
        if not 0 < p < 1:
            raise RuntimeError(f"geometric_: p must be in (0, 1), got p={p}")
        sample = _drawn(self, ops.rand, generator, np.float64)
        trials = ops.ceil(ops.log1p(-sample) / np.log1p(-p)).clamp(min=1)
        return self.copy_(trials.to(self._array.dtype), name="geometric_")

    def _uniform(self, generator: Any, where: str) -> "Tensor":
        if category(self._array.dtype) != 2:
            raise RuntimeError(f"{where} fills floating point tensors, got {describe(self)}")
        return _drawn(self, ops.rand, generator)

    def random_(
        self: Any, from_: Any = None, to: Any = None, *, generator: Any = None, **names: Any
    ) -> "Tensor":
        """Fill with integers: ``random_()``, ``random_(to)`` or ``random_(from, to)``.

        Without bounds they are those that the dtype holds exactly, from 0.

        Raises:
            RuntimeError: unless `from_` is below `to`.
        """
        from_ = names.get("from", from_)
        kind = self._array.dtype
        largest = largest_integer(kind)
        if to is None:
            from_, to = 0, largest + 1 if from_ is None else from_
        from_ = 0 if from_ is None else from_
        if from_ >= to:
            raise RuntimeError(
                f"random_ expects 'from' to be less than 'to', but got from={from_} >= to={to}"
            )
        check_range(from_, to - 1, kind, "random_")
        if self.is_meta:
            return self
        stream = (generator or default_generator).stream(self._array.size)
        wide = np.uint64 if kind == np.uint64 else np.int64
        sample = stream.integers(from_, to - 1, self._array.shape, wide, endpoint=True)
        return self.copy_(ops.tensor(np.asarray(sample).astype(kind)), name="random_")
