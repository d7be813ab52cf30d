"""`flex_attention` is attention by its definition; masks of blocks are PyTorch's."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.nn.attention import flex_attention as flex

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 20, 15, 4
INF = float("inf")

attention: Any = flex.flex_attention
and_masks: Any = flex.and_masks

BIAS = np.random.default_rng(3).standard_normal((HEADS, QUERIES + KEYS))
DOCUMENTS = np.random.default_rng(4).integers(0, 3, QUERIES)


def _window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 4)


def _by_head(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) | (h == 1)


def _tensors(*heads: int) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [(BATCH, heads[0], QUERIES, WIDTH)]
    shapes += [(BATCH, each, KEYS, width) for each, width in zip(heads[1:], (4, 3), strict=True)]
    return [offgrad.from_numpy(rng.standard_normal(each)).requires_grad_() for each in shapes]


def _grids() -> tuple[Any, ...]:
    return tuple(np.meshgrid(*(np.arange(n) for n in (BATCH, HEADS, QUERIES, KEYS)), indexing="ij"))


def _expected(tensors: list[Any], change: Any, allowed: Any) -> Any:
    """Return the definition's result, and the logarithms of sums, by tensors of all positions."""
    q, k, v = tensors
    scores = q @ k.mT / WIDTH**0.5
    scores = change(scores, *map(offgrad.from_numpy, _grids()))
    mask = offgrad.from_numpy(np.broadcast_to(allowed, scores.shape).copy())
    weights = scores.exp().masked_fill(~mask, 0.0)
    total = weights.sum(-1)
    return weights / total.clamp(min=1e-300).unsqueeze(-1) @ v, total.log()


CHANGES: dict[str, Callable[..., Any]] = {
    "none": lambda score, b, h, q_idx, kv_idx: score,
    "bias": lambda score, b, h, q_idx, kv_idx: (
        score + offgrad.from_numpy(BIAS)[h, q_idx - kv_idx + KEYS]
    ),
    "cap": lambda score, b, h, q_idx, kv_idx: offgrad.tanh(score / 2) * 2 * (b + 1),
    "slopes": lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx).abs() * 0.1 * (h + 1),
    "causal": lambda score, b, h, q_idx, kv_idx: offgrad.where(q_idx >= kv_idx, score, -INF),
}
MASKS: dict[str, Any] = {
    "all": lambda b, h, q_idx, kv_idx: q_idx >= 0,
    "window": _window,
    "by_head": _by_head,
    "documents": lambda b, h, q_idx, kv_idx: (
        offgrad.from_numpy(DOCUMENTS)[q_idx] == offgrad.from_numpy(DOCUMENTS)[kv_idx]
    ),
}


def _array(mask: Any) -> Any:
    return mask(*map(offgrad.from_numpy, _grids())).numpy()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("change", CHANGES)
def test_definition(change: str, mask: str) -> None:
    block_mask = flex.create_block_mask(MASKS[mask], BATCH, HEADS, QUERIES, KEYS, BLOCK_SIZE=(8, 4))
    score_mod = None if change == "none" else CHANGES[change]
    found, wanted = _tensors(HEADS, HEADS, HEADS), _tensors(HEADS, HEADS, HEADS)
    result = attention(*found, score_mod, block_mask)
    expected, logs = _expected(wanted, CHANGES[change], _array(MASKS[mask]))
    offgrad.testing.assert_close(result, expected)
    for each in (result, expected):
        (each * each).sum().backward()
    for own, other in zip(found, wanted, strict=True):
        offgrad.testing.assert_close(own.grad, other.grad)
    again, lse = attention(*found, score_mod, block_mask, return_lse=True)
    offgrad.testing.assert_close(again, expected)
    offgrad.testing.assert_close(lse, logs)


def test_a_learned_bias_gets_a_gradient() -> None:
    bias = offgrad.from_numpy(BIAS).requires_grad_()
    other = offgrad.from_numpy(BIAS).requires_grad_()
    tensors = _tensors(HEADS, HEADS, HEADS)

    def changed(table: Any) -> Any:
        return lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx - kv_idx + KEYS]

    attention(*tensors, changed(bias)).square().sum().backward()
    expected, _ = _expected(tensors, changed(other), np.True_)
    expected.square().sum().backward()
    offgrad.testing.assert_close(bias.grad, other.grad)


