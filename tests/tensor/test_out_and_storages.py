"""``out=`` of another shape, storages of another size, and keywords, against torch."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

Case = Callable[[Any], Any]


def into(m: Any, call: Case, *shape: int, **options: Any) -> Any:
    """Return what a call gives into ones of a shape, and whether it is those."""
    target = m.ones(shape, **options)
    result = call(target)
    return result, result is target, target.stride()


def into_part(m: Any, size: int) -> Any:
    base = m.zeros(4)
    m.add(m.ones(size), 1, out=base[1:3])
    return base


def pair(m: Any, size: int) -> Any:
    values, indices = m.ones(size), m.ones(size, dtype=m.int64)
    found = m.max(m.arange(6.0).view(2, 3), 1, out=(values, indices))
    return found[0], found[1], found.values is values


def emptied(m: Any) -> Any:
    parameter = m.nn.Parameter(m.ones(3))
    storage = parameter.data.untyped_storage()
    storage.resize_(0)
    sizes = [storage.size(), parameter.untyped_storage().nbytes(), parameter.shape]
    storage.resize_(12)
    parameter.data.copy_(m.arange(3.0))
    return sizes, parameter, parameter.untyped_storage().size()


def seen_by_views(m: Any) -> Any:
    base = m.ones(4)
    view = base[1:3]
    base.untyped_storage().resize_(0)
    base.untyped_storage().resize_(16)
    base.copy_(m.arange(4.0))
    return view


CASES: dict[str, Case] = {
    "no elements": lambda m: into(m, lambda out: m.add(m.ones(2, 3), 1, out=out), 0),
    "another shape": lambda m: into(m, lambda out: m.add(m.ones(2, 3), 1, out=out), 4),
    "another shape, as many": lambda m: into(m, lambda out: m.add(m.ones(2, 3), 1, out=out), 6),
    "the same shape": lambda m: into(m, lambda out: m.add(m.ones(2, 3), 1, out=out), 2, 3),
    "fewer elements": lambda m: into(m, lambda out: m.add(m.ones(2), 1, out=out), 5),
    "cat": lambda m: into(m, lambda out: m.cat([m.ones(2), m.zeros(1)], out=out), 7),
    "matmul": lambda m: into(m, lambda out: m.matmul(m.ones(2, 3), m.ones(3, 2), out=out), 1, 1),
    "arange": lambda m: into(m, lambda out: m.arange(5, out=out), 2, dtype=m.int64),
    "zeros": lambda m: into(m, lambda out: m.zeros(2, 2, out=out), 3),
    "sum": lambda m: into(m, lambda out: m.sum(m.ones(2, 3), 1, out=out), 5),
    "a view": lambda m: into_part(m, 2),
    "a view that grows": lambda m: into_part(m, 3),
    "two results": lambda m: pair(m, 0),
    "two results, resized": lambda m: pair(m, 5),
    "integers": lambda m: m.add(m.ones(2), 1, out=m.ones(3, dtype=m.int64)),
    "requires grad": lambda m: m.add(m.ones(2, requires_grad=True), 1, out=m.ones(2)),
    "storage emptied": emptied,
    "storage and views": seen_by_views,
    "storage shrunk": lambda m: m.ones(4).untyped_storage().resize_(8).nbytes(),
    "storage of NumPy": lambda m: m.from_numpy(np.ones(4)).untyped_storage().resize_(0),
    "resizable": lambda m: (
        m.ones(4).untyped_storage().resizable(),
        m.from_numpy(np.ones(4)).untyped_storage().resizable(),
    ),
    "new storage": lambda m: (m.UntypedStorage(8).nbytes(), m.UntypedStorage([1, 2]).tolist()),
    "dims=": lambda m: (
        m.arange(6).view(2, 3).flip(dims=(0, 1)), m.flip(m.arange(3), dims=[0]),
        m.permute(m.ones(2, 3), dims=(1, 0)).shape, m.ones(2, 3).permute(dims=(1, 0)).shape,
        m.ones(2, 3).tile(dims=(2, 1)).shape,
    ),
    "size=, shape= and repeats=": lambda m: (
        m.arange(6).reshape(shape=(2, 3)), m.reshape(input=m.arange(6), shape=(3, -1)),
        m.arange(6).view(size=(2, 3)), m.ones(1, 3).expand(size=(2, -1)),
        m.ones(2, 3).repeat(repeats=(2, 1)).shape, m.broadcast_to(m.ones(3), size=(2, 3)),
    ),
    "split_size=": lambda m: (
        m.arange(3).split(split_size=2), m.arange(3).split(split_size=[1, 2], dim=0),
        m.split(m.arange(3), split_size_or_sections=2),
    ),
    "nuclear norm": lambda m: (
        m.norm(m.diag(m.tensor([3.0, 4.0])), "nuc"), m.eye(3).repeat(2, 1, 1).norm("nuc", (1, 2)),
        m.eye(3).repeat(2, 1, 1).norm("nuc", (2, 1), keepdim=True).shape,
    ),
    "nuclear norm of a vector": lambda m: m.norm(m.ones(3), "nuc"),
    "T of three": lambda m: m.ones(1, 2, 3).T.shape,
    "std of one": lambda m: (m.ones(1).std(), m.ones(2, 1).var(1)),
    "std without correction": lambda m: m.ones(1).std(correction=0),
    "tensor of a tensor": lambda m: m.tensor(m.ones(2)),
}  # fmt: skip


def outcome(case: Case, m: Any) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            result = repr(case(m))
        except Exception as error:
            result = type(error).__name__
    return result, {each.category.__name__ for each in found}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert outcome(CASES[name], offgrad) == outcome(CASES[name], torch)


def test_the_warning_says_what_to_pass() -> None:
    add: Any = offgrad.add
    with pytest.warns(UserWarning, match="An output with elements was resized"):
        add(offgrad.ones(2), 1, out=offgrad.ones(3))


def test_a_read_only_array_is_told() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="is not writable"):
        offgrad.from_numpy(array)
