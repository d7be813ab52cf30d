"""Functions that make tensors, called as PyTorch's are."""

import warnings
from array import array
from typing import Any

import numpy as np
import pytest

import offgrad

NHWC = (0, 2, 3, 1)


def _facts(tensor: Any) -> Any:
    if not hasattr(tensor, "stride"):
        return tensor
    return (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.requires_grad)


def _values(tensor: Any) -> Any:
    return _facts(tensor), tensor.tolist()


VALUES = {
    "zeros by size": lambda m: m.zeros(size=(2, 3)),
    "ones by list": lambda m: m.ones([2, 3], dtype=m.int8, layout=m.strided, device="cpu"),
    "full": lambda m: m.full((2,), 7, device=m.device("cpu"), layout=m.strided),
    "full by names": lambda m: m.full(size=[2], fill_value=True),
    "out": lambda m: m.zeros(2, 3, out=m.empty(2, 3)),
    "requires grad": lambda m: m.ones(2, requires_grad=True, pin_memory=False),
    "python's dtype": lambda m: m.zeros(2, dtype=float),
    "numbers of a device": lambda m: m.arange(end=5, dtype=m.float64),
    "arange": lambda m: m.arange(1, 8, 2, device="cpu", requires_grad=False),
    "arange by names": lambda m: m.arange(start=1, end=8, step=3),
    "eye": lambda m: m.eye(2, m=3, dtype=m.complex64),
    "linspace": lambda m: m.linspace(start=0, end=1, steps=5, dtype=m.float64),
    "logspace": lambda m: m.logspace(0, 3, 4),
    "logspace of 2": lambda m: m.logspace(start=0, end=3, steps=4, base=2, dtype=m.int64),
    "scalar_tensor": lambda m: m.scalar_tensor(3),
    "scalar_tensor of a dtype": lambda m: m.scalar_tensor(True, dtype=m.int64),
    "tensor": lambda m: m.tensor([1, 2], device="cpu", pin_memory=False),
    "as_tensor": lambda m: m.as_tensor([1, 2], dtype=m.float64, device="cpu"),
    "as_tensor of tensors": lambda m: m.as_tensor([m.tensor(1), m.tensor(2.5)]),
    "asarray": lambda m: m.asarray([1, 2], dtype=m.float32, requires_grad=True),
    "asarray of an array": lambda m: m.asarray(np.arange(3)),
    "asarray of bytes": lambda m: m.asarray(bytearray(b"\0\1\2"), dtype=m.uint8),
    "asarray of numpy's number": lambda m: m.asarray(np.float64(2)),
    "asarray of a tensor": lambda m: m.asarray(
        m.ones(2, requires_grad=True) * 2, requires_grad=False
    ),
    "asarray in the graph": lambda m: m.asarray(m.ones(2) * 2, requires_grad=True),
    "frombuffer": lambda m: m.frombuffer(bytearray(b"\0\1\2\3"), dtype=m.int16, offset=2),
    "frombuffer of some": lambda m: m.frombuffer(bytearray(b"\0\1\2"), dtype=m.uint8, count=2),
    "full_like": lambda m: m.full_like(m.ones(2, 3).t(), 2, dtype=m.int32),
    "zeros_like": lambda m: m.zeros_like(m.ones(2, 3).t(), device="cpu"),
    "ones_like": lambda m: m.ones_like(m.ones(2, 1).expand(2, 3), requires_grad=True),
    "ones_like of a slice": lambda m: m.ones_like(m.ones(4, 3)[::2]),
    "zeros_like in C order": lambda m: m.zeros_like(
        m.ones(2, 3).t(), memory_format=m.contiguous_format
    ),
    "new_zeros": lambda m: m.ones(1, dtype=m.int8).new_zeros(2, 3, requires_grad=False),
    "new_ones": lambda m: m.ones(1).new_ones((2,), dtype=m.float64, requires_grad=True),
    "new_ones by size": lambda m: m.ones(1).new_ones(size=(2,), device="cpu", layout=m.strided),
    "new_full": lambda m: m.ones(1, dtype=m.int64).new_full((2,), 3, requires_grad=False),
    "new_tensor": lambda m: m.ones(1, dtype=m.int64).new_tensor([1, 2], dtype=m.float32),
    "new_tensor keeps": lambda m: m.ones(1, dtype=m.float64).new_tensor([1, 2]),
    "clone": lambda m: m.arange(6).view(2, 3).t().clone(),
    "clone in C order": lambda m: (
        m.arange(6).view(2, 3).t().clone(memory_format=m.contiguous_format)
    ),
    "clone expanded": lambda m: m.arange(2).view(2, 1).expand(2, 3).clone(),
    "contiguous": lambda m: m.arange(6).view(2, 3).t().contiguous(),
}

