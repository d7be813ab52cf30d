"""The GPT: its source, with torch for offgrad, is PyTorch's model, and gives the same gradients."""

import inspect
import types
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import no_grad
from offgrad.cli.compare import gpt
from offgrad.cli.compare.gpt import GPT, GPTConfig

CONFIG = GPTConfig(layers=3, width=48, heads=4, context=40)


def _tokens(seed: int = 0) -> tuple[Any, Any]:
    windows = np.random.default_rng(seed).integers(0, 256, (3, 41))
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


def test_it_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs_module = types.ModuleType("torch_gpt")
    source = inspect.getsource(gpt).replace("import offgrad as torch", "import torch")
    exec(source.replace("from offgrad", "from torch"), theirs_module.__dict__)

    ours = GPT(CONFIG)
    theirs = theirs_module.GPT(CONFIG)
    state = {name: np.array(value.detach()) for name, value in ours.state_dict().items()}
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})

    tokens, targets = _tokens()
    loss = ours.loss(offgrad.from_numpy(tokens), offgrad.from_numpy(targets))
    loss.backward()
    expected = theirs.loss(torch.from_numpy(tokens), torch.from_numpy(targets))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = dict(theirs.named_parameters())
    assert len(gradients) == len(list(ours.named_parameters()))
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        found, wanted = np.array(parameter.grad), gradients[name].grad.numpy()
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < 1e-5, name


def test_weights_are_drawn_as_gpt_2s() -> None:
    offgrad.manual_seed(1)
    model = GPT(GPTConfig(layers=8, width=64, heads=4, context=32))
    state = {name: np.array(value.detach()) for name, value in model.state_dict().items()}
    assert state["tokens.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert state["blocks.3.contract.weight"].std() == pytest.approx(0.02 / 4, rel=0.05)
    assert not state["blocks.0.expand.bias"].any()
    assert (state["norm.weight"] == 1).all()


def test_attention_is_causal() -> None:
    model = GPT(CONFIG).eval()
    tokens, _ = _tokens()
    changed = tokens.copy()
    changed[:, 20:] = (changed[:, 20:] + 1) % 256
    with no_grad():
        first, second = (np.array(model(offgrad.from_numpy(each))) for each in (tokens, changed))
    np.testing.assert_array_equal(first[:, :20], second[:, :20])
    assert (first[:, 20:] != second[:, 20:]).any()


def test_it_learns() -> None:
    offgrad.manual_seed(0)
    model = GPT(GPTConfig(layers=1, width=32, heads=2, context=40, dropout=0.1))
    optimizer = offgrad.optim.AdamW(model.parameters(), lr=1e-2)
    tokens, targets = map(offgrad.from_numpy, _tokens())
    losses = []
    for _ in range(30):
        loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(256), rel=0.05)
    assert losses[-1] < losses[0] - 1
