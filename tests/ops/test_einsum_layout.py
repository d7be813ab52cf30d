"""Results of `einsum` lie in memory in the order of the equation where PyTorch's do."""

from typing import Any

import numpy as np
import pytest

import offgrad

SIZES = dict(zip("bcdhijklnoqxy", (2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7), strict=True))


@pytest.mark.parametrize(
    "equation",
    [
        "bij,bkj->bki", "bl,bd->bdl", "ij,kj->ki", "ij,jk->ki", "bij,bjd->bdi", "b,c->cb",
        "bi,bj->bji", "ij,jk->ik", "bij,bjk->bik", "i,j->ij", "bij,bij->bi",
    ],
)  # fmt: skip
def test_a_view_of_the_result(equation: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    terms = equation.partition("->")[0].split(",")
    arrays = [rng.normal(size=[SIZES[each] for each in term]) for term in terms]

    def run(m: Any) -> list[Any]:
        tensors = [m.tensor(each, requires_grad=True) for each in arrays]
        result = m.einsum(equation, *tensors).view(-1)
        gradients = m.autograd.grad(result.sin().sum(), tensors)
        return [result.detach().numpy(), *(each.numpy() for each in gradients)]

    for ours, theirs in zip(run(offgrad), run(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
