"""An error names the operation that the program called, also where another one does the work."""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad import Tensor
from offgrad.nn import functional as F

x = offgrad.ones(3, 4)
far = offgrad.tensor([[9, 0, 0, 0]])
a, b = offgrad.ones(2, 3), offgrad.ones(2, 4)


def _set() -> None:
    x.clone()[0] = offgrad.ones(9)


CASES: dict[str, Callable[[], Any]] = {
    "gather": lambda: offgrad.gather(x, 0, far),
    "take_along_dim": lambda: offgrad.take_along_dim(x, far, 0),
    "take_along_dim ": lambda: offgrad.take_along_dim(x, far * 2),
    "setitem": _set,
    "matmul": lambda: x @ x,
    "mm": lambda: x.mm(x),
    "bmm": lambda: x[None].bmm(x[None]),
    "mv": lambda: x.mv(offgrad.ones(9)),
    "dot": lambda: offgrad.ones(3).dot(offgrad.ones(9)),
    "expand": lambda: x.expand(5, 4),
    "expand_as": lambda: x.expand_as(offgrad.ones(5, 4)),
    "broadcast_to": lambda: x.broadcast_to((5, 4)),
    "reshape": lambda: x.reshape(5),
    "reshape_as": lambda: x.reshape_as(offgrad.ones(5)),
    "repeat": lambda: x.repeat(-1, 1),
    "tile": lambda: x.tile(-1),
    "cat": lambda: offgrad.cat([x, offgrad.ones(9, 9)]),
    "hstack": lambda: offgrad.hstack([x, offgrad.ones(9, 9)]),
    "vstack": lambda: offgrad.vstack([x, offgrad.ones(9, 9)]),
    "dstack": lambda: offgrad.dstack([x, offgrad.ones(9, 9)]),
    "column_stack": lambda: offgrad.column_stack([x, offgrad.ones(9, 9)]),
    "allclose": lambda: offgrad.allclose(a, b),
    "dist": lambda: offgrad.dist(a, b),
    "nanmean": lambda: x.nanmean(9),
    "aminmax": lambda: x.aminmax(dim=9),
    "mse_loss": lambda: F.mse_loss(a, b),
    "l1_loss": lambda: F.l1_loss(a, b),
    "huber_loss": lambda: F.huber_loss(a, b),
    "kl_div": lambda: F.kl_div(a, b),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(a, b),
    "pairwise_distance": lambda: F.pairwise_distance(a, b),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(a, b),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(a, b, offgrad.ones(2)),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(a, b, a),
}


@pytest.mark.filterwarnings(
    "ignore:.*Please ensure they have the same size"
)  # of losses, as in PyTorch
@pytest.mark.parametrize("name", CASES)
def test_an_error_names_the_operation(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as raised:
        CASES[name]()
    assert str(raised.value).startswith(f"{name.strip()}:")


def test_an_error_of_an_inplace_form_names_the_operation() -> None:
    index = offgrad.tensor([9])
    changes: list[tuple[Callable[[Tensor], Any], str]] = [
        (lambda y: y.index_add_(0, index, y[:1]), "index_add"),
        (lambda y: y.index_copy_(0, index, y[:1]), "index_copy"),
        (lambda y: y.index_fill_(0, index, 1), "index_fill"),
        (lambda y: y.put_(offgrad.tensor([99]), y[0, :1]), "put"),
        (lambda y: y.scatter_(0, far, 1), "scatter"),
        (lambda y: y.scatter_add_(0, far, y[:1]), "scatter_add"),
    ]
    for change, name in changes:
        y = x.clone()
        with pytest.raises((RuntimeError, IndexError), match=f"^{name}: "):
            change(y)
