"""Views by strides: windows, and any geometry."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, numpy_dtype, wrap
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.dims import integer, integers, normalize_dim
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["as_strided", "unfold"]


class _ArrayInterface:
    """NumPy's array interface of a view at any offset of an array's memory."""

    def __init__(self, base: Array, shape: tuple[int, ...], strides: Any, shift: int) -> None:
        self.base = base
        start = base.__array_interface__["data"][0] + shift
        self.__array_interface__ = {
            "version": 3,
            "data": (start, not base.flags.writeable),
            "typestr": base.dtype.str,
            "shape": shape,
            "strides": strides,
        }


class _Geometry(NamedTuple):
    """Where the elements of an array lie; strides and offset count elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def positions(self) -> Array:
        """Return the position of each element."""
        total = np.full(self.shape, self.offset, np.int64)
        for axis, (size, step) in enumerate(zip(self.shape, self.stride, strict=True)):
            trailing = (1,) * (len(self.shape) - axis - 1)
            total += (np.arange(size) * step).reshape(-1, *trailing)
        return total

    @property
    def span(self) -> tuple[int, int]:
        """The first position, and the one after the last."""
        if 0 in self.shape:
            return 0, 0
        ends = [(size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)]
        below, above = (sum(limit(end, 0) for end in ends) for limit in (min, max))
        return self.offset + below, self.offset + above + 1

    @property
    def overlaps(self) -> bool:
        """Whether two elements may have the same position."""
        if 0 in self.shape:
            return False
        reach = 0
        for step, size in sorted(
            (abs(step), size) for step, size in zip(self.stride, self.shape, strict=True)
        ):
            if size > 1 and step <= reach:
                return True
            reach += (size - 1) * step
        return False

    def of(self, flat: Array, low: int) -> Array:
        """Return the view of a vector whose first element has position `low`."""
        strides = [step * flat.itemsize for step in self.stride]
        start = flat[0 if 0 in self.shape else self.offset - low :]
        return np.lib.stride_tricks.as_strided(start, self.shape, strides)


