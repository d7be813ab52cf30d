"""Loss layers, and the legacy parameters of loss functions."""

import inspect
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from tests.nn.against_torch import Case, check, close

F = nn.functional
RNG = np.random.default_rng(3)
SHAPE = (3, 4)
PROBABILITIES = RNG.uniform(0.1, 0.9, SHAPE).astype("f")
TARGETS = RNG.uniform(0.1, 0.9, SHAPE).astype("f")
SIGNS = np.array([1.0, -1.0, 1.0]).astype("f")
CLASSES = np.array([2, 0, 3])
WEIGHT = [0.5, 2.0, 1.0, 0.25]
LABELS = np.array([[2, 0, -1, 1], [1, -1, 0, 0], [0, 1, 2, 3]])


def _weight(nn: Any) -> Any:
    return (offgrad if nn is offgrad.nn else pytest.importorskip("torch")).tensor(WEIGHT)


def _l1(nn: Any) -> Any:
    return lambda a, b: (a - b).abs().sum(-1)


LOSSES: dict[str, Case] = {
    "L1Loss": (lambda nn: nn.L1Loss(), [SHAPE, SHAPE]),
    "MSELoss": (lambda nn: nn.MSELoss(reduction="sum"), [SHAPE, SHAPE]),
    "SmoothL1Loss": (lambda nn: nn.SmoothL1Loss(beta=0.5), [SHAPE, SHAPE]),
    "HuberLoss": (lambda nn: nn.HuberLoss("none", 0.5), [SHAPE, SHAPE]),
    "SoftMarginLoss": (lambda nn: nn.SoftMarginLoss(), [(3,), SIGNS]),
    "BCELoss": (lambda nn: nn.BCELoss(_weight(nn)), [PROBABILITIES, TARGETS]),
    "BCEWithLogitsLoss": (lambda nn: nn.BCEWithLogitsLoss(), [SHAPE, TARGETS]),
    "BCEWithLogitsLoss of": (
        lambda nn: nn.BCEWithLogitsLoss(_weight(nn), pos_weight=_weight(nn)),
        [SHAPE, TARGETS],
    ),
    "KLDivLoss": (lambda nn: nn.KLDivLoss(reduction="batchmean"), [SHAPE, TARGETS]),
    "KLDivLoss log": (lambda nn: nn.KLDivLoss(reduction="sum", log_target=True), [SHAPE, SHAPE]),
    "PoissonNLLLoss": (lambda nn: nn.PoissonNLLLoss(), [SHAPE, TARGETS]),
    "PoissonNLLLoss full": (lambda nn: nn.PoissonNLLLoss(False, True), [PROBABILITIES, TARGETS]),
    "GaussianNLLLoss": (lambda nn: nn.GaussianNLLLoss(full=True), [SHAPE, SHAPE, PROBABILITIES]),
    "NLLLoss": (lambda nn: nn.NLLLoss(_weight(nn)), [SHAPE, CLASSES]),
    "NLLLoss images": (lambda nn: nn.NLLLoss(ignore_index=0), [(3, 4, 2), LABELS[:, :2] % 4]),
    "CrossEntropyLoss": (
        lambda nn: nn.CrossEntropyLoss(_weight(nn), label_smoothing=0.1),
        [SHAPE, CLASSES],
    ),
    "CrossEntropyLoss soft": (lambda nn: nn.CrossEntropyLoss(_weight(nn)), [SHAPE, TARGETS]),
    "LinearCrossEntropyLoss": (
        lambda nn: nn.LinearCrossEntropyLoss(4, 5, bias=True, label_smoothing=0.1),
        [SHAPE, CLASSES],
    ),
    "LinearCrossEntropyLoss of": (
        lambda nn: nn.LinearCrossEntropyLoss(4, 5, out_features=(2,), bias=True),
        [SHAPE, LABELS[:, :2] % 4],
    ),
    "HingeEmbeddingLoss": (lambda nn: nn.HingeEmbeddingLoss(0.5), [(3,), SIGNS]),
    "CosineEmbeddingLoss": (lambda nn: nn.CosineEmbeddingLoss(0.1), [SHAPE, SHAPE, SIGNS]),
    "MarginRankingLoss": (lambda nn: nn.MarginRankingLoss(0.1), [(3,), (3,), SIGNS]),
    "MultiMarginLoss": (lambda nn: nn.MultiMarginLoss(2, 0.5, _weight(nn)), [SHAPE, CLASSES]),
    "MultiLabelMarginLoss": (lambda nn: nn.MultiLabelMarginLoss(), [SHAPE, LABELS]),
    "MultiLabelMarginLoss one": (lambda nn: nn.MultiLabelMarginLoss(), [(4,), LABELS[0]]),
    "MultiLabelSoftMarginLoss": (
        lambda nn: nn.MultiLabelSoftMarginLoss(_weight(nn)),
        [SHAPE, TARGETS],
    ),
    "TripletMarginLoss": (lambda nn: nn.TripletMarginLoss(0.5, 1, swap=True), [SHAPE] * 3),
    "TripletMarginWithDistanceLoss": (
        lambda nn: nn.TripletMarginWithDistanceLoss(swap=True),
        [SHAPE] * 3,
    ),
    "TripletMarginWithDistanceLoss of": (
        lambda nn: nn.TripletMarginWithDistanceLoss(distance_function=_l1(nn), reduction="none"),
        [SHAPE] * 3,
    ),
    "PairwiseDistance": (lambda nn: nn.PairwiseDistance(1, keepdim=True), [SHAPE, SHAPE]),
    "CosineSimilarity": (lambda nn: nn.CosineSimilarity(0), [SHAPE, SHAPE]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    check(LOSSES[name])


LEGACY = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy
    hinge_embedding_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss
    soft_margin_loss triplet_margin_loss
"""


@pytest.mark.parametrize("name", LEGACY.split())
def test_legacy_parameters_stand_where_torch_has_them(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    mine, theirs = (getattr(m.nn.functional, name) for m in (offgrad, torch))
    names = [
        [(each.name, each.default) for each in inspect.signature(function).parameters.values()]
        for function in (mine, theirs)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("size_average", "reduce", "reduction"),
    [(None, False, "none"), (False, None, "sum"), (False, True, "sum"), (True, None, "mean"),
     (True, False, "none"), (None, True, "mean")],
)  # fmt: skip
def test_legacy_reduction(size_average: Any, reduce: Any, reduction: str) -> None:
    a, b = offgrad.randn(3), offgrad.randn(3)
    expected = F.mse_loss(a, b, reduction=reduction)
    with pytest.warns(UserWarning, match=f"pass reduction='{reduction}'"):
        assert F.mse_loss(a, b, size_average, reduce).equal(expected)
    with pytest.warns(UserWarning, match="size_average and reduce"):
        assert nn.MSELoss(size_average, reduce)(a, b).equal(expected)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_elements(name: str, reduction: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    arrays = np.random.default_rng(0).uniform(0, 2, (3, 4))
    mine, theirs = (
        getattr(m.nn.functional, name)(a, b, reduction=reduction, weight=w)
        for m in (offgrad, torch)
        for a, b, w in [[m.tensor(each) for each in arrays]]
    )
    close(mine, theirs, 1e-12)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(reduction: str, padded: bool) -> None:
    """A sample without labels, one with a repeated label, and one that is too long."""
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    logits = np.random.default_rng(0).standard_normal((6, 4, 5))
    labels = np.array([[1, 2, 3], [4, 4, 1], [1, 1, 1], [2, 2, 2]])
    lengths, frames = [2, 3, 0, 3], [6, 5, 4, 3]
    flat = np.concatenate([row[:n] for row, n in zip(labels, lengths, strict=True)])
    found = []
    for m in (offgrad, torch):
        x = m.tensor(logits, requires_grad=True)
        target = m.tensor(labels if padded else flat)
        loss = m.nn.CTCLoss(reduction=reduction, zero_infinity=True)
        result = loss(x.log_softmax(2), target, m.tensor(frames), m.tensor(lengths))
        (result * m.arange(1, result.numel() + 1).reshape(result.shape)).sum().backward()
        found.append((result, x.grad))
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs, 1e-9)


def test_ctc_loss_of_one_sequence() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    logits = np.random.default_rng(0).standard_normal((6, 5)).astype("f")
    mine, theirs = (
        m.nn.functional.ctc_loss(
            m.tensor(logits).log_softmax(1), m.tensor([1, 2]), m.tensor(6), m.tensor(2), 3, "none"
        )
        for m in (offgrad, torch)
    )
    close(mine, theirs)


def _ctc(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "log_probs": offgrad.zeros(4, 2, 3), "targets": offgrad.ones(2, 2, dtype=offgrad.int64),
        "input_lengths": (4, 4), "target_lengths": (2, 2),
    }  # fmt: skip
    return F.ctc_loss(**(given | changed))


ONES = offgrad.ones(2, 3)


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (ValueError, "not a valid value", lambda: F.mse_loss(ONES, ONES, reduction="x")),
        (ValueError, "shape of the losses", lambda: F.mse_loss(ONES, ONES, weight=ONES[0])),
        (ValueError, "above 0", lambda: nn.TripletMarginLoss(-1)),
        (ValueError, "above 0", lambda: nn.TripletMarginWithDistanceLoss(margin=0)),
        (ValueError, "above 0",
         lambda: F.triplet_margin_with_distance_loss(ONES, ONES, ONES, margin=-1)),
        (RuntimeError, "equally many dimensions",
         lambda: F.triplet_margin_with_distance_loss(ONES, ONES, ONES[0])),
        (ValueError, "only p == 1", lambda: nn.MultiMarginLoss(3)),
        (ValueError, "1D tensor, got 2D", lambda: nn.MultiMarginLoss(weight=ONES)),
        (RuntimeError, "inconsistent target size", lambda: F.multilabel_margin_loss(ONES, ONES)),
        (RuntimeError, "from 0 to 2",
         lambda: F.multilabel_margin_loss(ONES[0], offgrad.tensor([3, 0, 0]))),
        (RuntimeError, "blank must be in label range", lambda: _ctc(blank=3)),
        (RuntimeError, "must be integral", lambda: _ctc(input_lengths=offgrad.ones(2))),
        (RuntimeError, "size batch_size", lambda: _ctc(input_lengths=(4,))),
        (RuntimeError, "at most 4", lambda: _ctc(input_lengths=(5, 5))),
        (RuntimeError, "must not be negative", lambda: _ctc(target_lengths=(-1, 1))),
        (RuntimeError, "that fit the target_lengths", lambda: _ctc(target_lengths=(3, 1))),
        (RuntimeError, "targets must be integral", lambda: _ctc(targets=ONES)),
        (RuntimeError, "labels must be from 0",
         lambda: _ctc(targets=offgrad.full((2, 2), 3, dtype=offgrad.int64))),
        (RuntimeError, "log_probs must be", lambda: _ctc(log_probs=ONES[0])),
    ],
)  # fmt: skip
def test_errors(error: type[Exception], match: str, run: Any) -> None:
    with pytest.raises(error, match=match):
        run()


def test_deprecated_name() -> None:
    with pytest.warns(FutureWarning, match="NLLLoss"):
        nn.NLLLoss2d()


def _long(m: Any, *values: Any) -> Any:
    return m.tensor(values, dtype=m.int64)


EDGES = {
    "one class of one row": lambda m, x: (
        m.nn.functional.nll_loss(x[0], _long(m, 2)).detach() + x.sum()
    ),
    "weights of zero": lambda m, x: m.nn.functional.nll_loss(
        x, _long(m, 0, 0, 0), weight=m.zeros(4)
    ),
    "all ignored": lambda m, x: m.nn.functional.nll_loss(x, _long(m, 1, 1, 1), ignore_index=1),
    "narrow targets": lambda m, x: m.nn.functional.nll_loss(x, _long(m, 0, 1, 2).to(m.int32)),
    "byte targets": lambda m, x: m.nn.functional.cross_entropy(x, _long(m, 0, 1, 2).to(m.uint8)),
    "no dimension": lambda m, x: m.nn.functional.nll_loss(x.sum(), _long(m, 0)),
    "ignored probabilities": lambda m, x: m.nn.functional.cross_entropy(
        x, x.detach().softmax(1), ignore_index=1
    ),
    "no rows": lambda m, x: m.nn.functional.cross_entropy(x[:0], x[:0].detach()),
    "integer probabilities": lambda m, x: m.nn.functional.binary_cross_entropy_with_logits(
        x, _long(m, *[[0, 1, 1, 0]] * 3)
    ),
    "integer distributions": lambda m, x: m.nn.functional.kl_div(
        x, _long(m, *[[0, 1, 1, 0]] * 3), reduction="sum"
    ),
    "scalar scores": lambda m, x: m.nn.functional.multi_margin_loss(x.sum(), m.tensor(0)),
    "anchor of fewer dimensions": lambda m, x: m.nn.functional.triplet_margin_loss(x[0], x, x),
    "scalar slopes": lambda m, x: m.nn.functional.prelu(x.sum(), m.tensor([0.5])),
    "broadcast distance": lambda m, x: m.nn.functional.pairwise_distance(x, x[0], p=1.0).sum(),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge(name: str) -> None:
    """The value and the gradient are torch's, or the class of the error."""
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    found: list[Any] = []
    for m in (offgrad, torch):
        x = m.tensor(PROBABILITIES, requires_grad=True)
        try:
            loss = EDGES[name](m, x)
            loss.backward()
            found.append((loss, x.grad))
        except (RuntimeError, ValueError) as error:
            found.append(type(error))
    if isinstance(found[1], type):
        assert found[0] == found[1]
        return
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (0, 3, 4, 4)])
def test_classes_of_pixels(name: str, shape: tuple[int, ...], reduction: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(shape).astype("f")
    classes = rng.integers(-1, 3, (shape[0], *shape[2:]))
    found = []
    for m in (offgrad, torch):
        x = m.tensor(logits, requires_grad=True)
        function = getattr(m.nn.functional, name)
        losses = function(x, m.tensor(classes), ignore_index=-1, reduction=reduction)
        (losses * losses).sum().backward()
        found.append((losses, x.grad))
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs)


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_classes_of_pixels_in_range(name: str) -> None:
    target = offgrad.full((1, 4, 4), 3, dtype=offgrad.int64)
    with pytest.raises(IndexError, match="0 to 2"):
        getattr(F, name)(offgrad.zeros(1, 3, 4, 4), target)


