"""Every operation, by its specification."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import gradcheck, gradgradcheck, graph
from offgrad.autograd.op import registry
from tests.ops import (
    specs_convolution,
    specs_elementwise,
    specs_fft,
    specs_inplace,
    specs_linalg,
    specs_math,
    specs_network,
    specs_pooling,
    specs_rare,
    specs_recurrent,
    specs_reduce,
    specs_special,
    specs_structure,
)
from tests.ops.opspec import Array, OpSpec, is_floating, outputs_of, tensors

SPECS = [
    *specs_elementwise.SPECS,
    *specs_math.SPECS,
    *specs_reduce.SPECS,
    *specs_structure.SPECS,
    *specs_network.SPECS,
    *specs_pooling.SPECS,
    *specs_rare.SPECS,
    *specs_fft.SPECS,
    *specs_inplace.SPECS,
    *specs_convolution.SPECS,
    *specs_linalg.SPECS,
    *specs_recurrent.SPECS,
    *specs_special.SPECS,
]

every_spec = pytest.mark.parametrize("spec", SPECS, ids=str)
spec_and_dtype = pytest.mark.parametrize(
    ("spec", "dtype"),
    [pytest.param(spec, dtype, id=f"{spec}-{dtype}") for spec in SPECS for dtype in spec.dtypes()],
)
spec_and_double = pytest.mark.parametrize(
    ("spec", "dtype"),
    [pytest.param(spec, dtype, id=f"{spec}-{dtype}") for spec in SPECS for dtype in spec.double()],
)


def run(spec: OpSpec, inputs: list[Any]) -> tuple[Tensor, ...]:
    return outputs_of(spec.call(offgrad, *inputs))


def starts(outputs: tuple[Tensor, ...], recorded: bool) -> list[Tensor]:
    """Return a gradient for each output."""
    rng = np.random.default_rng(5)
    return [
        offgrad.tensor(
            np.asarray(rng.standard_normal(each.shape)).astype(each.dtype), requires_grad=recorded
        )
        for each in outputs
    ]


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """Return the gradients of `inputs` that require grad, zeros for unused ones."""
    outputs = tuple(each for each in outputs if each.requires_grad)
    grad: Any = offgrad.autograd.grad
    return list(
        grad(
            outputs,
            [each for each in inputs if each.requires_grad],
            starts(outputs, options.get("create_graph", False)),
            materialize_grads=True,
            **options,
        )
    )


def scattered(array: Array) -> Tensor:
    """Return an equal tensor whose memory has gaps and another order."""
    room = np.zeros(tuple(2 * n + 1 for n in reversed(array.shape)), array.dtype)
    index: tuple[Any, ...] = (*(slice(1, 2 * n + 1, 2) for n in reversed(array.shape)), ...)
    view = room[index].T
    view[...] = array
    tensor = offgrad.from_numpy(view)
    return tensor.requires_grad_() if is_floating(array) else tensor


def test_every_op_class_has_a_spec() -> None:
    covered = {cls for spec in SPECS for cls in spec.covers}
    # Quotients of integers have no gradient: test_dtypes sees to them.
    # Samples and the like have none either: test_no_derivative.
    elsewhere = {
        "BernoulliBackward0",
        "_TransposedBackward0",  # ends tangents: test_tangents_without_grad
        "BinomialBackward0",
        "FakeQuantizePerTensorAffineCachemaskBackward0",  # not the derivative: test_quantized
        "NormalBackward1",
        "NormalBackward2",
        "NormalBackward3",
        "NotImplemented",
        "PoissonBackward0",
        "Unique2Backward0",
    }
    missing = {
        cls.__name__
        for cls in registry
        if cls.__module__.startswith("offgrad.")
        and not set(cls.__subclasses__()) & {*registry}
        and cls not in covered
        and cls.__name__ not in elsewhere
    }
    assert not missing, f"op classes without an OpSpec in tests/ops: {sorted(missing)}"


@every_spec
def test_spec_runs_the_ops_it_covers(spec: OpSpec) -> None:
    seen: set[Any] = set()
    for sample in spec.arrays(spec.double()[0]):
        inputs = tensors(sample)
        outputs = run(spec, inputs)
        stack: list[Any] = [each.grad_fn for each in outputs]
        if any(each.requires_grad for each in outputs):
            stack += [each.grad_fn for each in gradients(outputs, inputs, create_graph=True)]
        nodes: set[Any] = set()
        while stack:
            node = stack.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                stack += [following for following, _ in node.next_functions]
        # An operation under another name is the same operation.
        kinds = {type(node) for node in nodes}
        seen |= {each if each in registry else each.__base__ for each in kinds}
    assert set(spec.covers) <= seen


@spec_and_dtype
def test_forward(spec: OpSpec, dtype: Any) -> None:
    if spec.reference is None:
        pytest.skip("compared with torch only")
    for sample in spec.arrays(dtype):
        outputs = run(spec, tensors(sample, requires_grad=False))
        expected = spec.reference(*sample)
        pairs = zip(outputs, expected if len(outputs) > 1 else outputs_of(expected), strict=True)
        for output, want in pairs:
            want = np.asarray(want)
            assert output.shape == want.shape
            if output.dtype != np.complex128:
                assert output.dtype == (
                    dtype if want.dtype.kind == "f" and dtype.kind != "c" else want.dtype
                )
            tolerance = 2e-5 if output.dtype in (np.float32, np.complex64) else 1e-10
            np.testing.assert_allclose(output.numpy(), want, tolerance, tolerance)


@spec_and_double
def test_gradcheck(spec: OpSpec, dtype: Any) -> None:
    for sample in spec.arrays(dtype):
        assert gradcheck(lambda *inputs: spec.call(offgrad, *inputs), tensors(sample))


@spec_and_double
def test_gradgradcheck(spec: OpSpec, dtype: Any) -> None:
    if not spec.twice:
        pytest.skip("the second derivative goes through a detached tensor")
    for sample in spec.arrays(dtype):
        assert gradgradcheck(lambda *inputs: spec.call(offgrad, *inputs), tensors(sample))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.third], ids=str)
def test_third_derivative(spec: OpSpec) -> None:
    """The derivatives of fused gradient kernels differentiate once more."""

    def first(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradients(run(spec, list(inputs)), list(inputs), create_graph=True))

    sample = spec.arrays(np.float64)[0]
    assert gradgradcheck(first, tensors(sample), atol=1e-4)


@spec_and_dtype
def test_recorded_gradients_are_the_unrecorded_ones(spec: OpSpec, dtype: Any) -> None:
    """Backward on arrays, where an operation takes them, computes what it computes on tensors."""
    for sample in spec.arrays(dtype):
        found = []
        for create_graph in (False, True):
            inputs = tensors(sample)
            outputs = run(spec, inputs)
            if not any(each.requires_grad for each in outputs):
                return
            offgrad.manual_seed(1)
            found.append(gradients(outputs, inputs, create_graph=create_graph))
        for unrecorded, recorded in zip(*found, strict=True):
            assert unrecorded.dtype == recorded.dtype
            np.testing.assert_array_equal(unrecorded.numpy(), recorded.detach().numpy())


@spec_and_dtype
def test_non_contiguous_inputs_give_the_same(spec: OpSpec, dtype: Any) -> None:
    for sample in spec.arrays(dtype):
        plain, strided = tensors(sample), [scattered(each) for each in sample]
        if any(each.numel() > 1 and each.ndim for each in strided):
            assert not all(each.is_contiguous() for each in strided)
        if spec.name == "view":
            with pytest.raises(RuntimeError, match="reshape"):
                run(spec, strided)
            continue
        expected = run(spec, plain)
        results = run(spec, strided)
        tolerance = 1e-6 if np.dtype(dtype).itemsize == 4 else 1e-13
        for result, want in zip(results, expected, strict=True):
            assert result.requires_grad == want.requires_grad
            np.testing.assert_allclose(
                result.detach().numpy(), want.detach().numpy(), tolerance, tolerance
            )
        if not any(each.requires_grad for each in results):
            continue
        for have, wanted in zip(
            gradients(results, strided), gradients(expected, plain), strict=True
        ):
            np.testing.assert_allclose(have.numpy(), wanted.numpy(), 10 * tolerance, 10 * tolerance)


@spec_and_double
def test_gradient_of_one_input_alone(spec: OpSpec, dtype: Any) -> None:
    """Saved tensors and kernels depend on the gradients needed, their values do not."""
    for sample in spec.arrays(dtype):
        floating = [index for index, each in enumerate(sample) if is_floating(each)]
        if len(floating) < 2:
            continue
        inputs = tensors(sample)
        full = gradients(run(spec, inputs), inputs)
        for place, index in enumerate(floating):
            alone = tensors(sample, requires_grad=False)
            alone[index].requires_grad_()
            (have,) = gradients(run(spec, alone), alone)
            np.testing.assert_allclose(have.numpy(), full[place].numpy(), 1e-12, 1e-12)
            again = tensors(sample, requires_grad=False)
            again[index].requires_grad_()
            assert gradgradcheck(lambda *inputs: spec.call(offgrad, *inputs), again)


@every_spec
def test_only_views_share_memory(spec: OpSpec) -> None:
    for sample in spec.arrays(spec.double()[0]):
        inputs = tensors(sample)
        for output in run(spec, inputs):
            shares = any(output._storage is each._storage for each in inputs)
            assert shares == spec.view
            if output.numel():
                assert shares == any(
                    np.may_share_memory(output._array, each._array) for each in inputs
                )
            if spec.view:
                assert output._is_view()
        grads = [each for each in inputs if each.requires_grad]
        if any(each.requires_grad for each in run(spec, inputs)):
            found = gradients(run(spec, inputs), inputs)
            for tensor, grad in zip(grads, found, strict=True):
                assert grad.shape == tensor.shape
                assert grad.dtype == tensor.dtype
                assert not np.may_share_memory(grad._array, tensor._array)


@every_spec
def test_inputs_are_not_changed(spec: OpSpec) -> None:
    for sample in spec.arrays(spec.double()[0]):
        inputs = tensors(sample)
        outputs = run(spec, inputs)
        if any(each.requires_grad for each in outputs):
            gradients(outputs, inputs)
        for tensor, array in zip(inputs, sample, strict=True):
            assert tensor._version == 0
            np.testing.assert_array_equal(tensor.detach().numpy(), array)


@spec_and_dtype
def test_saved_tensors_from_copies_give_identical_gradients(spec: OpSpec, dtype: Any) -> None:
    for sample in spec.arrays(dtype):
        kept = tensors(sample)
        outputs = run(spec, kept)
        if not any(each.requires_grad for each in outputs):
            continue
        packed = 0

        def pack(tensor: Tensor) -> Array:
            nonlocal packed
            packed += 1
            assert not tensor.requires_grad
            return np.array(tensor.numpy())

        expected = gradients(outputs, kept)
        copied = tensors(sample)
        with graph.saved_tensors_hooks(pack, offgrad.from_numpy):
            outputs = run(spec, copied)
        for have, want in zip(gradients(outputs, copied), expected, strict=True):
            assert have.numpy().tobytes() == want.numpy().tobytes()


@every_spec
def test_no_grad_records_nothing(spec: OpSpec) -> None:
    for sample in spec.arrays(spec.double()[0]):
        with offgrad.no_grad():
            for output in run(spec, tensors(sample)):
                assert output.grad_fn is None
                assert not output.requires_grad
