"""Functions take PyTorch's arguments by PyTorch's names, in PyTorch's order, with its defaults."""

import inspect
import warnings
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

MODULES = [
    *("nn.functional", "nn.init", "nn.utils", "nn", "func", "autograd.functional"),
    *("optim", "optim.lr_scheduler", "utils.data", "distributions"),
]
OTHER = {"Module", "ModuleWrapper", "Parameter", "Buffer", "UninitializedParameter"}
"""Classes that check their arguments themselves."""


def _signature(function: Any) -> list[Any] | None:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(each.kind in kinds for each in found):
        return None
    return [each for each in found if not each.name.startswith("_")]


def _pairs() -> list[Any]:
    pairs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in MODULES:
            theirs, ours = torch, offgrad
            for part in path.split("."):
                theirs, ours = getattr(theirs, part), getattr(ours, part)
            for name in dir(theirs):
                one, other = getattr(theirs, name), getattr(ours, name, None)
                if name.startswith("_") or name in OTHER or not callable(one):
                    continue
                if _signature(one) and callable(other) and _signature(other):
                    pairs.append(pytest.param(one, other, id=f"{path}.{name}"))
    return pairs


@pytest.mark.parametrize(("theirs", "ours"), _pairs())
def test_parameters(theirs: Any, ours: Any) -> None:
    wanted = _signature(theirs)
    found = _signature(ours)
    assert wanted is not None
    assert found is not None
    names = [each.name for each in wanted]
    assert [each.name for each in found if each.name in names] == names
    defaults = {each.name: each.default for each in wanted}
    for each in found:
        wanted_default = defaults.get(each.name, each.default)
        if isinstance(wanted_default, (int, float, str, bool, type(None))):
            assert each.default == wanted_default or each.default is None, each.name
