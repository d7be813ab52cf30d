"""vmap of every operation, at once and batched in part, is the loop over samples."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.func import grad, vjp, vmap
from tests.ops.opspec import Array, OpSpec, is_floating, outputs_of
from tests.ops.test_ops import SPECS

SAMPLES = 3

RANDOM = {"attention_dropout", "dropout", "dropout1d", "alpha_dropout", "feature_alpha_dropout"}
RANDOM |= {"native_dropout", "rrelu"}

REFUSED = {"batch_norm_torch": "Batch norm got a batched tensor"}

CHANGED = "inplace arithmetic"
"""In the error for results of all samples that are written into a tensor that is not batched."""

every_spec = pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        pytest.param(spec, dtype, id=f"{spec}-{dtype}")
        for spec in SPECS
        for dtype in spec.double()
        if spec.name not in RANDOM
    ],
)


def _variants(array: Array) -> list[Array]:
    """Return samples that are as good as the first: the same elements in another order."""
    flat = array.reshape(-1)
    return [array, flat[::-1].reshape(array.shape), np.roll(flat, 1).reshape(array.shape)]


def _masks(count: int) -> list[tuple[bool, ...]]:
    """Return which inputs are batched: all, the first, the last."""
    masks = [(True,) * count]
    if count > 1:
        masks += [(True, *(False,) * (count - 1)), (*(False,) * (count - 1), True)]
    return masks


def _total(outputs: Any) -> Any:
    """Return a number that depends on all outputs, and not in a linear way."""
    total: Any = 0
    for each in outputs:
        if isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()):
            term = (each * each.conj()).real if each.is_complex() else each * each * 0.3 + each
            total = total + term.sum()
    return total


def _gradients(spec: OpSpec, chosen: list[int]) -> Callable[..., Any]:
    def gradients(*inputs: Any) -> Any:
        def total(*floats: Any) -> Any:
            given = [*inputs]
            for place, each in zip(chosen, floats, strict=True):
                given[place] = each
            result = _total(outputs_of(spec.call(offgrad, *given)))
            return result if isinstance(result, Tensor) else floats[0].real.sum() * 0

        return grad(total, tuple(range(len(chosen))))(*[inputs[each] for each in chosen])

    return gradients


def _check(function: Callable[..., Any], arrays: Any, mask: tuple[bool, ...], name: str) -> None:
    variants = [_variants(each) for each in arrays]
    try:
        wanted = [
            function(
                *[
                    offgrad.tensor(each[number if own else 0])
                    for each, own in zip(variants, mask, strict=True)
                ]
            )
            for number in range(SAMPLES)
        ]
    except (RuntimeError, ValueError, IndexError):
        return  # the elements in another order are no inputs of this operation
    if not all(isinstance(each, Tensor) for row in wanted for each in row):
        return
    columns = [*zip(*wanted, strict=True)]
    if any(len({tuple(each.shape) for each in column}) > 1 for column in columns):
        return
    inputs = [
        offgrad.tensor(np.stack(each) if own else each[0])
        for each, own in zip(variants, mask, strict=True)
    ]
    dims = tuple([0 if own else None for own in mask])
    try:
        found = vmap(function, in_dims=dims)(*inputs)
    except RuntimeError as error:
        if name in REFUSED and REFUSED[name] in str(error):
            return
        if CHANGED in str(error) and ("set" in name or "copy" in name or "inplace" in name):
            return
        raise
    for column, each in zip(columns, found, strict=True):
        expected = np.stack([one.detach().numpy() for one in column])
        actual = each.detach().numpy()
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, 1e-9, 1e-9)


@every_spec
def test_vmap(spec: OpSpec, dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for arrays in spec.arrays(dtype):
            chosen = [number for number, each in enumerate(arrays) if is_floating(each)]
            for mask in _masks(len(arrays)) if arrays else ():
                _check(lambda *x: outputs_of(spec.call(offgrad, *x)), arrays, mask, spec.name)
                if chosen:
                    _check(_gradients(spec, chosen), arrays, mask, spec.name)


@every_spec
def test_vmap_of_the_gradient(spec: OpSpec, dtype: Any) -> None:
    """One pass for several gradients of the outputs gives what a pass for each gives."""
    for arrays in spec.arrays(dtype):
        chosen = [number for number, each in enumerate(arrays) if is_floating(each)]
        if not chosen:
            continue

        def call(*floats: Any, arrays: Any = arrays, chosen: Any = chosen) -> Any:
            inputs = [offgrad.tensor(each) for each in arrays]
            for place, each in zip(chosen, floats, strict=True):
                inputs[place] = each
            outputs = outputs_of(spec.call(offgrad, *inputs))
            return tuple(
                [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs, product = vjp(call, *[offgrad.tensor(arrays[each]) for each in chosen])
        if not outputs:
            continue
        rng = np.random.default_rng(0)
        rows = [
            offgrad.tensor(rng.standard_normal((SAMPLES, *each.shape))).to(each.dtype)
            for each in outputs
        ]
        wanted = [product(tuple([each[number] for each in rows])) for number in range(SAMPLES)]
        found = vmap(lambda *each, product=product: product(each))(*rows)
        for column, each in zip(zip(*wanted, strict=True), found, strict=True):
            expected = np.stack([one.detach().numpy() for one in column])
            np.testing.assert_allclose(each.detach().numpy(), expected, 1e-9, 1e-9)
