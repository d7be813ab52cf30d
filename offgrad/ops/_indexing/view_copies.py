"""Copies of views: each function returns what the method of its name does, cloned."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad._layout import contiguous_format
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._elementwise.complex_numbers import view_as_complex, view_as_real
from offgrad.ops._shape.slicing import ALL

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "adjoint",
    "alias_copy",
    "as_strided_copy",
    "detach_copy",
    "diagonal_copy",
    "expand_copy",
    "narrow_copy",
    "permute_copy",
    "select_copy",
    "slice_copy",
    "split_copy",
    "split_with_sizes_copy",
    "squeeze_copy",
    "t_copy",
    "transpose_copy",
    "unbind_copy",
    "unfold_copy",
    "unsqueeze_copy",
    "view_as_complex_copy",
    "view_as_real_copy",
    "view_copy",
]


def _copying(name: str) -> Callable[..., Any]:
    """Return the function that copies the view, or views, that the method `name` returns."""

    def run(input: "Tensor", *args: Any, **kwargs: Any) -> Any:
        result = getattr(check_tensor(input, run.__name__), name)(*args, **kwargs)
        if isinstance(result, tuple):
            return tuple([_cloned(each) for each in result])
        return _cloned(result)

    run.__name__ = f"{name}_copy"
    run.__doc__ = f"Return a copy of what the method `{name}` returns."
    return run


def _cloned(view: "Tensor") -> "Tensor":
    return view.clone(memory_format=contiguous_format)


as_strided_copy = _copying("as_strided")
diagonal_copy = _copying("diagonal")
narrow_copy = _copying("narrow")
permute_copy = _copying("permute")
select_copy = _copying("select")
split_copy = _copying("split")
split_with_sizes_copy = _copying("split_with_sizes")
squeeze_copy = _copying("squeeze")
t_copy = _copying("t")
transpose_copy = _copying("transpose")
unbind_copy = _copying("unbind")
unfold_copy = _copying("unfold")
unsqueeze_copy = _copying("unsqueeze")
view_copy = _copying("view")


def alias_copy(input: "Tensor") -> "Tensor":
    """Return a copy of `input`."""
    return check_tensor(input, "alias_copy").clone()


def detach_copy(input: "Tensor") -> "Tensor":
    """Return a copy of `input`, recorded as in PyTorch."""
    return check_tensor(input, "detach_copy").clone()


def expand_copy(input: "Tensor", size: Sequence[int], *, implicit: bool = False) -> "Tensor":
    """Return a copy of `input` repeated to `size`; `implicit` is accepted."""
    return check_tensor(input, "expand_copy").expand(size).clone()


def slice_copy(
    input: "Tensor", dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> "Tensor":
    """Return a copy of the entries `start` to before `end` by `step` along `dim`."""
    x = check_tensor(input, "slice_copy")
    axis = dim if dim >= 0 else dim + x._array.ndim
    return x[(*(ALL,) * axis, slice(start, end, step))].clone()


def view_as_complex_copy(input: "Tensor") -> "Tensor":
    """Return a copy of pairs of real numbers as complex numbers."""
    return view_as_complex(input).clone()


def view_as_real_copy(input: "Tensor") -> "Tensor":
    """Return a copy of complex numbers as pairs of real ones."""
    return view_as_real(input).clone()


def adjoint(input: "Tensor") -> "Tensor":
    """Return the conjugate of `input` with its last two dimensions exchanged."""
    return check_tensor(input, "adjoint").mH
