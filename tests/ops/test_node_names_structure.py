"""Nodes of views, indices, products and network functions have torch's names and attributes.

Each snippet runs on torch and here. The node of its result must have torch's name; each tensor it
saved must be one torch's node saves under that name, with the same values. Of torch's plain
attributes those in `PLAIN` must exist. Tables list the differences, with the reason.
"""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.ops.calls import call

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

Snippet = Callable[[Any], Any]


def x(m: Any, *sizes: int) -> Any:
    """Return a leaf of distinct numbers, [3, 4] unless other sizes are given."""
    sizes = sizes or (3, 4)
    count = 1
    for size in sizes:
        count *= size
    return (m.arange(count, dtype=m.float64) * 0.25 - 1).reshape(sizes).requires_grad_()


def ids(m: Any) -> Any:
    return m.tensor([0, 1])


def grid(m: Any) -> Any:
    return m.tensor([[0, 1], [1, 0]])


def half(m: Any) -> Any:
    return m.tensor([[True, False, True, False]] * 3)


def put(m: Any, index: Any) -> Any:
    y = x(m).clone()
    y[index] = 1.0
    return y


def fn(name: str, *sizes: Any, **options: Any) -> Snippet:
    """Return a snippet that calls `name` on leaves of these sizes."""
    return lambda m: call(
        m, name, *(x(m, *each) if isinstance(each, tuple) else each for each in sizes), **options
    )


VIEWS: dict[str, Snippet] = {
    "x[0]": lambda m: x(m)[0],
    "x[-1]": lambda m: x(m)[-1],
    "x[:, 1]": lambda m: x(m)[:, 1],
    "x[..., 1]": lambda m: x(m)[..., 1],
    "x[tensor]": lambda m: x(m)[m.tensor(1)],
    "x[1:]": lambda m: x(m)[1:],
    "x[-2:]": lambda m: x(m)[-2:],
    "x[:, ::2]": lambda m: x(m)[:, ::2],
    "x[:]": lambda m: x(m)[:],
    "x[:, :]": lambda m: x(m)[:, :],
    "x[...]": lambda m: x(m)[...],
    "x[()]": lambda m: x(m)[()],
    "x[None]": lambda m: x(m)[None],
    "x[..., None]": lambda m: x(m)[..., None],
    "x[0, 1]": lambda m: x(m)[0, 1],
    "x[0, 1:]": lambda m: x(m)[0, 1:],
    "x[1:, 0]": lambda m: x(m)[1:, 0],
    "x[0, 1:, None]": lambda m: x(m)[0, 1:, None],
    "t": lambda m: x(m).t(),
    "t of a vector": lambda m: x(m, 3).t(),
    "T": lambda m: x(m).T,
    "mT": lambda m: x(m).mT,
    "transpose": lambda m: x(m).transpose(0, 1),
    "swapaxes": fn("swapaxes", (3, 4), 0, 1),
    "permute": lambda m: x(m, 2, 3, 4).permute(2, 0, 1),
    "movedim": fn("movedim", (2, 3, 4), 0, -1),
    "view": lambda m: x(m).view(12),
    "reshape": lambda m: x(m).reshape(2, 6),
    "reshape to a copy": lambda m: x(m).t().reshape(12),
    "flatten": lambda m: x(m).flatten(),
    "ravel": fn("ravel", (3, 4)),
    "unflatten": lambda m: m.unflatten(x(m), 1, (2, 2)),
    "squeeze": lambda m: x(m, 1, 3).squeeze(),
    "squeeze dim": lambda m: x(m, 1, 3).squeeze(0),
    "squeeze dims": lambda m: x(m, 1, 3).squeeze((0, 1)),
    "unsqueeze": lambda m: x(m).unsqueeze(1),
    "expand": lambda m: x(m).expand(2, 3, 4),
    "broadcast_to": lambda m: m.broadcast_to(x(m), (2, 3, 4)),
    "meshgrid": lambda m: m.meshgrid(x(m, 2), x(m, 3), indexing="ij")[0],
    "unbind": lambda m: x(m).unbind()[0],
    "split": lambda m: x(m).split(2)[0],
    "split sizes": lambda m: x(m).split([1, 2])[0],
    "chunk": lambda m: x(m).chunk(2)[0],
    "tensor_split": lambda m: m.tensor_split(x(m), 2)[0],
    "unsafe_split": lambda m: m.unsafe_split(x(m), 2)[0],
    "unsafe_split_with_sizes": lambda m: m.unsafe_split_with_sizes(x(m), [1, 2])[0],
    "narrow": lambda m: x(m).narrow(0, 1, 2),
    "select": lambda m: x(m).select(1, 2),
    "diagonal": fn("diagonal", (3, 4), 1),
    "unfold": fn("unfold", (3, 4), 1, 2, 1),
    "as_strided": lambda m: m.as_strided(x(m), (2, 2), (1, 1)),
    "atleast_1d": lambda m: m.atleast_1d(x(m, 1).sum()),
    "atleast_2d": fn("atleast_2d", (3,)),
}

