"""Every operation on the meta device: shapes, dtypes, strides and nodes as on the CPU."""

from typing import Any

import pytest

import offgrad
from offgrad import Tensor
from tests.ops.opspec import OpSpec, is_floating, tensors
from tests.ops.test_ops import SPECS, run

BY_VALUES = {
    "as_strided_overlapping",
    "index_fill_tensor",
    "index_mask",
    "masked_scatter",
    "masked_select",
    "multilabel_margin_loss",
    "repeat_interleave_each",
    "setitem_mask",
}
"""The shape of the result, or of a gradient, depends on values."""

OTHER_ORDER = {"cholesky", "cholesky_upper", "lu_factor"}
"""LAPACK's order of dimensions."""

CONSTANTS = {"inplace_flat_of_transposed"}
"""The call makes tensors of its own on the CPU."""


def described(outputs: tuple[Tensor, ...], strides: bool) -> list[Any]:
    return [
        (each.shape, each.dtype, each.stride() if strides and each.numel() else None,
         each.requires_grad, each.grad_fn and each.grad_fn.name())
        for each in outputs
    ]  # fmt: skip


def run_on_meta(spec: OpSpec, inputs: list[Any]) -> tuple[Tensor, ...]:
    try:
        return run(spec, inputs)
    except RuntimeError as error:
        if "Tensor on device cpu" not in str(error):
            raise
    with offgrad.device("meta"):  # for the constants of the call
        return run(spec, inputs)


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.name not in BY_VALUES | CONSTANTS], ids=str
)
@pytest.mark.filterwarnings("ignore")
def test_shapes_on_meta_are_those_on_the_cpu(spec: OpSpec) -> None:
    for arrays in spec.arrays(spec.dtypes()[-1])[:2]:
        want = run(spec, tensors(arrays))
        metas = [offgrad.tensor(x, device="meta", requires_grad=is_floating(x)) for x in arrays]
        before = offgrad.memory.allocated()
        have = run_on_meta(spec, metas)
        exact = spec.name not in OTHER_ORDER
        assert all(each.is_meta for each in have)
        if exact:
            assert described(have, True) == described(want, True)
        else:
            assert [each[:2] for each in described(have, False)] == [
                each[:2] for each in described(want, False)
            ]
        assert offgrad.memory.allocated() - before < 4096  # numbers, no tensors
        sources = [each for each in metas if each.requires_grad]
        outputs = [each for each in have if each.requires_grad]
        if not outputs or not sources:
            continue
        starts = [offgrad.ones_like(each) for each in outputs]
        grads: Any = offgrad.autograd.grad(
            outputs, sources, starts, create_graph=True, allow_unused=True
        )
        for grad, source in zip(grads, sources, strict=True):
            assert grad is None or (grad.is_meta and grad.shape == source.shape)


@pytest.mark.parametrize("name", ["index_mask", "masked_select"])
def test_what_depends_on_values_raises_with_the_name(name: str) -> None:
    (spec,) = (each for each in SPECS if each.name == name)
    for arrays in spec.arrays(spec.dtypes()[-1]):
        with pytest.raises(NotImplementedError, match=r"(Index|MaskedSelect)Backward0"):
            run(spec, [offgrad.tensor(x, device="meta") for x in arrays])


def test_runs_of_equal_values_have_no_shape() -> None:
    for dim in (None, 0, 1):
        with pytest.raises(NotImplementedError, match="depends on values"):
            offgrad.unique_consecutive(offgrad.empty(3, 4, device="meta"), dim=dim)


@pytest.mark.parametrize("side", [2, 300, 1100])
def test_comparisons_of_meta_tensors_of_any_size(side: int) -> None:
    x = offgrad.empty(side, side, device="meta")
    for found in (x > 0, x < x, x == x[0], offgrad.ones(side) != x):
        assert found.is_meta
        assert found.shape == (side, side)
        assert found.dtype == offgrad.bool
