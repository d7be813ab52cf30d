"""Functions that make sparse tensors, and those of `offgrad` that only sparse tensors take."""

from typing import Any

import numpy as np

from offgrad._layout import sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr, strided
from offgrad._tensor.sparse.compressed import (
    BLOCKS,
    BY_ROWS,
    CompressedTensor,
    blocks_of,
    compress,
    make_compressed,
)
from offgrad._tensor.sparse.coo import SparseTensor, make_coo
from offgrad._tensor.sparse.elementwise import sparse_mask
from offgrad._tensor.sparse.products import hspmm, smm, sspaddmm
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.device import check_device
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._core.sparse_data import is_sparse
from offgrad.ops._creation.from_data import tensor as make_tensor


def _indices(indices: Any) -> np.ndarray[Any, Any]:
    given = indices._array if isinstance(indices, TensorBase) else np.asarray(indices)
    if given.size and given.dtype.kind not in "iu":
        raise RuntimeError(f"indices must be integers, got {given.dtype.name}")
    return np.ascontiguousarray(given, np.int64)


def _values(values: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    check_device(device)
    value = values if isinstance(values, Tensor) else make_tensor(values)
    value = value if dtype is None else value.to(dtype)
    if requires_grad:
        return value.detach().requires_grad_()
    # Not the leaf itself: the sparse tensor is computed from it.
    return value.view(value.shape) if value.requires_grad else value


def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """Return the sparse tensor with `values` [n, ...] at `indices` [d, n]; others are zero.

    Args:
        indices: integers, a tensor or nested lists; alone, the sizes of a tensor of zeros.
        values: a tensor or a list.
        size: the shape; by default the smallest that holds the indices.
        dtype: of the values; by default as given.
        device: the CPU, or None.
        pin_memory: has no effect.
        requires_grad: whether the values require grad.
        check_invariants: accepted; indices are always checked.
        is_coalesced: whether the indices are sorted, and each is given once.

    Raises:
        RuntimeError: if indices lie outside `size`, or there are not as many as values.
    """
    if values is None:
        shape = tuple(int(each) for each in (size if indices is None else indices))
        index = np.empty((len(shape), 0), np.int64)
        empty = _values(make_tensor([]), dtype, device, requires_grad)
        return make_coo(wrap(index), empty, shape, False)
    index = _indices(indices)
    value = _values(values, dtype, device, requires_grad)
    if index.ndim != 2 or not value.ndim or index.shape[1] != value.shape[0]:
        raise RuntimeError(
            "sparse_coo_tensor: indices [d, n] and values [n] are needed, got indices of shape "
            f"{index.shape} and {describe(value)}"
        )
    if size is None:
        highest = index.max(1, initial=-1) + 1
        size = (*highest.tolist(), *value.shape[1:])
    shape = tuple(int(each) for each in size)
    if len(shape) != len(index) + value.ndim - 1 or shape[len(index) :] != tuple(value.shape[1:]):
        raise RuntimeError(
            f"sparse_coo_tensor: size must have the {len(index)} indexed dimensions and then those "
            f"of a value, got {shape} for a {describe(value)}"
        )
    limits = np.asarray(shape[: len(index)])[:, None]
    if index.size and (index.min() < 0 or (index >= limits).any()):
        raise RuntimeError(
            f"sparse_coo_tensor: an index lies outside of size {shape}: the highest of each "
            f"dimension are {index.max(1).tolist()}, the lowest {index.min(1).tolist()}"
        )
    return make_coo(wrap(index), value, shape, bool(is_coalesced))


def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> CompressedTensor:
    """Return the sparse matrix of `layout` with these indices and values.

    Args:
        compressed_indices: where each row or column begins among the values.
        plain_indices: the column or row of each value.
        values: numbers [n], or blocks [n, a, b].
        size: the shape; by default the smallest that holds the indices.
        dtype: of the values; by default as given.
        layout: one of `sparse_csr`, `sparse_csc`, `sparse_bsr` and `sparse_bsc`.
        device: the CPU, or None.
        pin_memory: has no effect.
        requires_grad: whether the values require grad.
        check_invariants: accepted; indices are always checked.

    Raises:
        RuntimeError: for another layout, or if indices, values and `size` do not fit.
        NotImplementedError: for batches of matrices, and for dense dimensions.
    """
    if layout not in (*BY_ROWS, sparse_csc, sparse_bsc):
        raise RuntimeError(
            f"sparse_compressed_tensor: layout must be a compressed one, such as sparse_csr, got "
            f"{layout}"
        )
    starts, plain = _indices(compressed_indices), _indices(plain_indices)
    value = _values(values, dtype, device, requires_grad)
    name, block = str(layout).removeprefix("torch."), (1, 1)
    if starts.ndim != 1 or plain.ndim != 1 or value.ndim != (3 if layout in BLOCKS else 1):
        raise NotImplementedError(
            f"{name}: one matrix without dense dimensions is supported, got indices of shapes "
            f"{starts.shape} and {plain.shape}, and a {describe(value)}"
        )
    if layout in BLOCKS:
        block = tuple(value.shape[1:])
    by_rows = layout in BY_ROWS
    if size is None:
        sizes = [len(starts) - 1, int(plain.max(initial=-1)) + 1]
        sizes = sizes if by_rows else sizes[::-1]
        size = [count * each for count, each in zip(sizes, block, strict=True)]
    shape = tuple(int(each) for each in size)
    outer, inner = (size // each for size, each in zip(shape, block, strict=True))
    outer, inner = (outer, inner) if by_rows else (inner, outer)
    fits = len(starts) == outer + 1 and len(plain) == value.shape[0]
    in_order = not starts.size or (starts[0] == 0 and starts[-1] == len(plain))
    if not fits or not in_order or (np.diff(starts) < 0).any():
        raise RuntimeError(
            f"{name}: the compressed indices must be {outer + 1} numbers that rise from 0 to the "
            f"number of values, {value.shape[0]}, and there must be as many plain indices; got "
            f"{starts.tolist()} and {len(plain)}"
        )
    if plain.size and (plain.min() < 0 or plain.max() >= inner):
        raise RuntimeError(
            f"{name}: plain indices must be from 0 to {inner - 1}, got {plain.min()} to "
            f"{plain.max()}"
        )
    return make_compressed((wrap(starts), wrap(plain), value), shape, layout)


def _of_layout(name: str, layout: Any, first: str, second: str) -> Any:
    def make(
        compressed_indices: Any, plain_indices: Any, values: Any, *args: Any, **options: Any
    ) -> Any:
        return sparse_compressed_tensor(
            compressed_indices, plain_indices, values, *args, layout=layout, **options
        )

    def named(*args: Any, **options: Any) -> CompressedTensor:
        options.pop("layout", None)
        parts = {first: "compressed_indices", second: "plain_indices"}
        result: CompressedTensor = make(
            *args, **{parts.get(key, key): value for key, value in options.items()}
        )
        return result

    named.__name__ = named.__qualname__ = name
    named.__doc__ = (
        f"Return the sparse matrix of `{first}`, `{second}` and `values`: see "
        "`sparse_compressed_tensor`."
    )
    return named


sparse_csr_tensor = _of_layout("sparse_csr_tensor", sparse_csr, "crow_indices", "col_indices")
sparse_csc_tensor = _of_layout("sparse_csc_tensor", sparse_csc, "ccol_indices", "row_indices")
sparse_bsr_tensor = _of_layout("sparse_bsr_tensor", sparse_bsr, "crow_indices", "col_indices")
sparse_bsc_tensor = _of_layout("sparse_bsc_tensor", sparse_bsc, "ccol_indices", "row_indices")


# Conversions


def _dense_to_coo(x: Any, sparse_dim: int) -> SparseTensor:
    stored = x._array != 0
    if sparse_dim < stored.ndim:
        stored = stored.any(tuple(range(sparse_dim, stored.ndim)))
    if not sparse_dim:
        index = np.empty((0, int(stored.any())), np.int64)
        return make_coo(wrap(index), x.unsqueeze(0)[: index.shape[1]], x.shape, True)
    index = np.stack(stored.nonzero()).astype(np.int64)
    return make_coo(wrap(index), x[tuple(wrap(each) for each in index)], x.shape, True)


def to_sparse(
    input: Any,
    sparse_dim: Any = None,
    *,
    layout: Any = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Any:
    """Return a tensor in a sparse layout; gradients flow to what is stored.

    Args:
        input: a dense or sparse tensor.
        sparse_dim: how many of the first dimensions are sparse; all by default.
        layout: `sparse_coo` by default.
        blocksize: the sizes of blocks, for layouts of blocks.
        dense_dim: for compressed layouts: must be 0.

    Raises:
        RuntimeError: if the arguments do not fit each other.
        NotImplementedError: for compressed layouts of other than matrices.
    """
    layout = sparse_coo if layout is None else layout
    if layout is strided:
        return input.to_dense()
    if layout is sparse_coo:
        if is_sparse(input):
            return input._coo()
        x = check_tensor(input, "to_sparse")
        count = x._array.ndim if sparse_dim is None else int(sparse_dim)
        if not 0 <= count <= x._array.ndim:
            raise RuntimeError(
                f"to_sparse: sparse_dim must be from 0 to {x._array.ndim}, the number of "
                f"dimensions, got {count}"
            )
        return _dense_to_coo(x, count)
    if input.ndim != 2 or dense_dim:
        raise NotImplementedError(
            f"{layout} is for matrices without dense dimensions, got a {describe(input)}"
        )
    if layout in BLOCKS:
        if blocksize is None:
            raise RuntimeError(f"to_sparse: {layout} needs a blocksize")
        return blocks_of(input.to_dense(), tuple(blocksize), layout)
    if blocksize is not None:
        raise RuntimeError(f"to_sparse: {layout} has no blocks, so it takes no blocksize")
    return compress(input._coo() if is_sparse(input) else _dense_to_coo(input, 2), layout)


def to_sparse_coo(input: Any) -> Any:
    """Return a tensor as a sparse one of coordinates."""
    return to_sparse(input)


def to_sparse_csr(input: Any, dense_dim: int | None = None) -> Any:
    """Return a matrix with compressed rows."""
    return to_sparse(input, layout=sparse_csr, dense_dim=dense_dim)


def to_sparse_csc(input: Any, dense_dim: int | None = None) -> Any:
    """Return a matrix with compressed columns."""
    return to_sparse(input, layout=sparse_csc, dense_dim=dense_dim)


def to_sparse_bsr(input: Any, blocksize: Any, dense_dim: int | None = None) -> Any:
    """Return a matrix of blocks with compressed rows."""
    return to_sparse(input, layout=sparse_bsr, blocksize=blocksize, dense_dim=dense_dim)


def to_sparse_bsc(input: Any, blocksize: Any, dense_dim: int | None = None) -> Any:
    """Return a matrix of blocks with compressed columns."""
    return to_sparse(input, layout=sparse_bsc, blocksize=blocksize, dense_dim=dense_dim)


# Functions of `offgrad`


def spmm(input: Any, mat2: Any) -> Any:
    """Return the product of a sparse matrix and a dense one: `sparse.mm`."""
    return input.matmul(mat2)


dsmm, hsmm, saddmm = spmm, hspmm, sspaddmm


def resize_as_sparse_(input: Any, the_template: Any) -> Any:
    """Change the shape of a sparse tensor to that of another, in place; return it."""
    return input.resize_as_sparse_(the_template)


def _copy_of(name: str) -> Any:
    def copy(input: Any) -> Any:
        return getattr(input, name)().clone()

    copy.__name__ = copy.__qualname__ = f"{name}_copy"
    copy.__doc__ = f"Return a copy of ``input.{name}()``."
    return copy


indices_copy, values_copy = _copy_of("indices"), _copy_of("values")
crow_indices_copy, col_indices_copy = _copy_of("crow_indices"), _copy_of("col_indices")
ccol_indices_copy, row_indices_copy = _copy_of("ccol_indices"), _copy_of("row_indices")

__all__ = [
    "ccol_indices_copy",
    "col_indices_copy",
    "crow_indices_copy",
    "dsmm",
    "hsmm",
    "hspmm",
    "indices_copy",
    "resize_as_sparse_",
    "row_indices_copy",
    "saddmm",
    "smm",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "sparse_mask",
    "spmm",
    "sspaddmm",
    "to_sparse",
    "to_sparse_bsc",
    "to_sparse_bsr",
    "to_sparse_coo",
    "to_sparse_csc",
    "to_sparse_csr",
    "values_copy",
]
