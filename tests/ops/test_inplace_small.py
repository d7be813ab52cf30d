"""In-place arithmetic, copies and assignments on small tensors, computed where the target is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor

torch = pytest.importorskip("torch")

NUMBERS = np.random.default_rng(0).normal(size=(2, 4, 5)) * 4


def _pair(library: Any, dtype: str) -> tuple[Any, Any]:
    first, second = NUMBERS if "float" in dtype else NUMBERS.round() + (NUMBERS.round() == 0)
    kind = getattr(library, dtype)
    return library.tensor(first.tolist()).to(kind), library.tensor(second.tolist()).to(kind)


def _outcome(run: Callable[..., Any], *args: Any) -> Any:
    try:
        result = run(*args)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        return type(error)
    return result.tolist()


OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tensor": lambda library, x, y: y,
    "itself": lambda library, x, y: x,
    "int": lambda library, x, y: 3,
    "large int": lambda library, x, y: 2**40,
    "float": lambda library, x, y: 0.3,
    "huge": lambda library, x, y: 1e300,
    "bool": lambda library, x, y: True,
    "row": lambda library, x, y: y[:1],
    "transposed": lambda library, x, y: y.reshape(5, 4).T,
    "no dimension": lambda library, x, y: y[0, 0],
    "another dtype": lambda library, x, y: y.to(library.float64),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
)
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_as_in_pytorch(name: str, dtype: str, other: str) -> None:
    results = []
    for library in (torch, offgrad):
        x, y = _pair(library, dtype)
        results.append(_outcome(getattr(x, name), OTHERS[other](library, x, y)))
        results.append(x.tolist())
    expected, kept, found, ours = results
    if isinstance(expected, type):
        assert isinstance(found, type)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-6 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(ours, kept, rtol=2e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("alpha", [1, 2, -1, 0.25])
@pytest.mark.parametrize("name", ["add_", "sub_"])
def test_a_factor_has_the_bits_of_the_operation(name: str, alpha: Any) -> None:
    x, y = _pair(offgrad, "float32")
    expected = getattr(x, name[:-1])(y, alpha=alpha)
    version = x._version
    assert getattr(x, name)(y, alpha=alpha) is x
    np.testing.assert_array_equal(x.numpy(), expected.numpy())
    assert x._version == version + 1


def test_parts_of_a_tensor_change_in_place() -> None:
    x, y = _pair(offgrad, "float32")
    expected = x.numpy().copy()
    expected[:, 1] += y.numpy()[:, 0]
    column = x[:, 1]
    column += y[:, 0]
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x._version == 1


def test_a_saved_tensor_detects_each_change() -> None:
    changes: list[Callable[[Tensor], object]] = [
        lambda x: x.add_(1),
        lambda x: x.mul_(x.clone()),
        lambda x: x.zero_(),
        lambda x: x.fill_(2),
        lambda x: x.copy_(offgrad.ones(4, 5)),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: x.__setitem__((slice(None), 1), offgrad.ones(4)),
        lambda x: x.__setitem__(x > 0, 0.0),
        lambda x: x.__setitem__([0, 1], offgrad.ones(5)),
        lambda x: x.index_put_((offgrad.tensor([0]),), offgrad.ones(5), accumulate=True),
    ]
    for change in changes:
        x, _ = _pair(offgrad, "float32")
        weight = offgrad.ones(4, 5, requires_grad=True)
        product = x * weight
        change(x)
        with pytest.raises(RuntimeError, match="version"):
            product.sum().backward()


INDICES: dict[str, Callable[[Any], Any]] = {
    "int": lambda library: 1,
    "negative": lambda library: -1,
    "all ints": lambda library: (1, 2),
    "slice": lambda library: slice(1, 3),
    "column": lambda library: (slice(None), 2),
    "step": lambda library: (slice(None, None, 2), slice(1, None, 3)),
    "dots": lambda library: (..., 0),
    "none": lambda library: (None, 1),
    "empty": lambda library: (),
    "list": lambda library: [0, 2],
    "tensor": lambda library: library.tensor([0, 0, 3]),
    "int32": lambda library: library.tensor([1, -1], dtype=library.int32),
    "two tensors": lambda library: (library.tensor([0, 1]), library.tensor([2, 4])),
    "mask": lambda library: library.tensor([True, False, True, False]),
    "full mask": lambda library: library.arange(20).reshape(4, 5) % 3 == 0,
    "tensor and slice": lambda library: (slice(1, 3), library.tensor([0, 4])),
    "tensor and int": lambda library: (2, library.tensor([0, 4])),
    "no dimension": lambda library: library.tensor(2),
    "true": lambda library: True,
    "beyond": lambda library: 4,
    "tensor beyond": lambda library: library.tensor([0, 4]),
    "slice backwards": lambda library: slice(None, None, -1),
    "too many": lambda library: (0, 0, 0),
    "float": lambda library: 1.5,
}
VALUES: dict[str, Callable[[Any], Any]] = {
    "number": lambda library: 7,
    "fraction": lambda library: 0.5,
    "scalar": lambda library: library.tensor(3.0),
    "one": lambda library: library.tensor([[4.0]]),
    "row": lambda library: library.arange(5.0),
    "two": lambda library: library.tensor([1.0, 2.0]),
    "column": lambda library: library.arange(4.0),
    "integer": lambda library: library.tensor(2),
    "wrong": lambda library: library.arange(7.0),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_assignments_as_in_pytorch(dtype: str, index: str, value: str) -> None:
    results = []
    for library in (torch, offgrad):
        x, _ = _pair(library, dtype)
        at, what = INDICES[index](library), VALUES[value](library)

        def assign(x: Any = x, at: Any = at, what: Any = what) -> Any:
            x[at] = what
            return x

        results.append(_outcome(assign))
        results.append(x.tolist())
    expected, kept, found, ours = results
    assert isinstance(found, type) == isinstance(expected, type), (found, expected)
    if isinstance(found, type):  # nothing has changed; PyTorch may have written a part
        assert x._version == 0
        kept = _pair(torch, dtype)[0].tolist()
    assert ours == kept


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("index", [name for name in INDICES if "tensor" in name or "mask" in name])
def test_index_put_in_place_has_the_bits_of_index_put(index: str, accumulate: bool) -> None:
    x, _ = _pair(offgrad, "float32")
    at = INDICES[index](offgrad)
    at = at if isinstance(at, tuple) else (at,)
    expected = _outcome(lambda: x.index_put(at, offgrad.tensor(0.3), accumulate))
    found = _outcome(lambda: x.index_put_(at, offgrad.tensor(0.3), accumulate))
    assert found == expected


@pytest.mark.parametrize("at", [[1, 0, 3], [3, 3, 3]])
def test_the_source_may_be_the_target(at: list[int]) -> None:
    x = offgrad.arange(20.0).reshape(4, 5)
    expected = torch.arange(20.0).reshape(4, 5)
    x[at], expected[at] = x[1:4], expected[1:4].clone()
    if len(set(at)) == len(at):
        assert x.tolist() == expected.tolist()
    else:
        assert x[3].tolist() in offgrad.arange(20.0).reshape(4, 5)[1:4].tolist()
    index = offgrad.tensor([1, 2, 3, 0])
    index[index] = index
    assert index.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.zero_(),
        lambda x: x.__setitem__(slice(None), 1.0),
        lambda x: x.__setitem__(offgrad.tensor([0]), 1.0),
    ],
)
def test_memory_that_must_not_change(change: Callable[[Tensor], object]) -> None:
    fixed = np.ones((2, 3), np.float32)
    fixed.setflags(write=False)
    with pytest.warns(UserWarning, match="not writable"):
        shared = offgrad.from_numpy(fixed)
    for x, message in (
        (shared, "read-only"),
        (offgrad.ones(1, 3).expand(2, 3), "single memory location"),
        (offgrad.ones(2, 3, requires_grad=True), "leaf"),
        (offgrad.ones(2, 3, requires_grad=True)[:1], "leaf"),
    ):
        with pytest.raises(RuntimeError, match=message):
            change(x)
        assert (x.detach() == 1).all()
        assert x._version == 0
    with offgrad.inference_mode():
        x = offgrad.ones(2, 3)
    with pytest.raises(RuntimeError, match="inference"):
        change(x)
    leaf = offgrad.ones(2, 3, requires_grad=True)
    with offgrad.no_grad():
        change(leaf)
    assert leaf._version == 1
    assert leaf.is_leaf


def test_one_row_of_an_expanded_tensor_may_change() -> None:
    x = offgrad.zeros(1, 3).expand(2, 3)
    expected = torch.zeros(1, 3).expand(2, 3)
    x[0], expected[0] = 1.0, 1.0
    assert x.tolist() == expected.tolist()


def test_random_streams_that_are_held_do_not_meet() -> None:
    generator = offgrad.Generator().manual_seed(3)
    one = generator.stream(100)
    two = generator.stream(100)
    first, second = one.standard_normal(50), two.standard_normal(50)
    del one, two
    again = offgrad.Generator().manual_seed(3)
    np.testing.assert_array_equal(again.stream(100).standard_normal(50), first)
    np.testing.assert_array_equal(again.stream(100).standard_normal(50), second)
    assert not np.array_equal(first, second)


def test_random_numbers_of_threads_are_those_of_their_offsets() -> None:
    expected = {}
    generator = offgrad.Generator().manual_seed(5)
    for _ in range(64):
        offset = generator.get_offset()
        expected[offset] = offgrad.randn(10, generator=generator).tolist()
    generator.manual_seed(5)
    found: list[list[float]] = []

    def draw() -> None:
        for _ in range(16):
            found.append(offgrad.randn(10, generator=generator).tolist())

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == sorted(expected.values())


def test_a_stream_after_half_a_word() -> None:
    """A stream that is used again begins with whole words, whatever the one before left."""
    generator = offgrad.Generator().manual_seed(7)
    expected = [offgrad.randint(10, (n,), generator=generator).tolist() for n in (5, 3, 7)]
    fresh = []
    for n, offset in ((5, 0), (3, 5), (7, 8)):
        other = offgrad.Generator().manual_seed(7)
        other.set_offset(offset)
        fresh.append(offgrad.randint(10, (n,), generator=other).tolist())
    assert fresh == expected
