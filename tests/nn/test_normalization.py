"""Normalising layers."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from tests.nn.against_torch import Case, check

LAYERS: dict[str, Case] = {
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(3), [(4, 3)]),
    "BatchNorm1d of signals": (lambda nn: nn.BatchNorm1d(3, 1e-3, 0.2), [(4, 3, 5)]),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(3), [(4, 3, 2, 2)]),
    "BatchNorm2d average": (lambda nn: nn.BatchNorm2d(3, momentum=None), [(4, 3, 2, 2)]),
    "BatchNorm2d plain": (lambda nn: nn.BatchNorm2d(3, affine=False), [(4, 3, 2, 2)]),
    "BatchNorm2d no bias": (lambda nn: nn.BatchNorm2d(3, bias=False), [(4, 3, 2, 2)]),
    "BatchNorm2d batch": (lambda nn: nn.BatchNorm2d(3, track_running_stats=False), [(4, 3, 2, 2)]),
    "BatchNorm3d": (lambda nn: nn.BatchNorm3d(3), [(2, 3, 2, 2, 2)]),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(3), [(4, 3, 5)]),
    "InstanceNorm1d of one": (lambda nn: nn.InstanceNorm1d(3, affine=True), [(3, 5)]),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(3, affine=True), [(4, 3, 2, 2)]),
    "InstanceNorm2d running": (
        lambda nn: nn.InstanceNorm2d(3, track_running_stats=True, momentum=0.3),
        [(4, 3, 2, 2)],
    ),
    "InstanceNorm3d": (lambda nn: nn.InstanceNorm3d(3), [(2, 3, 2, 2, 2)]),
    "GroupNorm": (lambda nn: nn.GroupNorm(2, 4), [(3, 4, 2, 2)]),
    "GroupNorm plain": (lambda nn: nn.GroupNorm(4, 4, 1e-3, affine=False), [(3, 4, 5)]),
    "GroupNorm no bias": (lambda nn: nn.GroupNorm(1, 4, bias=False), [(3, 4)]),
    "LayerNorm": (lambda nn: nn.LayerNorm(4), [(3, 4)]),
    "LayerNorm no bias": (lambda nn: nn.LayerNorm([3, 4], 1e-3, True, False), [(2, 3, 4)]),
    "RMSNorm": (lambda nn: nn.RMSNorm(4), [(3, 4)]),
    "RMSNorm plain": (lambda nn: nn.RMSNorm((3, 4), 1e-3, False), [(2, 3, 4)]),
    "LocalResponseNorm": (lambda nn: nn.LocalResponseNorm(3, 0.5, 0.5, 2.0), [(2, 5, 3)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    check(LAYERS[name], steps=2)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_cross_map_lrn_has_torchs_windows(size: int) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    x = np.random.default_rng(0).standard_normal((2, 7, 2, 2))
    mine = nn.CrossMapLRN2d(size, 0.5, 0.6, 2)(offgrad.tensor(x))
    theirs = torch.nn.CrossMapLRN2d(size, 0.5, 0.6, 2)(torch.tensor(x))
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-12)


def test_running_statistics_count_versions() -> None:
    layer = nn.BatchNorm1d(2)
    before = [each._version for each in layer.buffers()]
    x = offgrad.randn(4, 2, requires_grad=True)
    used = (layer.running_mean * offgrad.ones(2, requires_grad=True)).sum()
    layer(x)
    assert [each._version for each in layer.buffers()] == [each + 1 for each in before]
    with pytest.raises(RuntimeError, match="version"):
        used.backward()


def test_evaluation_keeps_the_statistics_that_it_used() -> None:
    """A step of training between a forward in evaluation mode and its backward changes nothing."""
    found = []
    for trains in (False, True):
        layer = nn.BatchNorm1d(2).eval()
        x = offgrad.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
        y = layer(x)
        if trains:
            layer.train()(offgrad.tensor([[9.0, 8.0], [7.0, 5.0]]))
        (y * y).sum().backward()
        assert x.grad is not None
        found.append(x.grad.tolist())
    assert found[0] == found[1]


def test_half_precision_with_parameters_of_either_precision() -> None:
    x = offgrad.randn(8, 3, 4).bfloat16().requires_grad_()
    for layer in (nn.BatchNorm1d(3), nn.BatchNorm1d(3).bfloat16(), nn.GroupNorm(3, 3)):
        y = layer(x)
        assert y.dtype == offgrad.bfloat16
        y.sum().backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None
            assert parameter.grad.dtype == parameter.dtype


def test_channels_last_stays() -> None:
    x = offgrad.randn(2, 4, 4, 3).permute(0, 3, 1, 2).requires_grad_()
    y = nn.BatchNorm2d(3)(x)
    assert y.stride() == x.stride()
    assert nn.BatchNorm2d(3)(x.contiguous()).allclose(y, atol=1e-6)
    grad: Any
    (grad,) = offgrad.autograd.grad((y**3).sum(), x)
    assert grad.stride() == x.stride()


def test_recomputed_forward_leaves_running_statistics() -> None:
    layer = nn.BatchNorm2d(4)
    x = offgrad.randn(16, 4, 32, 32, requires_grad=True)
    with offgrad.offload("recompute"):
        loss = (layer(x).relu() ** 2).sum()
        mean = layer.running_mean.clone()
        loss.backward()
    assert layer.running_mean.equal(mean)


def test_conversion_to_sync() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3, eps=0.1)))
    converted: Any = nn.SyncBatchNorm.convert_sync_batchnorm(model.eval())
    layer = converted[1][0]
    assert isinstance(layer, nn.SyncBatchNorm)
    assert not layer.training
    assert layer.eps == 0.1
    assert [name for name, _ in converted.named_parameters()] == [
        "0.weight", "0.bias", "1.0.weight", "1.0.bias"]  # fmt: skip
    assert converted(offgrad.ones(1, 2)).shape == (1, 3)


def test_old_state_dicts_have_no_count() -> None:
    layer = nn.BatchNorm1d(2)
    state = layer.state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        layer.load_state_dict(state)
    layer.load_state_dict(dict(state))  # without metadata, of the first format
    assert layer.num_batches_tracked.item() == 0


def _batch(*args: Any, **options: Any) -> Any:
    return nn.functional.batch_norm(*args, **options)


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (ValueError, "expected 4D input", lambda: nn.BatchNorm2d(3)(offgrad.ones(2, 3))),
        (ValueError, "expected 2D or 3D", lambda: nn.BatchNorm1d(3)(offgrad.ones(3))),
        (ValueError, "expected 5D", lambda: nn.BatchNorm3d(3)(offgrad.ones(2, 3))),
        (ValueError, "more than 1 value per", lambda: nn.BatchNorm1d(3)(offgrad.ones(1, 3))),
        (ValueError, "1 spatial", lambda: nn.InstanceNorm1d(3)(offgrad.ones(2, 3, 1))),
        (ValueError, "expected 3D or 4D", lambda: nn.InstanceNorm2d(3)(offgrad.ones(3))),
        (ValueError, "num_features",
         lambda: nn.InstanceNorm1d(3, affine=True)(offgrad.ones(2, 2, 2))),
        (ValueError, "divisible by num_groups", lambda: nn.GroupNorm(3, 4)),
        (ValueError, "at least 3 dim", lambda: nn.LocalResponseNorm(2)(offgrad.ones(2, 3))),
        (ValueError, "be 4D", lambda: nn.CrossMapLRN2d(2)(offgrad.ones(2, 3))),
        (RuntimeError, "divisible by", lambda: nn.functional.group_norm(offgrad.ones(2, 3), 2)),
        (RuntimeError, "at least 2 dim", lambda: nn.functional.group_norm(offgrad.ones(2), 2)),
        (RuntimeError, "should contain 3 elements not 4",
         lambda: _batch(offgrad.ones(2, 3), offgrad.ones(4), offgrad.ones(3))),
        (RuntimeError, "defined in evaluation", lambda: _batch(offgrad.ones(2, 3), None, None)),
        (RuntimeError, "dtype of the input",
         lambda: _batch(offgrad.ones(2, 3).double(), offgrad.ones(3), offgrad.ones(3))),
        (RuntimeError, "not differentiable",
         lambda: _batch(offgrad.ones(2, 3), offgrad.ones(3, requires_grad=True), offgrad.ones(3))),
        (NotImplementedError, "floating",
         lambda: _batch(offgrad.tensor([[1]]), offgrad.ones(1), offgrad.ones(1))),
    ],
)  # fmt: skip
def test_errors(error: type[Exception], match: str, run: Any) -> None:
    with pytest.raises(error, match=match):
        run()
