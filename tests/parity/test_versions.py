"""Version counters: one per storage, incremented by every change, checked by saved tensors."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises

VIEWS: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[0],
    "slice": lambda x: x[:1],
    "ellipsis": lambda x: x[...],
    "new axis": lambda x: x[None],
    "view": lambda x: x.view(4),
    "reshape": lambda x: x.reshape(4),
    "transpose": lambda x: x.transpose(0, 1),
    "t": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.expand(3, 2, 2),
    "squeeze": lambda x: x.squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "narrow": lambda x: x.narrow(0, 0, 1),
    "select": lambda x: x.select(1, 0),
    "flatten": lambda x: x[:1].flatten(),
    "unbind": lambda x: x.unbind()[1],
    "split": lambda x: x.split(1)[1],
    "chunk": lambda x: x.chunk(2)[1],
    "diagonal": lambda x: x.diagonal(),
    "view of view": lambda x: x[0][1],
    "detach": lambda x: x.detach(),
    "view of detach": lambda x: x.detach()[0],
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "clone": lambda x: x.clone(),
    "mask": lambda x: x[x == 0],
    "arithmetic": lambda x: x + 0,
    "contiguous of another order": lambda x: x.t().contiguous(),
    "to another dtype": lambda x: x.float(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_shared_by_all_that_share_memory(lib: Any, name: str) -> None:
    x = constant(lib, [[0, 0], [0, 0]])
    view = VIEWS[name](x)
    assert (x._version, view._version) == (0, 0)
    x.add_(1)
    assert (x._version, view._version) == (1, 1)
    with lib.no_grad():
        (view if name != "expand" else view[0]).mul_(2)
    assert (x._version, view._version) == (2, 2)
    assert VIEWS[name](x)._version == 2


@pytest.mark.parametrize("name", COPIES)
def test_copies_have_their_own(lib: Any, name: str) -> None:
    x = constant(lib, [[0, 0], [0, 0]])
    other = COPIES[name](x)
    other.add_(1)
    assert x._version == 0
    x.add_(1)
    x.add_(1)
    assert (x._version, other._version) == (2, 1)


def test_siblings_and_their_views_share_one(lib: Any) -> None:
    x = constant(lib, [[0, 0], [0, 0]])
    first, second = x[0], x[1]
    deep = second[:1]
    first.add_(1)
    assert [each._version for each in (x, first, second, deep)] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", VIEWS)
def test_which_are_views(lib: Any, name: str) -> None:
    x = leaf(lib, [[0, 0], [0, 0]]) * 1
    view = VIEWS[name](x)
    if name in ("detach", "view of detach"):
        # The detached tensor is where another history begins.
        assert not x.detach()._is_view()
        assert x.detach()._base is None
        assert x.detach()[0]._base is not x
    else:
        assert view._is_view()
        assert view._base is x
    assert not x._is_view()
    assert x._base is None


@pytest.mark.parametrize("name", COPIES)
def test_which_are_not_views(lib: Any, name: str) -> None:
    x = leaf(lib, [[0, 0], [0, 0]])
    assert not COPIES[name](x)._is_view()
    assert COPIES[name](x)._base is None


def test_the_base_of_a_view_of_a_view_is_the_first(lib: Any) -> None:
    x = constant(lib, [[1, 2], [3, 4]])
    view = x.t()[0].view(2, 1)
    assert view._base is x
    assert view._base._base is None


def test_views_made_without_grad_are_views(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.no_grad():
        view = x[:1]
    assert view._is_view()
    assert view._base is x
    assert view.grad_fn is None


def test_complex_parts_share_it(lib: Any) -> None:
    x = constant(lib, 0, 0, dtype=lib.complex128)
    real = x.real
    real.add_(1)
    assert (x._version, real._version) == (1, 1)
    imag = x.imag
    imag.add_(2)
    pairs = lib.view_as_real(x)
    pairs[1, 0] = 5
    assert [each._version for each in (x, real, imag, pairs)] == [3, 3, 3, 3]
    assert x.tolist() == [1 + 2j, 5 + 2j]
    assert real._base is x
    assert pairs._base is x


def test_the_real_part_of_a_real_tensor_is_itself(lib: Any) -> None:
    x = constant(lib, 1, 2)
    assert x.real is x


def test_operators_count_as_many_as_they_write(lib: Any) -> None:
    x = constant(lib, 1, 2)
    x[:] = 1
    assert x._version == 1
    x += 1
    assert x._version == 2
    x[0] += 1  # changes the view, then assigns it to itself
    assert x._version == 4
    x[:0] = 1
    assert x._version == 5
    assert x.tolist() == [3, 2]


def test_empty_tensors_count(lib: Any) -> None:
    x = lib.zeros(0)
    x.add_(1)
    assert x._version == 1


def test_out_counts_for_the_written_tensor_alone(lib: Any) -> None:
    x, out = constant(lib, 1, 2), constant(lib, 0, 0)
    view = out[:1]
    lib.add(x, 1, out=out)
    assert (x._version, out._version, view._version) == (0, 1, 1)


def test_reading_does_not_count(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    _ = (x + 1, x.exp(), x[0], x.sum(), x.clone(), x.detach().numpy(), x.tolist(), x == 1)
    (x * x).sum().backward()
    x.requires_grad_(False)
    x.detach_()
    assert x._version == 0


def test_a_refused_change_does_not_count(lib: Any) -> None:
    x, w = constant(lib, 1, 2), leaf(lib, 1, 2)
    with raises(RuntimeError):
        x.add_(constant(lib, 1, 2, 3))
    with raises(RuntimeError):
        w.add_(1)
    assert (x._version, w._version) == (0, 0)
    assert (x.tolist(), w.tolist()) == ([1, 2], [1, 2])


def test_it_cannot_be_set(lib: Any) -> None:
    x = constant(lib, 1, 2)
    with pytest.raises(AttributeError):
        x._version = 3


def test_a_change_of_data_counts_where_a_wrong_gradient_is_never_silent(lib: Any) -> None:
    """PyTorch gives .data its own counter, and computes with the new value."""
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    x.data.add_(1)
    assert x.tolist() == [2, 3]
    if lib.__name__ == "torch":
        assert x._version == 0
    else:
        assert x._version == 1
        with pytest.raises(RuntimeError, match="in place"):
            y.backward()


def test_an_optimizer_step_counts(lib: Any) -> None:
    w = leaf(lib, 1, 2)
    optimizer = lib.optim.SGD([w], lr=0.5)
    (w * w).sum().backward()
    optimizer.step()
    assert w._version == 1
    assert w.tolist() == [0, 0]


def test_accumulation_counts_for_the_gradient(lib: Any) -> None:
    w = leaf(lib, 1, 2)
    (w * 2).sum().backward()
    grad = w.grad
    assert grad._version == 0
    (w * 2).sum().backward()
    assert w.grad is grad
    assert grad._version == 1
    assert grad.tolist() == [4, 4]


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "recorded": lambda lib, y: y.add_(1),
    "through a detached tensor": lambda lib, y: y.detach().add_(1),
    "through a view of a detached tensor": lambda lib, y: y.detach()[:1].add_(1),
    "through a view": lambda lib, y: y[:1].zero_(),
    "by assignment": lambda lib, y: y.__setitem__(0, 7.0),
    "with the same value": lambda lib, y: y.detach().mul_(1),
    "of nothing": lambda lib, y: y.detach().__setitem__(slice(0, 0), 7.0),
    "by out": lambda lib, y: lib.add(constant(lib, 1, 2), 1, out=y.detach()),
}


def changed(lib: Any, name: str, y: Any) -> None:
    CHANGES[name](lib, y)


@pytest.mark.parametrize("name", CHANGES)
def test_a_saved_input_that_changed_is_refused(lib: Any, name: str) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 1
    loss = (y * w).sum()
    changed(lib, name, y)
    with pytest.raises(RuntimeError, match=r"(?s)in ?place.*version 1|version 1.*in ?place"):
        loss.backward()


@pytest.mark.parametrize("name", CHANGES)
def test_a_saved_result_that_changed_is_refused(lib: Any, name: str) -> None:
    x = leaf(lib, 1, 2)
    y = x.exp()
    loss = y.sum()
    changed(lib, name, y)
    with raises(RuntimeError) as info:
        loss.backward()
    assert "Exp" in str(info.value)
    assert "version 1" in str(info.value)


@pytest.mark.parametrize("name", CHANGES)
def test_tensors_that_backward_does_not_need_may_change(lib: Any, name: str) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 1
    loss = (y + w).sum()
    changed(lib, name, y)
    loss.backward()
    assert x.grad.tolist() == [1, 1]
    assert w.grad.tolist() == [1, 1]


@pytest.mark.parametrize("name", CHANGES)
def test_changes_before_saving_are_no_matter(lib: Any, name: str) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 1
    changed(lib, name, y)
    value = y.tolist()
    (y * w).sum().backward()
    assert w.grad.tolist() == value


def test_a_saved_leaf_that_changed_is_refused(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    loss = (x * x).sum()
    with lib.no_grad():
        x.add_(0)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_a_saved_constant_that_changed_is_refused(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    loss = (x * c).sum()
    c.add_(1)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_a_saved_index_that_changed_is_refused(lib: Any) -> None:
    x, index = leaf(lib, 1, 2), lib.tensor([0, 0])
    loss = x[index].sum()
    index.add_(1)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_a_constant_that_no_gradient_needs_may_change(lib: Any) -> None:
    x, c = leaf(lib, 1, 2), constant(lib, 3, 4)
    loss = (x + c * c).sum()
    c.add_(1)
    loss.backward()
    assert x.grad.tolist() == [1, 1]


def test_relu_needs_its_result_and_not_its_input(lib: Any) -> None:
    x = leaf(lib, -1, 2)
    y = x * 1
    loss = y.relu().sum()
    y.add_(5)
    loss.backward()
    assert x.grad.tolist() == [0, 1]
    result = (x * 1).relu()
    loss = result.sum()
    result.add_(5)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_a_change_beside_a_saved_view_is_refused(lib: Any) -> None:
    """Counters are of a memory as a whole."""
    x, w = leaf(lib, 1, 2), leaf(lib, 3)
    y = x * 1
    loss = y[0] * w
    y[1].zero_()
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_every_version_matters_not_the_value(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 1
    y.add_(1)
    loss = (y * w).sum()
    y.add_(1)
    y.sub_(1)
    with raises(RuntimeError) as info:
        loss.backward()
    assert "version 3" in str(info.value)
    assert "version 1" in str(info.value)


def test_checked_at_the_second_backward_too(lib: Any) -> None:
    x = leaf(lib, 0, 0)
    y = x.exp()
    loss = y.sum()
    loss.backward(retain_graph=True)
    y.add_(1)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()
    assert x.grad.tolist() == [1, 1]


def test_checked_by_grad_and_by_access(lib: Any) -> None:
    x = leaf(lib, 0, 0)
    y = x.exp()
    loss = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="version 1"):
        lib.autograd.grad(loss, x)
    node = loss.grad_fn.next_functions[0][0]
    with pytest.raises(RuntimeError, match="version 1"):
        node._saved_result


def test_checked_in_the_second_derivative(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = x * 1
    loss = (y * y * w).sum()
    (first,) = lib.autograd.grad(loss, w, create_graph=True)
    y.add_(1)
    with pytest.raises(RuntimeError, match="version 1"):
        first.sum().backward()


def test_saved_by_a_custom_function(lib: Any) -> None:
    class Square(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * 2 * x

    x = leaf(lib, 1, 2)
    y = x * 1
    loss = Square.apply(y).sum()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()
