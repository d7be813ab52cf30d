"""The arguments of convolutions: how a kernel passes over its input, and which shapes fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import kernels
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.dims import integer, is_integer
from offgrad.ops._core.dtypes import check_not_bool, check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Convolving(NamedTuple):
    """The numbers of a convolution, each checked.

    Attributes:
        stride, padding, dilation, output_padding: a number for each dimension of the space.
        transposed: whether it is a transposed convolution.
        groups: the number of groups.
        after: the padding at the end of each dimension, if it is not `padding`.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    after: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        where: str,
        ndim: int,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
        after: tuple[int, ...] | None = None,
    ) -> "Convolving":
        """Return the numbers, one of each kind for each of `ndim` dimensions.

        Raises:
            RuntimeError: if one is too small, or a tuple has another length.
        """
        how = cls(
            per_dim(where, "stride", stride, ndim),
            per_dim(where, "padding", padding, ndim),
            per_dim(where, "dilation", dilation, ndim),
            bool(transposed),
            per_dim(where, "output_padding", output_padding, ndim),
            integer(groups, where, "groups"),
            after,
        )
        for name, lowest in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            if min(getattr(how, name), default=lowest) < lowest:
                kind = "negative" if lowest == 0 else "non-positive"
                raise RuntimeError(
                    f"{where}: {kind} {name} is not supported, got {list(getattr(how, name))}"
                )
        if how.groups < 1:
            raise RuntimeError(f"{where}: non-positive groups is not supported, got {how.groups}")
        return how

    def steps(self) -> "kernels.Steps":
        """Return what kernels need of it."""
        return kernels.Steps(self.stride, self.padding, self.dilation, self.groups)

    def check(
        self, where: str, x: "Tensor", weight: "Tensor", bias: "Tensor | None"
    ) -> tuple[int, ...]:
        """Return the sizes of the result's space for x [N, C, *S].

        Raises:
            RuntimeError: if shapes or dtypes do not fit.
            NotImplementedError: for bools.
        """
        check_not_bool(x, where)
        check_tensor(weight, where)
        for name, each in (("weight", weight), ("bias", bias)):
            if each is not None and check_tensor(each, where)._array.dtype != x._array.dtype:
                raise RuntimeError(
                    f"{where}: Input type ({x._array.dtype.name}) and {name} type "
                    f"({each._array.dtype.name}) should be the same; convert one with .to()"
                )
        self._check_channels(where, x, weight, bias)
        kernel, space = weight._array.shape[2:], x._array.shape[2:]
        if self.transposed:
            size = self._transposed_size(where, space, kernel)
        else:
            size = self.size(where, space, kernel)
        if 0 in space and 0 not in x._array.shape[:2]:
            raise RuntimeError(
                f"{where}: only the batch and the channels may be empty, got a {describe(x)}"
            )
        return size

    def _check_channels(
        self, where: str, x: "Tensor", weight: "Tensor", bias: "Tensor | None"
    ) -> None:
        groups, shape, given = self.groups, list(weight._array.shape), list(x._array.shape)
        if len(shape) != len(given):
            raise RuntimeError(
                f"{where}: expected a weight of {len(given)} dimensions, got a {describe(weight)}"
            )
        if 0 in (shape[0], *shape[2:]):
            raise RuntimeError(
                f"{where}: expected a weight with outputs and elements, got a {describe(weight)}"
            )
        start = f"{where}: Given {'transposed=1, ' if self.transposed else ''}groups={groups}, "
        if shape[0] % groups:
            raise RuntimeError(
                f"{start}expected weight to be divisible by {groups} at dimension 0, got weight of "
                f"size {shape}"
            )
        expected = shape[0] if self.transposed else shape[1] * groups
        if given[1] != expected:
            raise RuntimeError(
                f"{start}weight of size {shape}, expected input{given} to have {expected} "
                f"channels, but got {given[1]} channels instead"
            )
        outputs = shape[1] * groups if self.transposed else shape[0]
        if bias is not None and bias._array.shape != (outputs,):
            raise RuntimeError(
                f"{start}weight of size {shape}, expected bias to be 1-dimensional with {outputs} "
                f"elements, but got bias of size {list(bias._array.shape)} instead"
            )

    def size(self, where: str, space: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
        ends = self.padding if self.after is None else self.after
        padded = [sum(each) for each in zip(space, self.padding, ends, strict=True)]
        reach = _reach(kernel, self.dilation)
        if any(need > have for need, have in zip(reach, padded, strict=True)):
            raise RuntimeError(
                f"{where}: Calculated padded input size per channel: {_by(padded)}. Kernel size: "
                f"{_by(reach)}. Kernel size can't be greater than actual input size"
            )
        return tuple(
            [(have - need) // step + 1 for have, need, step in
             zip(padded, reach, self.stride, strict=True)]
        )  # fmt: skip

    def _transposed_size(
        self, where: str, space: tuple[int, ...], kernel: tuple[int, ...]
    ) -> tuple[int, ...]:
        for extra, stride, dilation in zip(
            self.output_padding, self.stride, self.dilation, strict=True
        ):
            if extra >= max(stride, dilation):
                raise RuntimeError(
                    f"{where}: output_padding must be below stride or dilation, got "
                    f"output_padding={self.output_padding}, stride={self.stride}, "
                    f"dilation={self.dilation}"
                )
        size = tuple(
            [(count - 1) * step - 2 * padding + reach + extra for count, step, padding, reach, extra
             in zip(space, self.stride, self.padding, _reach(kernel, self.dilation),
                    self.output_padding, strict=True)]
        )  # fmt: skip
        if min(size, default=1) < 1:
            raise RuntimeError(
                f"{where}: the output would have the size {list(size)}, which is too small for an "
                f"input of size {list(space)}: pass a smaller padding than {self.padding}"
            )
        return size


def _reach(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[int]:
    return [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]


def _by(sizes: Sequence[int]) -> str:
    return f"({' x '.join(map(str, sizes))})"


def per_dim(where: str, name: str, value: Any, ndim: int) -> tuple[int, ...]:
    """Return a number for each of `ndim` dimensions, given as one or as a tuple of 1 or `ndim`.

    Raises:
        RuntimeError: for another length.
        TypeError: for all else.
    """
    if is_integer(value):
        return (int(value),) * ndim
    if isinstance(value, (TensorBase, np.ndarray)) or not isinstance(value, Sequence):
        raise TypeError(f"{where}: {name} must be an integer or a tuple of them, got {value!r}")
    numbers = tuple([integer(each, where, name) for each in value])
    if len(numbers) == 1:
        return numbers * ndim
    if len(numbers) != ndim:
        raise RuntimeError(
            f"{where}: {name} must be one integer, or {ndim}, one for each dimension, got "
            f"{name}={list(numbers)}"
        )
    return numbers


def unbatched_ndim(where: str, ndim: int, input: "Tensor") -> bool:
    """Return whether the input of a convolution lacks the batch.

    Raises:
        RuntimeError: if its number of dimensions fits neither.
    """
    given = check_tensor(input, where)._array.ndim
    if given not in (ndim + 1, ndim + 2):
        raise RuntimeError(
            f"Expected {ndim + 1}D (unbatched) or {ndim + 2}D (batched) input to {where}, but got "
            f"input of size: {list(input._array.shape)}"
        )
    return bool(given == ndim + 1)


def same_padding(
    where: str, ndim: int, padding: str, stride: Any, dilation: Any, weight: "Tensor"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after the input that "same" or "valid" stands for.

    Raises:
        RuntimeError: for another string, or "same" with a stride.
    """
    if padding not in ("same", "valid"):
        raise RuntimeError(f"{where}: Invalid padding string: {padding!r}; use 'same' or 'valid'")
    if padding == "valid":
        return (0,) * ndim, (0,) * ndim
    if set(per_dim(where, "stride", stride, ndim)) != {1}:
        raise RuntimeError(
            f"{where}: padding='same' is not supported for strided convolutions, got "
            f"stride={stride}; pass numbers"
        )
    kernel = check_tensor(weight, where)._array.shape[2:]
    if len(kernel) != ndim:
        raise RuntimeError(
            f"{where}: expected a weight of {ndim + 2} dimensions, got a {describe(weight)}"
        )
    totals = [each - 1 for each in _reach(kernel, per_dim(where, "dilation", dilation, ndim))]
    before = tuple([total // 2 for total in totals])
    return before, tuple([total - first for total, first in zip(totals, before, strict=True)])
