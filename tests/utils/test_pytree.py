"""Trees of containers, beside PyTorch's where it is installed."""

from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import pytest

from offgrad.utils import _pytree as ours


class Pair(NamedTuple):
    left: Any
    right: Any


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


TREES: list[Any] = [
    1,
    [],
    (),
    {"b": 1, "a": [2, (3, None)]},
    Pair(1, [2, Pair(3, 4)]),
    OrderedDict(b=1, a={"c": (2,)}),
    deque([1, [2]], maxlen=5),
    [Box(1), "text", {1, 2}],
]


@pytest.mark.parametrize("tree", TREES)
def test_as_pytorch(tree: Any) -> None:
    theirs = pytest.importorskip("torch.utils._pytree")
    assert ours.tree_leaves(tree) == theirs.tree_leaves(tree)
    leaves, spec = ours.tree_flatten(tree)
    assert spec.num_leaves == theirs.tree_flatten(tree)[1].num_leaves == len(leaves)
    assert ours.tree_unflatten(leaves, spec) == tree
    assert ours.tree_map(lambda x: (x, 0), tree) == theirs.tree_map(lambda x: (x, 0), tree)


def test_maps_of_several_trees_and_of_types() -> None:
    assert ours.tree_map(lambda x, y: x + y, [1, (2,)], [10, (20,)]) == [11, (22,)]
    with pytest.raises(ValueError, match="one structure"):
        ours.tree_map(lambda x, y: x, [1], (1,))
    tree = {"a": 1, "b": ["x", 2.0]}
    assert ours.tree_map_only(str, str.upper, tree) == {"a": 1, "b": ["X", 2.0]}
    assert ours.tree_map_only((int, float), lambda x: -x, tree) == {"a": -1, "b": ["x", -2.0]}
    assert ours.tree_map_only(lambda x: x == 1, str, tree) == {"a": "1", "b": ["x", 2.0]}
    seen: list[Any] = []
    assert ours.tree_map_(seen.append, tree) is tree
    assert seen == list(ours.tree_iter(tree)) == [1, "x", 2.0]
    assert ours.tree_any(lambda x: x == "x", tree)
    assert not ours.tree_all(lambda x: x == "x", tree)


def test_leaves_chosen_by_a_function() -> None:
    tree = [(1, 2), [3]]
    assert ours.tree_leaves(tree, is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]
    assert ours.tree_structure((1, 2)) == ours.tree_structure((3, 4)) != ours.tree_structure([3, 4])


def test_a_default_factory_stays() -> None:
    tree: Any = defaultdict(list, a=1)
    mapped = ours.tree_map(str, tree)
    assert mapped == {"a": "1"}
    assert mapped.default_factory is list


def test_classes_can_be_registered() -> None:
    ours.register_pytree_node(Box, lambda box: ([box.content], None), lambda parts, _: Box(*parts))
    try:
        assert ours.tree_leaves([Box([1, 2]), 3]) == [1, 2, 3]
        assert ours.tree_map(str, Box(1)).content == "1"
        with pytest.raises(ValueError, match="already registered"):
            ours.register_pytree_node(Box, lambda box: ([], None), lambda parts, _: Box(0))
    finally:
        del ours._kinds[Box]


def test_a_wrong_number_of_leaves_is_refused() -> None:
    with pytest.raises(ValueError, match="as many leaves"):
        ours.tree_unflatten([1], ours.tree_structure([1, 2]))
