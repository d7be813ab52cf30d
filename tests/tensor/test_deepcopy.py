"""`copy.deepcopy` keeps which tensors share memory."""

import copy
from typing import Any

import pytest

import offgrad as og


def test_views_stay_views() -> None:
    x = og.zeros(4)
    whole, square, end = copy.deepcopy([x, x.view(2, 2), x[3:]])
    whole.add_(1)
    end.add_(1)
    assert square.tolist() == [[1, 1], [1, 2]]
    assert x.tolist() == [0, 0, 0, 0]


def test_a_view_that_comes_first_brings_its_memory() -> None:
    x = og.arange(12.0).view(3, 4)
    part, whole = copy.deepcopy((x.t()[1:], x))
    assert (part.stride(), part.storage_offset()) == ((1, 4), 1)
    whole.zero_()
    assert part.sum() == 0


@pytest.mark.parametrize("of", ["storage", "untyped_storage"])
def test_storages_are_shared_with_tensors(of: str) -> None:
    x = og.zeros(4)
    copied, storage = copy.deepcopy([x, getattr(x, of)()])
    copied.fill_(1)
    assert og.empty(0).set_(storage).tolist() == [1, 1, 1, 1]


def test_buffers_of_a_module_share_memory() -> None:
    class Flat(og.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("flat", og.zeros(6))
            self.register_buffer("part", self.flat[2:4])

    module: Any = copy.deepcopy(Flat())
    module.flat.fill_(3)
    assert module.part.tolist() == [3, 3]


def test_a_gradient_that_is_copied_beside_its_tensor_is_the_same() -> None:
    x = og.ones(3, requires_grad=True)
    x.grad = og.ones(3)
    copied, gradient = copy.deepcopy((x, x.grad))
    assert copied.grad is gradient


def test_strides_that_are_zero_or_negative() -> None:
    expanded = copy.deepcopy(og.ones(4).expand(2, 4))
    assert expanded.stride() == (0, 1)
    reversed_ = og.from_numpy(og.arange(3.0).numpy()[::-1])
    assert copy.deepcopy(reversed_).tolist() == [2, 1, 0]


@pytest.mark.parametrize("of", ["expanded", "overlapping", "transposed"])
def test_a_view_as_large_as_its_memory_is_not_the_memory(of: str) -> None:
    x = og.arange(8.0)
    view = {
        "expanded": x[:4].expand(2, 4),
        "overlapping": x.as_strided((2, 4), (1, 1)),
        "transposed": x.view(2, 4).t(),
    }[of]
    copied, whole = copy.deepcopy((view, x))
    assert whole.tolist() == x.tolist()
    assert copied.tolist() == view.tolist()
    whole.zero_()
    assert not copied.any()
