"""Indexing by tensors and lists gathers copies; assigning by them scatters.

An index has two parts: ints, slices, None and ``...`` come first and give a view; tensors and lists
then index the view, as in PyTorch. NumPy converts an int beside an array to an array.
"""

import re
import warnings
from collections.abc import Sequence
from math import prod
from operator import index as index_of
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offgrad import kernels, memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dtypes import as_tensor_of, category, element
from offgrad.ops._core.inplace_forms import copy_, inplace, is_general, is_recorded
from offgrad.ops._core.updates import Update
from offgrad.ops._creation.from_data import tensor
from offgrad.ops._reduction.sums import sum_to_size
from offgrad.ops._shape.slicing import ALL, basic, slice_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.saved_tensor import SavedTensor

__all__ = [
    "getitem",
    "index_put",
    "index_put_",
    "setitem",
]


class _Placeholder(int):
    """The number of an index array, in its place in an index."""


class _Indexed(Op):
    """An operation at an advanced index: a template with placeholders, and arrays for these.

    The arrays are saved as other tensors: policies place them, and later changes are detected.
    """

    template: tuple[Any, ...]
    count: int

    def index(self, template: tuple[Any, ...], arrays: tuple[Array, ...]) -> tuple[Any, ...]:
        """Save the index; return it for NumPy."""
        self.template, self.count = template, len(arrays)
        self.save(**{f"index_{number}": array for number, array in enumerate(arrays)})
        return _filled(template, arrays)

    def indices(self) -> "list[Tensor]":
        """Return the index tensors."""
        return [self.saved(f"index_{number}") for number in range(self.count)]

    @property
    def _saved_indices(self) -> "tuple[Tensor | None, ...]":
        """PyTorch's attribute: an index, or None, for each dimension up to the last one indexed."""
        return tuple(None if raw is None else raw.unpack() for raw in self._raw_saved_indices)

    @property
    def _raw_saved_indices(self) -> "tuple[SavedTensor | None, ...]":
        """The saved tensors of `_saved_indices`."""
        return tuple(
            self._saved[f"index_{each}"] if type(each) is _Placeholder else None
            for each in self.template
        )

    def with_none(self, *grads: "Tensor | None") -> "tuple[Tensor | None, ...]":
        """Return the gradients, and None for each index."""
        return *grads, *(None,) * self.count


def _filled(template: tuple[Any, ...], arrays: Sequence[Array]) -> tuple[Any, ...]:
    """Return NumPy's index of a template."""
    return tuple([arrays[each] if type(each) is _Placeholder else each for each in template])


def _is_along_one(template: tuple[Any, ...], arrays: tuple[Array, ...]) -> bool:
    """Return whether one dimension alone is indexed, the last of `template`, by integers."""
    is_alone = template[:-1] == (ALL,) * (len(template) - 1)
    return is_alone and arrays[-1].dtype.kind in "iu"


