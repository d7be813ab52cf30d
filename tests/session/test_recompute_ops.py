"""Every operation declared cheap to recompute gives the same bits when recomputed."""

from typing import Any

import pytest
from offgrad_storage import PoolStore

import offgrad
from offgrad.autograd.op import registry
from offgrad.policies import Offload, Recompute
from tests.ops.opspec import OpSpec, outputs_of, tensors
from tests.ops.test_ops import SPECS
from tests.session.graphs import bits

CHEAP = [spec for spec in SPECS if any(cls.is_recomputable for cls in spec.covers)]


def rerun(spec: OpSpec, dtype: Any) -> set[type[Any]]:
    """Recompute outputs and compare them; return the operations that made them."""
    made: set[type[Any]] = set()
    with PoolStore() as store:
        for sample in spec.arrays(dtype):
            inputs = tensors(sample)
            session = offgrad.offload([Recompute(64, min_nbytes=0), Offload(store, min_nbytes=0)])
            with session:
                outputs = [
                    each
                    for each in outputs_of(spec.call(offgrad, *inputs))
                    if each.grad_fn is not None and each.grad_fn.replay is not None
                ]
                weights = [offgrad.ones_like(each).requires_grad_() for each in outputs]
                saves: list[Any] = [
                    (each * weight).grad_fn for each, weight in zip(outputs, weights, strict=True)
                ]
            expected = [bits(each) for each in outputs]
            made |= {type(each.grad_fn) for each in outputs}
            strides = [each.stride() for each in outputs]
            before = session.ledger.recomputes
            del outputs
            recomputed = [each._saved_self for each in saves]
            assert [bits(each) for each in recomputed] == expected
            assert [each.stride() for each in recomputed] == strides
            assert session.ledger.recomputes - before >= len(
                [each for each in recomputed if each.numel()]
            )
            del recomputed, saves
    return made


@pytest.mark.parametrize("spec", CHEAP, ids=str)
def test_recomputed_outputs_have_the_same_bits(spec: OpSpec) -> None:
    for dtype in spec.dtypes():
        rerun(spec, dtype)


def test_every_cheap_operation_is_recomputed() -> None:
    run = set().union(*(rerun(spec, spec.dtypes()[0]) for spec in CHEAP))
    run = {next(each for each in cls.__mro__ if each in registry) for cls in run}
    missing = {
        cls.__name__
        for cls in registry
        if cls.is_recomputable
        and cls.__module__.startswith("offgrad.")
        and not set(cls.__subclasses__()) & {*registry}
        and cls not in run
    }
    assert not missing


def test_a_number_that_the_program_has_seen_does_not_end_recomputation() -> None:
    x = offgrad.rand(2, 3).requires_grad_()
    saved: Any = (x * 3.5).grad_fn
    number = saved._saved_other.numpy()
    assert number == 3.5
    with pytest.raises(ValueError, match="read-only"):
        number[...] = 4
    with PoolStore() as store:
        session = offgrad.offload([Recompute(64, min_nbytes=0), Offload(store, min_nbytes=0)])
        with session:
            node: Any = ((x * 3.5) * offgrad.ones(2, 3).requires_grad_()).grad_fn
        assert node._saved_self.equal(x * 3.5)
        assert session.ledger.recomputes == 1
