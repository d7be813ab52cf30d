"""Embeddings: rows of a table, and sums, means and maxima of several rows."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dtypes import shape_error
from offgrad.ops._core.sparse_data import sparse_gradient
from offgrad.ops._indexing.along_dim import index_add, index_select

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["embedding", "embedding_bag", "embedding_renorm_"]


class Embedding(Op):
    """Rows of the weight at the indices; keeps the indices."""

    def forward(
        self,
        weight: Array,
        index: Array,
        padding_idx: int,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Array:
        self.weight_sym_argsize_0, self.padding_idx = weight.shape[0], padding_idx
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.save(indices=index)
        out = memory.empty((*index.shape, weight.shape[1]), weight.dtype)
        kernels.take_rows(weight, index, 0, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient to its row; if sparse, return the gradients and their rows."""
        return self.gradient(grad), None

    def gradient(self, grad: "Tensor") -> "Tensor":
        """Return the gradient of the weight, from that of the row of each index."""
        if self.sparse:
            return self._sparse_gradient(grad)
        result: Tensor = EmbeddingBackward.apply(
            grad,
            self.saved("indices"),
            rows=self.weight_sym_argsize_0,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
        return result

    def _sparse_gradient(self, grad: "Tensor") -> "Tensor":
        if self.scale_grad_by_freq:
            raise RuntimeError(
                "embedding: scale_grad_by_freq not supported with sparse gradients; leave out one"
            )
        rows = self.saved("indices")._array.reshape(-1).astype(np.int64)
        width: int = grad.shape[-1]
        values = grad.reshape(-1, width)
        if self.padding_idx >= 0:
            kept = np.flatnonzero(rows != self.padding_idx)
            rows, values = rows[kept], values[wrap(kept)]
        size = self.weight_sym_argsize_0, width
        result: Tensor = sparse_gradient(wrap(rows[None]), values, size)
        return result


class EmbeddingBag(Embedding):
    """Sums or means of rows of the weight over bags; keeps the indices and the bag of each."""

    def forward(  # type: ignore[override]
        self,
        weight: Array,
        index: Array,
        bag_of: Array,
        starts: Array,
        divisors: Array | None,
        padding_idx: int,
        scale_grad_by_freq: bool,
        sparse: bool,
    ) -> Array:
        """Return the sums; for means `divisors` [B, 1] is of the weight's dtype."""
        self.divisors = divisors
        self.weight_sym_argsize_0, self.padding_idx = weight.shape[0], padding_idx
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.save(indices=index, bags=bag_of)
        out = memory.empty((starts.size - 1, weight.shape[1]), weight.dtype)
        table, flat = memory.contiguous(weight), np.ascontiguousarray(index).reshape(-1)
        kernels.embedding_bag(table, flat, starts, out, padding_idx)
        if divisors is not None:
            np.divide(out, divisors, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add the gradient of each bag to the rows of its indices."""
        if self.divisors is not None:
            grad = grad / grad.new_tensor(self.divisors)
        return self.gradient(index_select(grad, 0, self.saved("bags"))), None, None


class EmbeddingBackward(Op):
    """A table of the sums of gradients by index; keeps the indices."""

    torch_name = "EmbeddingDenseBackwardBackward0"

    def forward(
        self, grad: Array, index: Array, rows: int, padding_idx: int, scale_grad_by_freq: bool
    ) -> Array:
        """Return the table; the padding row is zero."""
        self.padding_idx, self.scale_grad_by_freq = padding_idx, scale_grad_by_freq
        self.save(indices=index)
        out = memory.empty((rows, grad.shape[-1]), grad.dtype)
        if scale_grad_by_freq:
            grad = grad / _frequencies(index).astype(grad.dtype)[..., None]
        rows_of_grad = memory.contiguous(grad).reshape(-1, grad.shape[-1])
        flat = np.ascontiguousarray(index).reshape(-1)
        kernels.embedding_backward(rows_of_grad, flat, out, padding_idx)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Take the rows; zeros for padding."""
        index = self.saved("indices")
        grad_rows = Embedding.apply(grad, index, padding_idx=self.padding_idx)
        if self.scale_grad_by_freq:
            counts = _frequencies(index._array).astype(grad._array.dtype)
            grad_rows = grad_rows / wrap(counts[..., None])
        if self.padding_idx >= 0:
            grad_rows = grad_rows.masked_fill(
                wrap((index._array == self.padding_idx)[..., None]), 0
            )
        return grad_rows, None


def _frequencies(index: Array) -> Array:
    """Return how often each index occurs."""
    _, inverse, counts = np.unique(index, return_inverse=True, return_counts=True)
    return counts[inverse].reshape(index.shape)


def _check(weight: "Tensor", indices: "Tensor", name: str, *, of_bags: bool = False) -> None:
    index = indices._array
    if index.dtype.kind not in "iu":
        raise RuntimeError(f"{name}: indices must be integers, got a {describe(indices)}")
    if weight._array.ndim != 2:
        raise shape_error(name, "'weight' must be 2-D", weight)
    rows = weight._array.shape[0]
    if not kernels.are_within(index, 0, rows):
        if of_bags:
            raise RuntimeError(
                f"{name}: Expected idx >= 0 && idx < num_embeddings, the {rows} rows of weight, "
                f"got indices from {index.min()} to {index.max()}"
            )
        raise IndexError(
            f"{name}: index out of range in self: indices must be from 0 to {rows - 1}, the rows "
            f"of weight, got {index.min()} to {index.max()}"
        )


def embedding(
    weight: "Tensor",
    indices: "Tensor",
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> "Tensor":
    """Return the rows of `weight` [V, D] at the integers `indices` [...]: shape [..., D].

    Args:
        weight: the table.
        indices: from 0 to V - 1.
        padding_idx: a row that gets no gradient; -1 for none.
        scale_grad_by_freq: divide gradients by how often their index occurs.
        sparse: whether the gradient of `weight` is sparse: the rows that were taken.

    Raises:
        IndexError: if an index is out of range.
        RuntimeError: if dtypes or shapes do not fit.
    """
    _check(weight, indices, "embedding")
    return Embedding.apply(
        weight,
        indices,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
        sparse=sparse,
    )


def embedding_renorm_(
    input: "Tensor", indices: "Tensor", max_norm: float, norm_type: float = 2.0
) -> "Tensor":
    """Scale the rows of a table at `indices` whose norms exceed `max_norm` to it, in place.

    The change is not recorded.

    Raises:
        IndexError: if an index is out of range.
    """
    _check(input, indices, "embedding_renorm_")
    rows = np.unique(indices._array)
    norms = np.linalg.norm(input._array[rows], ord=norm_type, axis=1)
    large = norms > max_norm
    if large.any():
        detached = input.detach()
        check_mutable(detached, "embedding_renorm_", recorded=False)
        input._storage.write("embedding_renorm_")
        factors = (max_norm / (norms[large] + 1e-7)).astype(input._array.dtype)
        input._array[rows[large]] *= factors[:, None]
    return input


def embedding_bag(
    weight: "Tensor",
    indices: "Tensor",
    offsets: "Tensor",
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: "Tensor | None" = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> "tuple[Tensor, Tensor, Tensor, Tensor]":
    """Return the sums, means or maxima of rows of `weight` over bags of indices [B, D].

    Then follow the bag of each index, the sizes of the bags without padding and, for maxima, the
    indices whose rows have them [B, D].

    Args:
        weight: the table [V, D].
        indices: rows [I], those of a bag together.
        offsets: where each bag begins in `indices` [B].
        scale_grad_by_freq: divide gradients by how often their index occurs.
        mode: 0 for sums, 1 for means, 2 for maxima.
        sparse: whether the gradient of `weight` is sparse: the rows that were taken.
        per_sample_weights: a factor for each index [I], for sums.
        include_last_offset: whether `offsets` ends with the number of indices.
        padding_idx: a row that does not count; -1 for none.

    Raises:
        RuntimeError: if an index is out of range, or dtypes, shapes or offsets do not fit.
    """
    if sparse and mode == 2:
        raise RuntimeError("embedding_bag: max mode does not support sparse weights")
    _check(weight, indices, "embedding_bag", of_bags=True)
    starts, count = offsets._array, indices._array.size
    if starts.ndim != 1 or starts.dtype.kind not in "iu":
        raise RuntimeError(
            f"embedding_bag: offsets must be integers of one dimension, got a {describe(offsets)}"
        )
    if (
        starts.size
        and not offsets.is_meta
        and (starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > count)
    ):
        raise RuntimeError(
            f"embedding_bag: offsets must begin with 0 and rise to at most {count}, the number of "
            f"indices, got {starts.tolist()}"
        )
    bags = starts.size - include_last_offset
    if bags < 0:
        raise RuntimeError(
            "embedding_bag: with include_last_offset the number of offsets should be at least 1, "
            "the number of indices; got none"
        )
    if weight.is_meta:  # bags of one size, as those of two dimensions are
        starts = np.arange(starts.size) * count // max(bags, 1)
    if not bags:
        indices, count = indices[:0], 0
    bounds = np.append(starts[:bags], count).astype(np.int64)
    sizes: Any = np.diff(bounds)
    bag_of: Array = memory.copy(np.repeat(np.arange(bags), sizes))
    counted = np.ones(count, bool)
    if padding_idx >= 0 and not weight.is_meta:
        counted = indices._array != padding_idx
        sizes = np.bincount(bag_of[counted], minlength=bags)
    options = {
        "padding_idx": padding_idx,
        "scale_grad_by_freq": scale_grad_by_freq,
        "sparse": sparse,
    }
    shape = (bags, weight._array.shape[1])
    largest = np.zeros(shape if mode == 2 else 0, np.int64)
    divisors = np.maximum(sizes, 1)[:, None].astype(weight._array.dtype) if mode == 1 else None
    if mode == 2:
        rows: Tensor = Embedding.apply(weight, indices, **options)
        result = _maxima(rows, bag_of, counted, sizes, indices._array, largest)
    elif per_sample_weights is None:
        result = EmbeddingBag.apply(
            weight, indices, wrap(bag_of), starts=bounds, divisors=divisors, **options
        )
    else:
        rows = Embedding.apply(weight, indices, **options) * per_sample_weights.reshape(-1, 1)
        if not counted.all():
            rows = rows.masked_fill(wrap(~counted[:, None]), 0)
        result = index_add(weight.new_zeros(shape), 0, wrap(bag_of), rows)
        if divisors is not None:
            result = result / result.new_tensor(divisors)
    return result, wrap(bag_of), wrap(sizes), wrap(largest)


def _maxima(
    rows: "Tensor", bag_of: Array, counted: Array, sizes: Array, indices: Array, largest: Array
) -> "Tensor":
    """Return the maxima of rows over bags, 0 of empty bags; write the indices that have them."""
    shape = largest.shape
    at = np.flatnonzero(counted)
    if not at.size or not largest.size:
        return rows.new_zeros(shape) + rows.sum() * 0
    # A table of the rows of each bag, in order, filled up with the bag's first row.
    firsts = np.searchsorted(bag_of[at], np.arange(shape[0]))
    column = np.arange(sizes.max())
    position = firsts[:, None] + np.where(column < sizes[:, None], column, 0)
    position = at[np.minimum(position, at.size - 1)]
    values, places = rows[wrap(memory.copy(position))].max(1)
    found = indices[np.take_along_axis(position, places._array, 1)]
    largest[...] = np.where(sizes[:, None] > 0, found, 0)
    result: Tensor = values.masked_fill(wrap(sizes[:, None] == 0), 0)
    return result