SHAPES = {
    "empty": lambda m: m.empty(2, 3, device="cpu", memory_format=m.contiguous_format),
    "empty by size": lambda m: m.empty(size=(2, 3), dtype=m.float16, out=None),
    "empty out": lambda m: m.empty((2, 3), out=m.empty(2, 3, dtype=m.int8)),
    "channels last": lambda m: m.empty(2, 3, 4, 5, memory_format=m.channels_last),
    "channels last 3d": lambda m: m.empty((2, 3, 4, 5, 6), memory_format=m.channels_last_3d),
    "channels last of a matrix": lambda m: m.empty(2, 3, memory_format=m.channels_last),
    "empty_like": lambda m: m.empty_like(m.ones(2, 3, 4).permute(2, 0, 1)),
    "empty_like in an order": lambda m: m.empty_like(
        m.ones(2, 3, 4, 5), memory_format=m.channels_last
    ),
    "empty_strided": lambda m: m.empty_strided((2, 3), (1, 2), requires_grad=True),
    "empty_strided with gaps": lambda m: m.empty_strided((2, 3), (10, 2), dtype=m.int8),
    "empty_strided without a stride": lambda m: m.empty_strided((2, 3), (1,)),
    "empty_permuted": lambda m: m.empty_permuted((2, 3, 4), (2, 0, 1)),
    "empty_permuted twice": lambda m: m.empty_permuted((2, 3), (0, 0)),
    "new_empty": lambda m: m.ones(1).new_empty(2, 3, dtype=m.int8),
    "new_empty_strided": lambda m: m.ones(1).new_empty_strided((2, 3), (1, 2)),
    "rand": lambda m: m.rand(2, 3, generator=m.Generator(), layout=m.strided, pin_memory=False),
    "rand by size": lambda m: m.rand(size=(2,), dtype=m.float64, requires_grad=True),
    "randn": lambda m: m.randn(m.Size([2, 3]), dtype=m.complex64),
    "rand_like": lambda m: m.rand_like(m.ones(2, 3).t(), dtype=m.float64),
    "randn_like": lambda m: m.randn_like(m.ones(2, 3, dtype=m.float64), requires_grad=True),
    "randint": lambda m: m.randint(3, (2, 3)),
    "randint by size": lambda m: m.randint(0, 3, size=[2], dtype=m.int32),
    "randint by names": lambda m: m.randint(low=1, high=3, size=(2,), dtype=m.float32),
    "randint of high": lambda m: m.randint(high=3, size=(2,), generator=m.Generator()),
    "randint without size": lambda m: m.randint(3),
    "randint of nothing": lambda m: m.randint(3, 3, (2,)),
    "randint_like": lambda m: m.randint_like(m.ones(2, 3).t(), 5),
    "randint_like between": lambda m: m.randint_like(m.ones(2), 1, 5, dtype=m.int64),
    "randint_like by name": lambda m: m.randint_like(m.ones(2), high=5),
    "randperm": lambda m: m.randperm(4, dtype=m.int32, generator=m.Generator(), device="cpu"),
    "clone channels last": lambda m: m.ones(2, 3, 4, 5).clone(memory_format=m.channels_last),
    "contiguous channels last": lambda m: m.ones(2, 3, 4, 5).contiguous(
        memory_format=m.channels_last
    ),
    "to channels last": lambda m: m.ones(2, 3, 4, 5).to(memory_format=m.channels_last),
    "to channels last and dtype": lambda m: m.ones(2, 3, 4, 5).to(
        m.float64, memory_format=m.channels_last
    ),
    "is channels last": lambda m: (
        m.ones(2, 3, 4, 5)
        .contiguous(memory_format=m.channels_last)
        .is_contiguous(memory_format=m.channels_last)
    ),
    "is not": lambda m: m.ones(2, 3, 4, 5).is_contiguous(memory_format=m.channels_last),
    "one channel is both": lambda m: m.ones(2, 1, 4, 5).is_contiguous(
        memory_format=m.channels_last
    ),
}

