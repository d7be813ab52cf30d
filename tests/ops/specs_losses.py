"""Losses of pairs, margins and distances."""

from typing import Any

import numpy as np

from offgrad.ops._nn import likelihood_losses, pair_losses
from tests.ops.calls import call
from tests.ops.opspec import Array, OpSpec, positive

PAIR = [((2, 3), (2, 3)), ((), ())]
SIGNS = np.array([1, -1, 1])
CLASSES = np.array([2, 0])
WEIGHT = np.array([0.5, 2.0, 1.25])


def _probabilities(values: Array) -> Array:
    return np.asarray(0.1 + 0.8 / (1 + np.exp(-values)))


def _reduced(losses: Any, reduction: str) -> Any:
    return losses if reduction == "none" else getattr(np, reduction)(losses)


def _softplus(x: Any) -> Any:
    return np.log(1 + np.exp(x))


def _huber(a: Any, b: Any) -> Any:
    d = np.abs(a - b)
    return np.where(d < 0.7, d * d / 2, 0.7 * (d - 0.35))


def _cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


# Of each loss: name, class, the losses before reduction, options, domain.
PAIRS: list[tuple[str, Any, Any, dict[str, Any], Any]] = [
    ("mse_loss", pair_losses.MseLoss, lambda a, b: (a - b) ** 2, {}, None),
    ("l1_loss", None, lambda a, b: np.abs(a - b), {}, None),
    ("smooth_l1_loss", pair_losses.SmoothL1Loss,
     lambda a, b: _huber(a, b) / 0.7, {"beta": 0.7}, None),
    ("huber_loss", pair_losses.HuberLoss, _huber, {"delta": 0.7}, None),
    ("soft_margin_loss", pair_losses.SoftMarginLoss,
     lambda a, b: _softplus(-a * b), {}, None),
    ("binary_cross_entropy", pair_losses.BinaryCrossEntropy,
     lambda a, b: -b * np.log(a) - (1 - b) * np.log(1 - a), {}, _probabilities),
    ("binary_cross_entropy_with_logits", pair_losses.BinaryCrossEntropyWithLogits,
     lambda a, b: _softplus(a) - a * b, {}, None),
    ("kl_div", None, lambda a, b: b * (np.log(b) - a), {}, positive),
    ("kl_div", None, lambda a, b: np.exp(b) * (b - a), {"log_target": True}, None),
    ("poisson_nll_loss", None, lambda a, b: np.exp(a) - a * b, {}, None),
    ("poisson_nll_loss", None, lambda a, b: a - b * np.log(a + 1e-8), {"log_input": False},
     positive),
]  # fmt: skip


def _pair_spec(entry: tuple[str, Any, Any, dict[str, Any], Any], reduction: str) -> OpSpec:
    name, cls, losses, options, domain = entry
    label = "_".join([name, *map(str, options), reduction])
    return OpSpec(
        label,
        () if cls is None else (cls, pair_losses.PairLossBackward),
        lambda m, a, b: call(m, f"F.{name}", a, b, reduction=reduction, **options),
        PAIR,
        lambda a, b: _reduced(losses(a, b), reduction),
        domain=domain,
        # torch has no second derivative by the target of some.
        torch=name not in ("binary_cross_entropy", "soft_margin_loss"),
    )


def _weighted(m: Any, a: Any, b: Any) -> Any:
    options = {key: m.tensor(WEIGHT.tolist(), dtype=a.dtype) for key in ("weight", "pos_weight")}
    return call(m, "F.binary_cross_entropy_with_logits", a, b, **options)


def _nll(m: Any, x: Any, target: Any, **options: Any) -> Any:
    return call(m, "F.nll_loss", x, target, **options)


