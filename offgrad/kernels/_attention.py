"""Scaled dot-product attention and its gradient, without a T x S matrix.

out = dropout(softmax(q k^T * scale + mask)) v. In tiles of 128 query rows BLAS multiplies and a
compiled loop does the softmax; from the log-sum-exp of each row backward recomputes the tile. One
thread, with one BLAS thread, computes each (batch, head) in a fixed order: results depend neither
on the number of threads nor on the memory layout of q, k and v, which may be strided views.

A row without a key to attend to gives zeros, and no gradient, as in torch.

Scratch memory, per thread in use: one tile (two in backward) of 128 x S, and one head's k and v
where they are strided (in backward, their gradients as well). Narrow heads run in
`_attention_heads`, with copies of the heads of a range instead.

Source: T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Re, "FlashAttention: fast and memory-efficient
exact attention with IO-awareness", arXiv:2205.14135 (the backward from the log-sum-exp).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array
from offgrad.kernels._attention_heads import backward, forward
from offgrad.kernels._attention_heads import usable as heads_usable
from offgrad.kernels._attention_tiles import Dropout, softmax_tile, softmax_tile_backward
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._halves import in_float32
from offgrad.kernels._parallel import Body, parallel_for

TILE = 128
"""Query rows in a tile."""


@in_float32("out", "lse")
def attention(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    scale: float,
    causal: bool = False,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> None:
    """Write attention's result into `out` and each row's log-sum-exp into `lse`.

    Args:
        q: [B, H, T, D] floats; q, k, v and out may have any strides.
        k: [B, H, S, D].
        v: [B, H, S, E].
        out: [B, H, T, E], written.
        lse: [B, H, T], written, C-contiguous; float32, or float64 for float64 inputs. Infinite
            for a row without a key to attend to.
        scale: Factor of q k^T, usually D ** -0.5.
        causal: Row t attends to keys 0 to t, also where T and S differ.
        mask: Broadcasts to [B, H, T, S]. Booleans: True where a row may attend; floats: added.
        dropout_p: Probability of dropping an attention probability.
        seed: With offset, the random stream, as in `dropout`: the call takes B * H * T * S numbers.
        offset: See seed.

    16-bit floats are computed in float32. Raises ValueError if shapes do not fit.
    """
    batch, heads, rows, keys = _shape(q, k, v, out, lse)
    dtype = _work_dtype(q)
    masks = _broadcast_mask(mask, (batch, heads, rows, keys))
    dropping = Dropout.of(dropout_p, seed, offset)
    cost = rows * keys * (q.shape[3] + v.shape[3])
    if heads_usable(q, k, v, out, lse):
        forward(q, k, v, out, lse, scale, causal, dropping, mask)
        return

    def run_heads(start: int, stop: int) -> None:
        scratch = memory.empty(min(TILE, rows) * keys, dtype)
        inverse = np.empty(min(TILE, rows), dtype=dtype)
        for item in range(start, stop):
            at = divmod(item, heads)
            k_, v_ = (np.ascontiguousarray(array[at], dtype=dtype) for array in (k, v))
            for first, last, seen in _tiles(rows, keys, causal):
                q_ = _scaled(q[at][first:last], scale, dtype)
                scores = _scores(q_, k_[:seen], scratch, masks, at, first)
                norms = inverse[: last - first]
                position = (item * rows + first) * keys
                softmax_tile(
                    scores, lse[at][first:last], norms, first, causal, dropping, position, keys
                )
                np.multiply(np.matmul(scores, v_[:seen]), norms[:, None], out=out[at][first:last])

    _over_heads(run_heads, batch * heads, cost)


@in_float32("dq", "dk", "dv")
def attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dq: Array | None,
    dk: Array | None,
    dv: Array | None,
    scale: float,
    causal: bool = False,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> None:
    """Write the gradients of q, k and v into `dq`, `dk` and `dv`; None skips one.

    `grad` is the gradient of `out`; all arrays but `lse` may have any strides. `out` and `lse` are
    the forward's results, the other arguments the forward's.
    """
    batch, heads, rows, keys = _shape(q, k, v, out, lse)
    for name, gradient, of in (("grad", grad, out), ("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        if gradient is not None and gradient.shape != of.shape:
            raise ValueError(f"attention's {name} must have shape {of.shape}, got {gradient.shape}")
    dtype = _work_dtype(q)
    masks = _broadcast_mask(mask, (batch, heads, rows, keys))
    dropping = Dropout.of(dropout_p, seed, offset)
    cost = 2 * rows * keys * (q.shape[3] + v.shape[3])
    if heads_usable(q, k, v, grad, out, lse, dq, dk, dv):
        backward((grad, q, k, v, out), lse, (dq, dk, dv), scale, causal, dropping, mask)
        return

    def run_heads(start: int, stop: int) -> None:
        scratch = memory.empty((2, min(TILE, rows) * keys), dtype)
        dk_: Any = memory.empty(k.shape[2:], dtype)
        dv_: Any = memory.empty(v.shape[2:], dtype)
        for item in range(start, stop):
            at = divmod(item, heads)
            k_, v_ = (np.ascontiguousarray(array[at], dtype=dtype) for array in (k, v))
            dk_[...] = 0
            dv_[...] = 0
            for first, last, seen in _tiles(rows, keys, causal):
                q_ = _scaled(q[at][first:last], scale, dtype)
                g = np.ascontiguousarray(grad[at][first:last], dtype=dtype)
                delta = np.einsum("te,te->t", g, out[at][first:last].astype(dtype, order="C"))
                p = _scores(q_, k_[:seen], scratch[0], masks, at, first)
                ds = scratch[1, : p.size].reshape(p.shape)
                np.matmul(g, v_[:seen].T, out=ds)
                position = (item * rows + first) * keys
                softmax_tile_backward(
                    p, ds, lse[at][first:last], delta, first, causal, dropping, position, keys
                )
                if dv is not None:
                    dv_[:seen] += np.matmul(p.T, g)
                if dk is not None:
                    dk_[:seen] += np.matmul(ds.T, q_)
                if dq is not None:
                    dq[at][first:last] = _scaled(np.matmul(ds, k_[:seen]), scale, dtype)
            if dk is not None:
                dk[at] = dk_
            if dv is not None:
                dv[at] = dv_

    _over_heads(run_heads, batch * heads, cost)


def _over_heads(body: Body, count: int, cost: int) -> None:
    def run(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # which each thread has for itself
            body(start, stop)

    with single_threaded_blas():
        parallel_for(run, count, cost)


def _shape(q: Array, k: Array, v: Array, out: Array, lse: Array) -> tuple[int, int, int, int]:
    if not (
        q.ndim == k.ndim == v.ndim == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2]
        and out.shape == q.shape[:3] + v.shape[3:]
        and lse.shape == q.shape[:3]
        and lse.flags.c_contiguous
    ):
        raise ValueError(
            "attention takes q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], out [B, H, T, E] and "
            f"lse [B, H, T], C-contiguous; got q {q.shape}, k {k.shape}, v {v.shape}, out "
            f"{out.shape}, lse {lse.shape}"
        )
    return q.shape[0], q.shape[1], q.shape[2], k.shape[2]


def _work_dtype(array: Array) -> np.dtype[Any]:
    return np.dtype(np.float64 if array.dtype == np.float64 else np.float32)


def _broadcast_mask(mask: Array | None, shape: tuple[int, ...]) -> Array | None:
    if mask is None:
        return None
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(
            f"attention's mask must broadcast to [B, H, T, S] = {shape}, got {mask.shape}"
        ) from None


def _tiles(rows: int, keys: int, causal: bool) -> list[tuple[int, int, int]]:
    """First row, end, and number of visible keys of each tile."""
    bounds = [(first, min(first + TILE, rows)) for first in range(0, rows, TILE)]
    return [(first, last, min(keys, last) if causal else keys) for first, last in bounds]


def _scaled(array: Array, scale: float, dtype: np.dtype[Any]) -> Array:
    """The product with `scale`, contiguous, in `dtype`."""
    product: Array = np.multiply(array.astype(dtype, copy=False), dtype.type(scale), order="C")
    return product


def _scores(
    q: Array, k: Array, scratch: Array, mask: Array | None, at: tuple[int, int], first: int
) -> Array:
    """A tile of q k^T, masked; the softmax applies causality."""
    rows, seen = len(q), len(k)
    scores = scratch[: rows * seen].reshape(rows, seen)
    np.matmul(q, k.T, out=scores)
    if mask is not None:
        tile = mask[at][first : first + rows, :seen]
        if tile.dtype == np.bool_:
            np.copyto(scores, -np.inf, where=~tile)
        else:
            scores += tile.astype(scores.dtype, copy=False)
    return scores
