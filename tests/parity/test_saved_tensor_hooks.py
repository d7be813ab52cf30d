"""Hooks for saved tensors: calls of pack and unpack, and their errors."""

import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.parity.conftest import constant, leaf, lists, raises


def same(each: Any) -> Any:
    return each


class Counted:
    """A pair of hooks that keeps a copy and counts."""

    def __init__(self, factor: float = 1) -> None:
        self.packed, self.unpacked = 0, 0
        self.factor = factor

    def pack(self, each: Any) -> Any:
        self.packed += 1
        return each.detach().clone()

    def unpack(self, each: Any) -> Any:
        self.unpacked += 1
        return each * self.factor


@contextmanager
def counting(lib: Any, factor: float = 1) -> Iterator[Counted]:
    hooks = Counted(factor)
    with lib.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        yield hooks


# register_hooks


def test_the_pack_hook_is_called_as_soon_as_the_pair_is_registered(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x.pow(2)
    hooks = Counted(10)
    assert y.grad_fn._raw_saved_self.register_hooks(hooks.pack, hooks.unpack) is None
    assert (hooks.packed, hooks.unpacked) == (1, 0)
    assert y.grad_fn._saved_self.tolist() == [10, 20]
    assert hooks.unpacked == 1
    y.sum().backward()
    assert (hooks.packed, hooks.unpacked) == (1, 2)
    assert x.grad.tolist() == [20, 40]


def test_a_registered_pair_is_for_one_saved_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    y.grad_fn._raw_saved_self.register_hooks(same, lambda each: each * 10)
    y.sum().backward()
    assert x.grad.tolist() == [11, 22]


def test_a_registered_pair_of_a_saved_output(lib: Any) -> None:
    x = leaf(lib, 0, 0)
    y = x.exp()
    y.grad_fn._raw_saved_result.register_hooks(
        lambda each: 5.0, lambda five: constant(lib, five, five)
    )
    y.sum().backward()
    assert x.grad.tolist() == [5, 5]


def test_a_saved_tensor_takes_one_pair(lib: Any) -> None:
    y = leaf(lib, 1, 2) ** 2
    raw = y.grad_fn._raw_saved_self
    raw.register_hooks(same, same)
    with raises(RuntimeError):
        raw.register_hooks(same, same)
    with lib.autograd.graph.saved_tensors_hooks(same, same):
        y = leaf(lib, 1, 2) ** 2
    with raises(RuntimeError):
        y.grad_fn._raw_saved_self.register_hooks(same, same)


@pytest.mark.parametrize(
    "pair",
    [(3, same), (same, 3), (None, None), (same, None)],
    ids=["pack", "unpack", "both", "none"],
)
def test_hooks_must_be_callable(lib: Any, pair: tuple[Any, Any]) -> None:
    x = leaf(lib, 1, 2)
    y = x**2
    with raises(TypeError):
        y.grad_fn._raw_saved_self.register_hooks(*pair)
    with raises(TypeError), lib.autograd.graph.saved_tensors_hooks(*pair):
        pass
    y.sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_a_pair_may_be_registered_after_a_backward_that_retains(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x**2).sum()
    node = y.grad_fn.next_functions[0][0]
    y.backward(retain_graph=True)
    node._raw_saved_self.register_hooks(same, lambda each: each * 10)
    y.backward()
    assert x.grad.tolist() == [22, 44]


# saved_tensors_hooks


def test_hooks_of_a_context_apply_to_everything_saved_in_it(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib, 10) as hooks:
        y = x**2
        z = x.sin().exp()
    assert hooks.packed == 3
    after = x**2
    assert hooks.packed == 3
    assert y.grad_fn._saved_self.tolist() == [10, 20]
    assert after.grad_fn._saved_self is x
    y.sum().backward()
    assert x.grad.tolist() == [20, 40]
    del z


def test_a_tensor_saved_twice_is_packed_twice(lib: Any) -> None:
    with counting(lib) as hooks:
        x = leaf(lib, 1, 2)
        y = x * x
    assert hooks.packed == 2
    assert y.grad_fn._saved_self is not x
    assert y.grad_fn._saved_other is not x
    assert y.grad_fn._saved_self is not y.grad_fn._saved_other
    assert y.grad_fn._saved_self.equal(x)
    y.sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_identity_hooks_copy_nothing(lib: Any) -> None:
    """The specification: two new tensor objects that share the storage of x."""
    with lib.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        x = lib.randn(5, requires_grad=True)
        y = x * x
    for saved in (y.grad_fn._saved_self, y.grad_fn._saved_other):
        assert saved is not x
        assert saved.data_ptr() == x.data_ptr()


def test_nothing_is_packed_where_nothing_is_recorded(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 1, 2)
    with counting(lib) as hooks:
        c * c
        c.exp()
        x + c
        with lib.no_grad():
            x * x
    assert hooks.packed == 0


def test_only_tensors_that_backward_needs_are_packed(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    seen: Any = []
    with lib.autograd.graph.saved_tensors_hooks(
        lambda each: seen.append(each.tolist()) or each, same
    ):
        x * c
    assert seen == [[3, 4]]


def test_the_innermost_pair_alone_applies(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib, 10) as outer:
        with counting(lib, 100) as inner:
            y = x**2
            assert (outer.packed, inner.packed) == (0, 1)
        z = x**2
    assert (outer.packed, inner.packed) == (1, 1)
    y.sum().backward()
    assert x.grad.tolist() == [200, 400]
    z.sum().backward()
    assert x.grad.tolist() == [220, 440]
    assert (outer.unpacked, inner.unpacked) == (1, 1)


def test_backward_may_run_inside_or_outside_the_context(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib, 10):
        (x**2).sum().backward()
        y = (x**2).sum()
    y.backward()
    assert x.grad.tolist() == [40, 80]


def test_a_pair_may_be_entered_again(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    hooks = Counted(10)
    for _ in range(2):
        with lib.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            (x**2).sum().backward()
    assert hooks.packed == 2
    assert x.grad.tolist() == [40, 80]


def test_the_context_is_left_when_something_raises(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with pytest.raises(ZeroDivisionError), counting(lib) as hooks:
        1 / 0
    y = x**2
    assert hooks.packed == 0
    assert y.grad_fn._saved_self is x


@pytest.mark.parametrize(
    "packed",
    [
        lambda each: each.detach().clone(),
        lambda each: (each.detach().numpy().copy(), "name"),
        lambda each: {"values": each.tolist()},
        lambda each: None,
        lambda each: "a string",
    ],
    ids=["a tensor", "a tuple", "a dict", "None", "a string"],
)
def test_pack_returns_any_object_and_unpack_gets_it(lib: Any, packed: Callable[..., Any]) -> None:
    x = leaf(lib, 1, 2)
    kept, given = [], []

    def pack(each: Any) -> Any:
        kept.append(packed(each))
        return kept[-1]

    def unpack(each: Any) -> Any:
        given.append(each)
        return constant(lib, 30, 40)

    with lib.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x**2
    y.sum().backward()
    assert len(given) == 1
    if isinstance(kept[0], tuple):
        assert given[0][0].tolist() == [1, 2]
        assert given[0][1] == "name"
    else:
        assert given[0] is kept[0]
    assert x.grad.tolist() == [60, 80]


def test_pack_gets_the_value_as_it_is_when_saved(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: Any = []
    with lib.autograd.graph.saved_tensors_hooks(
        lambda each: seen.append((each.tolist(), each.shape, each.dtype)) or each.detach(), same
    ):
        h = x * x
        y = h.exp()
    assert [values for values, *_ in seen] == [[1, 2], [1, 2], y.tolist()]
    assert all(shape == (2,) and dtype == lib.float64 for _, shape, dtype in seen)


def test_pack_runs_in_no_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []

    def pack(each: Any) -> Any:
        seen.append((lib.is_grad_enabled(), (each * 2).requires_grad))
        return each.detach()

    with lib.autograd.graph.saved_tensors_hooks(pack, same):
        (x * 1.5).exp()
        assert lib.is_grad_enabled()
    (x**2).grad_fn._raw_saved_self.register_hooks(pack, same)
    assert set(seen) == {(False, False)}
    assert lib.is_grad_enabled()


def test_a_pack_hook_is_not_called_for_its_own_operations(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    calls: list[Any] = []

    def pack(each: Any) -> Any:
        calls.append(each)
        return each.detach() * 2 * each.detach()

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda each: each.sqrt()):
        y = x.exp()
    assert len(calls) == 1
    del y


def test_unpacked_tensors_get_the_history_of_saved_ones(lib: Any) -> None:
    """Metadata of autograd is ignored: it is overwritten."""
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(
        lambda each: each.detach().numpy().copy(), lib.from_numpy
    ):
        h = x * x
        y = h**3
        z = x.exp()
    assert y.grad_fn._saved_self.grad_fn is h.grad_fn
    assert y.grad_fn._saved_self.requires_grad
    assert z.grad_fn._saved_result.grad_fn is z.grad_fn


def test_double_backward_through_hooks(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(
        lambda each: each.detach().numpy().copy(), lib.from_numpy
    ):
        y = (x**3 + x * x).sum()
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x)
    assert first.tolist() == [5, 16]
    assert second.tolist() == [8, 14]


def test_double_backward_through_a_saved_output(lib: Any) -> None:
    x = leaf(lib, 0, 0)
    with lib.autograd.graph.saved_tensors_hooks(
        lambda each: each.detach().numpy().copy(), lib.from_numpy
    ):
        y = x.exp()
        z = x.tanh()
    (first,) = lib.autograd.grad((y + z).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = lib.autograd.grad(second.sum(), x)
    assert lists([first, second, third]) == [[2, 2], [1, 1], [-1, -1]]


def test_backward_saves_with_the_hooks_active_during_it(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib) as forward:
        y = (x**3).sum()
    packed = forward.packed
    with counting(lib) as backward:
        (first,) = lib.autograd.grad(y, x, create_graph=True)
    assert forward.packed == packed
    assert backward.packed > 0
    (second,) = lib.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12]


def test_packed_once_and_unpacked_for_each_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib) as hooks:
        y = (x**2).sum()
    for times in (1, 2, 3):
        y.backward(retain_graph=True)
        assert (hooks.packed, hooks.unpacked) == (1, times)
    assert x.grad.tolist() == [6, 12]


def test_not_unpacked_unless_the_node_runs(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    with counting(lib) as hooks:
        y, z = x**2, w**2
    (y + z).sum().backward(inputs=[x])
    assert hooks.unpacked == 1
    assert z.grad_fn._saved_self.tolist() == [3, 4]


def test_packed_objects_are_dropped_by_backward(lib: Any) -> None:
    class Box:
        def __init__(self, each: Any) -> None:
            self.each = each.detach()

    boxes = []

    def pack(each: Any) -> Any:
        box = Box(each)
        boxes.append(weakref.ref(box))
        return box

    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(pack, lambda box: box.each):
        y = (x**2).sum()
        never = x.exp()
    (box, other) = boxes
    y.backward(retain_graph=True)
    assert box() is not None
    y.backward()
    assert box() is None
    assert other() is not None
    del never
    assert other() is None


# Wrong results and errors of hooks.


@pytest.mark.parametrize("wrong", [None, 3.0, "x", [1.0, 2.0], np.ones(2)], ids=repr)
def test_unpack_must_return_a_tensor(lib: Any, wrong: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(same, lambda _: wrong):
        y = x**2
    with raises(TypeError):
        y.grad_fn._saved_self
    with raises(TypeError):
        y.sum().backward()
    assert x.grad is None


def test_an_error_of_pack_comes_out_of_the_operation(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def pack(each: Any) -> Any:
        raise KeyError("mine")

    with (
        lib.autograd.graph.saved_tensors_hooks(pack, same),
        pytest.raises(KeyError, match="mine"),
    ):
        x**2
    assert lib.is_grad_enabled()
    y = x**2
    with pytest.raises(KeyError, match="mine"):
        y.grad_fn._raw_saved_self.register_hooks(pack, same)
    assert lib.is_grad_enabled()


def test_an_error_of_unpack_comes_out_of_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def unpack(each: Any) -> Any:
        raise KeyError("mine")

    with lib.autograd.graph.saved_tensors_hooks(same, unpack):
        y = x**2
    with pytest.raises(KeyError, match="mine"):
        y.grad_fn._saved_self
    with pytest.raises(KeyError, match="mine"):
        y.sum().backward()
    assert x.grad is None
    assert lib.is_grad_enabled()


def test_unpack_may_succeed_the_second_time(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    tries = []

    def unpack(each: Any) -> Any:
        tries.append(each)
        if len(tries) == 1:
            raise OSError("not yet")
        return each

    with lib.autograd.graph.saved_tensors_hooks(lambda each: each.detach().clone(), unpack):
        y = x**2
    with pytest.raises(OSError, match="not yet"):
        y.backward(constant(lib, 1, 1))
    y.backward(constant(lib, 1, 1))
    assert x.grad.tolist() == [2, 4]


@pytest.mark.parametrize("made", ["leaf", "result", "output"])
def test_a_pack_hook_must_not_change_its_input(lib: Any, made: str) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2

    def pack(each: Any) -> Any:
        return each.mul_(2)

    def compute() -> Any:
        if made == "output":
            return x.exp()
        return (x if made == "leaf" else h) ** 2

    with lib.autograd.graph.saved_tensors_hooks(pack, same), raises(RuntimeError):
        compute()
    y = compute()
    raw = getattr(y.grad_fn, "_raw_saved_result" if made == "output" else "_raw_saved_self")
    with raises(RuntimeError):
        raw.register_hooks(pack, same)


def test_hooks_with_the_wrong_number_of_arguments(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(lambda: None, same), raises(TypeError):
        x**2
    with raises(TypeError):
        lib.autograd.graph.saved_tensors_hooks(same)


# Threads.


def test_hooks_are_local_to_their_thread(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    with counting(lib) as hooks:
        thread = threading.Thread(target=lambda: seen.append(x**2))
        thread.start()
        thread.join()
        assert hooks.packed == 0
    assert seen[0].grad_fn._saved_self is x


def test_a_threads_hooks_stay_its_own(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    inside, done = threading.Event(), threading.Event()
    counts = []

    def work() -> None:
        with counting(lib) as hooks:
            inside.set()
            done.wait(10)
            counts.append(hooks.packed)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    x**2
    done.set()
    thread.join()
    assert counts == [0]


def test_saved_in_one_thread_and_unpacked_in_another(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with counting(lib, 10) as hooks:
        y = (x**2).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert hooks.unpacked == 1
    assert x.grad.tolist() == [20, 40]


# Lifetime.


def test_a_graph_with_hooks_is_freed_without_a_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    class Witness:
        pass

    gc.collect()
    gc.disable()
    try:
        with lib.autograd.graph.saved_tensors_hooks(lambda each: each.detach(), same):
            y = (x * x).exp()
        witness = Witness()
        seen = weakref.ref(witness)
        y.grad_fn.metadata["witness"] = witness
        del witness
        assert seen() is not None
        del y
        assert seen() is None
    finally:
        gc.enable()


def test_the_specifications_example_of_temporary_files(lib: Any, tmp_path: Path) -> None:
    class SelfDeletingTempFile:
        def __init__(self) -> None:
            self.name = tmp_path / f"{uuid.uuid4()}.npy"

        def __del__(self) -> None:
            self.name.unlink()

    def pack_hook(tensor: Any) -> Any:
        if tensor.numel() < 1000:
            return tensor.detach()
        temp_file = SelfDeletingTempFile()
        np.save(temp_file.name, tensor.detach().numpy())
        return temp_file

    def unpack_hook(tensor_or_sctf: Any) -> Any:
        if isinstance(tensor_or_sctf, lib.Tensor):
            return tensor_or_sctf
        return lib.from_numpy(np.load(tensor_or_sctf.name))

    class Model(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            with lib.autograd.graph.saved_tensors_hooks(pack_hook, unpack_hook):
                return (x**2).exp()[:10] ** 2

    x = (lib.ones(2000, dtype=lib.float64) * 0.5).requires_grad_()
    y = Model()(x)
    assert len(list(tmp_path.iterdir())) == 2
    y.sum().backward(retain_graph=True)
    first = x.grad.tolist()
    assert len(list(tmp_path.iterdir())) == 2
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == first
    assert first[0] == pytest.approx(2 * np.exp(0.25) * np.exp(0.25))
    assert first[10] == 0
    del y
    assert list(tmp_path.iterdir()) == []


# disable_saved_tensors_hooks


def test_hooks_can_be_forbidden(lib: Any) -> None:
    graph = lib.autograd.graph
    hooks = graph.saved_tensors_hooks(same, same)
    with (
        graph.disable_saved_tensors_hooks("not here"),
        pytest.raises(RuntimeError, match="not here"),
        hooks,
    ):
        pass
    with hooks:
        pass


def test_the_innermost_message_is_given(lib: Any) -> None:
    graph = lib.autograd.graph
    hooks = graph.saved_tensors_hooks(same, same)
    with graph.disable_saved_tensors_hooks("outer"):
        with (
            graph.disable_saved_tensors_hooks("inner"),
            pytest.raises(RuntimeError, match="inner"),
            hooks,
        ):
            pass
        with pytest.raises(RuntimeError, match="outer"), hooks:
            pass
    with hooks:
        pass


def test_hooks_cannot_be_forbidden_among_hooks(lib: Any) -> None:
    graph = lib.autograd.graph
    x = leaf(lib, 1, 2)
    with counting(lib) as hooks:
        with (
            pytest.raises(RuntimeError, match="not here"),
            graph.disable_saved_tensors_hooks("not here"),
        ):
            pass
        x**2
        with graph.saved_tensors_hooks(same, same):
            pass
    assert hooks.packed == 1


def test_forbidding_hooks_as_a_decorator(lib: Any) -> None:
    graph = lib.autograd.graph

    @graph.disable_saved_tensors_hooks("not here")  # type: ignore[untyped-decorator]
    def work() -> None:
        with graph.saved_tensors_hooks(same, same):
            pass

    for _ in range(2):
        with pytest.raises(RuntimeError, match="not here"):
            work()


def test_disabled_hooks_are_enabled_again_after_an_error(lib: Any) -> None:
    graph = lib.autograd.graph
    with pytest.raises(ZeroDivisionError), graph.disable_saved_tensors_hooks("not here"):
        1 / 0
    with graph.saved_tensors_hooks(same, same):
        pass


def test_saving_is_not_forbidden(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.disable_saved_tensors_hooks("not here"):
        (x**2).sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_forbidding_is_local_to_the_thread(lib: Any) -> None:
    graph = lib.autograd.graph
    errors = []

    def work() -> None:
        try:
            with graph.saved_tensors_hooks(same, same):
                pass
        except RuntimeError as error:
            errors.append(error)

    with graph.disable_saved_tensors_hooks("not here"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert errors == []


# save_on_cpu


def test_save_on_cpu(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    with lib.autograd.graph.save_on_cpu(pin_memory=False):
        h = x * w
        y = (h.exp() * h).sum()
    grads = lib.autograd.grad(y, [x, w], retain_graph=True)
    expected = lib.autograd.grad(((x * w).exp() * (x * w)).sum(), [x, w])
    for mine, theirs in zip(grads, expected, strict=True):
        assert mine.tolist() == pytest.approx(theirs.tolist())
    y.backward()


def test_save_on_cpu_is_a_pair_of_hooks(lib: Any) -> None:
    graph = lib.autograd.graph
    x = leaf(lib, 1, 2)
    assert isinstance(graph.save_on_cpu(), graph.saved_tensors_hooks)
    with graph.save_on_cpu():
        y = x**2
    assert y.grad_fn._saved_self is not x
    assert y.grad_fn._saved_self.equal(x)
    with raises(RuntimeError):
        y.grad_fn._raw_saved_self.register_hooks(same, same)


# allow_mutation_on_saved_tensors


def test_the_documentations_example_of_mutation(lib: Any) -> None:
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        a = lib.ones(2, 3, requires_grad=True)
        b = a.clone()
        out = (b**2).sum()
        b.mul_(5)
        out.sum().backward()
    assert a.grad.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert b.tolist() == [[5, 5, 5], [5, 5, 5]]


MUTATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "in place": lambda lib, b: b.mul_(10),
    "twice": lambda lib, b: b.mul_(10).add_(1),
    "through a view": lambda lib, b: b[:1].zero_(),
    "through a detached one": lambda lib, b: b.detach().zero_(),
    "by an index": lambda lib, b: b.__setitem__(slice(None), 7),
    "in no_grad": lambda lib, b: lib.no_grad()(b.zero_)(),
    "by a copy": lambda lib, b: b.copy_(constant(lib, 7, 8)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_saved_tensor_may_be_mutated(lib: Any, mutation: str) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        out = (b**2).sum()
        MUTATIONS[mutation](lib, b)
        out.backward()
    assert a.grad.tolist() == [2, 4]


def test_a_saved_output_may_be_mutated(lib: Any) -> None:
    a = leaf(lib, 0, 0)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.exp()
        b.mul_(10)
        b.sum().backward()
    assert a.grad.tolist() == [10, 10]


def test_a_tensor_saved_at_several_versions(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        first = (b**2).sum()
        b.mul_(3)
        second = (b**2).sum()
        b.mul_(3)
        (first + second).backward()
    assert a.grad.tolist() == [2 + 18, 4 + 36]


def test_mutation_and_several_backwards(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        out = (b**2).sum()
        b.zero_()
        out.backward(retain_graph=True)
        out.backward()
    assert a.grad.tolist() == [4, 8]


def test_mutation_and_double_backward(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        out = (b**3).sum()
        (first,) = lib.autograd.grad(out, a, create_graph=True)
        b.zero_()
        (second,) = lib.autograd.grad(first.sum(), a)
    assert first.tolist() == [3, 12]
    assert second.tolist() == [6, 12]


def test_mutation_after_backward(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        (b**2).sum().backward()
        b.zero_()
    assert a.grad.tolist() == [2, 4]


def test_without_mutation_the_context_changes_nothing(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors() as context:
        (a.exp() * a**2).sum().backward()
        assert context is not None
    expected = leaf(lib, 1, 2)
    (expected.exp() * expected**2).sum().backward()
    assert a.grad.tolist() == expected.grad.tolist()


def test_contexts_of_mutation_cannot_be_nested(lib: Any) -> None:
    graph = lib.autograd.graph
    with (
        raises(RuntimeError),
        graph.allow_mutation_on_saved_tensors(),
        graph.allow_mutation_on_saved_tensors(),
    ):
        pass
    with graph.allow_mutation_on_saved_tensors():
        pass


def test_backward_outside_the_context_of_mutation(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        out = (a**2).sum()
    with raises(AssertionError):
        out.backward()
    with lib.autograd.graph.allow_mutation_on_saved_tensors(), raises(AssertionError):
        out.backward()
    assert a.grad is None


def test_a_cleared_context_of_mutation(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with lib.autograd.graph.allow_mutation_on_saved_tensors() as context:
        out = (a**2).sum()
        context.clear()
        with raises(AssertionError):
            out.backward()
        (a**2).sum().backward()
    assert a.grad.tolist() == [2, 4]


def test_mutation_is_refused_again_after_the_context(lib: Any) -> None:
    a = leaf(lib, 1, 2)
    with pytest.raises(ZeroDivisionError), lib.autograd.graph.allow_mutation_on_saved_tensors():
        1 / 0
    b = a.clone()
    out = (b**2).sum()
    b.zero_()
    with raises(RuntimeError):
        out.backward()


# Where torch gives wrong gradients: right, or refused.


def right_or_refused(call: Callable[[], Any], expected: list[Any]) -> None:
    """Assert that a gradient is the expected one, or that it is refused."""
    try:
        seen = call()
    except RuntimeError:
        return
    assert seen == expected


@pytest.mark.parametrize(
    "pack", [same, lambda each: each.detach(), lambda each: each.detach().clone()]
)
def test_a_change_under_hooks_is_right_or_refused(pack: Callable[..., Any]) -> None:
    x = leaf(offgrad, 1, 2)
    h = x * 1
    with offgrad.autograd.graph.saved_tensors_hooks(pack, same):
        y = h**2
    h.mul_(10)

    def gradient() -> Any:
        y.sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    right_or_refused(lambda: y.grad_fn._saved_self.tolist(), [1, 2])
    right_or_refused(gradient, [2, 4])


def test_a_change_under_registered_hooks_is_right_or_refused() -> None:
    x = leaf(offgrad, 1, 2)
    h = x * 1
    y = h**2
    y.grad_fn._raw_saved_self.register_hooks(same, same)
    h.mul_(10)
    right_or_refused(lambda: lists(offgrad.autograd.grad(y.sum(), x)), [[2, 4]])


def test_a_change_of_an_output_under_hooks_is_right_or_refused() -> None:
    x = leaf(offgrad, 0, 0)
    with offgrad.autograd.graph.saved_tensors_hooks(lambda each: each.detach(), same):
        y = x.exp()
    y.mul_(10)
    right_or_refused(lambda: lists(offgrad.autograd.grad(y.sum(), x)), [[10, 10]])


def test_hooks_registered_after_a_change_are_right_or_refused() -> None:
    x = leaf(offgrad, 1, 2)
    h = x * 1
    y = h**2
    h.mul_(10)

    def gradient() -> Any:
        y.grad_fn._raw_saved_self.register_hooks(same, same)
        return lists(offgrad.autograd.grad(y.sum(), x))

    right_or_refused(gradient, [[2, 4]])


def test_a_change_under_save_on_cpu_is_right_or_refused() -> None:
    x = leaf(offgrad, 1, 2)
    h = x * 1
    with offgrad.autograd.graph.save_on_cpu():
        y = h**2
    h.mul_(10)
    right_or_refused(lambda: lists(offgrad.autograd.grad(y.sum(), x)), [[2, 4]])


def test_a_saved_view_mutated_through_its_base_is_right_or_refused() -> None:
    a = leaf(offgrad, 1, 2, 3)
    with offgrad.autograd.graph.allow_mutation_on_saved_tensors():
        b = a.clone()
        out = (b[1:] ** 2).sum()
        b.zero_()
        right_or_refused(lambda: lists(offgrad.autograd.grad(out, a)), [[0, 4, 6]])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda each: each[:1],
        lambda each: each.view(2, 1),
        lambda each: each.view(1, 2),
        lambda each: offgrad.cat([each, each]),
    ],
)
def test_unpack_must_return_the_shape_that_was_packed(wrong: Callable[..., Any]) -> None:
    x = leaf(offgrad, 1, 2)
    with offgrad.autograd.graph.saved_tensors_hooks(lambda each: each.detach(), wrong):
        y = x**2
    with raises(RuntimeError):
        y.sum().backward()
    assert x.grad is None


def test_unpack_returns_another_dtype() -> None:
    x = leaf(offgrad, 1, 2)
    with offgrad.autograd.graph.saved_tensors_hooks(lambda each: each.detach().half(), same):
        y = x**2
    right_or_refused(lambda: lists(offgrad.autograd.grad(y.sum(), x)), [[2, 4]])
