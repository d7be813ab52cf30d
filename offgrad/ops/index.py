"""Indexing: slices are views; indices and masks gather copies; both have their inverse."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops.convert import as_tensor_of, check_broadcastable, check_tensor, shape_error
from offgrad.ops.reduce import normalize_dim, sum_to_size

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class Slice(Op):
    """Elements at a basic index, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array, index: Any) -> Array:
        """Return the view."""
        self.index, self.shape = index, x.shape
        view: Array = x[index]
        return view

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient where the slice was."""
        return Embed.apply(grad, index=self.index, shape=self.shape)


class Embed(Op):
    """Zeros with a tensor put at a basic index; keeps nothing."""

    def forward(self, x: Array, index: Any, shape: tuple[int, ...]) -> Array:
        """Return the padded copy."""
        self.index = index
        out = memory.zeros(shape, x.dtype)
        out[index] = x
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Take the slice."""
        return Slice.apply(grad, index=self.index)


class _Place(int):
    """Stands in an index for one of the index arrays, by its number."""


class _Indexed(Op):
    """An operation at an advanced index, given as a template and the arrays in its places.

    The arrays are saved as any tensor is: offloaded by policies, and checked for later changes.
    """

    template: tuple[Any, ...]
    count: int

    def index(self, template: tuple[Any, ...], arrays: tuple[Array, ...]) -> tuple[Any, ...]:
        """Save the index; return it for NumPy."""
        self.template, self.count = template, len(arrays)
        self.save(**{f"index_{number}": array for number, array in enumerate(arrays)})
        return tuple([arrays[each] if type(each) is _Place else each for each in template])

    def indices(self) -> "list[Tensor]":
        """Return the index tensors."""
        return [self.saved(f"index_{number}") for number in range(self.count)]

    def with_none(self, *grads: "Tensor | None") -> "tuple[Tensor | None, ...]":
        """Return the gradients, and None for each index."""
        return *grads, *(None,) * self.count


class Index(_Indexed):
    """Elements at an advanced index, a copy; keeps the index."""

    def forward(self, x: Array, *arrays: Array, template: tuple[Any, ...]) -> Array:
        """Return the gathered copy."""
        self.shape = x.shape
        result = x[self.index(template, arrays)]
        out = memory.empty(result.shape, result.dtype)
        np.copyto(out, result)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient to where it was taken from."""
        options = {"template": self.template, "shape": self.shape}
        return self.with_none(IndexAdd.apply(grad, *self.indices(), **options))


class IndexAdd(_Indexed):
    """Zeros with a tensor added at an advanced index, repeated indices summed; keeps the index."""

    def forward(
        self, x: Array, *arrays: Array, template: tuple[Any, ...], shape: tuple[int, ...]
    ) -> Array:
        """Return the scattered sum."""
        out = memory.zeros(shape, x.dtype)
        np.add.at(out, self.index(template, arrays), x)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Gather."""
        return self.with_none(Index.apply(grad, *self.indices(), template=self.template))


class IndexPut(_Indexed):
    """x with values put at an index; keeps the index."""

    def forward(self, x: Array, values: Array, *arrays: Array, template: tuple[Any, ...]) -> Array:
        """Return the changed copy."""
        self.shape = values.shape
        out = memory.copy(x)
        out[self.index(template, arrays)] = values
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Values get the gradient at the index, x gets it elsewhere."""
        need_x, need_values = self.needs_input_grad[:2]
        indices = self.indices()
        grad_x = grad_values = None
        if need_x:
            zero = grad.new_zeros(())
            grad_x = IndexPut.apply(grad, zero, *indices, template=self.template)
        if need_values:
            taken = _at(grad, self.template, indices)
            grad_values = sum_to_size(taken, self.shape)
        return self.with_none(grad_x, grad_values)


class Gather(Op):
    """Elements at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, dim: int) -> Array:
        """Return the gathered copy."""
        self.dim, self.shape = dim, x.shape
        self.save(index=index)
        return x[_grid(index, dim)]

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient to where it was taken from."""
        index = self.saved("index")
        return scatter_add(grad.new_zeros(self.shape), self.dim, index, grad), None


class ScatterAdd(Op):
    """x with a source added at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, source: Array, dim: int) -> Array:
        """Return the sum."""
        self.dim, self.shape = dim, source.shape
        self.save(index=index)
        out = memory.copy(x)
        part = source[tuple(slice(size) for size in index.shape)]
        np.add.at(out, _grid(index, dim), part)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """x gets the gradient; the source gathers it."""
        need_x, _, need_source = self.needs_input_grad
        index = self.saved("index")
        grad_source = None
        if need_source:
            grad_source = gather(grad, self.dim, index)
            if index.shape != self.shape:
                grad_source = Embed.apply(
                    grad_source, index=tuple(slice(n) for n in index.shape), shape=self.shape
                )
        return grad if need_x else None, None, grad_source