COPIES: dict[str, Snippet] = {
    "clone": lambda m: x(m).clone(),
    "contiguous": lambda m: x(m).t().contiguous(),
    "to": lambda m: x(m).float(),
    "slice_scatter": fn("slice_scatter", (3, 4), (1, 4), 0, 1, 2),
    "select_scatter": fn("select_scatter", (3, 4), (4,), 0, 1),
    "diagonal_scatter": fn("diagonal_scatter", (3, 4), (3,)),
    "as_strided_scatter": lambda m: m.as_strided_scatter(x(m), x(m, 2), (2,), (1,)),
    "repeat": fn("repeat", (3, 4), 2, 2),
    "tile": lambda m: m.tile(x(m), (2,)),
    "repeat_interleave": fn("repeat_interleave", (3, 4), 2, 0),
    "repeat_interleave each": lambda m: m.repeat_interleave(x(m), m.tensor([1, 2, 0]), 0),
    "roll": fn("roll", (3, 4), 1, 0),
    "roll all": fn("roll", (3, 4), 1),
    "rot90": fn("rot90", (3, 4)),
    "flip": lambda m: x(m).flip(0),
    "fliplr": fn("fliplr", (3, 4)),
    "cat": lambda m: m.cat([x(m), x(m)], 1),
    "stack": lambda m: m.stack([x(m), x(m)]),
    "hstack": lambda m: m.hstack([x(m, 2), x(m, 3)]),
    "vstack": lambda m: m.vstack([x(m, 2), x(m, 2)]),
    "dstack": lambda m: m.dstack([x(m), x(m)]),
    "column_stack": lambda m: m.column_stack([x(m, 2), x(m, 2)]),
    "block_diag": fn("block_diag", (3, 4), (2, 2)),
    "diag": fn("diag", (3, 4)),
    "diag of a vector": fn("diag", (3,)),
    "diag_embed": fn("diag_embed", (3, 4)),
    "trace": fn("trace", (3, 4)),
    "tril": lambda m: x(m).tril(),
    "triu": lambda m: x(m).triu(1),
    "gather": lambda m: x(m).gather(1, grid(m)),
    "take_along_dim": lambda m: m.take_along_dim(x(m, 2, 4), grid(m), 1),
    "scatter_add": lambda m: x(m).scatter_add(1, grid(m), x(m, 2, 2)),
    "scatter": lambda m: m.scatter(x(m), 1, grid(m), x(m, 2, 2)),
    "scatter value": lambda m: m.scatter(x(m), 1, grid(m), 2.0),
    "take": lambda m: m.take(x(m), ids(m)),
    "put": lambda m: call(m, "put", x(m), ids(m), x(m, 2)),
    "index_select": lambda m: x(m).index_select(0, ids(m)),
    "index_add": lambda m: m.index_add(x(m), 0, ids(m), x(m, 2, 4), alpha=2),
    "index_copy": lambda m: m.index_copy(x(m), 0, ids(m), x(m, 2, 4)),
    "index_fill": lambda m: m.index_fill(x(m), 0, ids(m), 2.0),
    "index_fill tensor": lambda m: m.index_fill(x(m), 0, ids(m), x(m, 1)[0]),
    "masked_fill": lambda m: x(m).masked_fill(half(m), 2.0),
    "masked_fill tensor": lambda m: x(m).masked_fill(half(m), x(m, 1)[0]),
    "masked_select": lambda m: m.masked_select(x(m), half(m)),
    "masked_scatter": lambda m: m.masked_scatter(x(m), half(m), x(m, 6)),
    "x[ids]": lambda m: x(m)[ids(m)],
    "x[:, ids]": lambda m: x(m)[:, ids(m)],
    "x[..., ids]": lambda m: x(m, 2, 3, 4)[..., ids(m)],
    "x[0, ids]": lambda m: x(m, 2, 3, 4)[0, ids(m)],
    "x[ids, :, ids]": lambda m: x(m, 2, 3, 4)[ids(m), :, ids(m)],
    "x[mask]": lambda m: x(m)[half(m)],
    "x[list]": lambda m: x(m)[[0, 1]],
    "index_put": lambda m: m.index_put(x(m), (ids(m),), x(m, 2, 4)),
    "index_put add": lambda m: m.index_put(x(m), (ids(m),), x(m, 2, 4), accumulate=True),
    "x[ids] = 1": lambda m: put(m, ids(m)),
}

