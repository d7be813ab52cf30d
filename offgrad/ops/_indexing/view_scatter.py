"""Copies of a tensor in which another tensor replaces a view."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import integer, integers, normalize_dim
from offgrad.ops._core.dtypes import as_tensor_of, check_tensor
from offgrad.ops._shape.diagonals import Diagonal
from offgrad.ops._shape.slicing import END, Select, Slice
from offgrad.ops._shape.strided import AsStrided

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"]


class _ViewScatter(Op):
    """A copy of x with a source in place of a view of it; keeps nothing."""

    view: ClassVar[type[Op]]

    def forward(self, x: Array, src: Array, **parameters: Any) -> Array:
        self.parameters = parameters
        self.__dict__.update(parameters)
        out = memory.copy(x)
        part = self.view().forward(out, **parameters)
        if part.shape != src.shape:
            raise RuntimeError(
                f"{self.name()}: the source must have the shape {list(part.shape)} of the view it "
                f"replaces, got shape {list(src.shape)}"
            )
        part[...] = src
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The source gets the view of the gradient, x gets the rest."""
        need_x, need_src = self.needs_input_grad
        part = self.view.apply(grad.contiguous(), **self.parameters)
        zeros = part.new_zeros(part.shape)
        return (
            type(self).apply(grad, zeros, **self.parameters) if need_x else None,
            part.clone() if need_src else None,
        )


class SliceScatter(_ViewScatter):
    """A copy of x with a source in place of a slice; keeps nothing."""

    view = Slice


class SelectScatter(_ViewScatter):
    """A copy of x with a source in place of one entry; keeps nothing."""

    view = Select


class DiagonalScatter(_ViewScatter):
    """A copy of x with a source in place of a diagonal; keeps nothing."""

    view = Diagonal


class AsStridedScatter(_ViewScatter):
    """A copy of x with a source in place of a strided view; keeps nothing."""

    view = AsStrided


def _put(kind: type[Op], input: "Tensor", src: "Tensor", where: str, **parameters: Any) -> "Tensor":
    source = as_tensor_of(check_tensor(src, where), input._array.dtype, where)
    return kind.apply(input, source, **parameters)


def slice_scatter(
    input: "Tensor",
    src: "Tensor",
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> "Tensor":
    """Return a copy of `input` with `src` in place of the slice along `dim`.

    Raises:
        RuntimeError: if `src` has another shape than the slice.
    """
    axis = normalize_dim(dim, check_tensor(input, "slice_scatter")._array.ndim, "slice_scatter")
    step = integer(step, "slice_scatter", "step")
    if step <= 0:
        raise RuntimeError(f"slice_scatter: step must be positive, got {step}")
    bounds = {
        "start": 0 if start is None else integer(start, "slice_scatter", "start"),
        "end": END if end is None else integer(end, "slice_scatter", "end"),
    }
    return _put(SliceScatter, input, src, "slice_scatter", dim=axis, step=step, **bounds)


def select_scatter(input: "Tensor", src: "Tensor", dim: int, index: int) -> "Tensor":
    """Return a copy of `input` with `src` in place of entry `index` along `dim`.

    Raises:
        RuntimeError: if `src` has another shape than the entry.
        IndexError: if there is no such entry.
    """
    axis = normalize_dim(dim, check_tensor(input, "select_scatter")._array.ndim, "select_scatter")
    entry = integer(index, "select_scatter", "index")
    return _put(SelectScatter, input, src, "select_scatter", dim=axis, index=entry)


def diagonal_scatter(
    input: "Tensor", src: "Tensor", offset: int = 0, dim1: int = 0, dim2: int = 1
) -> "Tensor":
    """Return a copy of `input` with `src` in place of a diagonal.

    Raises:
        RuntimeError: if `src` has another shape than the diagonal.
    """
    for dim in (dim1, dim2):
        normalize_dim(dim, check_tensor(input, "diagonal_scatter")._array.ndim, "diagonal_scatter")
    offset = integer(offset, "diagonal_scatter", "offset")
    where = {"offset": offset, "dim1": int(dim1), "dim2": int(dim2)}
    return _put(DiagonalScatter, input, src, "diagonal_scatter", **where)


def as_strided_scatter(
    input: "Tensor",
    src: "Tensor",
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> "Tensor":
    """Return a copy of `input` with `src` in place of a strided view of it.

    Raises:
        RuntimeError: if `input` is not contiguous (its copy would have other strides), or if the
            view leaves the memory.
    """
    x = check_tensor(input, "as_strided_scatter")._array
    size = integers(size, "as_strided_scatter", "size")
    stride = integers(stride, "as_strided_scatter", "stride")
    offset = 0
    if storage_offset is not None:
        offset = integer(storage_offset, "as_strided_scatter", "storage_offset")
    reach = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not x.flags.c_contiguous or (0 not in size and not 0 <= reach < x.size):
        raise RuntimeError(
            "as_strided_scatter: the input must be contiguous and hold the view, got size "
            f"{list(size)}, stride {list(stride)} and storage_offset {offset} for a "
            f"{describe(input)}"
        )
    where = {"size": size, "stride": stride, "offset": offset}
    return _put(
        AsStridedScatter, input, src, "as_strided_scatter", storage_offset=storage_offset, **where
    )