class MaskedFill(Op):
    """x with a number where the mask holds; keeps the mask."""

    def forward(self, x: Array, mask: Array, value: Any) -> Array:
        """Return the filled copy."""
        self.save(mask=mask)
        self.shape = x.shape
        out = memory.empty(np.broadcast_shapes(x.shape, mask.shape), x.dtype)
        np.copyto(out, x)
        out[np.broadcast_to(mask, out.shape)] = value
        return out

    def backward(self, grad: "Tensor") -> Any:
        """No gradient where it was filled."""
        return sum_to_size(masked_fill(grad, self.saved("mask"), 0), self.shape), None


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    grid = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    grid[dim] = index
    return tuple(grid)


def _parse(index: Any) -> "tuple[tuple[Any, ...], list[Tensor]]":
    """Return `index` with places for its arrays, and these; a basic index has none."""
    template: list[Any] = []
    arrays: list[Tensor] = []

    def place(tensor: "Tensor") -> None:
        template.append(_Place(len(arrays)))
        arrays.append(tensor)

    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, TensorBase):
            array = item._array
            if array.dtype.kind not in "biu":
                raise IndexError(
                    f"tensors used as indices must be integer or bool, got a {describe(item)}"
                )
            if array.dtype == np.uint8:
                place(wrap(array.astype(np.bool_)))  # PyTorch's masks before it had bools
            elif array.ndim == 0 and array.dtype != np.bool_:
                template.append(int(array))
            else:
                place(item)  # type: ignore[arg-type]
        elif isinstance(item, list | np.ndarray | bool):
            # A copy: the caller may change it before backward.
            place(wrap(np.array(item)))
        elif item is None or item is Ellipsis or isinstance(item, int | np.integer):
            template.append(item)
        elif isinstance(item, slice):
            if item.step is not None and item.step <= 0:
                raise ValueError(
                    f"the step of a slice must be positive, got {item.step}; use flip()"
                )
            bounds = (item.start, item.stop, item.step)
            template.append(slice(*(each if each is None else int(each) for each in bounds)))
        else:
            raise TypeError(
                "an index is made of ints, slices, None, ..., tensors and lists, got "
                f"{type(item).__name__}"
            )
    if not arrays and not any(each is Ellipsis for each in template):
        # Even a single element is an array then, and a view.
        template.append(Ellipsis)
    return tuple(template), arrays


def _at(input: "Tensor", template: tuple[Any, ...], arrays: "list[Tensor]") -> "Tensor":
    if arrays:
        return Index.apply(input, *arrays, template=template)
    return Slice.apply(input, index=template)


def getitem(input: "Tensor", index: Any) -> "Tensor":
    """Return ``input[index]``: a view for ints, slices, None and ``...``; a copy for tensors and
    lists.

    Raises:
        IndexError: if the index does not fit.
    """
    template, arrays = _parse(index)
    try:
        return _at(input, template, arrays)
    except IndexError as error:
        raise IndexError(f"cannot index a {describe(input)}: {error}") from None