PRODUCTS: dict[str, Snippet] = {
    "mm": lambda m: m.mm(x(m), x(m, 4, 2)),
    "x @ t": lambda m: x(m) @ x(m).t(),
    "bmm": lambda m: m.bmm(x(m, 2, 3, 4), x(m, 2, 4, 3)),
    "mv": fn("mv", (3, 4), (4,)),
    "dot": lambda m: m.dot(x(m, 3), x(m, 3)),
    "vector @ vector": lambda m: x(m, 3) @ x(m, 3),
    "batch @ matrix": lambda m: x(m, 2, 3, 4) @ x(m, 4, 5),
    "batch @ vector": lambda m: x(m, 2, 3, 4) @ x(m, 4),
    "batch @ batch": lambda m: x(m, 2, 3, 4) @ x(m, 2, 4, 3),
    "vector @ matrix": lambda m: x(m, 3) @ x(m),
    "vdot": fn("vdot", (3,), (3,)),
    "outer": lambda m: m.outer(x(m, 3), x(m, 2)),
    "addmm": fn("addmm", (3, 2), (3, 4), (4, 2)),
    "addmv": fn("addmv", (3,), (3, 4), (4,)),
    "addr": fn("addr", (3, 4), (3,), (4,)),
    "baddbmm": fn("baddbmm", (2, 3, 3), (2, 3, 4), (2, 4, 3)),
    "addbmm": fn("addbmm", (3, 3), (2, 3, 4), (2, 4, 3)),
    "tensordot": fn("tensordot", (3, 4), (4, 2), 1),
    "inner": fn("inner", (3, 4), (2, 4)),
    "kron": fn("kron", (3, 4), (2, 2)),
    "cross": fn("cross", (3, 4), (3, 4), 0),
    "cdist": fn("cdist", (3, 4), (2, 4)),
    "linear": fn("F.linear", (3, 4), (5, 4), (5,)),
    "linear without bias": fn("F.linear", (3, 4), (5, 4)),
    "linear over a batch": fn("F.linear", (2, 3, 4), (5, 4), (5,)),
}

NETWORK: dict[str, Snippet] = {
    **{
        name: fn(f"F.{name}", (3, 4))
        for name in (
            "relu", "gelu", "silu", "leaky_relu", "elu", "selu", "celu", "softplus", "softsign",
            "hardtanh", "relu6", "hardsigmoid", "hardswish", "mish", "logsigmoid", "glu",
            "tanhshrink", "softshrink", "hardshrink",
        )
    },
    "threshold": fn("F.threshold", (3, 4), 0.1, 2.0),
    "prelu": fn("F.prelu", (3, 4), (1,)),
    "softmax": lambda m: x(m).softmax(0),
    "softmax of the last": lambda m: x(m).softmax(-1),
    "softmin": fn("F.softmin", (3, 4), 1),
    "log_softmax": lambda m: x(m).log_softmax(-1),
    "layer_norm": fn("F.layer_norm", (3, 4), (4,), (4,)),
    "layer_norm of two": lambda m: m.nn.functional.layer_norm(x(m, 2, 3, 4), (3, 4)),
    "embedding": lambda m: m.nn.functional.embedding(ids(m), x(m)),
    "dropout": fn("F.dropout", (3, 4), 0.5),
    "attention": fn("F.scaled_dot_product_attention", *[(1, 2, 3, 4)] * 3),
    "attention causal": fn(
        "F.scaled_dot_product_attention", *[(1, 2, 3, 4)] * 3, is_causal=True, scale=0.5
    ),
    "nll_loss": lambda m: m.nn.functional.nll_loss(x(m), m.tensor([0, 1, 2])),
    "nll_loss of images": lambda m: m.nn.functional.nll_loss(
        x(m, 1, 3, 2, 2), m.tensor([[[0, 1], [2, 0]]]), reduction="sum"
    ),
    "cross_entropy": lambda m: m.nn.functional.cross_entropy(x(m), m.tensor([0, 1, 2])),
    "cross_entropy of images": lambda m: m.nn.functional.cross_entropy(
        x(m, 1, 3, 2, 2), m.tensor([[[0, 1], [2, 0]]])
    ),
    **{
        name: fn(f"F.{name}", (3, 4), (3, 4))
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss")
    },
    "soft_margin_loss": lambda m: call(m, "F.soft_margin_loss", x(m), x(m).detach()),
    "binary_cross_entropy_with_logits": fn(
        "F.binary_cross_entropy_with_logits", (3, 4), (3, 4)
    ),
}  # fmt: skip
NETWORK["layer_norm"] = lambda m: m.nn.functional.layer_norm(x(m), (4,), x(m, 4), x(m, 4))