def test_second_derivatives() -> None:
    mask = flex.create_block_mask(_window, None, None, 5, 5, BLOCK_SIZE=2)
    tensors = [each[:1, :1, :5].detach().requires_grad_() for each in _tensors(2, 2, 2)]

    def function(*given: Any) -> Any:
        return attention(*given, lambda score, *_: score.sin(), mask)

    assert offgrad.autograd.gradgradcheck(function, tensors)


def test_queries_without_keys_get_zeros() -> None:
    mask = flex.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx < 3, 1, 1, QUERIES, KEYS)
    tensors = _tensors(2, 2, 2)
    for score_mod in (None, lambda score, *_: score - INF, lambda score, *_: score * 2):
        result, aux = attention(*tensors, score_mod, mask, return_aux=flex.AuxRequest(True, True))
        assert not result[:, :, 3:].any()
        for each in aux:
            assert (each[:, :, 3:] == -INF).all()
        result.sum().backward()
        assert all(bool(each.grad.isfinite().all()) for each in tensors)


@pytest.mark.parametrize("part", [(0,), (..., 0, slice(None)), (slice(None), 0)])
def test_nothing(part: Any) -> None:
    """Without batches, queries or heads the result has none."""
    index = tuple(slice(0) if each == 0 else each for each in part)
    tensors = [each[index].detach() for each in _tensors(2, 2, 2)]
    q, k, v = tensors
    for score_mod in (None, lambda score, *_: score * 2):
        assert attention(q, k, v, score_mod).shape == (*q.shape[:-1], v.shape[-1])


def test_groups_of_query_heads() -> None:
    tensors = _tensors(4, 2, 2)
    q, k, v = tensors
    result = attention(*tensors, lambda s, b, h, *_: s * (h + 1), enable_gqa=True)
    repeated = [each.repeat_interleave(2, 1) for each in (k, v)]
    wanted = attention(q, *repeated, lambda s, b, h, *_: s * (h + 1))
    offgrad.testing.assert_close(result, wanted)


def test_one_batch_of_keys_for_all() -> None:
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k - b, BATCH, None, QUERIES, KEYS)
    q, k, v = _tensors(2, 2, 2)
    wanted = attention(q, *(each[:1].expand(BATCH, -1, -1, -1) for each in (k, v)),
                                 block_mask=mask)  # fmt: skip
    offgrad.testing.assert_close(attention(q, k[:1], v[:1], block_mask=mask), wanted)


