"""Embeddings: rows of a table."""

from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dtypes import shape_error

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["embedding"]


class Embedding(Op):
    """Rows of the weight at the indices; keeps the indices."""

    def forward(self, weight: Array, index: Array, padding_idx: int) -> Array:
        self.weight_sym_argsize_0, self.padding_idx = weight.shape[0], padding_idx
        self.scale_grad_by_freq = self.sparse = False
        self.save(indices=index)
        out = memory.empty((*index.shape, weight.shape[1]), weight.dtype)
        kernels.take_rows(weight, index, 0, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient to its row."""
        options = {"rows": self.weight_sym_argsize_0, "padding_idx": self.padding_idx}
        return EmbeddingBackward.apply(grad, self.saved("indices"), **options), None


class EmbeddingBackward(Op):
    """A table of the sums of gradients by index; keeps the indices."""

    torch_name = "EmbeddingDenseBackwardBackward0"

    def forward(self, grad: Array, index: Array, rows: int, padding_idx: int) -> Array:
        """Return the table; the padding row is zero."""
        self.padding_idx = padding_idx
        self.save(indices=index)
        out = memory.empty((rows, grad.shape[-1]), grad.dtype)
        kernels.embedding_backward(
            memory.contiguous(grad).reshape(-1, grad.shape[-1]), index.reshape(-1), out, padding_idx
        )
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Take the rows; zeros for padding."""
        index = self.saved("indices")
        grad_rows = Embedding.apply(grad, index, padding_idx=self.padding_idx)
        if self.padding_idx >= 0:
            grad_rows = grad_rows.masked_fill(
                wrap((index._array == self.padding_idx)[..., None]), 0
            )
        return grad_rows, None


def embedding(input: "Tensor", weight: "Tensor", padding_idx: int | None = None) -> "Tensor":
    """Return the rows of `weight` [V, D] at the integers `input` [...]: shape [..., D].

    Args:
        input: indices from 0 to V - 1.
        weight: the table.
        padding_idx: a row that gets no gradient.

    Raises:
        IndexError: if an index is out of range.
        AssertionError: if `padding_idx` is.
    """
    index = input._array
    if index.dtype.kind not in "iu":
        raise RuntimeError(f"embedding: indices must be integers, got a {describe(input)}")
    if weight._array.ndim != 2:
        raise shape_error("embedding", "weight must be a matrix", weight)
    rows = weight._array.shape[0]
    if not kernels.are_within(index, 0, rows):
        raise IndexError(
            f"embedding: indices must be from 0 to {rows - 1}, the rows of weight, got "
            f"{index.min()} to {index.max()}"
        )
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise AssertionError(
            f"embedding: padding_idx must be from {-rows} to {rows - 1}, got {padding_idx}"
        )
    padding = -1 if padding_idx is None else padding_idx % rows
    return Embedding.apply(weight, input, padding_idx=padding)