SNIPPETS = {**VIEWS, **COPIES, **PRODUCTS, **NETWORK}

OTHER_NAMES = {
    "batch @ batch": ("BmmBackward0", "one node; PyTorch ends with a view of the product"),
    "vector @ matrix": ("SqueezeBackward1", "PyTorch squeezes in place"),
    "linear over a batch": ("AddmmBackward0", "one node; PyTorch ends with a view"),
    "dropout": ("NativeDropoutBackward0", "PyTorch multiplies by a mask on CPUs"),
}
"""Snippets whose node has another name than torch's: the name, and why."""

OTHER_SLOTS = {
    "cross_entropy": ({"self", "lse"}, "fused with the log-softmax: keeps logits and their sums"),
    "cross_entropy of images": ({"self", "lse"}, "as above"),
}
"""Snippets whose node saves tensors that torch's does not, or others under the name."""

PLAIN = {
    "accumulate", "alpha", "approximate", "beta", "dim", "dim0", "dim1", "dim2", "dimension",
    "dims", "dropout_p", "end", "ignore_index", "indices", "input_scale", "is_causal", "lambd",
    "max_val", "min_val", "negative_slope", "normalized_shape", "offset", "padding_idx",
    "reduction", "repeats", "scale", "self_sym_sizes", "shifts", "size", "source_dim",
    "split_size", "split_sizes", "start", "step", "storage_offset", "stride", "threshold",
    "total_weight", "weight_sym_argsize_0",
}  # fmt: skip
"""The plain values torch shows that must be shown here, too."""

NO_PLAIN = {
    "x[0, 1]", "x[0, 1:]", "x[1:, 0]", "x[0, 1:, None]",
}  # fmt: skip
"""A basic index of several steps is one node here; PyTorch's is the last of a chain."""


def node(m: Any, snippet: Snippet) -> Any:
    return snippet(m).grad_fn


def same(have: Any, want: Any) -> bool:
    """Return whether two values are the same. PyTorch shows negative numbers without their sign."""
    if isinstance(want, torch.Tensor):
        if not want.ndim and isinstance(have, float):
            return bool(want.item() == have)
        shapes = tuple(have.shape) == tuple(want.shape)
        return shapes and have.reshape(-1).tolist() == pytest.approx(
            want.reshape(-1).tolist(), rel=1e-6
        )
    if isinstance(want, tuple | list):
        pairs = zip(have, want, strict=True)
        return all(same(*pair) for pair in pairs)
    if isinstance(want, int) and not isinstance(want, bool):
        return bool(have % 2**64 == want % 2**64)
    return bool(have == want)


@pytest.mark.parametrize("case", SNIPPETS)
def test_name(case: str) -> None:
    mine, theirs = node(offgrad, SNIPPETS[case]).name(), node(torch, SNIPPETS[case]).name()
    if case in OTHER_NAMES:
        assert mine == OTHER_NAMES[case][0]
        assert mine != theirs, "an exception that is none any more"
    else:
        assert mine == theirs


