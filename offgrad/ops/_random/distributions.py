"""Samples from distributions with tensors as parameters, not differentiable in these."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.memory.meta import MetaArray, meta_tensor_memory
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import category, real_floating
from offgrad.ops._random.generators import Generator, default_generator
from offgrad.ops._random.samples import randn

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["bernoulli", "binomial", "multinomial", "normal", "poisson"]


class _Sampled(Op):
    """A given sample of a distribution with these parameters; keeps nothing.

    The gradient of the parameters is 0.
    """

    def forward(self, *arrays: Array, sample: Array) -> Array:
        self.shapes = [each.shape for each in arrays]
        return np.asarray(sample, arrays[0].dtype)

    def backward(self, grad: "Tensor") -> Any:
        return tuple(
            grad.new_zeros(shape) if needed else None
            for shape, needed in zip(self.shapes, self.needs_input_grad, strict=True)
        )


class Bernoulli(_Sampled):
    """Ones with given probabilities; keeps nothing."""


class Poisson(_Sampled):
    """Counts of given rates; keeps nothing."""


class Binomial(_Sampled):
    """Counts of successes of given trials and probabilities; keeps nothing."""


class NormalMean(_Sampled):
    """Normal numbers of given means; keeps nothing."""

    torch_name = "NormalBackward1"


class NormalStd(_Sampled):
    """Normal numbers of given standard deviations; keeps nothing."""

    torch_name = "NormalBackward2"


class NormalBoth(_Sampled):
    """Normal numbers of given means and standard deviations; keeps nothing."""

    torch_name = "NormalBackward3"


class NotDifferentiable(Op):
    """A value that depends on a tensor in a way that has no derivative; keeps nothing."""

    torch_name = "NotImplemented"

    def forward(self, x: Array, value: Array, of: str) -> Array:
        self.of = of
        return np.asarray(value, x.dtype)

    def backward(self, grad: "Tensor") -> Any:
        """Raise: there is no derivative.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{self.of} has no derivative; call it on a detached tensor")


def bernoulli(
    input: "Tensor", p: float | None = None, *, generator: Generator | None = None
) -> "Tensor":
    """Return 1 with probability `input`, element by element, or with probability `p`, else 0.

    The gradient is 0; with `p` backward raises.

    Raises:
        RuntimeError: if a probability is not from 0 to 1.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    if p is not None:
        if not 0 <= p <= 1:
            raise RuntimeError(f"bernoulli: p must be from 0 to 1, got {p}")
        stream = (generator or default_generator).stream(input._array.size)
        return NotDifferentiable.apply(
            input, of="bernoulli", value=stream.random(input._array.shape) < p
        )
    probabilities = real_floating(input, "bernoulli")._array
    if probabilities.size and not (probabilities.min() >= 0 and probabilities.max() <= 1):
        raise RuntimeError(
            f"bernoulli: probabilities must be from 0 to 1, got a {describe(input)} outside"
        )
    stream = (generator or default_generator).stream(probabilities.size)
    return Bernoulli.apply(input, sample=stream.random(probabilities.shape) < probabilities)


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> "Tensor":
    """Return normal numbers of mean `mean` and standard deviation `std`; their gradients are 0.

    Args:
        mean: a number, or a tensor of means.
        std: a number, or a tensor of deviations, of the shape of the means.
        size: the shape, if both are numbers.
        dtype: the dtype of the result, if both are numbers.
        device: "cpu" or "meta", if both are numbers.
        requires_grad: whether the result requires grad, if both are numbers.
        generator: the random generator; the default one if None.

    Raises:
        RuntimeError: if a deviation is negative.
        TypeError: if both are numbers and `size` is missing.
    """
    parameters = [each for each in (mean, std) if isinstance(each, TensorBase)]
    deviations = std._array if isinstance(std, TensorBase) else np.asarray(std)
    if deviations.size and not deviations.min() >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {deviations.min()}")
    if not parameters:
        if size is None:
            raise TypeError("normal: a size is needed if mean and std are numbers")
        sample = randn(size, dtype=dtype, generator=generator, device=device)._array
        np.multiply(sample, sample.dtype.type(std), out=sample)
        np.add(sample, sample.dtype.type(mean), out=sample)
        return wrap(sample, requires_grad=requires_grad)
    first = parameters[0]._array
    shape = np.broadcast_shapes(*(each._array.shape for each in parameters))
    noise = randn(shape, dtype=first.dtype, generator=generator)._array
    location = mean._array if isinstance(mean, TensorBase) else mean
    if len(parameters) == 2:
        kind: type[_Sampled] = NormalBoth
    else:
        kind = NormalMean if isinstance(mean, TensorBase) else NormalStd
    sample = noise * deviations + location
    return kind.apply(*parameters, sample=sample.astype(first.dtype))  # type: ignore[arg-type]


def poisson(input: "Tensor", *, generator: Generator | None = None) -> "Tensor":
    """Return Poisson counts of the rates `input`; the gradient is 0.

    Raises:
        RuntimeError: if a rate is negative.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    rates = real_floating(input, "poisson")._array
    if rates.size and not rates.min() >= 0:
        raise RuntimeError(f"poisson: rates must not be negative, got {rates.min()}")
    # A count may consume many uniform numbers.
    stream = (generator or default_generator).stream(16 * rates.size)
    return Poisson.apply(input, sample=stream.poisson(rates.astype(np.float64)))


