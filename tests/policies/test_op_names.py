"""Rules name operations as nodes, functions and modules do; unknown names are refused."""

from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.autograd.op import registry
from offgrad.policies import Keep, Offload, Policy, SaveContext, When, parse_policy
from offgrad.policies.op_names import is_known_op, is_known_slot, match_op, op_names
from offgrad.session.op_names import LibraryNames
from tests.ops.opspec import OpSpec, tensors
from tests.ops.test_ops import SPECS

WHEN: Any = When


@pytest.mark.parametrize(
    ("pattern", "node", "holds"),
    [
        ("GELU", "GeluBackward0", True),
        ("gelu", "GeluBackward0", True),
        ("geluBackward0", "GeluBackward0", True),
        ("Gelu*", "GeluBackwardBackward0", True),
        ("Gelu", "GeluBackwardBackward0", False),
        ("LayerNorm", "NativeLayerNormBackward0", True),
        ("layer_norm", "NativeLayerNormBackward0", True),
        ("native_layer_norm", "NativeLayerNormBackward0", True),
        ("NativeLayerNormBackward0", "NativeLayerNormBackward0", True),
        ("*norm*", "NativeLayerNormBackward0", True),
        ("dropout", "NativeDropoutBackward0", True),
        ("Linear", "AddmmBackward0", True),
        ("linear", "MmBackward0", True),
        ("linear", "BmmBackward0", False),
        ("CrossEntropyLoss", "NllLossBackward0", True),
        ("cross_entropy", "NllLoss2DBackward0", True),
        ("scaled_dot_product_attention", "ScaledDotProductFlashAttentionForCpuBackward0", True),
        ("SiLU", "SiluBackward0", True),
        ("relu6", "HardtanhBackward0", True),
        ("PowBackward0", "PowBackward1", False),
        ("pow", "PowBackward1", True),
        # A function that is called like an operation stands for this one alone.
        ("mm", "MmBackward0", True),
        ("mm", "BmmBackward0", False),
        ("MatMul", "BmmBackward0", True),
        ("Cubic", "CubicBackward", True),
        ("cubic", "CubicBackward", True),
        ("Gel", "GeluBackward0", False),
    ],
)
def test_spellings(pattern: str, node: str, holds: bool) -> None:
    assert match_op((pattern,), node) is holds
    assert WHEN(Keep(), op=pattern)._holds(_context(op=node)) is holds
    assert WHEN(Keep(), made_by=pattern)._holds(_context(made_by=node)) is holds


def test_functions_that_look_for_overrides_keep_their_operations() -> None:
    offgrad.vmap(lambda x: x * 2)(offgrad.ones(2))
    recorded_by = LibraryNames().recorded_by
    assert "dropout" in recorded_by["NativeDropout"]
    assert "cross_entropy" in recorded_by["NllLoss"]


def _context(**facts: Any) -> SaveContext:
    defaults: dict[str, Any] = dict.fromkeys(SaveContext.__dataclass_fields__)
    return SaveContext(**defaults | facts)


_FLOATS, _ROWS = offgrad.randn(4, 6), offgrad.tensor([0, 2, 1, 3])
MODULES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "Linear": (nn.Linear(6, 3), (_FLOATS,)),
    "GELU": (nn.GELU(), (_FLOATS,)),
    "ReLU": (nn.ReLU(), (_FLOATS,)),
    "SiLU": (nn.SiLU(), (_FLOATS,)),
    "Tanh": (nn.Tanh(), (_FLOATS,)),
    "Sigmoid": (nn.Sigmoid(), (_FLOATS,)),
    "Softmax": (nn.Softmax(-1), (_FLOATS,)),
    "LayerNorm": (nn.LayerNorm(6), (_FLOATS,)),
    "Embedding": (nn.Embedding(4, 6), (_ROWS,)),
    "MSELoss": (nn.MSELoss(), (_FLOATS, offgrad.zeros(4, 6))),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), (_FLOATS, _ROWS)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_their_operations_agree(name: str) -> None:
    """Each tensor that a module saves is saved by an operation that may be called like it."""
    module, inputs = MODULES[name]
    seen = _Seen()
    with offgrad.offload(seen):
        module(*map(_leaf, inputs))
    nodes = {each.op for each in seen.contexts}
    assert nodes
    for spelling in (name, name.upper(), name.lower(), f"{name[:-1]}?"):
        assert all(match_op((spelling,), node) for node in nodes), (spelling, nodes)


def _leaf(tensor: Any) -> Any:
    return tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor


class _Seen(Policy):
    """Keeps all tensors, and notes their facts."""

    def __init__(self) -> None:
        self.contexts: list[SaveContext] = []

    def place(self, context: SaveContext) -> Keep:
        self.contexts.append(context)
        return Keep()


@pytest.fixture
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that share a class have not been named yet."""
    own = {each.__name__ for each in registry}
    nodes = property(lambda self: own)
    monkeypatch.setattr(type(op_names()), "nodes", nodes)


@pytest.mark.usefixtures("as_in_a_new_process")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_names_of_all_operations_are_known(spec: OpSpec) -> None:
    seen = _Seen()
    dtype = next(iter(spec.dtypes()))
    with offgrad.offload(seen):
        for sample in spec.arrays(dtype):
            spec.call(offgrad, *tensors(sample))
    for each in seen.contexts:
        assert is_known_op(each.op), each.op
        assert is_known_op(each.op.partition("Backward")[0].lower()), each.op
        assert is_known_slot(each.slot), (each.op, each.slot)
        rule = When(Keep(), op=each.op, slot=each.slot)
        assert rule.place(each) == Keep()


def test_slots_that_no_operation_has_are_refused() -> None:
    assert "self" in op_names().slots
    for text in ("disk,slot=foo", "pool;disk,slot=self|foo"):
        with pytest.raises(ValueError, match="no operation has the slot 'foo'"):
            parse_policy(text)
    with pytest.raises(ValueError, match=r"'slef'; did you mean self"):
        When("disk", slot="slef")
    with pytest.raises(ValueError, match=r"'res\.\*'"):
        When("disk", slot="res.*")
    for known in ("self", "res*", "0", "17", "index_0", "?", "*"):
        assert When("disk", slot=known).slot == (known,)


def test_nodes_that_the_library_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the op 'GleuBackward0'; did you mean .*GeluBackward0"):
        When("disk", op="GleuBackward0")
    with pytest.raises(ValueError, match="made_by 'GleuBackward7'"):
        When("disk", made_by=["Gelu", "GleuBackward7"])


def test_names_of_functions_that_are_not_yet_defined_are_accepted() -> None:
    policy = [When(Offload("pool", min_nbytes=0), op="cubed"), "keep"]

    class Cubed(offgrad.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    x = offgrad.ones(5, requires_grad=True)
    with offgrad.offload(policy) as session:
        y = Cubed.apply(x * 2).sum()
    y.backward()
    assert session.ledger.writes == 1
    assert is_known_op("Cubed")
