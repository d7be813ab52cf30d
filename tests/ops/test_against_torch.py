"""The same calls with torch: values, gradients, gradients of gradients."""

from typing import Any

import numpy as np
import pytest

import offgrad
from tests.ops.opspec import Array, OpSpec, is_floating, outputs_of
from tests.ops.test_ops import SPECS

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")


def _cases() -> list[Any]:
    return [
        pytest.param(spec, dtype, id=f"{spec}-{dtype}")
        for spec in SPECS
        if spec.torch
        for dtype in spec.dtypes()
    ]


def _tensor(m: Any, array: Array) -> Any:
    tensor = torch.from_numpy(array.copy()) if m is torch else offgrad.tensor(array)
    return tensor.requires_grad_() if is_floating(array) else tensor


def _arrays(values: Any) -> list[Any]:
    return [
        None
        if each is None
        else each.detach().numpy(**({"force": True} if isinstance(each, torch.Tensor) else {}))
        for each in values
    ]


def _compare(have: list[Any], want: list[Any], tolerance: float, label: str) -> None:
    assert len(have) == len(want), label
    for index, (mine, theirs) in enumerate(zip(have, want, strict=True)):
        # None and zeros both mean that no output depends on the input.
        if mine is None or theirs is None:
            other = theirs if mine is None else mine
            assert other is None or np.all(np.abs(other) < tolerance), f"{label} {index}"
            continue
        assert mine.shape == theirs.shape, f"{label} {index}"
        assert mine.dtype == theirs.dtype, f"{label} {index}"
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance, err_msg=f"{label} {index}")


def _differentiate(m: Any, spec: OpSpec, sample: tuple[Array, ...]) -> tuple[list[Any], ...]:
    """Return outputs, first and second derivatives, and which outputs require grad."""
    rng = np.random.default_rng(11)

    def random(tensor: Any) -> Any:
        array = np.asarray(rng.standard_normal(tuple(tensor.shape)))
        return _tensor(m, array.astype(_arrays([tensor])[0].dtype))

    call = spec.call if m is offgrad or spec.twin is None else spec.twin
    inputs = [_tensor(m, each) for each in sample]
    outputs = outputs_of(call(m, *inputs))
    flags = [each.requires_grad for each in outputs]
    recorded = [each for each in outputs if each.requires_grad]
    leaves = [each for each in inputs if each.requires_grad]
    if not recorded:
        return _arrays(outputs), [], [], flags
    first = m.autograd.grad(
        recorded, leaves, [random(each) for each in recorded], create_graph=True, allow_unused=True
    )
    again = [each for each in first if each is not None and each.requires_grad]
    second: Any = []
    if again and spec.twice:
        second = m.autograd.grad(again, leaves, [random(each) for each in again], allow_unused=True)
    return _arrays(outputs), _arrays(first), _arrays(second), flags


@pytest.mark.parametrize(("spec", "dtype"), _cases())
def test_values_and_derivatives(spec: OpSpec, dtype: Any) -> None:
    tolerance = 3e-5 if dtype == np.float32 else 1e-9
    for sample in spec.arrays(dtype):
        mine = _differentiate(offgrad, spec, sample)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            theirs = _differentiate(torch, spec, sample)
        assert mine[3] == theirs[3], "which outputs require grad"
        _compare(mine[0], theirs[0], tolerance, "output")
        _compare(mine[1], theirs[1], 4 * tolerance, "first derivative of input")
        if mine[2] and theirs[2]:
            _compare(mine[2], theirs[2], 16 * tolerance, "second derivative of input")
        for each in theirs[2] if not mine[2] else mine[2] if not theirs[2] else []:
            assert each is None or np.all(np.abs(each) < tolerance), "only one is not constant"
