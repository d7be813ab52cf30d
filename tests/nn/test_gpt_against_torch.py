"""A whole GPT beside its twin in torch: loss, gradients, second order, training."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")


def make_gpt(m: Any, vocabulary: int, width: int, heads: int, layers: int, context: int) -> Any:
    """Return a GPT of pre-normalised blocks, built from `m`, offgrad or torch."""
    nn, F = m.nn, m.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width, bias=False)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            batch, time, _ = x.shape
            q, k, v = (
                each.view(batch, time, heads, width // heads).transpose(1, 2)
                for each in self.qkv(self.norm_1(x)).split(width, dim=-1)
            )
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
            return x + self.mlp(self.norm_2(x))

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.places = nn.Embedding(context, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x: Any, y: Any) -> Any:
            h = self.tokens(x) + self.places(m.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            logits = self.head(self.norm(h))
            return F.cross_entropy(logits.view(-1, vocabulary), y.view(-1))

    return GPT()


def twins(dtype: str, vocabulary: int, *shape: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return both models with the same weights, and a batch for each."""
    theirs = make_gpt(torch, vocabulary, *shape)
    mine = make_gpt(offgrad, vocabulary, *shape)
    rng = np.random.default_rng(3)
    state = {
        name: rng.standard_normal(value.shape) * (0.3 if value.dim() > 1 else 0.1)
        + ("norm" in name and name.endswith("weight"))
        for name, value in theirs.state_dict().items()
    }
    state["head.weight"] = state["tokens.weight"]
    theirs.to(getattr(torch, dtype))
    mine.to(getattr(offgrad, dtype))
    theirs.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    mine.load_state_dict({k: offgrad.tensor(v.astype(dtype)) for k, v in state.items()})
    tokens = rng.integers(0, vocabulary, (2, 3, shape[-1] + 1))
    batches = {
        m.__name__: [(m.tensor(each[:, :-1]), m.tensor(each[:, 1:])) for each in tokens]
        for m in (offgrad, torch)
    }
    return mine, theirs, batches


def distance(mine: Any, theirs: Any) -> float:
    """Return the norm of the difference over the norm."""
    want = theirs.detach().numpy().astype(np.float64)
    return float(np.linalg.norm(mine.detach().numpy() - want) / np.linalg.norm(want))


def test_loss_and_all_gradients_in_float32() -> None:
    mine, theirs, batches = twins("float32", 61, 48, 4, 2, 32)
    a, b = mine(*batches["offgrad"][0]), theirs(*batches["torch"][0])
    assert a.item() == pytest.approx(b.item(), rel=1e-6)
    a.backward()
    b.backward()
    names = [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in mine.named_parameters()] == names
    for name, p, q in zip(names, mine.parameters(), theirs.parameters(), strict=True):
        assert p.grad.shape == tuple(q.grad.shape)
        if name.endswith("qkv.bias"):
            # The bias of the keys has no effect: its gradient is rounding alone.
            keys = slice(48, 96)
            assert np.abs(p.grad.numpy()[keys]).max() < 1e-7
            p.grad[keys], q.grad[keys] = 0.0, 0.0
        assert distance(p.grad, q.grad) < 1e-5, name


def test_second_order_in_float64() -> None:
    mine, theirs, batches = twins("float64", 7, 8, 2, 2, 4)
    found = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for m, model in ((offgrad, mine), (torch, theirs)):
            parameters = list(model.parameters())
            loss = model(*batches[m.__name__][0])
            first = m.autograd.grad(loss, parameters, create_graph=True)
            penalty = sum((each * each).sum() for each in first)
            found.append((first, m.autograd.grad(penalty, parameters)))
    for order in range(2):
        for (name, _), p, q in zip(
            theirs.named_parameters(), *(each[order] for each in found), strict=True
        ):
            assert p.shape == tuple(q.shape)
            assert distance(p, q) < 1e-8, f"{name}, derivative {order + 1}"


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_training_gives_the_same_losses(name: str) -> None:
    mine, theirs, batches = twins("float64", 13, 16, 2, 1, 8)
    losses = []
    for m, model in ((offgrad, mine), (torch, theirs)):
        optimizer = getattr(m.optim, name)(model.parameters(), lr=0.01)
        run_losses = []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(*batches[m.__name__][step % 2])
            loss.backward()
            optimizer.step()
            run_losses.append(loss.item())
        losses.append(run_losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < losses[0][0]


def test_state_dicts_have_the_names_and_values_of_torch() -> None:
    mine, theirs, _ = twins("float32", 13, 16, 2, 1, 8)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    for value, want in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
        np.testing.assert_array_equal(value.numpy(), want.numpy())
    assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters())
