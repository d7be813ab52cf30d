"""Bags of embeddings, bilinear functions, dropout of channels, and losses of sequences."""

from typing import Any

import numpy as np

from offgrad.ops._nn.ctc import CtcLoss, CtcLossBackward
from offgrad.ops._nn.embeddings import Embedding, EmbeddingBackward, EmbeddingBag
from tests.ops.opspec import OpSpec

TOKENS = np.array([[0, 3, 1], [3, 3, 2]])
FLAT, OFFSETS = np.array([1, 2, 2, 0, 3]), np.array([0, 2, 2])
SCORES = np.array([[2, 0, -1], [1, -1, 0]])
LABELS, FRAMES, LENGTHS = np.array([[1, 1], [2, 1], [2, 2]]), [4, 3, 4], [2, 1, 0]


def _ctc(m: Any, x: Any, labels: Any, reduction: str = "mean") -> Any:
    log_probs = x.log_softmax(-1)
    lengths = m.tensor(FRAMES), m.tensor(LENGTHS)
    return m.nn.functional.ctc_loss(log_probs, labels, *lengths, reduction=reduction)


def _bag(m: Any, *args: Any, **options: Any) -> Any:
    return m.nn.functional.embedding_bag(*args, **options)


def _dropped(m: Any, name: str, x: Any) -> Any:
    m.manual_seed(3)
    return getattr(m.nn.functional, name)(x, 0.4, training=True)


SPECS = [
    # PyTorch has no second derivative of it.
    *(
        OpSpec(f"ctc_loss_{reduction}", (CtcLoss, CtcLossBackward),
               lambda m, x, t, r=reduction: _ctc(m, x, t, r), [((4, 3, 3), LABELS)], torch=False)
        for reduction in ("mean", "none")
    ),
    OpSpec("ctc_loss_one", (CtcLoss,),
           lambda m, x: m.nn.functional.ctc_loss(
               x.log_softmax(-1), m.tensor([1]), m.tensor(3), m.tensor(1)),
           [((3, 3),)], torch=False),
    *(
        OpSpec(f"embedding_bag_{mode}",
               (Embedding if mode == "max" else EmbeddingBag, EmbeddingBackward),
               lambda m, i, w, mode=mode: _bag(m, i, w, mode=mode), [(TOKENS, (4, 2))])
        for mode in ("sum", "mean", "max")
    ),
    *(
        OpSpec(f"embedding_bag_offsets_{mode}",
               (Embedding if mode == "max" else EmbeddingBag, EmbeddingBackward),
               lambda m, i, o, w, mode=mode: _bag(m, i, w, o, mode=mode, padding_idx=3),
               [(FLAT, OFFSETS, (4, 2))])
        for mode in ("sum", "mean", "max")
    ),
    OpSpec("embedding_bag_weights", (Embedding, EmbeddingBackward),
           lambda m, i, w, s: _bag(m, i, w, mode="sum", per_sample_weights=s),
           # PyTorch has no second derivative of it.
           [(TOKENS, (4, 2), (2, 3))], torch=False),
    OpSpec("bilinear", (), lambda m, a, b, w, c: m.nn.functional.bilinear(a, b, w, c),
           [((2, 3), (2, 4), (5, 3, 4), (5,)), ((2, 2, 3), (2, 2, 1), (2, 3, 1), (2,)),
            ((3,), (2,), (1, 3, 2), (1,)), ((0, 3), (0, 2), (1, 3, 2), (1,))],
           lambda a, b, w, c: np.einsum("...i,kij,...j->...k", a, w, b) + c),
    OpSpec("linear_cross_entropy", (),
           lambda m, x, w, b: m.nn.functional.linear_cross_entropy(
               x, w, m.tensor([1, 0]), linear_bias=b, label_smoothing=0.1),
           [((2, 3), (4, 3), (4,))]),
    # PyTorch has no second derivative of it.
    OpSpec("pdist", (), lambda m, x: m.nn.functional.pdist(x, 3.0), [((4, 3),), ((1, 2),)],
           torch=False),
    OpSpec("multilabel_margin_loss", (),
           lambda m, x, t: m.nn.functional.multilabel_margin_loss(x, t), [((2, 3), SCORES)],
           torch=False),
    OpSpec("multilabel_soft_margin_loss", (),
           lambda m, x, t: m.nn.functional.multilabel_soft_margin_loss(x, t),
           [((2, 3), (2, 3)), ((3,), (3,))]),
    *(
        OpSpec(name, (), lambda m, x, name=name: _dropped(m, name, x), [((3, 4, 2),)], torch=False)
        for name in ("dropout1d", "alpha_dropout", "feature_alpha_dropout")
    ),
]  # fmt: skip
