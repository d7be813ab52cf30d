"""Pruning: results, errors and state are torch's."""

import pytest

from tests.nn.programs import same_on_torch

SETUP = """
if torch.__name__ == "offgrad":
    import offgrad.nn.utils.prune as prune
else:
    import torch.nn.utils.prune as prune
def linear(rows=2, columns=4):
    layer = nn.Linear(columns, rows, bias=False)
    layer.weight = nn.Parameter(torch.arange(rows * columns).view(rows, columns) * 0.5 - 1.2)
    return layer
def state(m):
    return {k: v.tolist() for k, v in m.state_dict().items()}
def run(m):
    m(torch.ones(1, m.in_features)).sum().backward()
    return [p.grad.tolist() for p in m.parameters()]
ones = torch.ones(2, 4)
"""

PROGRAMS = {
    "one pruning": """
state(prune.identity(linear(), "weight"))
state(prune.l1_unstructured(linear(), "weight", 3))
state(prune.l1_unstructured(linear(), "weight", 0.25))
state(prune.l1_unstructured(linear(), "weight", 1, importance_scores=-ones.cumsum(1)))
state(prune.ln_structured(linear(), "weight", 0.5, n=2, dim=1))
state(prune.ln_structured(linear(), "weight", 1, n=float("inf"), dim=-2))
state(prune.custom_from_mask(linear(), "weight", (ones.cumsum(1) > 2)))
prune.random_unstructured(linear(), "weight", 3).weight_mask.sum()
prune.random_structured(linear(), "weight", 3, dim=1).weight_mask.sum()
run(prune.l1_unstructured(linear(), "weight", 3))
prune.l1_unstructured(linear(), "weight", 3)
type(prune.l1_unstructured(linear(), "weight", 3).weight) is torch.Tensor
state(prune.remove(prune.l1_unstructured(linear(), "weight", 3), "weight"))
type(prune.remove(prune.l1_unstructured(linear(), "weight", 3), "weight").weight).__name__
prune.is_pruned(nn.Sequential(prune.identity(linear(), "weight"))), prune.is_pruned(linear())
prune.L1Unstructured(0.5).prune(ones.cumsum(1))
""",
    "several prunings": """
[setattr(a := linear(), "n", 0), prune.l1_unstructured(a, "weight", 2), state(a)][2]
state(prune.l1_unstructured(a, "weight", 2))
state(prune.ln_structured(a, "weight", 1, n=1, dim=0))
state(prune.custom_from_mask(a, "weight", ones))
len(list(a._forward_pre_hooks.values())[0]), run(a)
state(prune.remove(a, "weight"))
[b := linear(), c := linear(3, 2)] and None
prune.global_unstructured([(b, "weight"), (c, "weight")], prune.L1Unstructured, amount=0.3)
state(b), state(c)
prune.global_unstructured([(b, "weight"), (c, "weight")], prune.L1Unstructured, amount=2)
state(b), state(c)
""",
    "errors": """
prune.l1_unstructured(linear(), "weight", 9)
prune.l1_unstructured(linear(), "weight", -1)
prune.l1_unstructured(linear(), "weight", 1.5)
prune.l1_unstructured(linear(), "weight", "a")
prune.l1_unstructured(linear(), "weigh", 1)
prune.l1_unstructured(linear(), "weight", 1, importance_scores=torch.ones(1))
prune.ln_structured(linear(), "weight", 1, n=2, dim=3)
prune.remove(linear(), "weight")
prune.global_unstructured(3, prune.L1Unstructured, amount=2)
prune.global_unstructured([(linear(), "weight")], prune.LnStructured, amount=1, n=2)
prune.BasePruningMethod()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pruning(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])