class Index(_Indexed):
    """Elements at an advanced index, a copy; keeps the index."""

    def forward(self, x: Array, *arrays: Array, template: tuple[Any, ...]) -> Array:
        self.self_sym_sizes = x.shape
        index = self.index(template, arrays)
        at, dim = arrays[-1], len(template) - 1
        if (
            _is_along_one(template, arrays)
            and kernels.is_large(at.size * (x.size // max(1, x.shape[dim])))
            and kernels.are_within(at, -x.shape[dim], x.shape[dim])
        ):
            out = memory.empty((*x.shape[:dim], *at.shape, *x.shape[dim + 1 :]), x.dtype)
            kernels.take_rows(x, at, dim, out)
            return out
        result = x[index]
        out = memory.empty(result.shape, result.dtype)
        np.copyto(out, result)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at the index of its element."""
        options = {"template": self.template, "shape": self.self_sym_sizes}
        return self.with_none(IndexBackward.apply(grad, *self.indices(), **options))


class IndexBackward(_Indexed):
    """Zeros with a tensor added at an advanced index, repeated indices summed; keeps the index."""

    torch_name = "IndexPutImplBackward0"

    def forward(
        self, x: Array, *arrays: Array, template: tuple[Any, ...], shape: tuple[int, ...]
    ) -> Array:
        where = self.index(template, arrays)
        if _is_along_one(template, arrays):
            out = memory.empty(shape, x.dtype)
            kernels.add_rows(memory.contiguous(x), arrays[-1], len(template) - 1, out)
            return out
        out = memory.zeros(shape, x.dtype)
        if all(each.dtype == np.bool_ for each in arrays):
            out[where] = x  # masks choose no element twice
        else:
            kernels.add_at(out, where, x)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return self.with_none(Index.apply(grad, *self.indices(), template=self.template))


def _add_at(x: Array, index: tuple[Any, ...], values: Array) -> None:
    """Add values at an advanced index, in place."""
    at, dim = index[-1], len(index) - 1
    picked = (*x.shape[:dim], *np.shape(at), *x.shape[dim + 1 :])
    if (
        not kernels.is_large(prod(picked))
        or not x.flags.c_contiguous
        or any(type(each) is not slice for each in index[:-1])
        or at.dtype.kind not in "iu"
        or not kernels.are_within(at, -x.shape[dim], x.shape[dim])
    ):
        kernels.add_at(x, index, values)
        return
    flat = np.where(at < 0, at + x.shape[dim], at).reshape(-1)
    source = memory.contiguous(np.broadcast_to(values, picked))
    source = source.reshape(*x.shape[:dim], flat.size, *x.shape[dim + 1 :])
    kernels.scatter_add(x, flat, source, dim)


class IndexPut(Update, _Indexed):
    """x with values put at an index, or added there; keeps the index.

    `view` is the basic part of the index, `template` the advanced part; either may be empty.
    """

    in_place_name = "index_put_"
    changes_any_layout = True

    def setup_context(
        self,
        x: Array,
        values: Array,
        *arrays: Array,
        view: tuple[Any, ...],
        template: tuple[Any, ...],
        accumulate: bool,
    ) -> None:
        self.shape, self.view, self.accumulate = values.shape, view, accumulate
        self.index(template, arrays)

    def change(
        self,
        out: Array,
        values: Array,
        *arrays: Array,
        view: tuple[Any, ...],
        template: tuple[Any, ...],
        accumulate: bool,
    ) -> None:
        part, index = out[view], _filled(template, arrays)
        if not accumulate:
            part[index] = values
        elif index:
            _add_at(part, index, values)
        else:
            part += values

    def backward(self, grad: "Tensor") -> Any:
        """Values get the gradient at the index; x gets the rest, or all of it if accumulating."""
        need_x, need_values = self.needs_input_grad[:2]
        indices = self.indices()
        grad_x = grad_values = None
        if need_x:
            grad_x = grad
            if not self.accumulate:
                where: Any = {"view": self.view, "template": self.template, "accumulate": False}
                grad_x = IndexPut.apply(grad, grad.new_zeros(()), *indices, **where)
        if need_values:
            grad_at_index = _at(grad, self.view, self.template, indices)
            grad_values = sum_to_size(grad_at_index, self.shape)
        return self.with_none(grad_x, grad_values)


def as_tuple(index: Any) -> tuple[Any, ...]:
    """Return an index as a tuple.

    As in PyTorch a list of less than 32 items, one of them a list, tensor, slice, None or ``...``,
    is read as the tuple of its items, with a warning.
    """
    if isinstance(index, tuple):
        return index
    if (
        isinstance(index, list)
        and len(index) < 32
        and any(each is None or each is Ellipsis or isinstance(each, _NESTED) for each in index)
    ):
        warnings.warn(
            "a list of lists, tensors or slices is read as one index for each dimension, as in "
            "PyTorch: write x[tuple(index)] for that, or x[tensor(index)] for one index tensor",
            UserWarning,
            stacklevel=3,
        )
        return tuple(index)
    return (index,)


_NESTED = (list, tuple, range, np.ndarray, TensorBase, slice)


_Parsed: TypeAlias = "tuple[tuple[Any, ...], tuple[Any, ...], list[Tensor]]"


def parse(index: Any) -> _Parsed:
    """Return the two parts of an index, and the tensors of the second.

    Returns:
        An index that gives a view; a template of the index into that view, with a placeholder for
        each tensor, or empty without tensors; the tensors.

    Raises:
        IndexError: for invalid indices, and for tensors that are neither integer nor bool.
        ValueError: for slices with a negative step.
    """
    view: list[Any] = []
    template: list[Any] = []
    arrays: list[Tensor] = []
    for item in as_tuple(index):
        kind = type(item)
        if kind is int:
            view.append(item)
        elif item is None or item is Ellipsis:
            view.append(item)
            template.append(ALL if item is None else item)
        elif kind is slice:
            step = item.step
            if step is not None and _bound(step) <= 0:  # type: ignore[operator]
                raise ValueError(f"slice step must be greater than zero, got {step}; use flip()")
            view.append(slice(*map(_bound, (item.start, item.stop, step))))
            template.append(ALL)
        elif isinstance(item, TensorBase):
            array = item._array
            if not array.ndim and array.dtype.kind == "i":
                view.append(int(array))
                continue
            if array.dtype not in _INDEX_DTYPES:
                raise IndexError(
                    "tensors used as indices must be long, int, byte or bool tensors, got a "
                    f"{describe(item)}"
                )
            if array.dtype == np.uint8:
                warn_program("indexing with dtype uint8 is deprecated; use a bool tensor as a mask")
                item = wrap(array.astype(np.bool_))
            if array.ndim or item._array.dtype == np.bool_:
                _add_tensor(item, view, template, arrays)
            else:
                view.append(int(array))
        elif isinstance(item, (list, tuple, range, np.ndarray, bool)):
            # A copy: the caller may change it before backward.
            array = tensor(item)._array
            if array.dtype.kind in "iu" or not array.size:
                array = array.astype(np.int64, copy=False)
            if array.dtype.kind not in "ib":
                raise IndexError(
                    f"lists and arrays used as indices must be integer or bool, got {array.dtype}"
                )
            _add_tensor(wrap(array), view, template, arrays)
        elif isinstance(item, (int, np.integer)):
            view.append(item)
        else:
            kind = TypeError if isinstance(item, str) else IndexError  # as PyTorch
            raise kind(
                "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables "
                "are valid indices, and lists of them, got "
                f"{type(item).__name__}"
            )
    if not arrays:
        return tuple(view), (), []
    return tuple(view), tuple(template), arrays


_INDEX_DTYPES = frozenset(map(np.dtype, (np.int64, np.int32, np.bool_, np.uint8)))


def _bound(bound: Any) -> int | None:
    if bound is None:
        return None
    try:
        return index_of(bound)
    except TypeError:
        raise TypeError(
            f"slice indices must be integers, tensors of one or None, got {bound!r}"
        ) from None


def _add_tensor(
    one: "Tensor", view: list[Any], template: list[Any], arrays: "list[Tensor]"
) -> None:
    # The view keeps the dimensions that the tensor indexes.
    view.extend([ALL] * one._array.ndim if one._array.dtype == np.bool_ else [ALL])
    template.append(_Placeholder(len(arrays)))
    arrays.append(one)


def _at(
    input: "Tensor", view: tuple[Any, ...], template: tuple[Any, ...], arrays: "list[Tensor]"
) -> "Tensor":
    if not arrays:
        return basic(input, view)
    if any(item is not ALL and item != ALL and item is not Ellipsis for item in view):
        input = basic(input, view)
    return Index.apply(
        input, *arrays, template=_expand_ellipsis(template, arrays, input._array.ndim)
    )


def _expand_ellipsis(
    template: tuple[Any, ...], arrays: "list[Tensor]", ndim: int
) -> tuple[Any, ...]:
    """Return `template` up to its last tensor, with ``...`` replaced by whole dimensions."""
    masks = [each._array.ndim - 1 for each in arrays if each._array.dtype == np.bool_]
    missing = ndim - (len(template) - (Ellipsis in template)) - sum(masks)
    if missing < 0:
        raise IndexError(f"too many indices for tensor of dimension {ndim}")
    if Ellipsis in template:
        at = template.index(Ellipsis)
        template = (*template[:at], *[ALL] * missing, *template[at + 1 :])
    end = max(position for position, item in enumerate(template) if type(item) is _Placeholder)
    return template[: end + 1]


def getitem(input: "Tensor", index: Any) -> "Tensor":
    """Return ``input[index]``, a view for ints, slices, None and ``...``, else a copy.

    Raises:
        IndexError: if the index does not fit.
    """
    view, template, arrays = parse(index)
    try:
        if type(index) is slice:
            return slice_of(input, 0, index)
        return _at(input, view, template, arrays)
    except IndexError as error:
        raise _explained(error, input, arrays) from None


def setitem(input: "Tensor", index: Any, value: Any) -> None:
    """Write `value`, a tensor or a number, broadcast, at an index of `input`.

    Raises:
        IndexError: if the index does not fit.
        RuntimeError: if the value does not fit, or `input` must not be changed in place.
    """
    while isinstance(value, TensorBase) and value._array.ndim and value._array.shape[0] == 1:
        value = value[0]  # type: ignore[index]  # as PyTorch drops leading sizes of 1
    index = as_tuple(index)
    view, template, arrays = parse(index)
    if arrays:
        if isinstance(value, TensorBase) and bool in map(type, index):
            # A copy in PyTorch, which converts.
            value = as_tensor_of(value, input._array.dtype, "setitem")  # type: ignore[arg-type]
        inplace(_index_put, input, (view, template, arrays), value, False)
        return
    if not isinstance(value, TensorBase):
        value = wrap(element(value, input._array.dtype, "setitem"))
    if is_general(input) or is_recorded(input, value):
        target = getitem(input, index)
    else:
        try:
            target = wrap(input._array[_with_ellipsis(view)], input._storage)
        except IndexError as error:
            raise _explained(error, input, arrays) from None
    copy_(target, value, name="setitem")


def _source(
    input: "Tensor", values: TensorBase, arrays: "list[Tensor]", accumulate: bool
) -> "Tensor":
    """Return the values in the dtype of `input`.

    As in PyTorch one value for one mask may have any shape, and converts, but not from complex to
    real.

    Raises:
        RuntimeError: for values of another dtype.
    """
    dtype, given = input._array.dtype, values._array.dtype
    fills = len(arrays) == 1 and arrays[0]._array.dtype == np.bool_ and arrays[0]._array.ndim > 0
    converts = fills and values._array.size == 1 and not accumulate
    if given != dtype and not (converts and (category(given) < 3 or category(dtype) == 3)):
        raise RuntimeError(
            "index_put: Index put requires the source and destination dtypes match, got a "
            f"{describe(values)} for a {describe(input)}; convert the values with .to()"
        )
    source = as_tensor_of(values, dtype, "index_put")  # type: ignore[arg-type]
    return source.reshape(()) if converts and source._array.ndim > 1 else source


def _check_ndim(
    source: "Tensor", shape: tuple[int, ...], template: tuple[Any, ...], arrays: "list[Tensor]"
) -> None:
    """Raise ValueError if the source has more dimensions than what a template picks of `shape`:
    NumPy would drop those of size 1.
    """
    index = [each._array for each in arrays]
    if any(type(each) is not np.ndarray for each in index):
        return
    picked = np.broadcast_to(np.False_, shape)[_filled(template, index)].shape
    if len(picked) < source._array.ndim:
        raise ValueError(
            f"shape mismatch: value array of shape {source._array.shape} could not be broadcast to "
            f"indexing result of shape {picked}"
        )


def index_put(input: "Tensor", indices: Any, values: Any, accumulate: bool = False) -> "Tensor":
    """Return a copy of `input` with `values` at `indices`, broadcast to fit.

    Args:
        input: the tensor.
        indices: a tuple of tensors, or any index of a tensor.
        values: a tensor or a number.
        accumulate: add the values to the elements; repeated indices are summed.

    Raises:
        IndexError: if the index does not fit.
        RuntimeError: if the shapes or the dtypes do not fit.
    """
    return _index_put(input, _parse_indices(indices), values, accumulate)


def index_put_(input: "Tensor", indices: Any, values: Any, accumulate: bool = False) -> "Tensor":
    """Put `values` at `indices` of `input` in place, as `index_put` does; return `input`.

    Raises:
        IndexError, RuntimeError: as `index_put`, and if `input` must not be changed in place.
    """
    return inplace(_index_put, input, _parse_indices(indices), values, accumulate)


def _parse_indices(indices: Any) -> _Parsed:
    if isinstance(indices, list) and all(isinstance(each, TensorBase) for each in indices):
        indices = tuple(indices)
    return parse(indices)


def _index_put(input: "Tensor", parsed: _Parsed, values: Any, accumulate: bool) -> "Tensor":
    """Return a copy of `input` with `values` at an index."""
    view, template, arrays = parsed
    if isinstance(values, TensorBase):
        source = _source(input, values, arrays, accumulate)
    else:
        source = wrap(element(values, input._array.dtype, "index_put"))
    view = _with_ellipsis(view)
    try:
        if arrays:
            template = _expand_ellipsis(template, arrays, input._array[view].ndim)
        if source._array.ndim > 1 and source._array.shape[0] == 1:
            _check_ndim(source, input._array[view].shape, template, arrays)
        where: Any = {"view": view, "template": template, "accumulate": accumulate}
        return IndexPut.apply(input, source, *arrays, **where)
    except IndexError as error:
        raise _explained(error, input, arrays) from None
    except (ValueError, TypeError) as error:
        if isinstance(error, TypeError) and "boolean array indexing" not in str(error):
            raise
        raise RuntimeError(
            f"cannot put a {describe(source)} into a {describe(input)}: {_in_our_words(error)}"
        ) from None


def _explained(error: IndexError, input: "Tensor", arrays: "list[Tensor]") -> IndexError:
    """Return an error for an index that does not fit, from NumPy's."""
    text = _in_our_words(error)
    mask_size = re.search(r"along axis (\d+); .* boolean axis is (\d+)", text)
    if not input._array.ndim and not arrays:
        text = "invalid index of a 0-dim tensor; use item() for its number"
    elif text.startswith("too many indices"):
        text = f"too many indices for tensor of dimension {input._array.ndim}"
    elif mask_size is not None:
        masks = [each._array.shape for each in arrays if each._array.dtype == np.bool_]
        axis, size = map(int, mask_size.groups())
        mask = next((each for each in masks if size in each), (size,))
        at = mask.index(size)
        text = (
            f"The shape of the mask {list(mask)} at index {at} does not match the shape of the "
            f"indexed tensor {list(input._array.shape)} at index {axis}"
        )
    return IndexError(f"cannot index a {describe(input)}: {text}")


def _in_our_words(error: Exception) -> str:
    """Return the text of NumPy's error with shapes as lists, and tensors and their dimensions."""
    text = re.sub(r"\((\d[\d, ]*?),?\)", r"[\1]", str(error).strip()).replace("] [", "], [")
    text = text.replace("for axis", "for dimension").replace("arrays could", "tensors could")
    return text.replace("value array", "value tensor").replace(f"could {_NOT}", f"can{_NOT}")


_NOT = "not be broadcast to indexing result"


def _with_ellipsis(view: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a basic index that gives an array, which can be written to, also of one element."""
    return view if Ellipsis in view else (*view, Ellipsis)
