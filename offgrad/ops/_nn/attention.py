"""Scaled dot-product attention without a matrix of queries by keys."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating, shape_error
from offgrad.ops._linalg.products import matmul
from offgrad.ops._nn.probabilities import softmax
from offgrad.ops._random import generators

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["scaled_dot_product_attention"]


def _empty_like(x: Array, columns: int) -> Array:
    """Return memory for [B, H, rows, columns], C-contiguous if x [B, H, rows, D] is.

    Otherwise the heads of a row are side by side: projections before and after need no copy.
    """
    batch, heads, rows = x.shape[:3]
    if x.flags.c_contiguous:
        return memory.empty((batch, heads, rows, columns), x.dtype)
    return memory.empty((batch, rows, heads, columns), x.dtype).transpose(0, 2, 1, 3)


class ScaledDotProductAttention(Op):
    """softmax(scale q k^T + mask) v, tile by tile (after Dao et al., FlashAttention, 2022).

    Keeps q, k, v, the result and each query's log-sum-exp; dropout keeps its seed.
    """

    torch_name = "ScaledDotProductFlashAttentionForCpuBackward0"

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        options: dict[str, Any],
        scale: float | None,
    ) -> Array:
        """Return [B, H, T, Dv] of q [B, H, T, D], k [B, H, S, D], v [B, H, S, Dv]."""
        self.options = options
        self.scale, self.is_causal = scale, options["causal"]
        self.dropout_p = options["dropout_p"]
        out = _empty_like(q, v.shape[3])
        lse = memory.empty(q.shape[:3], wide_dtype(q.dtype))
        kernels.attention(q, k, v, out, lse, mask=mask, **options)
        self.save(query=q, key=k, value=v, attn_mask=mask, output=out, logsumexp=lse)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Recompute the probabilities tile by tile."""
        grads = ScaledDotProductAttentionBackward.apply_all(
            grad,
            self.saved("query"),
            self.saved("key"),
            self.saved("value"),
            self.saved("attn_mask") if "attn_mask" in self._saved else None,
            result=self.saved("output")._array,
            lse=self.saved("logsumexp")._array,
            options=self.options,
            needs=self.needs_input_grad,
        )
        return *grads, None


