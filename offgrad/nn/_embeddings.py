"""Embeddings in `offgrad.nn.functional`: indices first, and norms limited in place."""

from typing import TYPE_CHECKING

import numpy as np

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

MODES = ("sum", "mean", "max")
"""Of bags, by PyTorch's numbers."""


def _padding(padding_idx: int | None, weight: "Tensor", name: str) -> int:
    if padding_idx is None:
        return -1
    rows: int = weight.shape[0]
    if not -rows <= padding_idx < rows:
        is_bag = name == "embedding_bag"
        raise (RuntimeError if is_bag else AssertionError)(
            f"{name}: padding_idx must be within "
            f"{'the number of embeddings' if is_bag else 'num_embeddings'}, from {-rows} to "
            f"{rows - 1}, got {padding_idx}"
        )
    return padding_idx % rows


def embedding(
    input: "Tensor",
    weight: "Tensor",
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> "Tensor":
    """Return the rows of `weight` [V, D] at the integers `input` [...]: shape [..., D].

    Args:
        input: indices from 0 to V - 1.
        weight: the table.
        padding_idx: a row that gets no gradient.
        max_norm: rows with larger norms are scaled to it, in `weight` itself.
        norm_type: the p of these norms.
        scale_grad_by_freq: divide gradients by how often their index occurs.
        sparse: whether the gradient of `weight` is a sparse tensor.

    Raises:
        IndexError: if an index is out of range.
        AssertionError: if `padding_idx` is.
    """
    padding = _padding(padding_idx, weight, "embedding")
    if max_norm is not None:
        ops.embedding_renorm_(weight, input, max_norm, norm_type)
    return ops.embedding(weight, input, padding, scale_grad_by_freq, sparse)


def embedding_bag(
    input: "Tensor",
    weight: "Tensor",
    offsets: "Tensor | None" = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: "Tensor | None" = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> "Tensor":
    """Return the sums, means or maxima of rows of `weight` [V, D] over bags of indices: [B, D].

    Args:
        input: indices [B, L], bags of one size, or those of all bags [I].
        weight: the table.
        offsets: for one dimension, where each bag begins [B].
        max_norm: rows with larger norms are scaled to it, in `weight` itself.
        norm_type: the p of these norms.
        scale_grad_by_freq: divide gradients by how often their index occurs.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        sparse: whether the gradient of `weight` is a sparse tensor.
        per_sample_weights: a factor for each index, of the shape of `input`, for sums.
        include_last_offset: whether `offsets` ends with the number of indices.
        padding_idx: a row that does not count.

    Raises:
        ValueError, NotImplementedError: if arguments do not fit each other.
        RuntimeError: if an index is out of range.
    """
    if mode not in MODES:
        raise ValueError(f"embedding_bag: mode must be one of {MODES}, got {mode!r}")
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: expected per_sample_weights to have the same shape as input, "
            f"{list(input.shape)}, got {list(per_sample_weights.shape)}"
        )
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights needs mode='sum', got {mode!r}"
        )
    if mode == "max" and scale_grad_by_freq:
        raise ValueError(
            "embedding_bag: max mode does not support scaling the gradient by the frequency: "
            "scale_grad_by_freq is for the modes sum and mean"
        )
    if mode == "max" and sparse:
        raise ValueError(
            "embedding_bag: max mode does not support sparse weights; use the mode sum or mean"
        )
    padding = _padding(padding_idx, weight, "embedding_bag")
    index, starts = _in_one_dimension(input, offsets)
    if max_norm is not None:
        ops.embedding_renorm_(weight, index, max_norm, norm_type)
    return ops.embedding_bag(
        weight,
        index,
        starts,
        scale_grad_by_freq,
        MODES.index(mode),
        sparse,
        per_sample_weights,
        include_last_offset and offsets is not None,
        padding,
    )[0]


def _in_one_dimension(input: "Tensor", offsets: "Tensor | None") -> "tuple[Tensor, Tensor]":
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "embedding_bag: offsets is for an input of one dimension; rows of a matrix are the "
                f"bags: got {type(offsets).__name__}"
            )
        count, length = input.shape
        return input.reshape(-1), ops.tensor(np.arange(count) * length)
    if input.dim() != 1:
        raise ValueError(
            f"embedding_bag: input has to be 1D or 2D Tensor, got one of {input.dim()} dimensions"
        )
    if offsets is None or offsets.dim() != 1:
        got = "None" if offsets is None else f"{offsets.dim()}D"
        raise ValueError(f"embedding_bag: offsets has to be a vector, got {got}")
    return input, offsets