@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pos_weight", [None, 2.0])
def test_infinite_logits_have_pytorchs_losses_and_gradients(
    target: float, pos_weight: float | None
) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for module in (offgrad, torch):
        x = module.tensor([float("inf"), float("-inf"), 3e38], requires_grad=True)
        weight = None if pos_weight is None else module.tensor([pos_weight])
        losses = module.nn.functional.binary_cross_entropy_with_logits(
            x, module.full((3,), target), pos_weight=weight, reduction="none"
        )
        losses.sum().backward()
        found.append((losses.tolist(), x.grad.tolist()))
    ours, theirs = found
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(4, 3), (4,), (4, 1), (1, 3)])
def test_variances_with_a_size_of_1(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    given = [np.arange(1, 13, dtype="f").reshape(4, 3), np.ones((4, 3), "f")]
    given.append(np.arange(1, 1 + np.prod(shape), dtype="f").reshape(shape))
    mine, theirs = (
        m.nn.functional.gaussian_nll_loss(*map(m.tensor, given), reduction="none")
        for m in (offgrad, torch)
    )
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-6)


def test_divergence_of_numbers() -> None:
    x, y = offgrad.tensor(-1.0), offgrad.tensor(0.5)
    found = nn.functional.kl_div(x, y, reduction="batchmean")
    assert found.item() == nn.functional.kl_div(x, y, reduction="sum").item()


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_weights_of_classes_have_no_gradient(name: str) -> None:
    loss = getattr(offgrad.nn.functional, name)
    weight = offgrad.ones(3, requires_grad=True)
    x, target = offgrad.randn(2, 3, requires_grad=True), offgrad.tensor([0, 2])
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        loss(x, target, weight=weight)
    assert loss(x, target, weight=weight.detach()).requires_grad
    with offgrad.no_grad():
        loss(x, target, weight=weight)
