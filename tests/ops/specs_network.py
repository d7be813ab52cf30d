"""Operations of neural networks."""

from typing import Any

import numpy as np

from offgrad.ops._linalg import affine, products
from offgrad.ops._nn import attention, classification_losses, likelihood_losses, pair_losses
from offgrad.ops._nn.embeddings import Embedding, EmbeddingBackward
from offgrad.ops._nn.normalization import LayerNorm, LayerNormBackward
from offgrad.ops._nn.probabilities import (
    LogSoftmax,
    LogSoftmaxBackward,
    Softmax,
    SoftmaxBackward,
)
from offgrad.ops._random import dropout
from offgrad.ops._shape import reshaping
from tests.ops import (
    specs_activations,
    specs_layers,
    specs_losses,
    specs_normalization,
    specs_products,
)
from tests.ops.opspec import OpSpec, positive

TARGETS = np.array([0, 2, 2, 1])
WEIGHTS = np.array([0.5, 2.0, 1.25])
TOKENS = np.array([[0, 3, 1], [3, 3, 2]])
QKV = [((1, 2, 3, 2),) * 3, ((2, 1, 3, 2), (2, 1, 4, 2), (2, 1, 4, 3)), ((3, 2), (3, 2), (3, 4))]
CAUSAL = [((1, 2, 3, 2),) * 3, ((2, 4, 2), (2, 4, 2), (2, 4, 3))]
BIAS = np.linspace(-1, 1, 18).reshape(1, 2, 3, 3)
SEEN = np.array([[True, False, False], [True, True, False], [False, True, True]])


def _soft(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _attend(q: Any, k: Any, v: Any, hidden: Any = None, bias: Any = None, scale: Any = None) -> Any:
    scores = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    return _soft(scores, -1) @ v


def _causal(q: Any, k: Any, v: Any) -> Any:
    return _attend(q, k, v, ~np.tri(q.shape[-2], k.shape[-2], dtype=bool))


def _norm(x: Any, axes: tuple[int, ...], weight: Any = 1, bias: Any = 0, eps: float = 1e-5) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + eps) * weight + bias


