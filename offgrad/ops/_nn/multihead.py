"""Attention of several heads, with the projections before and after it."""

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.tensor_base import metadata, wrap
from offgrad.ops._core.dtypes import category
from offgrad.ops._linalg.affine import linear
from offgrad.ops._linalg.products import matmul
from offgrad.ops._nn.attention import scaled_dot_product_attention
from offgrad.ops._nn.probabilities import softmax
from offgrad.ops._random.dropout import dropout
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["multi_head_attention_forward"]


class _Weights(NamedTuple):
    """The parameters of the projections."""

    in_proj_weight: "Tensor | None"
    in_proj_bias: "Tensor | None"
    q_proj_weight: "Tensor | None"
    k_proj_weight: "Tensor | None"
    v_proj_weight: "Tensor | None"
    is_separate: bool


def multi_head_attention_forward(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: "Tensor | None",
    in_proj_bias: "Tensor | None",
    bias_k: "Tensor | None",
    bias_v: "Tensor | None",
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: "Tensor",
    out_proj_bias: "Tensor | None",
    training: bool = True,
    key_padding_mask: "Tensor | None" = None,
    need_weights: bool = True,
    attn_mask: "Tensor | None" = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: "Tensor | None" = None,
    k_proj_weight: "Tensor | None" = None,
    v_proj_weight: "Tensor | None" = None,
    static_k: "Tensor | None" = None,
    static_v: "Tensor | None" = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> "tuple[Tensor, Tensor | None]":
    """Project, attend with several heads, and project the result.

    Without `need_weights` no matrix of queries by keys is made. Sequences whose memory is
    batch-major, such as transposed views, are computed without copies.

    Args:
        query: [T, B, E] or [T, E].
        key: [S, B, Ek] or [S, Ek].
        value: [S, B, Ev] or [S, Ev].
        embed_dim_to_check: E.
        num_heads: divides E.
        in_proj_weight: [3 E, E], the weights of query, key and value.
        in_proj_bias: [3 E], or None.
        bias_k, bias_v: [1, 1, E], appended to keys and values, or None.
        add_zero_attn: append zeros to keys and values.
        dropout_p: the probability of dropping a weight of the attention, while `training`.
        out_proj_weight: [E, E].
        out_proj_bias: [E], or None.
        training: see `dropout_p`.
        key_padding_mask: [B, S] or [S]: True for keys to ignore, or floats added to scores.
        need_weights: return the attention's weights.
        attn_mask: [T, S] or [B * heads, T, S]: True where a query must not attend, or floats added.
        use_separate_proj_weight: take the next three weights instead of `in_proj_weight`.
        q_proj_weight, k_proj_weight, v_proj_weight: [E, E], [E, Ek], [E, Ev].
        static_k, static_v: [B * heads, S, E / heads], instead of projected keys and values.
        average_attn_weights: return the mean of the heads' weights.
        is_causal: `attn_mask` is causal; without weights to return, the mask itself is not read.

    Returns the result, of the query's shape, and the weights [B, T, S], or [B, heads, T, S], or
    None.

    Raises:
        AssertionError, RuntimeError: if shapes or dtypes do not fit.
    """
    is_batched = check_dims(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not is_batched:
        query, key, value = unsqueezed(query, key, value, 1)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    if metadata(query).shape[-1] != embed_dim_to_check:
        raise AssertionError(
            f"the query's last size must be embed_dim={embed_dim_to_check}, got "
            f"{metadata(query).shape[-1]}"
        )
    batch_first = _is_batch_major(query)
    if batch_first:
        query, key, value = transposed(query, key, value)
    weights = _Weights(
        in_proj_weight, in_proj_bias, q_proj_weight, k_proj_weight, v_proj_weight,
        use_separate_proj_weight,
    )  # fmt: skip
    output, probabilities = attend(
        query, key, value, num_heads, weights, (bias_k, bias_v), add_zero_attn,
        dropout_p if training else 0.0, (out_proj_weight, out_proj_bias), key_padding_mask,
        need_weights, attn_mask, (static_k, static_v), average_attn_weights, is_causal, batch_first,
    )  # fmt: skip
    if batch_first:
        output = output.transpose(0, 1)
    if not is_batched:
        output = output.squeeze(1)
        probabilities = None if probabilities is None else probabilities.squeeze(0)
    return output, probabilities


def unsqueezed(*tensors: Any) -> Any:
    """Return tensors with a dimension more, at the position given last."""
    *given, dim = tensors
    return _once(given, lambda each: each.unsqueeze(dim))


def transposed(*tensors: Any) -> Any:
    """Return tensors with the first two dimensions exchanged."""
    return _once(tensors, lambda each: each.transpose(0, 1))


def _once(tensors: Any, function: Any) -> Any:
    """Return `function` of each tensor; the same result where tensors are the same."""
    results = {id(each): function(each) for each in tensors}
    return tuple(results[id(each)] for each in tensors)


def _is_batch_major(x: "Tensor") -> bool:
    array = metadata(x)
    return not array.flags.c_contiguous and bool(array.swapaxes(0, 1).flags.c_contiguous)


def attend(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    num_heads: int,
    weights: _Weights,
    extra: "tuple[Tensor | None, Tensor | None]",
    add_zero_attn: bool,
    dropout_p: float,
    out_proj: "tuple[Tensor, Tensor | None]",
    key_padding_mask: "Tensor | None",
    need_weights: bool,
    attn_mask: "Tensor | None",
    static: "tuple[Tensor | None, Tensor | None]",
    average_attn_weights: bool,
    is_causal: bool,
    batch_first: bool,
) -> "tuple[Tensor, Tensor | None]":
    """Run `multi_head_attention_forward` on batches, [B, T, E] where `batch_first`."""
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "is_causal=True is a hint about attn_mask, which is missing: pass "
            "attn_mask=Transformer.generate_square_subsequent_mask(length)"
        )
    only_causal = is_causal and key_padding_mask is None and not need_weights
    q, k, v = _projected(query, key, value, weights)
    batch = metadata(q).shape[0 if batch_first else 1]
    sequence = 1 if batch_first else 0
    shape = (batch, 1, -1) if batch_first else (1, batch, -1)
    if extra[0] is not None and extra[1] is not None:
        k = cat([k, extra[0].expand(shape)], sequence)
        v = cat([v, extra[1].expand(shape)], sequence)
    q, k, v = (_heads(each, num_heads, batch_first) for each in (q, k, v))
    k, v = (
        each if given is None else given.reshape(batch, num_heads, *metadata(given).shape[1:])
        for each, given in zip((k, v), static, strict=True)
    )
    if add_zero_attn:
        k, v = (_with_zeros(each) for each in (k, v))
    keys = metadata(k).shape[2]
    mask = None
    if not only_causal:
        rows = metadata(q).shape[2]
        mask = _merged(attn_mask, key_padding_mask, (batch, num_heads, rows, keys), q)
    probabilities = None
    if need_weights:
        scores = matmul(q * (1 / sqrt(metadata(q).shape[3])), k.mT)
        if mask is not None:
            is_bool = metadata(mask).dtype == np.bool_
            scores = scores.masked_fill(mask, float("-inf")) if is_bool else scores + mask
        probabilities = dropout(softmax(scores, -1), dropout_p, True)
        result = matmul(probabilities, v)
        if average_attn_weights:
            probabilities = probabilities.mean(1)
    else:
        if mask is not None and metadata(mask).dtype == np.bool_:
            mask = ~mask
        result = scaled_dot_product_attention(q, k, v, mask, dropout_p, only_causal)
    ordered = result.permute(0, 2, 1, 3) if batch_first else result.permute(2, 0, 1, 3)
    rows_shape = metadata(ordered).shape
    joined = ordered.reshape(*rows_shape[:2], rows_shape[2] * rows_shape[3])
    return linear(joined, *out_proj), probabilities


def _projected(query: "Tensor", key: "Tensor", value: "Tensor", weights: _Weights) -> Any:
    """Return query, key and value, projected; by as few products as possible."""
    width = metadata(query).shape[-1]
    weight: Any = weights.in_proj_weight
    bias = weights.in_proj_bias
    if query is key and key is value and not weights.is_separate:
        return linear(query, weight, bias).chunk(3, -1)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    if weights.is_separate:
        separate: Any = weights.q_proj_weight, weights.k_proj_weight, weights.v_proj_weight
        return [
            linear(each, weight, b)
            for each, weight, b in zip((query, key, value), separate, biases, strict=True)
        ]
    if key is value:
        q = linear(query, weight[:width], biases[0])
        both = linear(key, weight[width:], None if bias is None else bias[width:])
        return [q, *both.chunk(2, -1)]
    parts = weight.chunk(3)
    return [
        linear(each, part, b)
        for each, part, b in zip((query, key, value), parts, biases, strict=True)
    ]


def _heads(x: "Tensor", num_heads: int, batch_first: bool) -> "Tensor":
    """Return [B, heads, T, E / heads], a view."""
    first, second, width = metadata(x).shape
    split = x.reshape(first, second, num_heads, width // num_heads)
    return split.permute(0, 2, 1, 3) if batch_first else split.permute(1, 2, 0, 3)


def _with_zeros(x: "Tensor") -> "Tensor":
    shape = (*metadata(x).shape[:2], 1, metadata(x).shape[3])
    return cat([x, wrap(np.zeros(shape, metadata(x).dtype))], 2)


def _merged(
    attn_mask: "Tensor | None",
    key_padding_mask: "Tensor | None",
    shape: tuple[int, int, int, int],
    q: "Tensor",
) -> "Tensor | None":
    """Return both masks in one: True for what is ignored, or floats to add to the scores."""
    batch, heads, rows, keys = shape
    masks: list[Tensor] = []
    if attn_mask is not None:
        count = metadata(attn_mask).shape[-1]
        if metadata(attn_mask).ndim == 3:
            attn_mask = attn_mask.reshape(batch, heads, rows, count)
        masks.append(_widened(attn_mask, keys))
    if key_padding_mask is not None:
        masks.append(_widened(key_padding_mask, keys).reshape(batch, 1, 1, keys))
    if not masks:
        return None
    if all(metadata(each).dtype == np.bool_ for each in masks):
        return masks[0] if len(masks) == 1 else masks[0] | masks[1]
    floats = [_as_floats(each, metadata(q).dtype) for each in masks]
    return floats[0] if len(floats) == 1 else floats[0] + floats[1]


def _widened(mask: "Tensor", keys: int) -> "Tensor":
    """Return a mask with columns for keys that were appended, which are never ignored."""
    array = metadata(mask)
    missing = keys - array.shape[-1]
    if missing <= 0:
        return mask
    return cat([mask, wrap(np.zeros((*array.shape[:-1], missing), array.dtype))], -1)


def _as_floats(mask: "Tensor", dtype: Any) -> "Tensor":
    if metadata(mask).dtype != np.bool_:
        return mask.to(dtype)
    return wrap(np.zeros(metadata(mask).shape, dtype)).masked_fill(mask, float("-inf"))


def check_dims(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    key_padding_mask: "Tensor | None",
    attn_mask: "Tensor | None",
    num_heads: int,
    batch_first: bool = False,
) -> bool:
    """Return whether the input has a batch; raise unless shapes and dtypes fit each other."""
    dims = query.dim()
    if dims not in (2, 3):
        raise AssertionError(f"query must have 3 dimensions, or 2 without a batch, got {dims}")
    kind = "unbatched (2-D)" if dims == 2 else "batched (3-D)"
    if key.dim() != dims or value.dim() != dims:
        raise AssertionError(
            f"for {kind} `query`, expected `key` and `value` to be {dims}-D but found "
            f"{key.dim()}-D and {value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != dims - 1:
        raise AssertionError(
            f"for {kind} `query`, expected `key_padding_mask` to be `None` or {dims - 1}-D but "
            f"found {key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise AssertionError(
            f"for {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
            f"{attn_mask.dim()}-D tensor instead"
        )
    for mask, name in ((attn_mask, "attn_mask"), (key_padding_mask, "key_padding_mask")):
        if mask is not None and category(metadata(mask).dtype) not in (0, 2):
            raise AssertionError(f"{name} must be bool or floating, got {mask.dtype}")
    if metadata(key).shape[:-1] != metadata(value).shape[:-1]:
        raise AssertionError(
            f"key and value must have the same shape but for the last size, got {key.shape} and "
            f"{value.shape}"
        )
    sequence = 1 if batch_first and dims == 3 else 0
    rows, keys = metadata(query).shape[sequence], metadata(key).shape[sequence]
    batch = 1 if dims == 2 else metadata(query).shape[1 - sequence]
    if attn_mask is not None:
        expected = (rows, keys) if attn_mask.dim() == 2 else (batch * num_heads, rows, keys)
        if metadata(attn_mask).shape != expected:
            kind_of_error = AssertionError if dims == 2 and attn_mask.dim() == 3 else RuntimeError
            raise kind_of_error(
                f"Expected `attn_mask` shape to be {expected}, got {[*attn_mask.shape]}"
            )
    if key_padding_mask is not None:
        for at, size in enumerate((keys,) if dims == 2 else (batch, keys)):
            if metadata(key_padding_mask).shape[at] != size:
                raise AssertionError(
                    f"key_padding_mask must have size {size} in dimension {at}, got "
                    f"{metadata(key_padding_mask).shape[at]}"
                )
    return dims == 3
