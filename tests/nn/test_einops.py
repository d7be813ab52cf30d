import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn

einops = pytest.importorskip("einops", reason="einops is not installed")

X = np.arange(48, dtype=np.float32).reshape(2, 3, 2, 4)


def _tensor(requires_grad: bool = False) -> offgrad.Tensor:
    import offgrad.nn.einops

    return offgrad.tensor(X, requires_grad=requires_grad)


@pytest.mark.parametrize(
    "call",
    [
        lambda e, x: e.rearrange(x, "b c h w -> b (h w) c"),
        lambda e, x: e.rearrange([x, x + 1], "two b c h w -> b two c (h w)"),
        lambda e, x: e.reduce(x, "b c (h 2) (w 2) -> b c h w", "max"),
        lambda e, x: e.reduce(x, "b c h w -> b c", "mean"),
        lambda e, x: e.reduce(x / 40, "b c h w -> b", "prod"),
        lambda e, x: e.repeat(x, "b c h w -> b c (h 2) (w k)", k=3),
        lambda e, x: e.einsum(x, x, "b c h w, b d h w -> b c d"),
        lambda e, x: e.pack([x, x[:, :1]], "b * h w")[0],
    ],
)
def test_calls_equal_numpys(call: Any) -> None:
    have, want = call(einops, _tensor()), call(einops, X)
    assert isinstance(have, offgrad.Tensor)
    np.testing.assert_allclose(have.numpy(), want, rtol=1e-6)


def test_gradients_flow() -> None:
    x = _tensor(requires_grad=True)
    (einops.rearrange(x, "b c h w -> w (b c h)")[1] ** 2).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad[..., 1].numpy(), 2 * X[..., 1])
    assert x.grad[..., 0].abs().sum() == 0


def test_layers_are_modules() -> None:
    from offgrad.nn.einops import Rearrange, Reduce

    model = nn.Sequential(Rearrange("b c h w -> b (h w) c"), Reduce("b n c -> b c", "sum"))
    np.testing.assert_allclose(model(_tensor()).numpy(), X.sum((2, 3)))
    assert "Rearrange('b c h w -> b (h w) c')" in repr(model)


def test_parse_shape_and_numpy() -> None:
    x = _tensor()
    assert einops.parse_shape(x, "b c _ w") == {"b": 2, "c": 3, "w": 4}
    assert isinstance(einops.asnumpy(x), np.ndarray)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["einops", "offgrad.nn.einops"])
def test_either_may_be_imported_first(first: str) -> None:
    program = (
        f"import {first}\nimport offgrad.nn.einops, einops, offgrad as torch\n"
        "assert einops.rearrange(torch.ones(2, 3), 'a b -> b a').shape == (3, 2)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
