from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._ctc import _ctc_backward_numpy, _ctc_numpy

Agree = Callable[..., None]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_numba_equals_numpy(count: int, dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    """Targets without labels, with repeated ones, too long ones, and samples without frames."""
    logits = rng.normal(size=(9, count, 4))
    log_probs = (logits - np.log(np.exp(logits).sum(2, keepdims=True))).astype(dtype)
    lengths = np.array([3, 0, 4, 3, 0])[:count]
    frames = np.array([9, 5, 8, 2, 0])[:count]
    labels = np.array([1, 1, 2, 3, 2, 1, 3, 3, 3, 3])
    targets = kernels.CtcTargets(labels, np.cumsum(lengths) - lengths, lengths, frames, 0)
    found = []
    for run, back in (
        (kernels.ctc_loss, kernels.ctc_loss_backward),
        (_ctc_numpy, _ctc_backward_numpy),
    ):
        losses, out = np.empty(count, dtype), np.empty_like(log_probs)
        alpha = np.empty((count, 9, 9), dtype)
        run(log_probs, targets, losses, alpha)
        grad = np.where(np.isinf(losses), 0, np.arange(count) + 1).astype(dtype)
        back(grad, log_probs, targets, losses, alpha, out)
        found.append([losses, out])
    for one, other in zip(*found, strict=True):
        agree(one, other, 20, floor=1)
    if count == 5:
        assert np.isinf(found[0][0]).tolist() == [False, False, False, True, False]


def test_all_alignments(dtype: Any, backend: str) -> None:
    """The likelihood of a label is the sum over all paths that collapse to it."""
    probs = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    label, start, length, frames = (np.array([each]) for each in (1, 0, 1, 2))
    targets = kernels.CtcTargets(label, start, length, frames, 0)
    losses, alpha = np.empty(1, dtype), np.empty((1, 2, 3), dtype)
    kernels.ctc_loss(np.log(probs).astype(dtype)[:, None], targets, losses, alpha)
    likelihood = 0.3 * 0.1 + 0.5 * 0.6 + 0.3 * 0.6
    np.testing.assert_allclose(losses, -np.log(likelihood), 1e-6)