class AsStrided(Op):
    """Any geometry over the memory of a tensor, a view; keeps nothing.

    `offset` counts elements from the tensor's first, so that the parameters describe the same
    view of any array of its geometry.
    """

    is_view = True
    reaches_outside = True

    def forward(
        self,
        x: Array,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        storage_offset: int | None,
    ) -> Array:
        self.size, self.stride, self.storage_offset = size, stride, storage_offset
        self.offset = offset
        self.shape = x.shape
        self.own_stride = tuple(step // x.itemsize for step in x.strides)
        strides = tuple(step * x.itemsize for step in stride)
        view = np.asarray(_ArrayInterface(x, size, strides, offset * x.itemsize))
        # NumPy's protocol cannot describe some dtypes.
        view = view.view(x.dtype)
        return view.view(MetaArray) if type(x) is MetaArray else view

    def backward(self, grad: "Tensor") -> Any:
        """Sum the gradients at each memory position; elements at the same one get equal shares."""
        mine = _Geometry(self.shape, self.own_stride, 0)
        taken = _Geometry(self.size, self.stride, self.offset)
        if not (mine.overlaps or taken.overlaps):
            return Rearrange.apply(grad, source=taken, target=mine)
        view_positions, own_positions = taken.positions(), mine.positions()
        low = min((each.min() for each in (view_positions, own_positions) if each.size), default=0)
        high = max(
            (each.max() for each in (view_positions, own_positions) if each.size), default=-1
        )
        zeros = grad.new_zeros(int(high - low + 1))
        flat = wrap((view_positions - low).reshape(-1))
        total = zeros.index_put((flat,), grad.reshape(view_positions.size), accumulate=True)
        result = (
            total[wrap(own_positions - low)] if own_positions.size else grad.new_zeros(self.shape)
        )
        shared = (
            np.bincount((own_positions - low).reshape(-1))[own_positions - low]
            if own_positions.size
            else own_positions
        )
        return result / wrap(shared.astype(numpy_dtype(grad))) if (shared > 1).any() else result


class Rearrange(Op):
    """Elements placed in zeros by one geometry, and read by another; keeps nothing."""

    torch_name = "AsStridedBackward"

    def forward(self, x: Array, source: _Geometry, target: _Geometry) -> Array:
        """Return the elements at the positions of `target`; 0 where `source` has none."""
        self.source, self.target = source, target
        low = min(source.span[0], target.span[0])
        flat = memory.zeros((max(source.span[1], target.span[1]) - low,), x.dtype)
        if type(flat) is MetaArray:
            return memory.empty(target.shape, x.dtype)
        source.of(flat, low)[...] = x
        read = target.of(flat, low)
        has_all = read.flags.c_contiguous or read.size == flat.size
        return read if has_all else memory.copy(read)

    def backward(self, grad: "Tensor") -> Any:
        return Rearrange.apply(grad, source=self.target, target=self.source)


class Unfold(Op):
    """Windows along a dimension, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dimension: int, size: int, step: int) -> Array:
        """Return the view; the index within the window is the last dimension."""
        self.self_sym_sizes = x.shape
        self.dimension, self.size, self.step = dimension, size, step
        return windows(x, dimension, size, step)

    def backward(self, grad: "Tensor") -> Any:
        """Sum the gradients of each element over its windows."""
        where = {"dim": self.dimension, "size": self.size, "step": self.step}
        return UnfoldBackward.apply(grad, shape=self.self_sym_sizes, **where)


class UnfoldBackward(Op):
    """The sum of windows at their positions; keeps nothing."""

    def forward(self, grad: Array, shape: tuple[int, ...], dim: int, size: int, step: int) -> Array:
        self.dim, self.size, self.step = dim, size, step
        out = memory.zeros(shape, grad.dtype)
        out_windows = windows(out, dim, size, step)
        for position in range(size):
            # One index of all windows: no element occurs twice.
            out_windows[..., position] += grad[..., position]
        return out

    def backward(self, grad: "Tensor") -> Any:
        return unfold(grad, self.dim, self.size, self.step)


def windows(x: Array, dim: int, size: int, step: int) -> Array:
    """Return the windows of `size` along `dim`, one each `step`, as a last dimension: a view."""
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    strides = (
        *x.strides[:dim],
        x.strides[dim] * step,
        *x.strides[dim + 1 :],
        x.strides[dim],
    )
    return np.lib.stride_tricks.as_strided(x, shape, strides, True, x.flags.writeable)


def unfold(input: "Tensor", dimension: int, size: int, step: int) -> "Tensor":
    """Return a view of the windows of `size` elements along `dimension`, one each `step`.

    Returns:
        The windows replace the dimension; the index within a window is a new last dimension.

    Raises:
        RuntimeError: if no window fits, or `step` is not positive.
    """
    ndim = check_tensor(input, "unfold")._array.ndim
    axis = normalize_dim(dimension, ndim, "unfold")
    length = input._array.shape[axis] if ndim else 1
    size, step = integer(size, "unfold", "size"), integer(step, "unfold", "step")
    if size < 0 or size > length or step <= 0:
        raise RuntimeError(
            f"unfold: maximum size for tensor at dimension {axis} is {length}, and step must be "
            f"positive, but size is {size} and step {step}"
        )
    if not ndim:
        return input.reshape(1)[:size]
    return Unfold.apply(input, dimension=axis, size=size, step=step)


def as_strided(
    input: "Tensor", size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> "Tensor":
    """Return a view of the memory of `input` with any sizes and strides.

    Args:
        input: the tensor that owns the memory.
        size: the sizes of the view.
        stride: the strides of the view, in elements; not negative.
        storage_offset: the position of the first element from the start of the memory, in elements;
            by default that of `input`.

    Raises:
        RuntimeError: if sizes and strides do not fit each other or the view leaves the memory.
    """
    x = check_tensor(input, "as_strided")._array
    shape = integers(size, "as_strided", "size")
    steps = integers(stride, "as_strided", "stride")
    if storage_offset is not None:
        storage_offset = integer(storage_offset, "as_strided", "storage_offset")
    if len(shape) != len(steps) or min((*shape, *steps), default=0) < 0:
        raise RuntimeError(
            "as_strided: mismatch in length of strides and shape, or a negative one: got size "
            f"{list(shape)} and stride {list(steps)}"
        )
    root = input._storage.root
    low, high = np.lib.array_utils.byte_bounds(root)
    start = x.__array_interface__["data"][0]
    offset = 0 if storage_offset is None else storage_offset - (start - low) // x.itemsize
    first = start + offset * x.itemsize
    reach = sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if 0 not in shape and not low <= first <= first + reach * x.itemsize <= high - x.itemsize:
        raise RuntimeError(
            f"as_strided: size {list(shape)} with stride {list(steps)} and storage_offset "
            f"{storage_offset} are out of bounds for storage of this {describe(input)}"
        )
    return AsStrided.apply(
        input, size=shape, stride=steps, offset=offset, storage_offset=storage_offset
    )