def test_blocks_that_are_not_listed_are_not_allowed() -> None:
    counts = offgrad.tensor([[[1, 0]]], dtype=offgrad.int32)
    numbers = offgrad.tensor([[[[1, 0], [0, 1]]]], dtype=offgrad.int32)
    full_counts = offgrad.tensor([[[0, 1]]], dtype=offgrad.int32)
    mask = flex.BlockMask.from_kv_blocks(
        counts, numbers, full_counts, numbers, 4, lambda b, h, q, k: q + k > 6, (6, 7)
    )
    wanted = np.zeros((6, 7), bool)
    q, k = np.mgrid[:6, :7]
    wanted[:4, 4:] = (q + k > 6)[:4, 4:]
    wanted[4:, :4] = True
    np.testing.assert_array_equal(mask.allowed().numpy()[0, 0], wanted)


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dimensions": (
        lambda: attention(*(each[0] for each in _tensors(2, 2, 2))),
        NotImplementedError,
        "must be 4D",
    ),
    "heads": (lambda: attention(*_tensors(2, 1, 1)), ValueError, "enable_gqa=True"),
    "groups": (
        lambda: attention(*_tensors(2, 4, 4), enable_gqa=True),
        ValueError,
        "multiple of kv heads",
    ),
    "length": (
        lambda: attention(
            *_tensors(2, 2, 2), block_mask=flex.create_block_mask(_window, 1, 1, 9, 9)
        ),
        ValueError,
        "block_mask was created for block_mask.shape",
    ),
    "batches": (
        lambda: attention(
            *_tensors(2, 2, 2), block_mask=flex.create_block_mask(_window, 3, 1, QUERIES, KEYS)
        ),
        ValueError,
        "1 or 2 batches",
    ),
    "dtype": (
        lambda: attention(*_tensors(2, 2, 2)[:2], _tensors(2, 2, 2)[2].float()),
        ValueError,
        "same dtype",
    ),
    "integers": (
        lambda: attention(*(each.int() for each in _tensors(2, 2, 2))),
        TypeError,
        "real floats",
    ),
    "no tensor": (lambda: attention(*_tensors(2, 2, 2)[:2], None), TypeError, "got NoneType"),
    "no mask": (
        lambda: attention(*_tensors(2, 2, 2), block_mask=3),
        TypeError,
        "must be a BlockMask",
    ),
    "no heads": (
        lambda: attention(*_tensors(2, 0, 0), enable_gqa=True),
        ValueError,
        "multiple of kv heads",
    ),
    "scores": (
        lambda: attention(*_tensors(2, 2, 2), lambda score, *_: score.expand(2)),
        ValueError,
        "one score",
    ),
    "block": (
        lambda: flex.create_block_mask(_window, 1, 1, 9, 9, BLOCK_SIZE=0),
        ValueError,
        "must be positive",
    ),
    "index": (lambda: flex.create_block_mask(_window, 2, 1, 9, 9)[2], IndexError, "out of range"),
    "sliced": (
        lambda: flex.create_block_mask(_window, 2, 1, 9, 9)[0].allowed(),
        RuntimeError,
        "sliced BlockMask",
    ),
    "mask_mod": (
        lambda: flex.create_block_mask(lambda s, b, h, q, k: s, 1, 1, 9, 9),
        AssertionError,
        "requires a mask_mod",
    ),
    "arguments": (lambda: flex.create_mask(lambda a: a, 1, 1, 9, 9), AssertionError, "4 or 5"),
    "and_masks": (lambda: and_masks(_window, 3), RuntimeError, "callable mask_mods"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        call()


BLOCKS = "kv_num_blocks kv_indices full_kv_num_blocks full_kv_indices"
BLOCKS += " q_num_blocks q_indices full_q_num_blocks full_q_indices"

PARTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda mask: mask,
    "batch": lambda mask: mask[1],
    "head": lambda mask: mask[0, -1],
    "queries": lambda mask: mask[:, :, 1:3],
    "adjusted": lambda mask: mask._adjust(40, 61),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("mask_mod", [_window, _by_head])
def test_blocks_are_pytorchs(mask_mod: Any, separate: bool, part: str) -> None:
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    from torch.nn.attention import flex_attention as torch_flex

    found, wanted = (
        PARTS[part](
            module.create_block_mask(
                mask_mod, 2, 2, 70, 61, "cpu", BLOCK_SIZE=(16, 8), separate_full_blocks=separate
            )
        )
        for module in (flex, torch_flex)
    )
    assert (found.shape, found.seq_lengths) == (wanted.shape, wanted.seq_lengths)
    assert (found.numel(), found.BLOCK_SIZE) == (wanted.numel(), wanted.BLOCK_SIZE)
    assert found.sparsity() == pytest.approx(wanted.sparsity())
    assert found.to_dense().tolist() == wanted.to_dense().tolist()
    for name in BLOCKS.split():
        own, other = getattr(found, name), getattr(wanted, name)
        assert (own is None) == (other is None)
        if own is not None:
            assert own.dtype == offgrad.int32
            assert own.tolist() == other.tolist()


def test_values_are_pytorchs() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    from torch.nn.attention import flex_attention as torch_flex

    tensors = [each.detach() for each in _tensors(2, 2, 2)]
    theirs = [torch.from_numpy(each.numpy()) for each in tensors]

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score.sin() * (b + 1) - (q_idx - kv_idx).abs() * 0.1 * (h + 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [
            module.flex_attention(
                *given,
                score_mod,
                module.create_block_mask(_window, BATCH, None, QUERIES, KEYS, "cpu"),
                scale=0.3,
                return_lse=True,
            )
            for module, given in ((flex, tensors), (torch_flex, theirs))
        ]
    for own, other in zip(*results, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), 1e-12)


def test_text() -> None:
    mask = flex.create_block_mask(_by_head, None, 2, 20, 20, BLOCK_SIZE=8)
    assert str(mask) == (
        "BlockMask(shape=(1, 2, 20, 20), sparsity=-20.00%, \n"
        "(0, 0)\n░░    \n██░░  \n░░░░░░\n(0, 1)\n████░░\n████░░\n░░░░░░\n)"
    )
    assert "mask_mod=_by_head" in repr(mask)
    assert mask.to("cpu").allowed().equal(mask.allowed())