ERRORS = {
    "pinned": lambda m: m.zeros(2, pin_memory=True),
    "sparse": lambda m: m.randn(2, layout=m.strided, device="cuda"),
    "layout": lambda m: m.zeros(2, layout="strided"),
    "grad of integers": lambda m: m.zeros(2, dtype=m.int64, requires_grad=True),
    "size twice": lambda m: m.zeros(2, size=(2,)),
    "negative": lambda m: m.empty(-1),
    "unknown keyword": lambda m: m.zeros(2, kind=1),
    "format": lambda m: m.zeros_like(m.ones(2), memory_format=1),
    "frombuffer of nothing": lambda m: m.frombuffer(b"", dtype=m.uint8),
    "frombuffer past the end": lambda m: m.frombuffer(bytearray(b"123"), dtype=m.int16, offset=2),
    "asarray that copies": lambda m: m.asarray([1], copy=False),
    "asarray of another dtype": lambda m: m.asarray(m.ones(2), dtype=m.int64, copy=False),
    "logspace": lambda m: m.logspace(0, 1, -1),
    "from_dlpack of a list": lambda m: m.from_dlpack([1]),
    "rand of integers": lambda m: m.rand(2, dtype=m.int64),
    "arange of nothing": lambda m: m.arange(),
    "None as a number": lambda m: m.tensor([1, None]),
    "a dict as numbers": lambda m: m.as_tensor({}),
    "to an unknown device": lambda m: m.ones(1).to("gpu"),
}


@pytest.mark.parametrize("call", VALUES.values(), ids=VALUES)
def test_values_against_torch(call: Any) -> None:
    torch = pytest.importorskip("torch")
    assert _values(call(offgrad)) == _values(call(torch))


@pytest.mark.parametrize("call", [*SHAPES.values(), *ERRORS.values()], ids=[*SHAPES, *ERRORS])
def test_form_and_errors_against_torch(call: Any) -> None:
    torch = pytest.importorskip("torch")
    try:
        want = _facts(call(torch))
    except Exception as error:
        kinds = (type(error), TypeError) if isinstance(error, AttributeError) else (type(error),)
        with pytest.raises(kinds):
            call(offgrad)
        return
    assert _facts(call(offgrad)) == want


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"ab"),
        memoryview(b"ab"),
        [bytearray(b"ab"), bytearray(b"cd")],
        array("i", [1, -2]),
        array("d", [1.5, 2.0]),
        memoryview(array("d", [1.5, 2.0])),
        bytearray(),
    ],
)
def test_buffers_are_sequences_of_python_numbers(data: Any) -> None:
    torch = pytest.importorskip("torch")
    for name in ("tensor", "as_tensor"):
        ours, theirs = getattr(offgrad, name)(data), getattr(torch, name)(data)
        assert (str(ours.dtype), ours.tolist()) == (str(theirs.dtype), theirs.tolist())


def test_range_contains_its_end_and_warns() -> None:
    with pytest.warns(UserWarning, match="arange"):
        assert offgrad.range(1, 2, 0.5).tolist() == [1, 1.5, 2]


def test_memory_is_shared_where_no_copy_is_needed() -> None:
    array = np.arange(4.0)
    buffer = bytearray(b"\0\0")
    x = offgrad.asarray(array)
    y = offgrad.asarray(x, copy=True)
    z = offgrad.frombuffer(buffer, dtype=offgrad.uint8)
    array[0], buffer[0] = 5, 7
    assert (x[0].item(), y[0].item(), z[0].item()) == (5, 0, 7)
    assert offgrad.as_tensor(x) is x
    assert offgrad.from_dlpack(x).data_ptr() == x.data_ptr()


def test_a_clone_in_another_order_has_a_gradient() -> None:
    x = offgrad.arange(24.0).view(1, 2, 3, 4).requires_grad_()
    y = x.contiguous(memory_format=offgrad.channels_last)
    assert y.grad_fn is not None
    assert y.tolist() == x.tolist()
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == (2 * x).tolist()


def test_samples_of_one_seed_are_equal() -> None:
    def draw() -> list[Any]:
        with warnings.catch_warnings():
            offgrad.manual_seed(3)
            return [
                offgrad.rand(3).tolist(),
                offgrad.randn(3).tolist(),
                offgrad.randint(0, 100, (3,)).tolist(),
                offgrad.randperm(5).tolist(),
                offgrad.randint_like(offgrad.ones(3), 100).tolist(),
            ]

    assert draw() == draw()
