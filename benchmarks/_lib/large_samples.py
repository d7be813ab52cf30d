"""Inputs of millions of elements for the operations of the tests' table.

The table's samples are small. A sample is enlarged by multiplying every size but 1 by one factor;
an index covers as much of the enlarged tensor as of the small one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.ops.calls import call
from tests.ops.opspec import Array, OpSpec, apart, outputs_of, positive

MAX_OUTPUTS = 64


def _functional(name: str, *arguments: Any, **options: Any) -> Any:
    return lambda m, *tensors: getattr(m.nn.functional, name)(*tensors, *arguments, **options)


def _bits(rows: int) -> Array:
    return np.random.default_rng(1).random((rows, 2048)) < 0.5


def _targets(rows: int) -> Array:
    return np.random.default_rng(2).random((rows, 2048)).astype(np.float32)


def _spread(high: int, *shape: int) -> Array:
    """Return indices below `high` in no order that a cache could use."""
    return np.arange(int(np.prod(shape))).reshape(shape) * 7919 % high


def _matrix(rows: int) -> list[Any]:
    return [(rows, 2048)]


# Calls of the table that fit its small shapes alone, on large ones, and other layouts of calls
# that depend on it. The inputs are given for a number of rows of 2048 elements.
CALLS: dict[str, tuple[Any, Callable[[int], Sequence[Any]]]] = {
    "layer_norm": (_functional("layer_norm", (2048,)), _matrix),
    "layer_norm_weight": (
        lambda m, x, w: m.nn.functional.layer_norm(x, (2048,), w),
        lambda n: [(n, 2048), (2048,)],
    ),
    "layer_norm_affine": (
        lambda m, x, w, b: m.nn.functional.layer_norm(x, (1024,), w, b),
        lambda n: [(2 * n, 1024), (1024,), (1024,)],
    ),
    "view": (lambda m, x: x.view(1024, -1), _matrix),
    "reshape_copy": (lambda m, x: x.mT.reshape(-1), _matrix),
    "contiguous": (lambda m, x: x.mT.contiguous(), _matrix),
    "contiguous_heads": (
        lambda m, x: x.transpose(1, 2).contiguous(),
        lambda n: [(8, n // 4, 16, 64)],
    ),
    "sum_to_size": (lambda m, x: x.sum_to_size(x.shape[0], 1), _matrix),
    "sum_rows": (lambda m, x: x.sum(0), _matrix),
    "sum_columns": (lambda m, x: x.sum(1), _matrix),
    "max_last": (lambda m, x: tuple(x.max(-1)), _matrix),
    "amax_last": (lambda m, x: x.amax(-1), _matrix),
    "logsumexp_all": (lambda m, x: x.logsumexp((0, 1)), _matrix),
    "logsumexp_first": (lambda m, x: x.logsumexp(0), _matrix),
    "cumsum_first": (lambda m, x: x.cumsum(0), _matrix),
    "sort_last": (lambda m, x: tuple(m.sort(x, stable=True)), _matrix),
    "embedding_table": (
        lambda m, i, w: m.nn.functional.embedding(i, w),
        lambda n: [_spread(32000, 4 * n), (32000, 512)],
    ),
    **{
        f"embedding_bag_{mode}": (
            lambda m, i, w, mode=mode: m.nn.functional.embedding_bag(i, w, mode=mode),
            lambda n: [_spread(32000, 4 * n, 4), (32000, 512)],
        )
        for mode in ("sum", "mean", "max")
    },
    "index_rows": (lambda m, x, i: x[i], lambda n: [(4 * n, 512), _spread(4 * n, 4 * n)]),
    "gather_first": (
        lambda m, x, i: x.gather(0, i),
        lambda n: [(n, 2048), _spread(n, n, 2048)],
    ),
    "expand": (lambda m, x: x.expand(4, x.shape[0], -1) * 1, lambda n: [(n // 4, 2048)]),
    "masked_select": (
        lambda m, x, k: m.masked_select(x, k),
        lambda n: [(n, 2048), _bits(n)],
    ),
    "binary_cross_entropy": (
        lambda m, x, t: call(m, "F.binary_cross_entropy", x.sigmoid(), t),
        lambda n: [(n, 2048), _targets(n)],
    ),
    "kthvalue": (lambda m, x: tuple(m.kthvalue(x, 700, 1)), _matrix),
    "median": (lambda m, x: m.median(x), _matrix),
    "topk": (lambda m, x: tuple(m.topk(x, 16)), _matrix),
    "rms_norm": (_functional("rms_norm", (2048,)), _matrix),
    "split": (lambda m, x: tuple(x.split(512, -1)), _matrix),
    "repeat_interleave": (
        lambda m, x: m.repeat_interleave(x, 2, 1),
        lambda n: [(n, 1024)],
    ),
    "narrow": (lambda m, x: x.narrow(1, 100, 1500), _matrix),
    "roll": (lambda m, x: m.roll(x, (30, 20), (0, 1)), _matrix),
}
_DOMAINS = {"kthvalue": apart, "median": apart, "norm": positive}


class TooSmall(Exception):
    """An operation that cannot be enlarged."""


def names(specs: Sequence[OpSpec]) -> list[str]:
    """Return the operations that torch has and that take real numbers, each once."""
    found = [spec.name for spec in specs if spec.torch and spec.real and spec.twin is None]
    return list(dict.fromkeys([*found, *CALLS]))


def sample_of(
    name: str, specs: dict[str, OpSpec], torch: Any, elements: int
) -> tuple[Any, list[Array]]:
    """Return an operation's call and its inputs, of about `elements` elements.

    Raises:
        TooSmall: if the call only works on small tensors.
    """
    if name in CALLS:
        function, shapes = CALLS[name]
        return function, [_filled(each, name) for each in shapes(max(64, elements // 2048))]
    spec = specs[name]
    inputs = next((each for each in spec.samples if _is_scalable(each)), None)
    if inputs is None:
        raise TooSmall("no sample has a size above 1")
    (small, growth_in), (result, growth) = _sizes(spec, inputs, torch)
    factor = min((elements / small) ** (1 / growth_in), (2 * elements / result) ** (1 / growth))
    if factor < 4:
        raise TooSmall("the result grows too fast")
    return spec.call, _enlarged(spec, inputs, int(_PROBE * factor))


_PROBE = 4


def _sizes(
    spec: OpSpec, inputs: tuple[Any, ...], torch: Any
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the size of the largest input and output at a small factor, and their exponents."""
    found = []
    for factor in (_PROBE, 2 * _PROBE):
        arrays = _enlarged(spec, inputs, factor)
        outputs = outputs_of(spec.call(torch, *[torch.from_numpy(each) for each in arrays]))
        if len(outputs) > MAX_OUTPUTS:
            raise TooSmall(f"{len(outputs)} results")
        found.append((max(each.size for each in arrays), max(each.numel() for each in outputs)))
    (first_in, first_out), (second_in, second_out) = found
    return (
        (first_in, max(0.1, float(np.log2(second_in / first_in)))),
        (max(1, first_out), max(0.1, float(np.log2(max(1, second_out) / max(1, first_out))))),
    )


