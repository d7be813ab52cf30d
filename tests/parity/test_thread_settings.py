"""What hooks set for the thread during a backward pass ends with the node that ran them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import leaf


def chain(lib: Any) -> tuple[Any, Any, Any]:
    x = leaf(lib, 2)
    y = x * 1
    return x, y, y * 1


def test_hooks_entered_by_an_unpack_hook(lib: Any) -> None:
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor

    def unpack(tensor: Any) -> Any:
        lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t).__enter__()
        return tensor

    x = leaf(lib, 2)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = x.exp().sin()
    y.backward()
    assert x.grad is not None
    x * x
    assert packed == []


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "saved_tensors_hooks": lambda lib: lib.autograd.graph.saved_tensors_hooks(
        lambda t: None, lambda t: t
    ),
    "disable_saved_tensors_hooks": lambda lib: lib.autograd.graph.disable_saved_tensors_hooks("x"),
    "enable_grad": lambda lib: lib.enable_grad(),
    "inference_mode": lambda lib: lib.inference_mode(),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_one_hook_reach_no_other_node(lib: Any, name: str, raises: bool) -> None:
    _, y, z = chain(lib)
    seen: list[Any] = []
    contexts = []

    def change(grad: Any) -> None:
        context = SETTINGS[name](lib)
        context.__enter__()
        contexts.append(context)
        if raises:
            raise ZeroDivisionError

    def look(grad: Any) -> None:
        seen.append((lib.is_grad_enabled(), lib.is_inference_mode_enabled()))
        with lib.enable_grad(), lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            assert (leaf(lib, 3) ** 2).grad_fn._saved_self.item() == 3

    z.register_hook(change)
    y.register_hook(look)
    if raises:
        with pytest.raises(ZeroDivisionError):
            z.backward()
    else:
        z.backward()
        assert seen == [(False, False)]
    assert (lib.is_grad_enabled(), lib.is_inference_mode_enabled()) == (True, False)
    assert (leaf(lib, 3) ** 2).grad_fn._saved_self.item() == 3
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        pass


def test_grad_mode_set_by_a_tensor_hook_holds_for_the_hooks_of_its_node(lib: Any) -> None:
    _, y, z = chain(lib)
    seen: list[bool] = []
    z.register_hook(lambda grad: (lib.set_grad_enabled(True), None)[1])
    z.grad_fn.register_prehook(lambda grads: seen.append(lib.is_grad_enabled()))
    y.register_hook(lambda grad: seen.append(lib.is_grad_enabled()))
    z.backward()
    assert seen == [True, False]
    assert lib.is_grad_enabled()


def test_a_nested_pass_leaves_the_outer_one_its_settings(lib: Any) -> None:
    x, y, z = chain(lib)
    seen: list[Any] = []

    def hook(grad: Any) -> None:
        with lib.enable_grad():
            lib.autograd.grad(x * 3, x, create_graph=True)
        seen.append(lib.is_grad_enabled())

    z.register_hook(hook)
    y.register_hook(lambda grad: seen.append(lib.is_grad_enabled()))
    z.backward()
    assert seen == [False, False]
