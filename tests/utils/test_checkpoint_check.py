"""Checkpoints detect functions that do something else in backward."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, nn
from offgrad.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_debug_enabled
from tests.parity.conftest import leaf
from tests.utils.test_checkpoint import checkpointed, of


class Alternating:
    """Calls one function in forward and others in backward."""

    def __init__(self, *functions: Callable[[Any], Any]) -> None:
        self.functions = functions
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        function = self.functions[min(self.calls, len(self.functions) - 1)]
        self.calls += 1
        return function(x)


def exp_sin(x: Any) -> Any:
    return x.exp().sin()


# Both libraries


def test_fewer_saves(lib: Any) -> None:
    out = checkpointed(lib, Alternating(exp_sin, lambda x: x.exp()), leaf(lib, 1, 2) * 1)
    with pytest.raises(of(lib).CheckpointError):
        out.sum().backward()


@pytest.mark.parametrize("check", ["default", "none"])
def test_more_saves(lib: Any, check: str) -> None:
    function = Alternating(lambda x: x.exp(), exp_sin)
    x = leaf(lib, 1, 2)
    out = checkpointed(lib, function, x * 1, early_stop=False, determinism_check=check)
    with pytest.raises(of(lib).CheckpointError):
        out.sum().backward()


def test_more_saves_after_the_last_one_needed_are_not_computed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    function = Alternating(lambda x: x.exp(), exp_sin)
    checkpointed(lib, function, x * 1).sum().backward()
    assert x.grad.tolist() == x.exp().tolist()


def test_other_shapes_and_dtypes(lib: Any) -> None:
    for other in (lambda x: x[:1].exp().expand(2), lambda x: x.float().exp()):
        function = Alternating(lambda x: x.exp(), other)
        out = checkpointed(lib, function, leaf(lib, 1, 2) * 1)
        with pytest.raises(of(lib).CheckpointError):
            out.sum().backward()


# Only offgrad


def refusal(function: Callable[[Any], Any], **options: Any) -> str:
    out = checkpointed(offgrad, function, leaf(offgrad, 1, 2) * 1, **options)
    with pytest.raises(CheckpointError) as info:
        out.sum().backward()
    return str(info.value)


def test_other_contents() -> None:
    numpy_generator = np.random.default_rng(0)

    def noisy(x: Tensor) -> Tensor:
        return (x + offgrad.from_numpy(numpy_generator.normal(size=2))).exp()

    message = refusal(noisy)
    assert "the content of tensor 0" in message
    assert message.count("ExpBackward0.result, a float64 [2]") == 2
    assert "debug=True" in message
    assert "content" in refusal(noisy, determinism_check="content")


@pytest.mark.parametrize("check", ["metadata", "none"])
def test_contents_need_not_be_compared(check: str) -> None:
    x = leaf(offgrad, 1, 2)
    function = Alternating(lambda x: x.exp(), lambda x: (x + 1).exp())
    checkpointed(offgrad, function, x * 1, determinism_check=check).sum().backward()
    assert x.grad.tolist() == (x + 1).exp().tolist()


def test_another_operation() -> None:
    message = refusal(Alternating(lambda x: x.exp(), lambda x: x.tanh()))
    assert "the operation of tensor 0" in message
    assert "TanhBackward0.result" in message
    assert "ExpBackward0.result" in message


def test_without_checks_the_shape_of_an_unpacked_tensor_is_still_checked() -> None:
    function = Alternating(lambda x: x.exp(), lambda x: x[:1].exp())
    out = checkpointed(offgrad, function, leaf(offgrad, 1, 2) * 1, determinism_check="none")
    with pytest.raises(RuntimeError, match="shape"):
        out.sum().backward()


def test_messages_about_numbers_name_the_operations_of_both() -> None:
    message = refusal(Alternating(exp_sin, lambda x: x.exp()))
    assert "1 tensors instead of 2, the last of them ExpBackward0.result" in message
    assert "the next one was SinBackward0.self" in message
    message = refusal(Alternating(lambda x: x.exp(), exp_sin), early_stop=False)
    assert "another tensor, SinBackward0.self" in message
    assert "the last of them ExpBackward0.result" in message


def test_messages_name_the_module() -> None:
    model = nn.Sequential(nn.Sequential(nn.Tanh()))
    function = Alternating(model, lambda x: model(x + 1))
    with offgrad.offload("keep"):
        out = checkpointed(offgrad, function, leaf(offgrad, 1, 2) * 1)
        with pytest.raises(CheckpointError, match=r"in 0\.0"):
            out.sum().backward()


def test_debug_lists_all_saves_and_where_they_were() -> None:
    def function(x: Any) -> Any:
        return (x.exp() if counter.calls == 1 else x.exp().square()).sin()

    counter = Alternating(function)
    message = refusal(counter, debug=True)
    assert message.count("1: SinBackward0.self") == 1
    assert message.count(f"at {__file__}:") >= 4
    assert " in function" in message
    with set_checkpoint_debug_enabled(True):
        counter.calls = 0
        assert __file__ in refusal(counter)
    with set_checkpoint_debug_enabled(False):
        counter.calls = 0
        assert __file__ not in refusal(counter, debug=True)


def test_errors_that_the_function_catches_are_raised_all_the_same() -> None:
    def function(x: Any) -> Any:
        try:
            y = x.exp() if counter.calls == 1 else x.tanh()
        except RuntimeError:
            y = x.exp()
        return y.sin()

    counter = Alternating(function)
    assert "the operation of tensor 0" in refusal(counter)


def test_the_early_stop_is_no_exception_of_the_users() -> None:
    caught = []

    def function(x: Any) -> Any:
        try:
            return x.exp()
        except Exception as error:
            caught.append(error)
            raise

    x = leaf(offgrad, 1, 2)
    checkpointed(offgrad, function, x * 1).sum().backward()
    assert x.grad.tolist() == x.exp().tolist()
    assert caught == []


def test_other_amounts_of_random_numbers() -> None:
    function = Alternating(
        lambda x: (x * offgrad.rand(2)).exp(), lambda x: (x * offgrad.rand(4)[:2]).exp()
    )
    assert "it drew 4 random numbers where it had drawn 2" in refusal(function)
    function = Alternating(
        lambda x: (x * offgrad.rand(2)).exp(),
        lambda x: (x * offgrad.rand(2) * offgrad.rand(3)[:2]).exp(),
    )
    assert "it drew 3 random numbers more" in refusal(function)


def test_dropout_with_new_numbers_is_detected() -> None:
    x = offgrad.ones(100, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return nn.functional.dropout(x).exp()

    out = checkpoint(function, x * 1, use_reentrant=False, preserve_rng_state=False)
    with pytest.raises(CheckpointError, match="content"):
        out.sum().backward()


def test_draws_of_custom_generators_are_replayed_too() -> None:
    generator = offgrad.Generator().manual_seed(3)
    x = leaf(offgrad, 1, 2)
    draws = []

    def function(x: Tensor) -> Tensor:
        draws.append(offgrad.rand(2, dtype=offgrad.float64, generator=generator))
        return (x * draws[-1]).exp()

    out = checkpointed(offgrad, function, x * 1)
    state = generator.get_state()
    out.sum().backward()
    assert draws[0].tolist() == draws[1].tolist()
    assert generator.get_state().tolist() == state.tolist()


def test_in_place_changes_of_saved_tensors_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        z = y.sin()
        y.add_(1)
        return z * y.cos()

    out = checkpointed(offgrad, function, leaf(offgrad, 1, 2) * 1)
    with pytest.raises(RuntimeError, match=r"SinBackward0.self.*changed in place by add_"):
        out.sum().backward()


def test_a_parameter_that_is_changed_between_is_refused() -> None:
    linear = nn.Linear(3, 3)
    out = checkpointed(offgrad, lambda x: linear(x).exp(), offgrad.randn(2, 3, requires_grad=True))
    with offgrad.no_grad():
        linear.bias.add_(1)
    with pytest.raises(CheckpointError, match="content"):
        out.sum().backward()


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x.T, lambda x: x[:, ::2]])
def test_contents_are_compared_for_any_memory_layout(change: Callable[[Tensor], Tensor]) -> None:
    x = offgrad.randn(700, 600, dtype=offgrad.float64, requires_grad=True)

    def gradient(function: Callable[[Tensor], Tensor]) -> bytes:
        grad: Tensor
        (grad,) = offgrad.autograd.grad(function(x * 1).sum(), x)
        return grad.numpy().tobytes()

    def function(x: Tensor) -> Tensor:
        return change(x).sin()

    assert gradient(lambda x: checkpointed(offgrad, function, x)) == gradient(function)
    second = Alternating(function, lambda x: change(x + (x == x[699, 598])).sin())
    with pytest.raises(CheckpointError, match="content"):
        gradient(lambda x: checkpointed(offgrad, second, x))
