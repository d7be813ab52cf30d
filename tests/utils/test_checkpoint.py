"""checkpoint and checkpoint_sequential: the same lines on offgrad and on torch."""

import importlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import pytest

import offgrad
from tests.parity.conftest import constant, leaf, lists, raises


def of(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.utils.checkpoint")


def checkpointed(lib: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return of(lib).checkpoint(function, *args, use_reentrant=False, **options)


class Counted:
    """A function that counts its calls, and the calls that ran to the end."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = self.ends = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        result = self.function(*args, **kwargs)
        self.ends += 1
        return result

    def __str__(self) -> str:
        return f"{self.calls} calls, {self.ends} to the end"


def wave(x: Any) -> Any:
    return (x.sin() * x.exp()).tanh()


# Results


def test_it_is_where_torch_has_it(lib: Any) -> None:
    assert lib.utils.checkpoint.checkpoint is of(lib).checkpoint
    assert issubclass(of(lib).CheckpointError, RuntimeError)


def test_gradients_are_those_without_it(lib: Any) -> None:
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    wave(x * 2).sum().backward()
    out = checkpointed(lib, wave, y * 2)
    assert out.tolist() == wave(y * 2).tolist()
    out.sum().backward()
    assert y.grad.tolist() == x.grad.tolist()


def test_a_function_without_gradients(lib: Any) -> None:
    function = Counted(wave)
    out = checkpointed(lib, function, constant(lib, 1, 2))
    assert not out.requires_grad
    assert str(function) == "1 calls, 1 to the end"


def test_parameters_of_the_function_get_gradients_where_no_input_requires_grad(lib: Any) -> None:
    weight = leaf(lib, 1, 2)
    checkpointed(lib, lambda x: (x * weight).exp(), constant(lib, 3, 4)).sum().backward()
    expected = (constant(lib, 3, 8).exp() * constant(lib, 3, 4)).tolist()
    assert weight.grad.tolist() == pytest.approx(expected)


def test_keyword_arguments(lib: Any) -> None:
    x, y = leaf(lib, 1, 2), leaf(lib, 3, 4)

    def function(a: Any, *, b: Any, power: int) -> Any:
        return (a * b).exp() ** power

    checkpointed(lib, function, x * 1, b=y * 1, power=2).sum().backward()
    a, b = leaf(lib, 1, 2), leaf(lib, 3, 4)
    function(a * 1, b=b * 1, power=2).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == (a.grad.tolist(), b.grad.tolist())


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_of_inputs_and_outputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def function(inputs: Any) -> Any:
        a, (b, pair) = inputs["a"], inputs["rest"]
        return {"sum": (a + b).exp(), "rest": [pair.first.sin(), (pair.second, "text", None)]}

    given = {"a": x * 1, "rest": (x * 2, Pair(x * 3, 4))}
    out = checkpointed(lib, function, given)
    assert out["rest"][1] == (4, "text", None)
    (out["sum"].sum() + out["rest"][0].sum()).backward()
    expected = (constant(lib, 3, 6).exp() * 3 + constant(lib, 3, 6).cos() * 3).tolist()
    assert x.grad.tolist() == pytest.approx(expected)


def test_several_outputs_each_with_its_own_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    function = Counted(lambda x: (x.exp(), x.sin(), 5))
    a, b, five = checkpointed(lib, function, x * 1)
    assert five == 5
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    assert function.calls == 3
    expected = (x.exp() + x.cos()).tolist()
    assert x.grad.tolist() == pytest.approx(expected)


def test_nothing_is_recomputed_before_backward(lib: Any) -> None:
    function = Counted(wave)
    out = checkpointed(lib, function, leaf(lib, 1, 2) * 1)
    assert function.calls == 1
    out.sum().backward()
    assert function.calls == 2


def test_saved_tensors_can_be_read_from_the_graph(lib: Any) -> None:
    out = checkpointed(lib, lambda x: x.exp(), leaf(lib, 0, 0) * 1)
    assert out.grad_fn._saved_result.tolist() == [1, 1]
    assert out.grad_fn._saved_result.grad_fn is out.grad_fn


# Stopping early


def test_it_stops_at_the_last_saved_tensor(lib: Any) -> None:
    function = Counted(lambda x: x.exp().sin() + 1)
    checkpointed(lib, function, leaf(lib, 1, 2) * 1).sum().backward()
    assert str(function) == "2 calls, 1 to the end"


def test_it_runs_to_the_end_if_asked(lib: Any) -> None:
    function = Counted(wave)
    checkpointed(lib, function, leaf(lib, 1, 2) * 1, early_stop=False).sum().backward()
    assert str(function) == "2 calls, 2 to the end"


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_context_manager_overrides_the_argument(lib: Any, early_stop: bool) -> None:
    function = Counted(wave)
    with of(lib).set_checkpoint_early_stop(early_stop):
        out = checkpointed(lib, function, leaf(lib, 1, 2) * 1, early_stop=not early_stop)
    out.sum().backward()
    assert function.ends == (1 if early_stop else 2)


def test_contexts_of_the_function_end_when_it_stops_early(lib: Any) -> None:
    log = []

    def function(x: Any) -> Any:
        try:
            with lib.no_grad():
                scale = x.sum().exp()
            return wave(x * scale)
        finally:
            log.append("end")

    checkpointed(lib, function, leaf(lib, 0.1, 0.2) * 1).sum().backward()
    assert log == ["end", "end"]
    assert lib.is_grad_enabled()


# Ways of backward


def test_several_backwards(lib: Any) -> None:
    x = leaf(lib, 0.5, 1)
    function = Counted(wave)
    out = checkpointed(lib, function, x * 1).sum()
    out.backward(retain_graph=True)
    first = x.grad.tolist()
    out.backward(retain_graph=True)
    out.backward()
    assert function.calls == 4
    assert x.grad.tolist() == pytest.approx([3 * each for each in first])
    with raises(RuntimeError):
        out.backward()


def test_double_backward(lib: Any) -> None:
    def gradient(function: Callable[[Any], Any]) -> list[Any]:
        x = leaf(lib, 0.5, 1)
        (grad,) = lib.autograd.grad(function(x * 2).sum(), x, create_graph=True)
        (grad * grad).sum().backward()
        return [grad.tolist(), x.grad.tolist()]

    assert gradient(partial(checkpointed, lib, wave)) == gradient(wave)


def test_gradcheck_and_gradgradcheck(lib: Any) -> None:
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.2, 0.9)

    def function(x: Any, y: Any) -> Any:
        return checkpointed(lib, lambda a, b: (wave(a * b), (a * b).exp()), x, y)

    assert lib.autograd.gradcheck(function, (x, y))
    assert lib.autograd.gradgradcheck(function, (x, y))


def test_inputs_and_grad_alone(lib: Any) -> None:
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.2, 0.9)
    out = checkpointed(lib, lambda a, b: a.exp() * b.sin(), x * 1, y * 1).sum()
    out.backward(inputs=[x], retain_graph=True)
    assert y.grad is None
    (grad,) = lib.autograd.grad(out, y)
    assert x.grad.tolist() == (x.exp() * y.sin()).tolist()
    assert grad.tolist() == (x.exp() * y.cos()).tolist()


def test_a_function_that_runs_backward_itself(lib: Any) -> None:
    def penalty(x: Any) -> Any:
        y = x.exp()
        (grad,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        return grad * y

    x = leaf(lib, 0.3, 0.7)
    checkpointed(lib, penalty, x * 1).sum().backward()
    assert x.grad.tolist() == pytest.approx((2 * (2 * x).exp()).tolist())


# Nesting


def test_nested_checkpoints(lib: Any) -> None:
    inner, outer = Counted(wave), Counted(lambda x: checkpointed(lib, inner, x * 2).exp() * x)
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    checkpointed(lib, outer, x * 1).sum().backward()
    assert (outer.calls, inner.calls) == (2, 3)
    (wave(y * 1 * 2).exp() * (y * 1)).sum().backward()
    assert x.grad.tolist() == pytest.approx(y.grad.tolist())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_checkpoints_in_checkpoints_in_checkpoints(lib: Any, depth: int) -> None:
    def function(x: Any, level: int) -> Any:
        if not level:
            return wave(x)
        a = checkpointed(lib, function, x.sin(), level - 1)
        b = checkpointed(lib, function, a * x, level - 1)
        return wave(a * b)

    def plain(x: Any, level: int) -> Any:
        if not level:
            return wave(x)
        a = plain(x.sin(), level - 1)
        return wave(a * plain(a * x, level - 1))

    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    (g,) = lib.autograd.grad(function(x * 1, depth).sum(), x, create_graph=True)
    g.sum().backward()
    (h,) = lib.autograd.grad(plain(y * 1, depth).sum(), y, create_graph=True)
    h.sum().backward()
    assert g.tolist() == h.tolist()
    assert x.grad.tolist() == y.grad.tolist()


# Random numbers and modes


def test_dropout_is_the_same_in_recomputation(lib: Any) -> None:
    dropout = lib.nn.functional.dropout

    def function(x: Any) -> Any:
        return dropout(dropout(x.exp()).exp()).sin()

    def gradient(call: Callable[[Any], Any]) -> Any:
        x = lib.ones(1000, dtype=lib.float64, requires_grad=True)
        lib.manual_seed(1)
        call(x * 1).sum().backward()
        return x.grad.tolist()

    expected = gradient(function)
    assert gradient(partial(checkpointed, lib, function)) == expected
    assert 0 < expected.count(0) < 1000


def test_recomputation_leaves_generators_unchanged(lib: Any) -> None:
    lib.manual_seed(3)
    expected = [lib.rand(3).tolist() for _ in range(3)]
    lib.manual_seed(3)
    x = leaf(lib, 1, 2, 3)
    out = checkpointed(lib, lambda x: (x * lib.rand(3)).exp(), x * 1)
    assert lib.rand(3).tolist() == expected[1]
    out.sum().backward()
    assert lib.rand(3).tolist() == expected[2]


def test_random_numbers_may_be_new(lib: Any) -> None:
    seen = []

    def function(x: Any) -> Any:
        seen.append(lib.rand(3).tolist())
        return x.exp()

    x = leaf(lib, 1, 2)
    checkpointed(lib, function, x * 1, preserve_rng_state=False).sum().backward()
    assert len(seen) == 2
    assert seen[0] != seen[1]


def test_seeding_inside_the_function(lib: Any) -> None:
    def function(x: Any) -> Any:
        lib.manual_seed(5)
        return (x * lib.rand(2, dtype=lib.float64)).exp()

    x = leaf(lib, 1, 2)
    out = checkpointed(lib, function, x * 1).sum()
    after = lib.rand(2)
    lib.manual_seed(7)
    expected = lib.rand(2).tolist()
    lib.manual_seed(7)
    out.backward()
    assert lib.rand(2).tolist() == expected != after.tolist()


def test_parts_without_grad(lib: Any) -> None:
    def function(x: Any) -> Any:
        with lib.no_grad():
            scale = x.exp()
        return (x * scale).sin() + x.detach()

    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    checkpointed(lib, function, x * 1).sum().backward()
    function(y * 1).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_backward_under_no_grad(lib: Any) -> None:
    x = leaf(lib, 0.3, 0.7)
    out = checkpointed(lib, lambda x: x.exp(), x * 1).sum()
    with lib.no_grad():
        out.backward()
    assert x.grad.tolist() == x.exp().tolist()


def test_a_call_under_no_grad_is_a_plain_call(lib: Any) -> None:
    log: list[str] = []
    with lib.no_grad():
        out = checkpointed(
            lib, wave, leaf(lib, 1, 2), context_fn=lambda: (logs(log, "first"), logs(log, "again"))
        )
    assert not out.requires_grad
    assert log == []


def test_inference_mode(lib: Any) -> None:
    with lib.inference_mode():
        x = constant(lib, 1, 2)
        assert checkpointed(lib, wave, x).tolist() == wave(x).tolist()
    with raises(RuntimeError):
        checkpointed(lib, lambda a, b: a + b, leaf(lib, 1, 2), x)


# Changes in place


def test_changes_in_place_inside_the_function(lib: Any) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y.mul_(3)
        y[0] = 1
        return y.exp_() * x

    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    checkpointed(lib, function, x * 1).sum().backward()
    function(y * 1).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_an_input_that_is_changed_afterwards_is_refused(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    out = checkpointed(lib, wave, y)
    y.add_(1)
    with raises(RuntimeError):
        out.sum().backward()


def test_an_input_that_the_function_changes_is_refused(lib: Any) -> None:
    out = checkpointed(lib, lambda x: x.mul_(2).exp(), leaf(lib, 1, 2) * 1)
    with raises(RuntimeError):
        out.sum().backward()


def test_an_output_may_be_changed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    out = checkpointed(lib, lambda x: x.exp(), x * 1)
    out.mul_(2)
    out.sum().backward()
    assert x.grad.tolist() == (2 * x.exp()).tolist()


# Contexts


@contextmanager
def logs(log: list[str], name: str) -> Any:
    log.append(f"enter {name}")
    try:
        yield
    finally:
        log.append(f"exit {name}")


class Logs:
    """As `logs`; may be entered more than once."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def __enter__(self) -> None:
        self.log.append(f"enter {self.name}")

    def __exit__(self, *error: Any) -> None:
        self.log.append(f"exit {self.name}")


def test_contexts_for_forward_and_for_each_recomputation(lib: Any) -> None:
    log: list[str] = []

    def function(x: Any) -> Any:
        log.append("run")
        return x.exp()

    out = checkpointed(
        lib,
        function,
        leaf(lib, 1, 2) * 1,
        context_fn=lambda: (Logs(log, "first"), Logs(log, "again")),
    ).sum()
    assert log == ["enter first", "run", "exit first"]
    log.clear()
    out.backward(retain_graph=True)
    out.backward()
    assert log == ["enter again", "run", "exit again"] * 2


def test_a_first_context_must_not_suppress(lib: Any) -> None:
    def fail(x: Any) -> Any:
        raise KeyError("mine")

    with raises(RuntimeError):
        checkpointed(
            lib, fail, leaf(lib, 1), context_fn=lambda: (suppress(KeyError), nullcontext())
        )


# Exceptions


def test_an_exception_in_forward(lib: Any) -> None:
    def fail(x: Any) -> Any:
        x.exp()
        raise KeyError("mine")

    x = leaf(lib, 1, 2)
    with raises(KeyError):
        checkpointed(lib, fail, x * 1)
    x.exp().sum().backward()
    assert x.grad.tolist() == x.exp().tolist()


def test_backward_works_after_an_exception_in_a_recomputation(lib: Any) -> None:
    fails = [False]

    def function(x: Any) -> Any:
        y = x.exp()
        if fails[0]:
            raise KeyError("mine")
        return y.sin()

    x: Any = leaf(lib, 1, 2)
    out = checkpointed(lib, function, x * 1).sum()
    fails[0] = True
    with raises(KeyError):
        out.backward(retain_graph=True)
    assert lib.is_grad_enabled()
    assert lists([x.grad]) == [None]
    fails[0] = False
    out.backward()
    assert x.grad.tolist() == (x.exp().cos() * x.exp()).tolist()


# Arguments


def test_arguments_that_are_refused(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(ValueError):
        checkpointed(lib, wave, x, determinism_check="always")
    with raises(TypeError):
        checkpointed(lib, wave, x, context_fn=lambda: None)
    with raises(TypeError):
        checkpointed(lib, 3, x)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="use_reentrant"):
        of(lib).checkpoint(wave, x)
    with pytest.warns(UserWarning, match="use_reentrant"):
        of(lib).checkpoint_sequential([wave], 1, x)


# The reentrant kind


def reentrant(lib: Any, function: Any, *args: Any, **options: Any) -> Any:
    return of(lib).checkpoint(function, *args, use_reentrant=True, **options)


def test_the_reentrant_kind(lib: Any) -> None:
    weight, x = leaf(lib, 2, 3), leaf(lib, 0.3, 0.7)
    runs = []

    def function(x: Any, factor: float, other: Any) -> Any:
        runs.append(lib.is_grad_enabled())
        return (x * weight).sin() * factor, 3, other

    out, number, other = reentrant(lib, function, x, 2.0, None)
    assert (number, other, runs) == (3, None, [False])
    assert type(out.grad_fn).__name__ == "CheckpointFunctionBackward"
    out.sum().backward()
    assert runs == [False, True]
    y, other_weight = leaf(lib, 0.3, 0.7), leaf(lib, 2, 3)
    ((y * other_weight).sin() * 2).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()
    assert weight.grad.tolist() == other_weight.grad.tolist()
    with raises(RuntimeError):
        out.sum().backward()


def test_the_reentrant_kind_draws_the_same_numbers(lib: Any) -> None:
    x = leaf(lib, *[1.0] * 20)
    out = reentrant(lib, lambda x: x * lib.rand(20), x)
    out.sum().backward()
    assert lib.allclose(out.detach(), x.grad)


# The inner checkpoint gets what the outer one computes unrecorded.
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_the_reentrant_kind_in_a_sequence_and_nested(lib: Any) -> None:
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    waves = [lambda x: reentrant(lib, wave, x)] * 4
    of(lib).checkpoint_sequential(waves, 2, x, use_reentrant=True).sum().backward()
    wave(wave(wave(wave(y)))).sum().backward()
    assert lib.allclose(x.grad, y.grad)


def test_what_the_reentrant_kind_refuses(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with pytest.raises(RuntimeError, match=r"torch\.utils\.checkpoint is incompatible"):
        lib.autograd.grad(reentrant(lib, wave, x).sum(), x)
    with pytest.raises(RuntimeError, match=r"torch\.utils\.checkpoint is incompatible"):
        reentrant(lib, wave, x).sum().backward(inputs=x)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: factor"):
        reentrant(lib, wave, x, factor=2)
    for options in ({"debug": True}, {"context_fn": lambda: None}):
        with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
            reentrant(lib, wave, x, **options)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        assert not reentrant(lib, wave, x.detach()).requires_grad
    with pytest.raises(RuntimeError, match="none of output has requires_grad"):
        reentrant(lib, lambda x: x.detach() * 2, x).sum().backward()
    with raises(RuntimeError):
        of(lib).detach_variable([x])


# Sequences


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_a_sequence_in_segments(lib: Any, segments: int) -> None:
    parts = [Counted(lambda x: x.sin()) for _ in range(5)]
    x, y = leaf(lib, 0.3, 0.7), leaf(lib, 0.3, 0.7)
    out = of(lib).checkpoint_sequential(parts, segments, x * 1, use_reentrant=False)
    out.sum().backward()
    plain = y * 1
    for _ in range(5):
        plain = plain.sin()
    plain.sum().backward()
    assert x.grad.tolist() == y.grad.tolist()
    again = 5 // segments * (segments - 1)
    assert [part.calls for part in parts] == [2] * again + [1] * (5 - again)


def test_a_sequential_module(lib: Any) -> None:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 4))
    x = lib.randn(3, 4)

    def gradients(function: Callable[[Any], Any]) -> list[Any]:
        lib.manual_seed(1)
        model.zero_grad()
        function(x).sum().backward()
        return [each.grad.tolist() for each in model.parameters()]

    sequential = of(lib).checkpoint_sequential
    in_segments = gradients(lambda x: sequential(model, 2, x, use_reentrant=False))
    assert in_segments == gradients(model)


def test_more_segments_than_functions(lib: Any) -> None:
    with raises(ValueError):
        of(lib).checkpoint_sequential([wave], 2, leaf(lib, 1), use_reentrant=False)


def test_a_module_that_comes_twice_in_a_sequential_runs_twice() -> None:
    tanh = offgrad.nn.Tanh()
    model = offgrad.nn.Sequential(tanh, tanh, offgrad.nn.Identity())
    x = leaf(offgrad, 0.5)
    out = of(offgrad).checkpoint_sequential(model, 3, x, use_reentrant=False)
    assert out.tolist() == x.tanh().tanh().tolist()