class ScaledDotProductAttentionBackward(Op):
    """The gradients of q, k and v; keeps them and the incoming gradient."""

    def forward(
        self,
        grad: Array,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        result: Array,
        lse: Array,
        options: dict[str, Any],
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.options, self.needs = options, needs
        self.save(grad=grad, query=q, key=k, value=v, attn_mask=mask)
        dq, dk, dv = (
            _empty_like(each, each.shape[3]) if needed else None
            for each, needed in zip((q, k, v), needs, strict=False)
        )
        kernels.attention_backward(grad, q, k, v, result, lse, dq, dk, dv, mask=mask, **options)
        return dq, dk, dv

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula with the full matrix of probabilities."""
        mask = self.saved("attn_mask") if "attn_mask" in self._saved else None
        options = self.options
        scale = options["scale"]

        def reference(g: "Tensor", q: "Tensor", k: "Tensor", v: "Tensor") -> Any:
            probabilities = _probabilities(q, k, mask, scale, options["causal"])
            factors = _dropout_factors(probabilities, options)
            dropped = probabilities if factors is None else probabilities * factors
            dprob = g @ v.mT
            if factors is not None:
                dprob = dprob * factors
            dscore = (dprob - (dprob * probabilities).sum(-1, keepdim=True)) * probabilities * scale
            results = dscore @ k, dscore.mT @ q, dropped.mT @ g
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=False)
            )

        inputs = tuple(self.saved(slot) for slot in ("grad", "query", "key", "value"))
        return *differentiate(reference, inputs, grads, self.needs_input_grad[:4]), None


def _probabilities(
    q: "Tensor", k: "Tensor", mask: "Tensor | None", scale: float, causal: bool
) -> "Tensor":
    scores = (q @ k.mT) * scale
    if causal:
        future = ~np.tri(q.shape[-2], k.shape[-2], dtype=np.bool_)
        scores = scores.masked_fill(wrap(future), float("-inf"))
    if mask is not None:
        if mask._array.dtype == np.bool_:
            scores = scores.masked_fill(wrap(~mask._array), float("-inf"))
        else:
            scores = scores + mask
        # As in the kernel, the probabilities of a query that may attend to no key are 0.
        empty = (scores._array == float("-inf")).all(-1, keepdims=True)
        if empty.any():
            is_empty = wrap(empty)
            return softmax(scores.masked_fill(is_empty, 0.0), -1).masked_fill(is_empty, 0.0)
    return softmax(scores, -1)


def _dropout_factors(probabilities: "Tensor", options: dict[str, Any]) -> "Tensor | None":
    """Return the factors of dropout, None without dropout."""
    p = options["dropout_p"]
    if not p:
        return None
    mask = kernels.dropout_mask(probabilities.shape, p, options["seed"], options["offset"])
    dtype = probabilities._array.dtype
    return wrap(mask.astype(dtype) * dtype.type(1 / (1 - p) if p < 1 else 0))


@lower_precision
def scaled_dot_product_attention(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attn_mask: "Tensor | None" = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> "Tensor":
    """Return ``softmax(query @ key.mT * scale + mask) @ value``.

    Args:
        query: shape [..., T, D].
        key: shape [..., S, D].
        value: shape [..., S, Dv].
        attn_mask: broadcastable to [..., T, S]: bool, True where a query may attend, or added
            floats.
        dropout_p: the probability of dropping a weight; there is no training mode.
        is_causal: let query i attend to keys 0 to i; excludes `attn_mask`.
        scale: the factor of the scores, by default ``1 / sqrt(D)``.
        enable_gqa: let groups of query heads (dimension -3) share key and value heads.

    Raises:
        RuntimeError: if shapes or dtypes do not fit.
    """
    where = "scaled_dot_product_attention"
    q, k, v = (real_floating(each, where) for each in (query, key, value))
    for each in (k, v):
        if q._array.ndim < 2 or each._array.ndim != q._array.ndim:
            raise shape_error(
                where, "query, key and value need the same number (>= 2) of dimensions", q, each
            )
        if each._array.dtype != q._array.dtype:
            raise shape_error(where, "query, key and value must have the same dtype", q, each)
    if k._array.shape[-1] != q._array.shape[-1]:
        raise shape_error(where, "query and key must have the same last size", q, k)
    if v._array.shape[-2] != k._array.shape[-2]:
        raise shape_error(where, "key and value must have the same number of rows", k, v)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"{where}: dropout_p must be from 0 to 1, got {dropout_p}")
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            f"{where}: is_causal=True is a mask already; pass attn_mask=None with it"
        )
    if enable_gqa:
        k, v = _repeat_heads(q, k, where), _repeat_heads(q, v, where)
    batch = q._array.shape[:-2]
    if not batch == k._array.shape[:-2] == v._array.shape[:-2]:
        try:
            batch = np.broadcast_shapes(*(each._array.shape[:-2] for each in (q, k, v)))
        except ValueError:
            hint = "" if enable_gqa else "; enable_gqa=True lets groups of heads share keys"
            raise shape_error(
                where, f"query, key and value must have the same batches and heads{hint}", q, k, v
            ) from None
    q, k, v = (_heads(each, batch) for each in (q, k, v))
    mask = None if attn_mask is None else _mask(attn_mask, batch, q, k, where)
    # Of heads without width all scores are 0, whatever the factor.
    factor = max(1, q._array.shape[-1]) ** -0.5 if scale is None else float(scale)
    options = {
        "scale": factor,
        "causal": is_causal,
        "dropout_p": float(dropout_p),
        "seed": 0,
        "offset": 0,
    }
    if dropout_p:
        count = q._array[..., 0].size * k._array.shape[-2]
        options["seed"], options["offset"] = generators.default_generator.advance(count)
    if mask is not None and mask.requires_grad:
        # A learned bias needs a gradient of the scores' size: tiles would gain nothing.
        probabilities = _probabilities(q, k, mask, factor, is_causal)
        factors = _dropout_factors(probabilities, options)
        result = matmul(probabilities if factors is None else probabilities * factors, v)
    else:
        result = ScaledDotProductAttention.apply(q, k, v, mask, options=options, scale=scale)
    shape = (*batch, *result._array.shape[-2:])
    return result if result._array.shape == shape else result.reshape(shape)


def _heads(x: "Tensor", batch: tuple[int, ...]) -> "Tensor":
    """Return `x` as [B, H, rows, columns]."""
    shape = (*batch, *x._array.shape[-2:])
    x = x if x._array.shape == shape else x.expand(shape)
    if len(batch) == 2:
        return x
    heads = batch[-1] if batch else 1
    outer_batch = int(np.prod(batch[:-1])) if batch else 1
    return x.reshape(outer_batch, heads, *x._array.shape[-2:])


def _mask(mask: Any, batch: tuple[int, ...], q: "Tensor", k: "Tensor", where: str) -> "Tensor":
    if not isinstance(mask, TensorBase):
        raise TypeError(f"{where}: attn_mask must be a tensor, got {type(mask).__name__}")
    if mask._array.dtype not in (np.bool_, q._array.dtype):
        raise shape_error(where, "attn_mask must be bool or have the query's dtype", mask, q)
    full = (*batch, q._array.shape[-2], k._array.shape[-2])
    try:
        broadcast = np.broadcast_shapes(mask._array.shape, full)
    except ValueError:
        broadcast = ()
    if broadcast != full:
        raise RuntimeError(
            f"{where}: attn_mask must broadcast to [..., T, S] = {list(full)}, got a "
            f"{describe(mask)}"
        )
    tensor: Tensor = mask  # type: ignore[assignment]
    if len(batch) == 2 or mask._array.ndim <= 2:
        return tensor
    return _heads(tensor.expand(full), batch)


def _repeat_heads(q: "Tensor", x: "Tensor", where: str) -> "Tensor":
    if q._array.ndim < 3 or q._array.shape[-3] % x._array.shape[-3]:
        raise shape_error(where, "each key head must serve the same number of query heads", q, x)
    group = q._array.shape[-3] // x._array.shape[-3]
    if group == 1:
        return x
    *batch_shape, heads, rows, columns = x._array.shape
    repeated = x.unsqueeze(-3).expand(*batch_shape, heads, group, rows, columns)
    return repeated.reshape(*batch_shape, heads * group, rows, columns)
