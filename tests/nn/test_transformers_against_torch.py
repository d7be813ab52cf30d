"""Attention and transformers with torch's weights give torch's results, gradients and errors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.nn import against_torch
from tests.nn.against_torch import flat, random_inputs

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
]
close = partial(against_torch.close, tolerance=2e-5)

T, S, B, E = 3, 4, 2, 8
PADDED = np.array([[False, False, False, True], [False, False, True, True]])
FUTURE = ~np.tri(T, dtype=bool)
ACROSS = np.array([[False, True, False, False], [False, False, True, False], [False] * 4])
EACH = np.stack([np.roll(ACROSS, at, 0) for at in range(2 * B)])
BIAS = np.linspace(-1, 1, T * S, dtype=np.float32).reshape(T, S)

Options = dict[str, Any]
ATTENTIONS: dict[str, tuple[Options, Options]] = {
    "plain": ({}, {}),
    "without weights": ({}, {"need_weights": False}),
    "weights of heads": ({}, {"average_attn_weights": False}),
    "without bias": ({"bias": False}, {"need_weights": False}),
    "other widths": ({"kdim": 5, "vdim": 6}, {}),
    "bias and zeros": (
        {"add_bias_kv": True, "add_zero_attn": True},
        {"attn_mask": ACROSS, "key_padding_mask": PADDED},
    ),
    "bias and zeros, no weights": (
        {"add_bias_kv": True, "add_zero_attn": True},
        {"attn_mask": EACH, "key_padding_mask": PADDED, "need_weights": False},
    ),
    "bools": ({}, {"attn_mask": ACROSS, "key_padding_mask": PADDED, "need_weights": False}),
    "floats": ({}, {"attn_mask": BIAS, "need_weights": False}),
    "floats and weights": ({}, {"attn_mask": BIAS}),
    "floats and bools": (
        {},
        {"attn_mask": BIAS, "key_padding_mask": np.where(PADDED, -np.inf, 0).astype("f")},
    ),
    "dropout in evaluation": ({"dropout": 0.5}, {}),
}


def pair(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return a module of offgrad and one of torch with the same weights."""
    mine, theirs = make(offgrad.nn), make(torch.nn)
    state = theirs.state_dict()
    assert list(mine.state_dict()) == list(state)
    rng = np.random.default_rng(1)
    for value in state.values():
        value.copy_(torch.tensor(rng.standard_normal(tuple(value.shape)) * 0.4))
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    return mine, theirs


