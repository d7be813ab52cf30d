"""Inference mode: no history and no versions inside, and no way back into autograd outside."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises


@pytest.fixture(autouse=True)
def _left_off(lib: Any) -> Iterator[None]:
    """Every test leaves the default mode as it found it."""
    assert modes(lib) == (True, False)
    yield
    assert modes(lib) == (True, False)


def modes(lib: Any) -> tuple[bool, bool]:
    """Return whether grad mode and inference mode are on."""
    assert lib.ones(1).is_inference() == lib.is_inference_mode_enabled()
    return lib.is_grad_enabled(), lib.is_inference_mode_enabled()


def inference(lib: Any, *values: float) -> Any:
    """Return a tensor made in inference mode."""
    with lib.inference_mode():
        return constant(lib, *values)


# The mode.


def test_records_nothing(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.inference_mode() as found:
        assert found is None
        assert modes(lib) == (False, True)
        y = (x * 2).exp().sum()
    assert (y.requires_grad, y.is_leaf, y.grad_fn, y.is_inference()) == (False, True, None, True)
    assert x.requires_grad
    assert not x.is_inference()


@pytest.mark.parametrize("arguments", [(True,), (False,)])
@pytest.mark.parametrize("keyword", [True, False])
def test_the_mode_is_an_argument(lib: Any, arguments: tuple[bool], keyword: bool) -> None:
    (mode,) = arguments
    context = lib.inference_mode(mode=mode) if keyword else lib.inference_mode(mode)
    with context:
        assert modes(lib) == (not mode, mode)
        assert (leaf(lib, 1, 2) * 2).requires_grad is not mode


def test_making_a_context_enters_nothing(lib: Any) -> None:
    lib.inference_mode()
    assert modes(lib) == (True, False)


def test_nests_with_the_other_modes(lib: Any) -> None:
    with lib.inference_mode():
        with lib.no_grad():
            assert modes(lib) == (False, True)
        with lib.enable_grad():
            # grad mode is on, and inference mode has the last word.
            assert modes(lib) == (True, True)
            assert not (leaf(lib, 1, 2) * 2).requires_grad
        with lib.inference_mode():
            assert modes(lib) == (False, True)
        assert modes(lib) == (False, True)
        with lib.inference_mode(False):
            assert modes(lib) == (True, False)
            with lib.no_grad():
                assert modes(lib) == (False, False)
            with lib.inference_mode():
                assert modes(lib) == (False, True)
        assert modes(lib) == (False, True)
    with lib.no_grad():
        with lib.inference_mode():
            assert modes(lib) == (False, True)
        assert modes(lib) == (False, False)


def test_set_grad_enabled_inside_ends_with_it(lib: Any) -> None:
    with lib.inference_mode():
        lib.set_grad_enabled(True)
        assert modes(lib) == (True, True)
        assert not (leaf(lib, 1, 2) * 2).requires_grad
    assert modes(lib) == (True, False)


def test_put_back_after_an_exception(lib: Any) -> None:
    with pytest.raises(KeyError), lib.inference_mode():
        raise KeyError


def test_autograd_works_in_a_part_that_is_switched_back(lib: Any) -> None:
    with lib.inference_mode(), lib.inference_mode(False):
        x = leaf(lib, 1, 2)
        y = x * x
        assert y.requires_grad
        assert not y.is_inference()
        y.sum().backward()
        assert x.grad.tolist() == [2, 4]
        assert not x.grad.is_inference()


def test_a_mode_of_a_thread(lib: Any) -> None:
    seen: list[Any] = []

    def run() -> None:
        seen.append(modes(lib))
        with lib.inference_mode():
            seen.append(modes(lib))

    with lib.inference_mode():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        assert modes(lib) == (False, True)
    assert seen == [(True, False), (False, True)]


# Decorators.


def test_decorated_functions(lib: Any) -> None:
    @lib.inference_mode()  # type: ignore[untyped-decorator]
    def on() -> tuple[bool, bool]:
        """Say what it does."""
        return modes(lib)

    @lib.inference_mode(mode=False)  # type: ignore[untyped-decorator]
    def off() -> tuple[bool, bool]:
        return modes(lib)

    @lib.inference_mode  # type: ignore[untyped-decorator]
    def bare() -> tuple[bool, bool]:
        return modes(lib)

    assert on.__name__ == "on"
    assert on.__doc__ == "Say what it does."
    assert [on(), off(), bare()] == [(False, True), (True, False), (False, True)]
    with lib.inference_mode():
        assert [on(), off(), bare()] == [(False, True), (True, False), (False, True)]
        assert modes(lib) == (False, True)


def test_decorated_methods_that_raise(lib: Any) -> None:
    class Model(lib.nn.Module):  # type: ignore[misc]
        @lib.inference_mode()  # type: ignore[untyped-decorator]
        def forward(self, x: Any) -> Any:
            assert modes(lib) == (False, True)
            if x.shape[0] == 0:
                raise KeyError
            return x * 2

    assert Model()(leaf(lib, 1, 2)).is_inference()
    with pytest.raises(KeyError):
        Model()(lib.ones(0))


def test_decorated_generators(lib: Any) -> None:
    log: list[Any] = []

    @lib.inference_mode()  # type: ignore[untyped-decorator]
    def steps() -> Any:
        try:
            while True:
                try:
                    sent = yield modes(lib)
                    log.append((sent, modes(lib)))
                except KeyError:
                    log.append(("thrown", modes(lib)))
        finally:
            log.append(("end", modes(lib)))

    running = steps()
    found = [next(running), modes(lib), running.send(1), modes(lib), running.throw(KeyError())]
    assert found == [(False, True), (True, False), (False, True), (True, False), (False, True)]
    running.close()
    assert modes(lib) == (True, False)
    assert log == [(1, (False, True)), ("thrown", (False, True)), ("end", (False, True))]


# Tensors made inside.


def test_which_are_inference_tensors(lib: Any) -> None:
    normal = leaf(lib, 1, 2)
    with lib.inference_mode():
        x = constant(lib, 1, 2)
        made = {
            "factory": x,
            "leaf": leaf(lib, 1, 2),
            "result": x * 2,
            "view": x[:1],
            "clone": x.clone(),
            "detached": x.detach(),
            "parameter": lib.nn.Parameter(x),
            "result of a normal tensor": normal * 2,
            "clone of a normal tensor": normal.clone(),
        }
        views = {
            "view": normal[:1],
            "view of view": normal.view(2)[0],
            "detached": normal.detach(),
            "itself": normal.contiguous(),
        }
    assert {name: each.is_inference() for name, each in made.items()} == dict.fromkeys(made, True)
    assert {name: each.is_inference() for name, each in views.items()} == dict.fromkeys(
        views, False
    )
    assert views["view"]._base is normal
    assert views["view"]._version == 0


def test_they_have_no_version(lib: Any) -> None:
    x = inference(lib, 1, 2)
    with raises(RuntimeError) as info:
        x._version
    assert "version" in str(info.value)
    with lib.inference_mode():
        y = constant(lib, 1, 2)
        with raises(RuntimeError):
            y._version


def test_they_have_no_views_to_keep_account_of(lib: Any) -> None:
    with lib.inference_mode():
        x = constant(lib, 1, 2)
        view = x[:1]
        assert not view._is_view()
        view.mul_(5)
    assert x.tolist() == [5, 2]


def test_they_may_be_read(lib: Any) -> None:
    x = inference(lib, 1, 2)
    assert x.tolist() == [1, 2]
    assert x.numpy().tolist() == [1, 2]
    assert x.sum().item() == 3
    assert isinstance(repr(x), str)


def test_views_of_them_are_inference_tensors_everywhere(lib: Any) -> None:
    x = inference(lib, 1, 2)
    for each in (x[:1], x.view(2, 1), x.detach(), x.expand(3, 2), x.unbind()[0]):
        assert each.is_inference()
        assert not each.requires_grad


def test_results_and_clones_outside_are_normal(lib: Any) -> None:
    x = inference(lib, 1, 2)
    for y in (x * 2, x.clone(), x + x, x.sum().reshape(1), x.float()):
        assert not y.is_inference()
        y.add_(1)
        y.requires_grad_()
        (y * y).sum().backward()
        assert y.grad.tolist() == (2 * y).tolist()


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda lib, x: x.add_(1),
    "operator": lambda lib, x: x.__imul__(2),
    "zero_": lambda lib, x: x.zero_(),
    "copy_": lambda lib, x: x.copy_(constant(lib, 5, 6)),
    "exp_": lambda lib, x: x.exp_(),
    "assignment": lambda lib, x: x.__setitem__(0, 5.0),
    "of a view": lambda lib, x: x[:1].mul_(5),
    "out": lambda lib, x: lib.add(constant(lib, 1, 2), 7, out=x),
}


@pytest.mark.parametrize("name", CHANGES)
def test_in_place_only_inside(lib: Any, name: str) -> None:
    x = inference(lib, 1, 2)
    with raises(RuntimeError) as info:
        CHANGES[name](lib, x)
    assert "nference" in str(info.value)
    with lib.no_grad(), raises(RuntimeError):
        CHANGES[name](lib, x)
    with lib.inference_mode(), lib.inference_mode(False), raises(RuntimeError):
        CHANGES[name](lib, x)
    # torch refuses after the change: the value of x is undefined.
    x = inference(lib, 1, 2)
    with lib.inference_mode():
        CHANGES[name](lib, x)
    assert x.tolist() != [1, 2]


def test_their_flag_may_not_be_set_outside(lib: Any) -> None:
    x = inference(lib, 1, 2)
    with raises(RuntimeError) as info:
        x.requires_grad_()
    assert "nference" in str(info.value)
    with raises(RuntimeError):
        x.requires_grad = True
    assert not x.requires_grad
    x.requires_grad_(False)
    with lib.inference_mode():
        x.requires_grad_()
        assert x.requires_grad
        assert not (x * 2).requires_grad


def test_a_model_made_inside_keeps_its_flags(lib: Any) -> None:
    with lib.inference_mode():
        model = lib.nn.Linear(2, 2)
    assert model.weight.is_inference()
    assert model.weight.requires_grad


SAVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "product": lambda lib, x, w: x * w,
    "matrix product": lambda lib, x, w: x.view(1, 2) @ w.view(2, 1),
    "power": lambda lib, x, w: w**x,
    "division": lambda lib, x, w: w / x,
    "product with a view": lambda lib, x, w: x[:1] * w,
    "mask": lambda lib, x, w: lib.where(x > 1, w, w * 2) * x,
    "in place": lambda lib, x, w: (w * 1).mul_(x),
}


@pytest.mark.parametrize("name", SAVES)
def test_they_cannot_be_saved_for_backward(lib: Any, name: str) -> None:
    x, w = inference(lib, 1, 2), leaf(lib, 3, 4)
    with raises(RuntimeError) as info:
        SAVES[name](lib, x, w)
    assert "nference" in str(info.value)
    assert w.tolist() == [3, 4]
    # In a clone there is nothing of inference mode; in no_grad mode nothing is saved.
    SAVES[name](lib, x.clone(), w).sum().backward()
    assert w.grad is not None
    with lib.no_grad():
        assert not SAVES[name](lib, x, w).is_inference()
    with lib.inference_mode():
        assert SAVES[name](lib, x, w).is_inference()
    assert not SAVES[name](lib, x, w.detach()).requires_grad


def test_an_index_cannot_be_saved_either(lib: Any) -> None:
    with lib.inference_mode():
        index = lib.tensor([0, 1])
    with raises(RuntimeError):
        leaf(lib, 1, 2)[index]


def test_hooks_for_saved_tensors_do_not_help(lib: Any) -> None:
    x, w = inference(lib, 1, 2), leaf(lib, 3, 4)
    with (
        lib.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
        raises(RuntimeError),
    ):
        x * w


def test_a_custom_function_cannot_save_them(lib: Any) -> None:
    class Product(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x)
            return x * w

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None, ctx.saved_tensors[0] * grads[0]

    x, w = inference(lib, 1, 2), leaf(lib, 3, 4)
    with raises(RuntimeError):
        Product.apply(x, w)
    with lib.inference_mode():
        assert not Product.apply(x, w).requires_grad


def test_they_may_take_part_where_nothing_is_saved(lib: Any) -> None:
    x, w = inference(lib, 1, 2), leaf(lib, 3, 4)
    for y in (x + w, w - x, lib.cat([x, w]), lib.stack([x, w]), (w * 1).add_(x)):
        assert y.requires_grad
        assert not y.is_inference()
        y.sum().backward()
    assert w.grad.tolist() == [5, 5]


def test_they_may_be_copied_into_normal_tensors(lib: Any) -> None:
    x, c, w = inference(lib, 1, 2), constant(lib, 0, 0), leaf(lib, 3, 4)
    c.copy_(x)
    c[:1] = x[1]
    assert c.tolist() == [2, 2]
    assert not c.is_inference()
    assert c._version == 2
    y = w * 1
    y.copy_(x)
    assert y.requires_grad
    y.sum().backward()
    assert w.grad is None or w.grad.tolist() == [0, 0]


def test_no_gradients_for_them(lib: Any) -> None:
    x = inference(lib, 1, 2)
    for refused in (lambda: x.sum().backward(), x.retain_grad, lambda: x.register_hook(print)):
        with raises(RuntimeError):
            refused()


# Normal tensors inside.


def test_normal_tensors_may_change_inside_and_count(lib: Any) -> None:
    w = leaf(lib, 1, 2)
    y = w * 1
    loss = (y * y).sum()
    with lib.inference_mode():
        w.add_(1)
        y[:1].mul_(5)
    assert (w._version, y._version) == (1, 1)
    assert (w.tolist(), y.tolist()) == ([2, 3], [5, 2])
    assert w.is_leaf
    assert w.requires_grad
    assert y.grad_fn.name() == "MulBackward0"
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_views_of_normal_tensors_made_inside(lib: Any) -> None:
    c, w = constant(lib, 1, 2), leaf(lib, 3, 4)
    with lib.inference_mode():
        view = c[:1]
        assert view._is_view()
        assert view._base is c
        view.add_(1)
    assert c.tolist() == [2, 2]
    (view * w[:1]).sum().backward()
    assert w.grad.tolist() == [2, 0]


def test_views_made_inside_may_not_change_outside(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 1
    with lib.inference_mode():
        view = y[:1]
        deep = view.view(1)
    for each in (view, deep, view.view(1)):
        with raises(RuntimeError) as info:
            each.add_(1)
        assert "inference mode" in str(info.value)
    assert y.tolist() == [1, 2]
    with lib.no_grad():
        view.add_(1)
    assert y.tolist() == [2, 2]


def test_views_made_inside_are_lost_when_their_base_changes(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 1
    with lib.inference_mode():
        view = y[:1]
    y.mul_(2)
    with raises(RuntimeError) as info:
        view.grad_fn
    assert "inference mode" in str(info.value)


def test_the_flag_of_a_normal_leaf_may_be_set_inside(lib: Any) -> None:
    w = leaf(lib, 1, 2)
    with lib.inference_mode():
        w.requires_grad_(False)
        w.requires_grad_()
    assert (w * 2).requires_grad


def test_a_model_used_inside(lib: Any) -> None:
    model = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.ReLU(), lib.nn.Linear(3, 1))
    x = lib.ones(4, 2)
    expected = model(x).tolist()
    with lib.inference_mode():
        y = model(x)
    assert y.is_inference()
    assert y.tolist() == expected
    model(x).sum().backward()
    assert all(each.grad is not None for each in model.parameters())


def test_backward_inside_makes_inference_gradients(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    loss = (x * x).sum()
    with lib.inference_mode():
        (found,) = lib.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
    assert found.is_inference()
    assert x.grad.is_inference()
    assert found.tolist() == x.grad.tolist() == [2, 4]


def test_an_inference_tensor_as_a_start_of_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).backward(inference(lib, 1, 10))
    assert x.grad.tolist() == [2, 40]
