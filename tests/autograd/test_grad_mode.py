"""no_grad, enable_grad, set_grad_enabled."""

import threading
from collections.abc import Iterator

import pytest

import offgrad
from offgrad import Tensor


def leaf() -> Tensor:
    return offgrad.ones(2, requires_grad=True)


def test_no_grad_and_enable_grad_nest() -> None:
    x = leaf()
    with offgrad.no_grad():
        assert not offgrad.is_grad_enabled()
        assert not (x * 2).requires_grad
        with offgrad.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_results_of_no_grad_are_leaves() -> None:
    x = leaf()
    with offgrad.no_grad():
        y = x * 2
    y.requires_grad_()
    (y * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_mode_is_restored_after_an_error() -> None:
    with pytest.raises(KeyError), offgrad.no_grad():
        raise KeyError
    assert offgrad.is_grad_enabled()


def test_decorator_of_functions() -> None:
    @offgrad.no_grad()
    def scale(x: Tensor, by: float = 2.0) -> Tensor:
        """Say what it does."""
        return x * by

    assert scale.__name__ == "scale"
    assert scale.__doc__ == "Say what it does."
    assert not scale(leaf(), by=3.0).requires_grad
    assert offgrad.is_grad_enabled()


def test_decorated_function_may_be_recursive_and_raise() -> None:
    @offgrad.no_grad()
    def down(n: int) -> bool:
        if n == 0:
            raise KeyError
        return down(n - 1)

    with pytest.raises(KeyError):
        down(5)
    assert offgrad.is_grad_enabled()


def test_decorator_of_generators_does_not_affect_the_caller() -> None:
    @offgrad.no_grad()
    def steps() -> Iterator[bool]:
        for _ in range(2):
            yield offgrad.is_grad_enabled()

    inside = []
    for enabled in steps():
        inside.append(enabled)
        assert offgrad.is_grad_enabled()
    assert inside == [False, False]


def test_set_grad_enabled() -> None:
    with offgrad.set_grad_enabled(False):
        assert not offgrad.is_grad_enabled()
        with offgrad.set_grad_enabled(True):
            assert offgrad.is_grad_enabled()
        assert not offgrad.is_grad_enabled()
    assert offgrad.is_grad_enabled()
    offgrad.set_grad_enabled(False)
    try:
        assert not offgrad.is_grad_enabled()
    finally:
        offgrad.set_grad_enabled(True)


def test_set_grad_enabled_as_decorator() -> None:
    @offgrad.set_grad_enabled(False)
    def enabled() -> bool:
        return offgrad.is_grad_enabled()

    assert offgrad.is_grad_enabled()
    assert not enabled()
    assert not enabled()


def test_one_object_entered_twice() -> None:
    mode = offgrad.no_grad()
    with mode:
        with mode:
            pass
        assert not offgrad.is_grad_enabled()
    assert offgrad.is_grad_enabled()


def test_mode_is_per_thread() -> None:
    seen: list[bool] = []
    with offgrad.no_grad():
        thread = threading.Thread(target=lambda: seen.append(offgrad.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_requires_grad_of_results_and_leaves() -> None:
    x, constant = leaf(), offgrad.ones(2)
    assert (x + constant).requires_grad
    assert not (constant + constant).requires_grad
    assert not (x > 0).requires_grad
    with pytest.raises(RuntimeError, match="floating point"):
        offgrad.ones(2, dtype=offgrad.int64).requires_grad_()
    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        (x * 2).requires_grad_(False)
    assert not x.detach().requires_grad
    x.requires_grad_(False)
    assert not (x * 2).requires_grad


def test_views_made_without_grad() -> None:
    x = leaf()
    with offgrad.no_grad():
        view = x[:1]
        view.mul_(3)
    assert x.tolist() == [3, 1]
    assert not view.requires_grad