def _entropy(
    x: Any, target: Any, weight: Any = None, ignore: int = -100, smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    logp = np.log(_soft(x, 1))
    weight = np.ones(x.shape[1]) if weight is None else weight
    kept = target != ignore
    at = np.where(kept, target, 0)
    rows = np.arange(len(x))
    losses = -(1 - smoothing) * weight[at] * logp[rows, at]
    losses = (losses - smoothing / x.shape[1] * (logp * weight).sum(1)) * kept
    if reduction == "mean":
        return losses.sum() / (weight[at] * kept).sum()
    return losses.sum() if reduction == "sum" else losses


def _dropped(m: Any, x: Any) -> Any:
    m.manual_seed(3)
    return m.nn.functional.dropout(x, 0.4)


def _attention_dropped(m: Any, q: Any, k: Any, v: Any) -> Any:
    m.manual_seed(3)
    return m.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


def _sdpa(m: Any, *args: Any, **options: Any) -> Any:
    return m.nn.functional.scaled_dot_product_attention(*args, **options)


ATTENTION = (attention.ScaledDotProductAttention, attention.ScaledDotProductAttentionBackward)
ENTROPY = (classification_losses.CrossEntropy, classification_losses.CrossEntropyBackward)
LAYER_NORM = (LayerNorm, LayerNormBackward)

SPECS = [
    OpSpec("matmul", (products.Mm, products.Bmm, products.Mv, products.Dot, reshaping.UnsafeView),
           lambda m, a, b: a @ b,
           [((2, 3), (3, 2)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 2, 3), (3, 2)),
            ((2, 1, 2, 3), (2, 3, 2)), ((3,), (2, 3, 2)), ((2, 2, 3), (3,)),
            ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (0, 3, 1)), ((0,), (0,))],
           np.matmul, complex=True),
    OpSpec("mm", (products.Mm,), lambda m, a, b: m.mm(a, b.t()), [((2, 3), (4, 3))],
           lambda a, b: a @ b.T),
    OpSpec("bmm", (products.Bmm,), lambda m, a, b: m.bmm(a, b), [((2, 2, 3), (2, 3, 1))],
           np.matmul),
    OpSpec("dot", (products.Dot,), lambda m, a, b: m.dot(a, b), [((3,), (3,))], np.dot,
           complex=True),
    OpSpec("outer", (), lambda m, a, b: m.outer(a, b), [((2,), (3,))], np.outer),
    OpSpec("linear", (affine.Linear, affine.SumRows),
           lambda m, x, w, b: m.nn.functional.linear(x, w, b),
           [((2, 3), (4, 3), (4,)), ((3,), (4, 3), (4,)), ((2, 2, 3), (1, 3), (1,)),
            ((0, 3), (2, 3), (2,)), ((2, 0, 3), (2, 3), (2,))],
           lambda x, w, b: x @ w.T + b, complex=True, third=True),
    OpSpec("linear_no_bias", (affine.LinearWithoutBias,),
           lambda m, x, w: m.nn.functional.linear(x, w), [((2, 3), (4, 3)), ((2, 0), (3, 0))],
           lambda x, w: x @ w.T, complex=True),
    OpSpec("embedding", (Embedding, EmbeddingBackward),
           lambda m, i, w: m.nn.functional.embedding(i, w),
           [(TOKENS, (4, 2)), (np.array(2), (4, 2)), (TOKENS[:0], (4, 2))], lambda i, w: w[i]),
    OpSpec("embedding_padding", (Embedding, EmbeddingBackward),
           lambda m, i, w: m.nn.functional.embedding(i, w, padding_idx=3)[m.tensor([0, 1]), [0, 2]],
           [(TOKENS, (4, 2))], lambda i, w: w[i][[0, 1], [0, 2]]),
    OpSpec("softmax", (Softmax, SoftmaxBackward), lambda m, x: x.softmax(-1),
           [((2, 3),), ((0, 3),), ((2, 1),)], lambda x: _soft(x, -1), third=True),
    OpSpec("softmax_dim", (Softmax,), lambda m, x: m.softmax(x, 0), [((3, 2),), ((2, 2, 2),)],
           lambda x: _soft(x, 0)),
    OpSpec("softmax_0d", (Softmax,), lambda m, x: m.softmax(x, 0), [((),)],
           lambda x: x * 0 + 1),
    OpSpec("log_softmax", (LogSoftmax, LogSoftmaxBackward),
           lambda m, x: x.log_softmax(-1), [((2, 3),), ((0, 3),), ((2, 2, 2),)],
           lambda x: np.log(_soft(x, -1)), third=True),
    OpSpec("log_softmax_dim", (LogSoftmax,), lambda m, x: m.log_softmax(x, 1),
           [((2, 3, 2),)], lambda x: np.log(_soft(x, 1))),
    OpSpec("attention", ATTENTION, _sdpa, QKV, _attend, third=True),
    OpSpec("attention_causal", ATTENTION, lambda m, *a: _sdpa(m, *a, is_causal=True), CAUSAL,
           _causal),
    OpSpec("attention_scale", ATTENTION, lambda m, *a: _sdpa(m, *a, scale=0.3), CAUSAL,
           lambda q, k, v: _attend(q, k, v, scale=0.3)),
    OpSpec("attention_mask", ATTENTION, lambda m, q, k, v, s: _sdpa(m, q, k, v, attn_mask=s),
           [((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), SEEN)],
           lambda q, k, v, s: _attend(q, k, v, ~s)),
    OpSpec("attention_bias", ATTENTION,
           lambda m, q, k, v: _sdpa(
               m, q, k, v, attn_mask=m.tensor(BIAS.tolist(), dtype=q.dtype)),
           [((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2))],
           lambda q, k, v: _attend(q, k, v, bias=BIAS)),
    OpSpec("attention_learned_bias", (products.Bmm, Softmax),
           lambda m, q, k, v, b: _sdpa(m, q, k, v, attn_mask=b),
           [((1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2), (3, 3))],
           lambda q, k, v, b: _attend(q, k, v, bias=b)),
    OpSpec("attention_groups", ATTENTION,
           lambda m, q, k, v: _sdpa(m, q, k, v, is_causal=True, enable_gqa=True),
           [((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2))],
           lambda q, k, v: _causal(q, k.repeat(2, 1), v.repeat(2, 1))),
    OpSpec("attention_dropout", ATTENTION, _attention_dropped, CAUSAL[:1], torch=False),
    OpSpec("dropout", (dropout.Dropout,), _dropped, [((3, 4),), ((),), ((0,),)], torch=False),
    OpSpec("layer_norm", LAYER_NORM, lambda m, x, w, b: m.nn.functional.layer_norm(x, (3,), w, b),
           [((2, 3), (3,), (3,)), ((3,), (3,), (3,)), ((2, 2, 3), (3,), (3,)),
            ((0, 3), (3,), (3,))],
           lambda x, w, b: _norm(x, (-1,), w, b), third=True),
    OpSpec("layer_norm_plain", LAYER_NORM, lambda m, x: m.nn.functional.layer_norm(x, (2, 3)),
           [((2, 2, 3),)], lambda x: _norm(x, (-2, -1))),
    OpSpec("layer_norm_weight", LAYER_NORM,
           lambda m, x, w: m.nn.functional.layer_norm(x, (3,), w, eps=0.1),
           [((2, 3), (3,))], lambda x, w: _norm(x, (-1,), w, eps=0.1)),
    OpSpec("cross_entropy", ENTROPY, lambda m, x, t: m.nn.functional.cross_entropy(x, t),
           [((4, 3), TARGETS)], _entropy, third=True),
    *(
        OpSpec(f"cross_entropy_{reduction}", ENTROPY,
               lambda m, x, t, r=reduction: m.nn.functional.cross_entropy(
                   x, t, ignore_index=2, label_smoothing=0.2, reduction=r),
               [((4, 3), TARGETS), ((2, 3), np.array([1, 0]))],
               lambda x, t, r=reduction: _entropy(x, t, None, 2, 0.2, r))
        for reduction in ("mean", "sum", "none")
    ),
    OpSpec("cross_entropy_weight", ENTROPY,
           lambda m, x, t: m.nn.functional.cross_entropy(
               x, t, weight=m.tensor(WEIGHTS.tolist(), dtype=x.dtype), label_smoothing=0.1),
           [((4, 3), TARGETS)], lambda x, t: _entropy(x, t, WEIGHTS, smoothing=0.1)),
    OpSpec("cross_entropy_images", ENTROPY, lambda m, x, t: m.nn.functional.cross_entropy(x, t),
           [((2, 3, 2), TARGETS.reshape(2, 2)), ((1, 3, 2, 2), TARGETS.reshape(1, 2, 2))]),
    OpSpec("cross_entropy_planes", ENTROPY,
           lambda m, x, t: m.nn.functional.cross_entropy(
               x, t, weight=m.tensor(WEIGHTS.tolist(), dtype=x.dtype), ignore_index=1),
           [((1, 3, 2, 8), np.arange(16).reshape(1, 2, 8) % 3)]),
    OpSpec("nll_loss_planes", (likelihood_losses.NllLoss, likelihood_losses.NllLossBackward),
           lambda m, x, t: m.nn.functional.nll_loss(x, t, ignore_index=1),
           [((1, 3, 2, 8), np.arange(16).reshape(1, 2, 8) % 3)]),
    OpSpec("softmax_planes", (Softmax, SoftmaxBackward), lambda m, x: m.softmax(x, 1),
           [((1, 2, 4, 5),)], lambda x: _soft(x, 1), third=True),
    OpSpec("log_softmax_planes", (LogSoftmax, LogSoftmaxBackward),
           lambda m, x: m.log_softmax(x, 0), [((3, 16),)], lambda x: np.log(_soft(x, 0))),
    OpSpec("cross_entropy_one", ENTROPY, lambda m, x, t: m.nn.functional.cross_entropy(x, t),
           [((3,), np.array(1))]),
    OpSpec("cross_entropy_soft", (), lambda m, x, t: m.nn.functional.cross_entropy(
               x, t, weight=m.tensor(WEIGHTS.tolist(), dtype=x.dtype), label_smoothing=0.1),
           [((4, 3), (4, 3)), ((2, 3, 2), (2, 3, 2))], domain=positive),
    OpSpec("nll_loss", (likelihood_losses.NllLoss, likelihood_losses.NllLossBackward),
           lambda m, x, t: m.nn.functional.nll_loss(
               x.log_softmax(1), t, m.tensor(WEIGHTS.tolist(), dtype=x.dtype), ignore_index=1),
           [((4, 3), TARGETS)], lambda x, t: _entropy(x, t, WEIGHTS, ignore=1)),
    OpSpec("mse_loss", (pair_losses.MseLoss,),
           lambda m, a, b: m.nn.functional.mse_loss(a, b),
           [((2, 3), (2, 3))], lambda a, b: ((a - b) ** 2).mean()),
    OpSpec("mse_loss_none", (pair_losses.MseLoss,),
           lambda m, a, b: m.nn.functional.mse_loss(a, b, reduction="none"),
           [((2, 3), (2, 3)), ((), ())], lambda a, b: (a - b) ** 2),
]  # fmt: skip

SPECS += [
    *specs_products.SPECS,
    *specs_activations.SPECS,
    *specs_layers.SPECS,
    *specs_losses.SPECS,
    *specs_normalization.SPECS,
]
