"""The default session: outside sessions and hooks, large outputs of cheap operations are
recomputed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory, nn
from offgrad.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from offgrad.nn import functional as F
from tests.forked import run_in_child
from tests.session.graphs import bits, data, normal
from tests.session.helpers import in_threads

MIB = 1 << 20
ROWS = 512


def layers() -> list[nn.Module]:
    """Return layers whose hidden arrays take 1 MiB."""
    offgrad.manual_seed(0)
    norm = nn.LayerNorm(128)
    with offgrad.no_grad():
        norm.weight.add_(offgrad.randn(128))
    return [nn.Linear(64, 128), norm, nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 64)]


def gradients(run: Callable[..., Any], *, keeps: bool = False) -> Any:
    """Return the bits of the loss and of all gradients of a step on fresh layers."""
    model = nn.Sequential(*layers())
    x = normal(1, 4 * ROWS, 64)
    if keeps:
        with offgrad.offload("keep"):
            loss = run(model, x)
    else:
        loss = run(model, x)
    loss.backward()
    return bits(loss, x.grad, *(each.grad for each in model.parameters()))


def assert_same_as_keep(run: Callable[..., Any]) -> None:
    assert gradients(run) == gradients(run, keeps=True)


def held_nbytes(run: Callable[[], Any]) -> int:
    """Return the bytes that the results of `run` hold."""
    before = memory.allocated()
    result = run()
    held = memory.allocated() - before
    del result
    return held


def test_outputs_of_large_cheap_operations_are_not_held() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    held = held_nbytes(lambda: F.linear(F.gelu(h), weight))
    assert held < MIB // 8
    with offgrad.offload("keep"):
        assert held_nbytes(lambda: F.linear(F.gelu(h), weight)) > MIB


def test_small_outputs_are_held() -> None:
    h, weight = normal(1, ROWS // 2, 512), normal(2, 8, 512)
    assert held_nbytes(lambda: F.linear(F.gelu(h), weight)) > MIB // 2


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradients_have_the_same_bits_as_when_all_is_kept(dropout: float) -> None:
    def run(model: Any, x: Any) -> Any:
        offgrad.manual_seed(1)
        return F.dropout(F.gelu(model(x)), dropout).square().mean()

    assert_same_as_keep(run)


def test_second_derivatives() -> None:
    def run(model: Any, x: Any) -> Any:
        slope: Any = offgrad.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        return slope.square().sum()

    assert_same_as_keep(run)


def test_repeated_and_partial_passes() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    loss = F.linear(F.gelu(h), weight).square().sum()
    first = offgrad.autograd.grad(loss, [weight], retain_graph=True)
    second = offgrad.autograd.grad(loss, [h, weight])
    assert bits(*first) == bits(second[1])


def test_an_output_that_is_still_alive_is_used_again() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    activated = F.gelu(h)
    product: Any = F.linear(activated, weight)
    saved = product.grad_fn._saved_self.detach().numpy()
    assert np.shares_memory(saved, activated.detach().numpy())


def test_changes_in_place_of_the_output() -> None:
    weight = normal(2, 8, 512)
    expected = F.linear(F.gelu(normal(1, ROWS, 512)), weight).square().sum()
    expected.backward()
    grad, weight.grad = weight.grad, None
    activated = F.gelu(normal(1, ROWS, 512))
    loss = F.linear(activated, weight).square().sum()
    activated.add_(1)
    loss.backward()
    assert bits(weight.grad) == bits(grad)


def test_changes_in_place_of_an_input_are_seen_by_the_operation_that_saved_it() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    x = h * 1
    loss = F.linear(F.gelu(x), weight).square().sum()
    (expected,) = offgrad.autograd.grad(loss, weight, retain_graph=True)
    x.add_(1)
    # The product's own gradient takes the values of forward.
    assert bits(*offgrad.autograd.grad(loss, weight, retain_graph=True)) == bits(expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_that_no_operation_saves_may_change_through_numpy() -> None:
    large, small, weight = normal(1, ROWS, 512), normal(4, 512), normal(2, 8, 512)
    loss = F.linear(large * 2 + small, weight).sum()
    (expected,) = offgrad.autograd.grad(loss, weight, retain_graph=True)
    large.detach().numpy()[:] = 0
    small.detach().numpy()[:] = 0
    assert bits(*offgrad.autograd.grad(loss, weight)) == bits(expected)


def exported(tensor: Any) -> Any:
    return tensor.detach().numpy()


EXPORTS: list[Callable[[Any], Any]] = [
    exported,
    lambda tensor: np.asarray(tensor.detach()),
    lambda tensor: exported(tensor.t()).T,
    lambda tensor: np.asarray(memoryview(exported(tensor))),
]


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    "use", [lambda h: h * 1, F.relu, lambda h: F.dropout(h, 0.5), lambda h: h.clamp(-1, 1)]
)
def test_a_change_through_numpy_before_a_save(
    export: Callable[[Any], Any], use: Callable[[Any], Any]
) -> None:
    """Neither the output that changes nor what another operation computes of it is recomputed."""

    def run() -> tuple[Any, Any]:
        offgrad.manual_seed(0)
        h = F.gelu(normal(1, ROWS, 512) * 1)
        export(h)[:] *= -0.5
        y, weight, other = use(h), normal(2, 512, 8), normal(3, 512, 8)
        return y @ weight + h @ other, (weight, other)

    result, leaves = run()
    found = offgrad.autograd.grad(result.sum(), leaves)
    with offgrad.offload("keep"):
        result, leaves = run()
    assert bits(*found) == bits(*offgrad.autograd.grad(result.sum(), leaves))


@pytest.mark.parametrize("exports_first", [False, True])
def test_a_change_through_numpy_of_an_input_after_the_save(exports_first: bool) -> None:
    x, weight = normal(1, ROWS, 512) * 1, normal(2, 8, 512)
    array = exported(x) if exports_first else None
    loss = F.linear(F.gelu(x), weight).square().sum()
    (expected,) = offgrad.autograd.grad(loss, weight, retain_graph=True)
    if array is None:
        array = exported(x)
    array[:] = 0
    assert bits(*offgrad.autograd.grad(loss, weight)) == bits(expected)


def test_hooks_get_the_tensor() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    product: Any = F.linear(F.gelu(h), weight)
    expected = bits(F.gelu(h))
    seen: list[Any] = []

    def pack(tensor: Any) -> Any:
        seen.extend(bits(tensor))
        return tensor.clone()

    product.grad_fn._raw_saved_self.register_hooks(pack, lambda tensor: tensor)
    assert seen == expected
    with pytest.raises(RuntimeError, match="hooks have already been set"):
        product.grad_fn._raw_saved_self.register_hooks(pack, lambda tensor: tensor)
    product.sum().backward()


def test_blocks_without_hooks_recompute_and_blocks_with_hooks_do_not() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    with disable_saved_tensors_hooks("none here"):
        assert held_nbytes(lambda: F.linear(F.gelu(h), weight)) < MIB // 8
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        F.linear(F.gelu(h), weight)
    assert any(bits(each) == bits(F.gelu(h)) for each in packed)


def test_released_tensors_say_so() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    loss = F.linear(F.gelu(h), weight).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


def step() -> Any:
    """Return the gradients of a step, which uses no random numbers."""
    h, weight = normal(1, ROWS, 512), normal(2, 64, 512)
    F.gelu(F.linear(F.gelu(h), weight)).square().mean().backward()
    return bits(h.grad, weight.grad)


def test_threads_and_forks() -> None:
    expected = step()
    found: list[Any] = []
    in_threads(*[lambda: found.append(step())] * 3)
    assert found == [expected] * 3

    def work() -> None:
        assert step() == expected

    run_in_child(work)


def test_a_graph_recorded_before_a_fork() -> None:
    h, weight = normal(1, ROWS, 512), normal(2, 8, 512)
    loss = F.linear(F.gelu(h), weight).square().sum()

    def work() -> None:
        loss.backward()

    run_in_child(work)
    loss.backward()
    assert h.grad is not None


def test_nothing_grows() -> None:
    step()
    before = memory.allocated()
    for _ in range(5):
        step()
    assert memory.allocated() == before


def test_inputs_without_gradients_hold_nothing_more() -> None:
    x, weight = data(1, ROWS, 512), normal(2, 8, 512)
    # Nothing saves x: to hold it instead of the GELU would save no memory.
    held = held_nbytes(lambda: F.linear(F.gelu(x), weight))
    assert MIB <= held < MIB + MIB // 8