SPECS = [
    *(_pair_spec(entry, reduction) for entry in PAIRS for reduction in ("mean", "sum", "none")
      # PyTorch warns of kl_div's mean.
      if (entry[0], reduction) != ("kl_div", "mean")),
    OpSpec("binary_cross_entropy_weight", (pair_losses.BinaryCrossEntropy,),
           lambda m, a, b: call(m, "F.binary_cross_entropy", a, b,
                                m.tensor(WEIGHT.tolist(), dtype=a.dtype)),
           [((2, 3), (2, 3))],
           lambda a, b: (WEIGHT * (-b * np.log(a) - (1 - b) * np.log(1 - a))).mean(),
           domain=_probabilities, torch=False),
    OpSpec("binary_cross_entropy_logits_weight", (),
           _weighted, [((2, 3), (2, 3))],
           lambda a, b: (WEIGHT * (WEIGHT * b * _softplus(-a) + (1 - b) * _softplus(a))).mean()),
    OpSpec("kl_div_batchmean", (), lambda m, a, b: call(m, "F.kl_div", a, b, reduction="batchmean"),
           [((2, 3), (2, 3))], lambda a, b: (b * (np.log(b) - a)).sum() / 2, domain=positive),
    OpSpec("poisson_nll_full", (), lambda m, a, b: call(m, "F.poisson_nll_loss", a, b, full=True),
           [((2, 3), (2, 3))], domain=positive),
    OpSpec("gaussian_nll", (),
           lambda m, a, b, v: call(m, "F.gaussian_nll_loss", a, b, v, full=True),
           [((2, 3), (2, 3), (2, 3)), ((2, 3), (2, 3), (2,)), ((2, 3), (2, 3), (2, 1))],
           domain=positive),
    *(
        OpSpec(f"nll_loss_{reduction}",
               (likelihood_losses.NllLoss, likelihood_losses.NllLossBackward),
               lambda m, x, t, r=reduction: _nll(m, x, t, reduction=r, ignore_index=1),
               [((2, 3), CLASSES), ((3,), np.array(2)), ((2, 3, 2), CLASSES[:, None] + [0, 0]),
                ((1, 3, 2, 1), np.array([[[1], [0]]]))])
        for reduction in ("mean", "sum", "none")
    ),
    OpSpec("normalize", (), lambda m, x: call(m, "F.normalize", x), [((2, 3),)],
           lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    OpSpec("cosine_similarity", (), lambda m, a, b: call(m, "F.cosine_similarity", a, b),
           [((2, 3), (2, 3)), ((2, 3), (1, 3))], _cosine),
    OpSpec("pairwise_distance", (), lambda m, a, b: call(m, "F.pairwise_distance", a, b),
           [((2, 3), (2, 3)), ((3,), (3,))], lambda a, b: np.linalg.norm(a - b + 1e-6, axis=-1)),
    OpSpec("hinge_embedding_loss", (),
           lambda m, x, t: call(m, "F.hinge_embedding_loss", x, t), [((3,), SIGNS)],
           lambda x, t: np.where(t == 1, x, np.maximum(0, 1 - x)).mean(), domain=positive),
    OpSpec("margin_ranking_loss", (),
           lambda m, a, b, t: call(m, "F.margin_ranking_loss", a, b, t, 0.3),
           [((3,), (3,), SIGNS)], lambda a, b, t: np.maximum(0, 0.3 - t * (a - b)).mean()),
    OpSpec("cosine_embedding_loss", (),
           lambda m, a, b, t: call(m, "F.cosine_embedding_loss", a, b, t, 0.1),
           [((3, 4), (3, 4), SIGNS)],
           lambda a, b, t: np.where(
               t == 1, 1 - _cosine(a, b), np.maximum(0, _cosine(a, b) - 0.1)).mean()),
    *(
        OpSpec(f"triplet_margin_loss_{swap}", (),
               lambda m, a, p, n, s=swap: call(m, "F.triplet_margin_loss", a, p, n, swap=s),
               [((2, 3), (2, 3), (2, 3))])
        for swap in (False, True)
    ),
    *(
        OpSpec(f"multi_margin_loss_{p}", (),
               lambda m, x, t, p=p: call(m, "F.multi_margin_loss", x, t, p,
                                         weight=m.tensor(WEIGHT.tolist(), dtype=x.dtype)),
               [((2, 3), CLASSES)], torch=False)
        for p in (1, 2)
    ),
]  # fmt: skip