@pytest.mark.parametrize("case", [each for each in SNIPPETS if each not in OTHER_NAMES])
def test_saved_tensors_are_some_of_torchs(case: str) -> None:
    mine, theirs = node(offgrad, SNIPPETS[case]), node(torch, SNIPPETS[case])
    names = {each.removeprefix("_saved_") for each in dir(theirs) if each.startswith("_saved_")}
    other = OTHER_SLOTS.get(case, (set(), ""))[0]
    slots = {"indices" if each.startswith("index_") else each for each in mine._saved}
    assert slots - other <= names
    for slot in slots - other:
        have, want = getattr(mine, f"_saved_{slot}"), getattr(theirs, f"_saved_{slot}")
        assert same(have, want), slot
        raw = [getattr(each, f"_raw_saved_{slot}") for each in (mine, theirs)]
        assert isinstance(raw[0], tuple) == isinstance(raw[1], tuple | list), slot
    if case not in NO_PLAIN:
        for name in names & PLAIN:
            have, want = getattr(mine, f"_saved_{name}"), getattr(theirs, f"_saved_{name}")
            if case == "cross_entropy" and name == "self":
                continue
            assert same(have, want), name


SAVED_INPUTS: dict[str, tuple[str, Snippet]] = {
    "mm": ("self", lambda leaf: leaf.mm(leaf.t())),
    "mv": ("self", lambda leaf: call(lib(leaf), "mv", leaf, leaf[0])),
    "linear": ("mat1", lambda leaf: lib(leaf).nn.functional.linear(leaf, leaf, leaf[:, 0])),
    "linear without bias": ("self", lambda leaf: lib(leaf).nn.functional.linear(leaf, leaf)),
    "layer_norm": ("input", lambda leaf: lib(leaf).nn.functional.layer_norm(leaf, (4,))),
    "gelu": ("self", lambda leaf: lib(leaf).nn.functional.gelu(leaf)),
    "silu": ("self", lambda leaf: lib(leaf).nn.functional.silu(leaf)),
    "mse_loss": ("self", lambda leaf: lib(leaf).nn.functional.mse_loss(leaf, leaf.detach())),
}
SAVED_RESULTS: dict[str, tuple[str, Snippet]] = {
    "softmax": ("result", lambda leaf: leaf.softmax(0)),
    "log_softmax": ("result", lambda leaf: leaf.log_softmax(1)),
    "relu": ("result", lambda leaf: leaf.relu()),
}


def lib(tensor: Any) -> Any:
    return offgrad if isinstance(tensor, offgrad.Tensor) else torch


@pytest.mark.parametrize("case", SAVED_INPUTS)
def test_a_saved_input_is_the_tensor_itself(case: str) -> None:
    slot, snippet = SAVED_INPUTS[case]
    for m in (offgrad, torch):
        leaf = x(m)
        y = snippet(leaf)
        assert getattr(y.grad_fn, f"_saved_{slot}") is leaf


@pytest.mark.parametrize("case", SAVED_RESULTS)
def test_a_saved_result_is_another_tensor_over_the_same_memory(case: str) -> None:
    slot, snippet = SAVED_RESULTS[case]
    for m in (offgrad, torch):
        y = snippet(x(m))
        saved = getattr(y.grad_fn, f"_saved_{slot}")
        assert saved is not y
        assert saved.data_ptr() == y.data_ptr()
        assert saved.grad_fn is y.grad_fn


def test_indices_are_shown_as_a_tuple() -> None:
    for m in (offgrad, torch):
        cube, at = x(m, 2, 3, 4), ids(m)
        fn = cube[:, at].grad_fn
        assert isinstance(fn._saved_indices, tuple | list)
        first, second = fn._saved_indices
        assert first is None
        assert second.tolist() == [0, 1]
        raw = fn._raw_saved_indices
        assert len(raw) == 2
        assert raw[1].unpack().tolist() == [0, 1] if m is offgrad else raw[1] is not None
    leaf, at = x(offgrad), ids(offgrad)
    assert leaf[at].grad_fn._saved_indices[0] is at


def test_second_order_nodes_have_names_too() -> None:
    def names(m: Any, snippet: Snippet) -> list[str]:
        leaf = x(m)
        y = snippet(leaf)
        (grad,) = m.autograd.grad(y, leaf, m.ones_like(y).requires_grad_(), create_graph=True)
        return [grad.grad_fn.name()]

    for snippet in (
        lambda leaf: leaf[0],
        lambda leaf: leaf[1:],
        lambda leaf: leaf.softmax(1),
        lambda leaf: leaf.log_softmax(1),
        lambda leaf: leaf[[0, 1]],
        lambda leaf: lib(leaf).diagonal(leaf),
        lambda leaf: lib(leaf).nn.functional.layer_norm(leaf, (4,)),
        lambda leaf: lib(leaf).nn.functional.gelu(leaf),
        lambda leaf: leaf.relu(),
    ):
        assert names(offgrad, snippet) == names(torch, snippet)