def as_tensors(m: Any, options: Options) -> Options:
    return {k: m.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


def gradients(result: Any, given: list[Any], module: Any) -> list[Any]:
    loss = sum((each * each).sum() * (at + 1) for at, each in enumerate(flat(result)))
    loss.backward()
    return [each.grad for each in (*given, *module.parameters())]


@pytest.mark.parametrize("layout", ["sequence first", "batch first", "unbatched"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str, layout: str) -> None:
    made, called = ATTENTIONS[name]
    batch_first = layout == "batch first"
    mine, theirs = pair(
        lambda nn: nn.MultiheadAttention(E, 2, batch_first=batch_first, **made).eval()
    )
    assert repr(mine) == repr(theirs)
    shapes = [(T, B, E), (S, B, made.get("kdim", E)), (S, B, made.get("vdim", E))]
    if batch_first:
        shapes = [(b, t, e) for t, b, e in shapes]
    if layout == "unbatched":
        shapes = [(t, e) for t, _, e in shapes]  # type: ignore[misc]
        called = dict(called)
        if "key_padding_mask" in called:
            called["key_padding_mask"] = called["key_padding_mask"][0]
        if called.get("attn_mask", BIAS).ndim == 3:
            called["attn_mask"] = called["attn_mask"][:2]
    found: list[Any] = []
    for m, module in ((offgrad, mine), (torch, theirs)):
        given = random_inputs(m, module, *shapes)
        result = module(*given, **as_tensors(m, called))
        found.append((result, gradients(result, given, module)))
    assert (found[0][0][1] is None) == (found[1][0][1] is None)
    close(found[0], found[1])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_self_attention(need_weights: bool, batch_first: bool) -> None:
    mine, theirs = pair(lambda nn: nn.MultiheadAttention(E, 2, batch_first=batch_first))
    found: list[Any] = []
    for m, module in ((offgrad, mine), (torch, theirs)):
        (x,) = random_inputs(m, module, (B, T, E) if batch_first else (T, B, E))
        result = module(
            x, x, x, attn_mask=m.tensor(FUTURE), need_weights=need_weights, is_causal=True
        )
        keys = module(x.narrow(int(batch_first), 0, 1), x, x)  # keys and values are one tensor
        found.append((result, keys, gradients([*flat(result), *flat(keys)], [x], module)))
    close(found[0], found[1])


def test_dropout_of_weights() -> None:
    layer = offgrad.nn.MultiheadAttention(E, 2, dropout=0.5)
    x = offgrad.ones(4, 2, E)
    weights = layer(x, x, x)[1]
    assert {0.0} < set(np.unique(weights.detach().numpy()))
    assert not layer(x, x, x, need_weights=False)[0].equal(layer(x, x, x, need_weights=False)[0])


def _masks(nn: Any, m: Any, size: int) -> Any:
    return nn.Transformer.generate_square_subsequent_mask(size)


MODELS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any, Any, Any], Any]]] = {
    "encoder layer": (
        lambda nn: nn.TransformerEncoderLayer(E, 2, 16, 0.0),
        lambda m, model, x, y: model(x),
    ),
    "encoder layer, norm first": (
        lambda nn: nn.TransformerEncoderLayer(E, 2, 16, 0.0, "gelu", norm_first=True, bias=False),
        lambda m, model, x, y: model(x, m.tensor(FUTURE), is_causal=True),
    ),
    "encoder layer, by position": (
        lambda nn: nn.TransformerEncoderLayer(E, 2, 16, 0.0, nn.functional.silu, 1e-3, False, True),
        lambda m, model, x, y: model(x, None, m.tensor(PADDED[:, 1:])),
    ),
    "decoder layer": (
        lambda nn: nn.TransformerDecoderLayer(E, 2, 16, 0.0, activation="gelu"),
        lambda m, model, x, y: model(x, y, tgt_mask=_masks(m.nn, m, T)),
    ),
    "decoder layer, norm first": (
        lambda nn: nn.TransformerDecoderLayer(E, 2, 16, 0.0, norm_first=True),
        lambda m, model, x, y: model(x, y, memory_key_padding_mask=m.tensor(PADDED)),
    ),
    "encoder": (
        lambda nn: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(E, 2, 16, 0.0), 2, nn.LayerNorm(E)),
        lambda m, model, x, y: model(x, _masks(m.nn, m, T), m.tensor(PADDED[:, 1:])),
    ),
    "encoder, causal": (
        lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 2, 16, 0.0), 2),
        lambda m, model, x, y: model(x, _masks(m.nn, m, T)),
    ),
    "decoder": (
        lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(E, 2, 16, 0.0), 2),
        lambda m, model, x, y: model(x, y, m.tensor(FUTURE), m.tensor(ACROSS)),
    ),
    "transformer": (
        lambda nn: nn.Transformer(E, 2, 1, 2, 16, 0.0),
        lambda m, model, x, y: model(
            y, x, tgt_mask=model.generate_square_subsequent_mask(T),
            src_key_padding_mask=m.tensor(PADDED), memory_key_padding_mask=m.tensor(PADDED)),
    ),
    "transformer, batch first": (
        lambda nn: nn.Transformer(E, 2, 1, 1, 16, 0.0, batch_first=True, norm_first=True),
        lambda m, model, x, y: model(y.transpose(0, 1), x.transpose(0, 1)),
    ),
    "transformer, unbatched": (
        lambda nn: nn.Transformer(E, 2, 1, 1, 16, 0.0),
        lambda m, model, x, y: model(y[:, 0], x[:, 0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    make, call = MODELS[name]
    mine, theirs = pair(make)
    assert [each for each, _ in mine.named_modules()] == [
        each for each, _ in theirs.named_modules()
    ]
    found: list[Any] = []
    for m, model in ((offgrad, mine), (torch, theirs)):
        given = random_inputs(m, model, (T, B, E), (S, B, E))
        result = call(m, model, *given)
        found.append((result, gradients(result, given, model)))
    close(found[0], found[1], tolerance=1e-4)


def _attend(m: Any, *shapes: Any, **options: Any) -> None:
    attention = m.nn.MultiheadAttention(E, 2)
    attention(*(m.zeros(each) for each in shapes), **as_tensors(m, options))


X = (3, 2, E)
ERRORS: dict[str, Callable[[Any], Any]] = {
    "heads": lambda m: m.nn.MultiheadAttention(7, 2),
    "no features": lambda m: m.nn.MultiheadAttention(0, 2),
    "features": lambda m: _attend(m, (3, 2, 7), (3, 2, 7), (3, 2, 7)),
    "mixed dims": lambda m: _attend(m, (3, E), X, X),
    "dims": lambda m: _attend(m, (1, *X), X, X),
    "lengths": lambda m: _attend(m, X, X, (4, 2, E)),
    "mask": lambda m: _attend(m, X, X, X, attn_mask=np.zeros((2, 2), bool)),
    "masks of heads": lambda m: _attend(m, X, X, X, attn_mask=np.zeros((3, 3, 3), bool)),
    "dims of mask": lambda m: _attend(m, X, X, X, attn_mask=np.zeros((1, 2, 3, 3), bool)),
    "padding": lambda m: _attend(m, X, X, X, key_padding_mask=np.zeros((3, 2), bool)),
    "integers": lambda m: _attend(m, X, X, X, attn_mask=np.zeros((3, 3), int)),
    "hint": lambda m: _attend(m, X, X, X, is_causal=True),
    "batches": lambda m: m.nn.Transformer(E, 2, 1, 1, 16)(m.zeros(3, 2, E), m.zeros(3, 1, E)),
    "features of target": lambda m: m.nn.Transformer(E, 2, 1, 1, 16)(m.zeros(X), m.zeros(3, 2, 4)),
    "activation": lambda m: m.nn.TransformerEncoderLayer(E, 2, activation="selu"),
    "mask and causality": lambda m: m.nn.functional.scaled_dot_product_attention(
        m.zeros(X), m.zeros(X), m.zeros(X), m.zeros(2, 2), is_causal=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    classes = []
    for m in (offgrad, torch):
        with pytest.raises((RuntimeError, ValueError, AssertionError)) as caught:
            ERRORS[name](m)
        classes.append(caught.type)
    assert classes[0] is classes[1]


def test_kernels_can_be_chosen() -> None:
    attention = offgrad.nn.attention
    with attention.sdpa_kernel([attention.SDPBackend.MATH, attention.SDPBackend.FLASH_ATTENTION]):
        pass
    members = torch.nn.attention.SDPBackend.__members__
    assert list(attention.SDPBackend.__members__) == list(members)
    with pytest.raises(TypeError, match="SDPBackend"), attention.sdpa_kernel([3]):  # type: ignore[list-item]
        pass