def _filled(shape: Any, name: str) -> Array:
    if isinstance(shape, np.ndarray):
        return shape
    values = np.random.default_rng(0).standard_normal(shape)
    return np.asarray(_DOMAINS.get(name, np.asarray)(values), np.float32)


def _shape(given: Any) -> tuple[int, ...]:
    return given.shape if isinstance(given, np.ndarray) else given


def _is_scalable(sample: tuple[Any, ...]) -> bool:
    shapes = [_shape(each) for each in sample]
    return all(0 not in shape for shape in shapes) and any(
        size > 1 for shape in shapes for size in shape
    )


def _enlarged(spec: OpSpec, sample: tuple[Any, ...], factor: int) -> list[Array]:
    rng = np.random.default_rng(3)
    arrays = []
    for each in sample:
        shape = tuple(size * factor if size > 1 else size for size in _shape(each))
        if not isinstance(each, np.ndarray):
            values = np.asarray(rng.standard_normal(shape))
            values = values if spec.domain is None else spec.domain(values)
            arrays.append(np.asarray(values, np.float32))
        elif each.dtype == np.bool_:
            arrays.append(rng.random(shape) < each.mean())
        elif each.dtype.kind in "iu" and each.size and each.min() >= 0:
            arrays.append(_index(each, shape, factor, rng))
        else:
            kind = np.float32 if each.dtype.kind == "f" else each.dtype
            arrays.append(np.resize(each, shape).astype(kind))
    return arrays


def _index(small: Array, shape: tuple[int, ...], factor: int, rng: Any) -> Array:
    """Return random indices; each once if the small ones are unique."""
    high, count = (int(small.max()) + 1) * factor, int(np.prod(shape))
    if np.unique(small).size == small.size and count <= high:
        return rng.permutation(high)[:count].reshape(shape).astype(small.dtype)
    return rng.integers(0, high, shape).astype(small.dtype)
