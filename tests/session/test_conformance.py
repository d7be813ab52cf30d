"""Lossless means identical: every lossless policy gives the bits of a run without a session."""

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.session.graphs import CURVED, Bits, Offload, bits, check, gradient, normal
from tests.session.scenarios import passes, saves, training

SCENARIOS: list[Callable[[Offload], Bits]] = [
    training.mlp,
    training.gpt,
    saves.views,
    passes.retained,
    passes.partial,
    passes.shared_parts,
    passes.several_forwards,
    passes.dropped,
    saves.reused,
    saves.dtypes,
    training.embedding_and_norms,
    saves.external,
    saves.brain_floats,
    passes.functions,
    training.twenty_steps,
    passes.backward_inside,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_identical_bits(scenario: Callable[[Offload], Bits], offload: Offload) -> None:
    check(scenario, scenario, offload)


@pytest.mark.parametrize("name", CURVED)
def test_double_backward(name: str, offload: Offload) -> None:
    def run(offload: Offload) -> Bits:
        x = normal(7, 12, 8)
        with offload():
            y = CURVED[name](x * 1)
            weight = normal(8, *y.shape, grad=False)
            (first,) = gradient((y * weight).sum(), x, create_graph=True)
            (second,) = gradient(first.square().sum(), x, retain_graph=True)
        # The same graphs once more, with the tensors they read back in memory.
        first.square().sum().backward()
        return bits(y, first, second, x.grad)

    check(name, run, offload)


def test_saved_attributes_can_be_read(offload: Offload) -> None:
    x = normal(1, 150, 150)
    with offload():
        y = (x * 2).exp()
        z = y.t().sin()
    value = y.detach().numpy().copy()
    del y
    saved: Any = z.grad_fn
    assert np.array_equal(saved._saved_self.detach().numpy(), value.T)
    assert not saved._saved_self.is_contiguous()
    first = bits(saved._saved_self)
    z.sum().backward()
    assert first == bits(offgrad.tensor(value.T.copy()))
    with pytest.raises(RuntimeError, match="freed"):
        saved._saved_self


@pytest.fixture
def constant_collections() -> Iterator[None]:
    """Run the garbage collector at almost any moment, including inside sessions."""
    before = gc.get_threshold()
    gc.set_threshold(7, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("constant_collections")
def test_garbage_collections_at_any_moment(offload: Offload) -> None:
    """Graphs that are garbage in cycles die in the middle of the next step."""

    def steps() -> Bits:
        found: Bits = []
        for seed in range(4):
            x = normal(seed, 130, 130)
            with offload():
                loss = (x.sin() * x).exp().t().tanh().sum()
                cycle: list[Any] = [loss, x.cos().exp()]
            cycle.append(cycle)
            if seed % 2:
                loss.backward(retain_graph=True)
            found += bits(loss, x.grad)
        return found

    found = steps()
    assert found == steps()


STRIDED_VIEWS: dict[str, Callable[[Any], Any]] = {
    "every second": lambda x: x[::2, ::2],
    "every second, transposed": lambda x: x[::2, ::2].mT,
    "columns": lambda x: x[:, 3:40],
    "one column": lambda x: x[:, 3:4],
    "one row, transposed": lambda x: x[3:4].mT,
    "expanded": lambda x: x[:, :1].expand(150, 20),
    "diagonal": lambda x: x.diagonal()[:, None],
}


@pytest.mark.parametrize("product", ["matrix", "vector", "linear", "batch"])
def test_products_of_strided_views(product: str, offload: Offload) -> None:
    """A store gives a view back in other strides; products must not depend on these."""

    def run(view: str, offload: Offload) -> Bits:
        x = normal(1, 150, 150)
        with offload():
            v = STRIDED_VIEWS[view](x * 1)
            if product == "batch":
                v = v.expand(3, *v.shape)
            w = normal(2, v.shape[-1]) if product == "vector" else normal(2, v.shape[-1], 7)
            if product == "linear":
                result = offgrad.nn.functional.linear(v, w.mT)
            else:
                result = v @ w
            loss = result.square().sum()
        return bits(loss, *gradient(loss, [x, w]))

    for view in STRIDED_VIEWS:
        check((view, product), partial(run, view), offload)