def binomial(count: "Tensor", prob: "Tensor", generator: Generator | None = None) -> "Tensor":
    """Return how many of `count` trials succeed with probability `prob`; the gradients are 0.

    Raises:
        ValueError: if `count` does not hold real floating point numbers.
        RuntimeError: if the dtypes differ, a count is negative, or a probability is not from 0 to
            1.
    """
    trials, chances = count._array, prob._array
    if category(trials.dtype) != 2:
        raise ValueError(f"binomial: count must have a floating dtype, got {trials.dtype.name}")
    if trials.dtype != chances.dtype:
        raise RuntimeError(
            f"binomial: count and prob must have one dtype, got a {describe(count)} and a "
            f"{describe(prob)}"
        )
    if (trials < 0).any() or not ((chances >= 0) & (chances <= 1)).all():
        raise RuntimeError(
            "binomial: counts must not be negative, and probabilities from 0 to 1, got a "
            f"{describe(count)} and a {describe(prob)} outside"
        )
    pairs = np.broadcast_arrays(trials.astype(np.int64), chances.astype(np.float64))
    # A count may consume many uniform numbers.
    stream = (generator or default_generator).stream(16 * pairs[0].size)
    return Binomial.apply(count, prob, sample=stream.binomial(*pairs))


_FEW_COMPARED = 1 << 16
"""Comparisons that take less time than a search for each row."""


def multinomial(
    input: "Tensor",
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> "Tensor":
    """Draw indices by the weights `input`, [C] or [N, C]; return [num_samples] or [N, num_samples].

    Raises:
        RuntimeError: if weights are not floating point, not finite, negative or all zero; if
            `num_samples` is not positive, or too large without replacement.
    """
    if not isinstance(input, TensorBase) or input._array.ndim not in (1, 2):
        raise RuntimeError("multinomial: prob_dist must be 1 or 2 dim: weights [C] or [N, C]")
    if category(input._array.dtype) != 2:
        raise RuntimeError(
            "multinomial only supports floating-point dtypes for input, the weights, got a "
            f"{describe(input)}"
        )
    num_samples = integer(num_samples, "multinomial", "num_samples")
    if type(input._array) is MetaArray:
        shape = (*input._array.shape[:-1], num_samples)
        return wrap(meta_tensor_memory(shape, np.dtype(np.int64)))
    weights = np.atleast_2d(input._array.astype(np.float64))
    if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(1) <= 0).any():
        raise RuntimeError(
            "multinomial: probability tensor contains either `inf`, `nan` or element < 0, or it is "
            "an invalid multinomial distribution, whose weights are all zero"
        )
    drawable = num_samples if replacement else (weights > 0).sum(1).min(initial=num_samples)
    if not 0 < num_samples <= drawable:
        problem = "cannot sample n_sample <= 0 samples"
        if num_samples > 0:
            problem = "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        raise RuntimeError(
            f"multinomial: {problem}, got {num_samples}; {drawable} weights are not zero"
        )
    stream = (generator or default_generator).stream(weights.shape[0] * num_samples)
    shares = weights / weights.sum(1, keepdims=True)
    if replacement or num_samples == 1:
        samples = _drawn(shares, stream.random((len(weights), num_samples)))
    else:
        drawn = [stream.choice(row.size, num_samples, False, row) for row in shares]
        samples = np.array(drawn, np.int64).reshape(len(shares), num_samples)
    return wrap(samples if input._array.ndim == 2 else samples[0])


def _drawn(shares: Array, uniform: Array) -> Array:
    """Return the indices [N, S] at which sums of shares [N, C] exceed uniform numbers [N, S]."""
    sums = shares.cumsum(1)
    sums /= sums[:, -1:]
    if uniform.size * shares.shape[1] <= _FEW_COMPARED:
        return np.asarray((sums[:, None] <= uniform[..., None]).sum(-1))
    rows = zip(sums, uniform, strict=True)
    return np.stack([row.searchsorted(numbers, side="right") for row, numbers in rows])
