"""Anomaly mode: NaN in backward is an error, and an error names the line of the forward."""

import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.parity.conftest import constant, leaf, raises

# torch warns on entering the mode.
pytestmark = pytest.mark.filterwarnings("ignore")


def here() -> int:
    """Return the number of the line that calls."""
    return sys._getframe(1).f_lineno


def nan_of_sqrt(lib: Any) -> Any:
    """Run a backward in which the gradient of a square root is 0 * inf; return it."""
    x = leaf(lib, 0.0)
    (x.sqrt() * 0).backward()
    return x.grad


def is_nan(x: Any) -> bool:
    return bool(x.item() != x.item())


def told(call: Callable[[], Any], error: type[Exception]) -> str:
    """Return all that is said of an error: its message, its notes, warnings before it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(error) as info:
            call()
    notes: list[str] = getattr(info.value, "__notes__", [])
    return "\n".join([str(info.value), *notes, *(str(each.message) for each in caught)])


def assert_line(text: str, line: int) -> None:
    """Assert that a text names a line of this file."""
    assert re.search(rf"test_anomaly\.py\W{{1,4}}(line )?{line}\b", text), (line, text)


# NaN.


def test_nan_passes_without_the_mode(lib: Any) -> None:
    assert is_nan(nan_of_sqrt(lib))


def test_nan_is_an_error_that_names_the_node(lib: Any) -> None:
    with (
        lib.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"),
    ):
        nan_of_sqrt(lib)
    assert is_nan(nan_of_sqrt(lib))


def test_the_error_of_nan_is_a_plain_runtime_error(lib: Any) -> None:
    with lib.autograd.detect_anomaly(), raises(RuntimeError):
        nan_of_sqrt(lib)


def test_nan_of_grad(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        y = x.sqrt() * 0
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            lib.autograd.grad(y, x)


def test_one_nan_among_numbers(lib: Any) -> None:
    x = leaf(lib, 4, 0, 9)
    with lib.autograd.detect_anomaly():
        y = (x.sqrt() * constant(lib, 1, 0, 1)).sum()
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            y.backward()
    assert x.grad is None


def test_the_node_that_made_it_is_named_not_the_one_that_passed_it_on(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        y = (x * 2 + 0).sqrt().exp() * 0
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            y.backward()


def test_infinity_is_no_anomaly(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        x.sqrt().backward()
    assert x.grad.item() == float("inf")


def test_nan_in_the_forward_alone_is_no_anomaly(lib: Any) -> None:
    x = leaf(lib, -1.0)
    with lib.autograd.detect_anomaly():
        y = x.sqrt()
        (y.detach() * 0 + x).backward()
    assert x.grad.item() == 1


def test_nan_given_to_backward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    with lib.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="MulBackward0"):
        (x * 2).backward(constant(lib, float("nan")))


def test_nan_of_a_function(lib: Any) -> None:
    class Wrong(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * float("nan")

    with lib.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="WrongBackward"):
        Wrong.apply(leaf(lib, 1.0)).backward()


def test_nan_of_a_second_derivative(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        (first,) = lib.autograd.grad(x**1.5, x, create_graph=True)
        with pytest.raises(RuntimeError, match="PowBackward0"):
            lib.autograd.grad(first * 0, x)


def test_nan_that_a_hook_makes_is_found_where_it_goes(lib: Any) -> None:
    x = leaf(lib, 1.0)
    h = x * 2
    h.register_hook(lambda grad: grad * float("nan"))
    with lib.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="MulBackward0"):
        h.backward()


def test_without_nan_the_mode_changes_nothing(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    with lib.autograd.detect_anomaly():
        (x * w + x.exp().detach() * x).sum().backward()
        grads = lib.autograd.grad((x**3).sum(), x, create_graph=True)
        lib.autograd.grad(grads[0].sum(), x)
    assert w.grad.tolist() == [1, 2]


def test_integers_and_unused_outputs_are_no_anomaly(lib: Any) -> None:
    x = leaf(lib, 3, 1)
    with lib.autograd.detect_anomaly():
        values, _ = x.max(0)
        first, _ = x.unbind()
        (values + first).backward()
    assert x.grad.tolist() == [2, 0]


def test_complex_nan(lib: Any) -> None:
    z = leaf(lib, [1 + 1j], dtype=lib.complex128)
    with lib.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="MulBackward0"):
        (z * 2).backward(constant(lib, [complex(0, float("nan"))], dtype=lib.complex128))


# Switching it on and off.


def states(lib: Any) -> tuple[bool, bool]:
    return lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()


def test_the_mode_is_off_at_first(lib: Any) -> None:
    assert not lib.is_anomaly_enabled()


def test_check_nan_may_be_off(lib: Any) -> None:
    with lib.autograd.detect_anomaly(check_nan=False):
        assert states(lib) == (True, False)
        assert is_nan(nan_of_sqrt(lib))
    assert not lib.is_anomaly_enabled()


def test_modes_nest(lib: Any) -> None:
    autograd = lib.autograd
    with autograd.detect_anomaly():
        assert states(lib) == (True, True)
        with autograd.detect_anomaly(check_nan=False):
            assert states(lib) == (True, False)
        assert states(lib) == (True, True)
        with autograd.set_detect_anomaly(False):
            assert not lib.is_anomaly_enabled()
            assert is_nan(nan_of_sqrt(lib))
        assert states(lib) == (True, True)
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            nan_of_sqrt(lib)
    assert not lib.is_anomaly_enabled()


def test_set_detect_anomaly_is_a_function(lib: Any) -> None:
    lib.autograd.set_detect_anomaly(True)
    try:
        assert states(lib) == (True, True)
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            nan_of_sqrt(lib)
        lib.autograd.set_detect_anomaly(True, check_nan=False)
        assert states(lib) == (True, False)
    finally:
        lib.autograd.set_detect_anomaly(False)
    assert not lib.is_anomaly_enabled()
    assert is_nan(nan_of_sqrt(lib))


def test_set_detect_anomaly_is_a_context_manager(lib: Any) -> None:
    with (
        lib.autograd.set_detect_anomaly(True),
        pytest.raises(RuntimeError, match="SqrtBackward0"),
    ):
        nan_of_sqrt(lib)
    assert not lib.is_anomaly_enabled()


def test_the_mode_is_left_when_something_raises(lib: Any) -> None:
    with pytest.raises(ZeroDivisionError), lib.autograd.detect_anomaly():
        1 / 0
    assert not lib.is_anomaly_enabled()


def test_the_mode_is_for_all_threads(lib: Any) -> None:
    seen: list[Any] = []
    with lib.autograd.detect_anomaly():
        thread = threading.Thread(target=lambda: seen.append(lib.is_anomaly_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_only_the_mode_of_the_backward_counts_for_the_check(lib: Any) -> None:
    x = leaf(lib, 0.0)
    y = x.sqrt() * 0
    with lib.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="SqrtBackward0"):
        y.backward(retain_graph=True)
    with lib.autograd.detect_anomaly():
        y = x.sqrt() * 0
    y.backward()
    assert is_nan(x.grad)


def test_entering_the_mode_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with offgrad.autograd.detect_anomaly():
            (leaf(offgrad, 1.0) * 2).backward()


# Where the forward was.


def test_the_line_of_the_forward_is_named_for_nan(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        y, line = x.sqrt(), here()
        z = y * 0
        assert_line(told(z.backward, RuntimeError), line)


def compute(x: Any) -> tuple[Any, int]:
    return x.sqrt(), here()


def test_the_callers_of_the_line_are_named(lib: Any) -> None:
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        (y, inner), outer = compute(x), here()
        text = told((y * 0).backward, RuntimeError)
    assert_line(text, inner)
    assert_line(text, outer)
    assert "compute" in text


def test_the_line_of_the_forward_is_named_for_an_error(lib: Any) -> None:
    class Broken(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise KeyError("mine")

    with lib.autograd.detect_anomaly(check_nan=False):
        y, line = Broken.apply(leaf(lib, 1.0)), here()
        text = told(y.backward, KeyError)
    assert "mine" in text
    assert "BrokenBackward" in text
    assert_line(text, line)


def test_the_line_of_the_forward_is_named_for_a_changed_saved_tensor(lib: Any) -> None:
    x = leaf(lib, 1.0)
    with lib.autograd.detect_anomaly():
        h = x * 2
        y, line = h * h, here()
        h.add_(1)
        text = told(y.backward, RuntimeError)
    assert "MulBackward0" in text
    assert_line(text, line)


def test_the_line_of_an_operation_of_backward(lib: Any) -> None:
    """A node made by a backward with create_graph: the line of its forward was asked for too."""
    x = leaf(lib, 0.0)
    with lib.autograd.detect_anomaly():
        y, line = x**1.5, here()
        (first,) = lib.autograd.grad(y, x, create_graph=True)
        text = told(lambda: lib.autograd.grad(first * 0, x), RuntimeError)
    assert "PowBackward0" in text
    assert_line(text, line)


def test_without_the_mode_in_the_forward_no_line_is_known(lib: Any) -> None:
    x = leaf(lib, 0.0)
    y, line = x.sqrt(), here()
    z = y * 0
    with lib.autograd.detect_anomaly():
        text = told(z.backward, RuntimeError)
    assert "SqrtBackward0" in text
    assert f"line {line}" not in text


def test_an_error_is_told_how_to_find_its_line() -> None:
    """Without the mode, the error of a changed saved tensor says how to find the operation."""
    h = leaf(offgrad, 1.0) * 2
    y = h * h
    h.add_(1)
    with pytest.raises(RuntimeError, match="detect_anomaly"):
        y.backward()
