"""Hooks for saved tensors: when they run, their arguments and their results."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import graph
from offgrad.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def same(value: Any) -> Any:
    return value


def copied(tensor: Tensor) -> Any:
    return tensor.numpy().copy()


class Log:
    """A pair of hooks that counts."""

    def __init__(self) -> None:
        self.packed: list[Tensor] = []
        self.unpacked = 0

    def pack(self, tensor: Tensor) -> Any:
        self.packed.append(tensor)
        return tensor.numpy().copy()

    def unpack(self, packed: Any) -> Tensor:
        self.unpacked += 1
        return offgrad.from_numpy(packed)


def test_packed_once_unpacked_on_each_use() -> None:
    log, x = Log(), leaf(1, 2)
    with saved_tensors_hooks(log.pack, log.unpack):
        y = x.exp()
    assert (len(log.packed), log.unpacked) == (1, 0)
    y.grad_fn._saved_result  # type: ignore[union-attr]
    for _ in range(3):
        y.sum().backward(retain_graph=True)
    assert (len(log.packed), log.unpacked) == (1, 4)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp([1, 2]))


def test_pack_gets_a_detached_tensor_over_the_same_memory() -> None:
    log, x = Log(), leaf(1, 2)
    with saved_tensors_hooks(log.pack, log.unpack):
        y = x * 1
        _ = y * y
    for tensor in log.packed[-2:]:
        assert tensor is not y
        assert not tensor.requires_grad
        assert tensor.is_leaf
        assert tensor._storage is y._storage
        assert tensor._version == y._version


def test_parameters_and_leaves_are_packed_as_in_torch() -> None:
    log, x, w = Log(), leaf(1, 2), leaf(3, 4)
    with saved_tensors_hooks(log.pack, log.unpack):
        (x * w).sum().backward()
    assert [each.tolist() for each in log.packed] == [[1, 2], [3, 4]]


def test_nothing_is_recorded_in_pack_and_unpack() -> None:
    modes: list[bool] = []

    def pack(tensor: Tensor) -> Tensor:
        modes.append(offgrad.is_grad_enabled())
        return tensor * 2

    def unpack(tensor: Tensor) -> Tensor:
        assert not tensor.requires_grad
        return tensor / 2

    x = leaf(1, 2)
    with saved_tensors_hooks(pack, unpack):
        y = (x * x).sum()
    (first,) = offgrad.autograd.grad(y, x, create_graph=True)
    assert first is not None
    (second,) = offgrad.autograd.grad(first.sum(), x)
    assert second is not None
    assert second.tolist() == [2, 2]
    assert modes
    assert not any(modes)


def test_operations_in_pack_do_not_pack_again() -> None:
    calls = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        other = leaf(1, 2)
        return tensor * other

    x = leaf(3, 4)
    with saved_tensors_hooks(pack, lambda t: t / offgrad.tensor([1.0, 2.0])):
        y = x.exp()
    assert calls == 1
    y.sum().backward()


def test_double_backward_through_unpacked_tensors() -> None:
    log, x = Log(), leaf(0.5, 2)
    with saved_tensors_hooks(log.pack, log.unpack):
        y = (x.exp() * x).sum()
        (first,) = offgrad.autograd.grad(y, x, create_graph=True)
        assert first is not None
        first.sum().backward()
    v = x.detach().numpy()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp(v) * (v + 2))
    x.grad = None


def test_in_place_change_in_pack_is_refused() -> None:
    x = leaf(1, 2)
    with (
        saved_tensors_hooks(lambda t: t.mul_(2), same),
        pytest.raises(RuntimeError, match=r"pack hook.*mul_.*clone"),
    ):
        x.exp()


def test_innermost_pair_applies() -> None:
    outer, inner, x = Log(), Log(), leaf(1, 2)
    with saved_tensors_hooks(outer.pack, outer.unpack):
        a = x.exp()
        with saved_tensors_hooks(inner.pack, inner.unpack):
            b = x.exp()
        c = x.exp()
    d = x.exp()
    assert (len(outer.packed), len(inner.packed)) == (2, 1)
    (a + b + c + d).sum().backward()
    assert (outer.unpacked, inner.unpacked) == (2, 1)


def test_other_threads_are_not_affected() -> None:
    log, x = Log(), leaf(1, 2)
    with saved_tensors_hooks(log.pack, log.unpack):
        thread = threading.Thread(target=lambda: x.exp().sum().backward())
        thread.start()
        thread.join()
    assert not log.packed
    assert x.grad is not None


def test_backward_in_another_thread_unpacks() -> None:
    log, x = Log(), leaf(1, 2)
    with saved_tensors_hooks(log.pack, log.unpack):
        y = x.exp().sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert log.unpacked == 1
    assert x.grad is not None


def test_disable_saved_tensors_hooks() -> None:
    with disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"), saved_tensors_hooks(same, same):
            pass
        with disable_saved_tensors_hooks("deeper"), pytest.raises(RuntimeError, match="deeper"):
            saved_tensors_hooks(same, same).__enter__()
        with pytest.raises(RuntimeError, match="not here"):
            saved_tensors_hooks(same, same).__enter__()
    with saved_tensors_hooks(same, same):
        with pytest.raises(RuntimeError, match="outer"), disable_saved_tensors_hooks("outer"):
            pass
        leaf(1.0).exp()
    with saved_tensors_hooks(same, same):
        pass


def test_hooks_are_removed_when_the_block_raises() -> None:
    with pytest.raises(KeyError), saved_tensors_hooks(same, same):
        raise KeyError
    assert offgrad.autograd.saved_tensor.state.hooks == ()


def test_error_in_pack_leaves_everything_usable() -> None:
    def fail(_: Tensor) -> Any:
        raise KeyError("pack")

    x = leaf(1, 2)
    with saved_tensors_hooks(fail, same), pytest.raises(KeyError):
        x.exp()
    assert offgrad.is_grad_enabled()
    x.exp().sum().backward()


def test_hooks_must_be_callable() -> None:
    with pytest.raises(TypeError, match="callable"):
        saved_tensors_hooks(3, same)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        leaf(1.0).exp().grad_fn._raw_saved_result.register_hooks(same, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "pack",
    [same, lambda t: t.view(-1), lambda t: (t, "packed"), lambda t: t[:], lambda t: t.numpy()],
)
def test_hook_that_returns_the_saved_memory_does_not_hide_a_change(pack: Any) -> None:
    """PyTorch skips the check here and returns wrong gradients."""

    def unpack(packed: Any) -> Tensor:
        packed = packed[0] if isinstance(packed, tuple) else packed
        return offgrad.from_numpy(packed) if isinstance(packed, np.ndarray) else packed

    x = leaf(1, 2)
    y = x * 1
    with saved_tensors_hooks(pack, unpack):
        loss = (y * y).sum()
    loss.backward(retain_graph=True)
    y.add_(1)
    with pytest.raises(
        RuntimeError, match=r"MulBackward0\.(self|other).*version 0.*version 1.*add_"
    ):
        loss.backward()


def test_output_returned_by_a_hook_and_changed_raises() -> None:
    x = leaf(1, 2)
    with saved_tensors_hooks(same, same):
        y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_changed_packed_tensor_raises() -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.clone())
        return packed[-1]

    x = leaf(1, 2)
    with saved_tensors_hooks(pack, same):
        y = x.exp().sum()
    packed[0].add_(1)
    with pytest.raises(RuntimeError, match="in place"):
        y.backward()


def test_changed_packed_tensor_in_unpack_raises() -> None:
    x = leaf(1, 2)
    with saved_tensors_hooks(lambda t: t / 2, lambda t: t.mul_(2)):
        y = x.exp().sum()

    def twice() -> None:
        for _ in range(2):
            y.backward(retain_graph=True)

    with pytest.raises(RuntimeError, match="in place"):
        twice()


def test_copying_hook_keeps_the_value_as_it_was_saved() -> None:
    x = leaf(1, 2)
    y = x * 1
    with saved_tensors_hooks(copied, offgrad.from_numpy):
        loss = (y * y).sum()
    y.add_(100)
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("unpack", "error", "match"),
    [
        (lambda _: offgrad.zeros(3), RuntimeError, r"shape \[3\].*shape \[2\]"),
        (lambda _: offgrad.zeros(2), RuntimeError, r"float32.*float64"),
        (lambda _: np.zeros(2), TypeError, "ndarray"),
        (lambda _: None, TypeError, "NoneType"),
    ],
)
def test_results_of_unpack_are_checked(
    unpack: Callable[[Any], Any], error: type[Exception], match: str
) -> None:
    x = leaf(1, 2)
    with saved_tensors_hooks(copied, unpack):
        y = x.exp().sum()
    with pytest.raises(error, match=match):
        y.backward()


def test_unpacked_metadata_is_overwritten() -> None:
    """Whether the unpacked tensor requires grad does not matter."""
    x = leaf(1, 2)
    with saved_tensors_hooks(copied, lambda a: offgrad.from_numpy(a).requires_grad_()):
        y = (x * x).sum()
    (first,) = offgrad.autograd.grad(y, x, create_graph=True)
    assert first is not None
    (second,) = offgrad.autograd.grad(first.sum(), x)
    assert second is not None
    assert second.tolist() == [2, 2]


def test_register_hooks_on_one_tensor() -> None:
    log, x = Log(), leaf(1, 2)
    y = x * x
    raw = y.grad_fn._raw_saved_self  # type: ignore[union-attr]
    raw.register_hooks(log.pack, log.unpack)
    assert len(log.packed) == 1
    y.sum().backward()
    assert log.unpacked == 1
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


def test_register_hooks_errors() -> None:
    x = leaf(1, 2)
    y = x * 1
    z = y * y
    raw = z.grad_fn._raw_saved_self  # type: ignore[union-attr]
    raw.register_hooks(copied, offgrad.from_numpy)
    with pytest.raises(RuntimeError, match="hooks have already been set"):
        raw.register_hooks(same, same)
    other = z.grad_fn._raw_saved_other  # type: ignore[union-attr]
    y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        other.register_hooks(same, same)
    with saved_tensors_hooks(same, same):
        under = x.exp()
    with pytest.raises(RuntimeError, match="already"):
        under.grad_fn._raw_saved_result.register_hooks(same, same)  # type: ignore[union-attr]


def test_failed_registration_keeps_the_tensor() -> None:
    def fail(_: Tensor) -> Any:
        raise KeyError

    x = leaf(1, 2)
    y = x * x
    with pytest.raises(KeyError):
        y.grad_fn._raw_saved_self.register_hooks(fail, same)  # type: ignore[union-attr]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


def test_packed_object_dies_with_the_graph_or_with_backward() -> None:
    class Packed:
        alive = 0

        def __init__(self, array: Any) -> None:
            self.array = array
            Packed.alive += 1

        def __del__(self) -> None:
            Packed.alive -= 1

    x = leaf(1, 2)
    with saved_tensors_hooks(
        lambda t: Packed(t.numpy().copy()), lambda p: offgrad.from_numpy(p.array)
    ):
        y = (x * x).exp().sum()
        assert Packed.alive == 3
        y.backward(retain_graph=True)
        assert Packed.alive == 3
        y.backward()
        assert Packed.alive == 0
        z = x.exp()
        assert Packed.alive == 1
        del z
        assert Packed.alive == 0


def test_graph_module_exports_its_public_names() -> None:
    assert {"Node", "SavedTensor", "saved_tensors_hooks", "disable_saved_tensors_hooks"} <= set(
        graph.__all__
    )