def index_put(input: "Tensor", index: Any, values: Any) -> "Tensor":
    """Return a copy of `input` with `values` at `index`, broadcast to fit."""
    template, arrays = _parse(index)
    source = as_tensor_of(values, input._array.dtype, "index_put")
    try:
        return IndexPut.apply(input, source, *arrays, template=template)
    except IndexError as error:
        raise IndexError(f"cannot index a {describe(input)}: {error}") from None
    except ValueError as error:
        raise RuntimeError(
            f"cannot put a {describe(source)} into a {describe(input)}: {error}"
        ) from None


def _check_index(
    input: "Tensor", axis: int, index: "Tensor", where: str, *others: "Tensor"
) -> None:
    if index._array.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: the index must be an integer tensor, got a {describe(index)}")
    if index._array.ndim != max(input._array.ndim, 1):
        raise RuntimeError(
            f"{where}: index and tensor must have as many dimensions, got a {describe(index)} for "
            f"a {describe(input)}"
        )
    size = input._array.shape[axis] if input._array.ndim else 1
    for other in others:
        for at, (have, room) in enumerate(zip(index._array.shape, other._array.shape, strict=True)):
            if have > room and (at != axis or other is not input):
                raise shape_error(where, "the index must not be larger", index, other)
    if index._array.size and (index._array.min() < 0 or index._array.max() >= size):
        raise RuntimeError(
            f"{where}: indices must be from 0 to {size - 1}, got {index._array.min()} to "
            f"{index._array.max()}"
        )


def gather(input: "Tensor", dim: int, index: "Tensor") -> "Tensor":
    """Return ``out[i][j] = input[index[i][j]][j]`` (for dim 0), of the shape of `index`."""
    axis = normalize_dim(dim, check_tensor(input, "gather")._array.ndim, "gather")
    _check_index(input, axis, index, "gather", input)
    return Gather.apply(input, index, dim=axis)


def scatter_add(input: "Tensor", dim: int, index: "Tensor", src: "Tensor") -> "Tensor":
    """Return `input` with `src` added at `index` along `dim`; repeated indices are summed."""
    axis = normalize_dim(dim, check_tensor(input, "scatter_add")._array.ndim, "scatter_add")
    if src._array.dtype != input._array.dtype:
        raise shape_error("scatter_add", "dtypes must be equal", input, src)
    _check_index(input, axis, index, "scatter_add", input, src)
    return ScatterAdd.apply(input, index, src, dim=axis)


def index_select(input: "Tensor", dim: int, index: "Tensor") -> "Tensor":
    """Return the entries `index`, a vector, along `dim`."""
    axis = normalize_dim(dim, check_tensor(input, "index_select")._array.ndim, "index_select")
    return getitem(input, (slice(None),) * axis + (index,))


def narrow(input: "Tensor", dim: int, start: int, length: int) -> "Tensor":
    """Return a view of `length` entries along `dim` from `start`."""
    axis = normalize_dim(dim, check_tensor(input, "narrow")._array.ndim, "narrow")
    size = input._array.shape[axis]
    if start < 0:
        start += size
    if length < 0 or not 0 <= start <= size - length:
        raise RuntimeError(
            f"narrow: start and length must lie within the size {size} of dim {axis}, got {start} "
            f"and {length}"
        )
    return getitem(input, (slice(None),) * axis + (slice(start, start + length),))


def select(input: "Tensor", dim: int, index: int) -> "Tensor":
    """Return a view of entry `index` along `dim`, without that dimension."""
    axis = normalize_dim(dim, check_tensor(input, "select")._array.ndim, "select")
    return getitem(input, (slice(None),) * axis + (int(index),))


def masked_fill(input: "Tensor", mask: "Tensor", value: Any) -> "Tensor":
    """Return a copy of `input` with the number `value` where `mask`, a bool tensor, holds."""
    if check_tensor(mask, "masked_fill")._array.dtype != np.bool_:
        raise RuntimeError(f"masked_fill needs a bool mask, got a {describe(mask)}")
    check_broadcastable("masked_fill", input, mask)
    if isinstance(value, TensorBase):
        value = value.item()  # type: ignore[attr-defined]
    return MaskedFill.apply(check_tensor(input, "masked_fill"), mask, value=value)
