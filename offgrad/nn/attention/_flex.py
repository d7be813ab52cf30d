"""Attention whose scores a function changes, and whose mask is a function of positions."""

from math import sqrt
from typing import Any, NamedTuple, TypedDict

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn.attention._block_masks import BlockMask, over_positions, positions


class FlexKernelOptions(TypedDict, total=False):
    """Options of PyTorch's kernels, accepted."""


class AuxRequest(NamedTuple):
    """What `flex_attention` shall return beside the result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What an `AuxRequest` asked for, else None.

    Attributes:
        lse: the logarithm of the sum of the exponentials of each query's scores, [B, H, L].
        max_scores: each query's largest score, [B, H, L].
    """

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Return ``softmax(score_mod(query @ key.mT * scale)) @ value``, with gradients.

    With a mask alone it is `scaled_dot_product_attention`, which keeps no scores. Otherwise the
    scores [B, Hq, L, S] are made, and kept for backward. A query without any allowed key gets 0.

    Args:
        query: [B, Hq, L, E].
        key: [B, Hkv, S, E].
        value: [B, Hkv, S, Ev].
        score_mod: called as ``score_mod(score, b, h, q_idx, kv_idx)`` with tensors without
            dimensions, by `vmap`; it returns the score to take. It may read other tensors, which
            get gradients.
        block_mask: which keys each query may attend to; batches and heads of size 1 are for all.
        scale: the factor of the scores, by default ``1 / sqrt(E)``.
        enable_gqa: let groups of query heads share key and value heads.
        return_lse: return the logarithm of the sum of the exponentials of the scores as well.
        kernel_options: accepted; there is one implementation.
        return_aux: what to return as well, as an `AuxOutput`.

    Returns the result [B, Hq, L, Ev]; with `return_lse` a pair, with `return_aux` another.

    Raises:
        NotImplementedError, ValueError, TypeError: if shapes or dtypes do not fit.
    """
    _check(query, key, value, enable_gqa, block_mask is not None)
    if return_lse and return_aux is not None:
        raise ValueError(
            "Cannot specify both return_lse and return_aux; pass return_aux=AuxRequest(lse=True)"
        )
    wanted = AuxRequest(lse=return_lse) if return_aux is None else return_aux
    allowed = None if block_mask is None else _allowed(block_mask, query, key)
    scale = 1 / sqrt(max(1, query.shape[-1])) if scale is None else scale
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    batch = query.shape[0]
    key, value = (each.expand(batch, -1, -1, -1) for each in (key, value))
    if score_mod is None and not any(wanted):
        return ops.scaled_dot_product_attention(query, key, value, allowed, scale=scale)
    scores = query @ key.mT * scale
    if score_mod is not None:
        changed = over_positions(score_mod, True)(scores, *positions(scores.shape))
        if changed.shape != scores.shape:
            raise ValueError(
                "score_mod must return one score, a tensor without dimensions, got one of shape "
                f"{[*changed.shape[4:]]}"
            )
        scores = changed.to(scores.dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    is_empty = (scores == float("-inf")).all(-1, keepdim=True)
    scores = scores.masked_fill(is_empty, 0.0)
    probabilities = scores.softmax(-1).masked_fill(is_empty, 0.0)
    result = probabilities @ value
    if not any(wanted):
        return result
    empty = is_empty.squeeze(-1)
    found = [
        reduced.masked_fill(empty, float("-inf")) if is_wanted else None
        for is_wanted, reduced in zip(wanted, (scores.logsumexp(-1), scores.amax(-1)), strict=True)
    ]
    return (result, found[0]) if return_lse else (result, AuxOutput(*found))


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, has_mask: bool) -> None:
    """Raise unless shapes and dtypes fit."""
    for each in (query, key, value):
        if not isinstance(each, Tensor) or not each.is_floating_point():
            kind = each.dtype if isinstance(each, Tensor) else type(each).__name__
            raise TypeError(f"query, key, and value must be tensors of real floats, got {kind}")
    shapes = " and ".join(str(list(each.shape)) for each in (query, key, value))
    if any(each.dim() != 4 for each in (query, key, value)):
        raise NotImplementedError(f"query, key, and value must be 4D tensors, got {shapes}")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"Expected query, key, and value to have the same dtype, got {query.dtype}, "
            f"{key.dtype} and {value.dtype}"
        )
    (b_q, h_q, _, e_q), (b_kv, h_kv, length, e_k) = query.shape, key.shape
    if e_q != e_k:
        raise ValueError(
            "Expect query and key/value to have the same embedding dimension but got "
            f"E={e_q} and E={e_k}"
        )
    if value.shape[:3] != (b_kv, h_kv, length):
        raise ValueError(f"key and value must have the same sizes but for the last, got {shapes}")
    if b_q != b_kv and not (has_mask and b_kv == 1):
        raise ValueError(
            "Expect query and key/value to have the same batch size, or one for all with a "
            f"block_mask, got Bq={b_q} and Bkv={b_kv}"
        )
    if h_q != h_kv and not enable_gqa:
        raise ValueError(
            "Expect query and key/value to have the same number of heads but got "
            f"Hq={h_q} and Hkv={h_kv}. Try setting enable_gqa=True for GQA."
        )
    if h_q != h_kv and (not h_kv or h_q % h_kv):
        raise ValueError(
            "Expect number of query heads to be a multiple of kv heads for GQA but got "
            f"Hq={h_q} and Hkv={h_kv}"
        )


def _allowed(mask: BlockMask, query: Tensor, key: Tensor) -> Tensor:
    """Return the positions that a mask allows, which must fit."""
    if not isinstance(mask, BlockMask):
        raise TypeError(
            f"block_mask must be a BlockMask, as of create_block_mask, got {type(mask).__name__}"
        )
    lengths = query.shape[-2], key.shape[-2]
    if tuple(mask.seq_lengths) != lengths:
        raise ValueError(
            f"block_mask was created for block_mask.shape={mask.shape} but got q_len={lengths[0]} "
            f"and kv_len={lengths[1]}: make one of these lengths by create_block_mask"
        )
    for size, own, name in zip(query.shape, mask.shape, ("batches", "heads"), strict=False):
        if own not in (1, size):
            raise ValueError(f"block_mask must have 1 or {size} {name}, got {own}")
    return mask.allowed()
