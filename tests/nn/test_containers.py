"""Containers: results, errors and texts are torch's."""

from collections import OrderedDict

import pytest

import offgrad
from offgrad import nn
from tests.nn.programs import same_on_torch

SETUP = """
from collections import OrderedDict
I = nn.Identity
T = torch.ones
s = nn.Sequential(I(), nn.ReLU(), nn.Tanh())
o = nn.Sequential(OrderedDict(a=I(), b=nn.ReLU(), c=nn.Tanh()))
l = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1), nn.ReLU(), nn.ReLU(), I()])
d = nn.ModuleDict({"a": I()})
pl = nn.ParameterList([nn.Parameter(T(2)), T(3), "x", 5])
pd = nn.ParameterDict({"a": T(2), "b": nn.Parameter(T(1)), "c": 3})
"""

PROGRAMS = {
    "Sequential": """
s[5]
s + 3
s * 0
s * 1.0
2 * s
s.insert(5, I())
s.insert(0, 3)
s.insert(-1, nn.GELU())
s.pop(0)
s.pop(slice(0, 1))
s
s.append(3)
s.extend(3)
s.__iadd__([1])
nn.Sequential(3)
nn.Sequential([I()])
s("a", "b")
s.__setitem__(9, I())
s.__imul__(2)
s["a"]
o[1:]
o.a
o.__delitem__(0)
o
nn.Sequential(OrderedDict(a=I())) + nn.Sequential(nn.ReLU())
o.__iadd__(s)
I() in s
nn.Sequential(None)
nn.Sequential()(3)
""",
    "ModuleList": """
l
l[-9]
l[1:3]
l["a"]
l.insert(1, nn.Tanh())
l.pop(-1)
l.pop(9)
l.extend(3)
l + [I()]
l + 3
l(1)
l.append(3)
l.__setitem__(0, None)
l.__delitem__(slice(0, 2))
l
nn.ModuleList()
nn.ModuleList(3)
l.__iadd__([I()])
nn.ModuleList([None])
""",
    "ModuleDict": """
d
d["b"]
d.pop("a")
d.pop("a")
d.update([("x", I()), ("y", nn.ReLU())])
d
d.update([1])
d.update([(1,)])
d.update(3)
d.update({3: I()})
d.__delitem__("q")
list(d.items()), list(d.keys()), list(d.values())
d.clear()
d.x
nn.ModuleDict([["a", I()]])
nn.ModuleDict({"keys": I()})
d(1)
nn.ModuleDict(OrderedDict(b=I(), a=I()))
nn.ModuleDict(a=I())
d.update(nn.ModuleDict({"c": I()})), d
""",
    "ParameterList": """
pl
pl[9]
pl[-1]
pl[1:3]
pl.extend([T(1)])
pl.extend(T(2))
pl + [3]
pl.__setitem__(0, T(2, 2))
pl.__setitem__(slice(0, 1), 3)
pl(1)
list(pl.state_dict())
pl.extend(3)
len(pl)
nn.ParameterList(T(2, 2))
nn.ParameterList()
nn.ParameterList(3)
nn.ParameterList([nn.ParameterList([T(1)])])
pl.append(7)
nn.ParameterList(p for p in [T(1)])
""",
    "ParameterDict": """
pd
pd["q"]
pd.get("q", 4), pd.get("c")
pd.setdefault("z", T(1)), pd.setdefault("c", 4)
pd.popitem()
pd.pop("a")
list(pd | {"n": T(1)}), list({"n": T(1)} | pd)
list(reversed(pd)), list(pd.copy())
pd.__ior__({"n": T(1)})
nn.ParameterDict.fromkeys(["a"])
list(pd.fromkeys(["a", "b"], T(1)))
pd.update(3)
pd.update([("x", T(1))])
pd.update([1])
pd.update([(1, 2, 3)])
pd.__delitem__("x")
list(pd.items()), list(pd.values()), list(pd.keys())
pd.state_dict()["b"]
pd(1)
"b" in pd, len(pd)
pd.clear()
pd.pop("x")
pd.popitem()
""",
    "Container": "nn.Container(a=I())",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_containers(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


def test_the_names_of_modules_follow_the_container() -> None:
    layers = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3))
    layers.insert(1, nn.ReLU())
    assert list(layers.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    del layers[0]
    assert list(layers.state_dict()) == ["1.weight", "1.bias"]
    with pytest.raises(ValueError, match=r"extend\(\)"):
        layers + [nn.ReLU()]
    with pytest.warns(FutureWarning, match="nn.Container"):
        nn.Container()


def test_parameters_of_lists_train() -> None:
    weights = nn.ParameterList([offgrad.ones(2) for _ in range(2)])
    (weights[0] + weights[1]).sum().backward()
    assert [each.grad.tolist() for each in weights.parameters()] == [[1, 1], [1, 1]]  # type: ignore[union-attr]


def test_a_dict_of_parameters_is_taken_in_sorted_order() -> None:
    values = {"b": offgrad.ones(1), "a": offgrad.ones(1)}
    found = offgrad.nn.ParameterDict()
    found.update(values)
    assert [*found] == ["a", "b"]
    found = offgrad.nn.ParameterDict()
    found.update(OrderedDict(values))
    assert [*found] == ["b", "a"]
