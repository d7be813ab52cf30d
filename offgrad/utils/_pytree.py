"""Nested containers as trees: ``torch.utils._pytree``, as far as programs use it."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "LeafSpec",
    "PyTree",
    "TreeSpec",
    "register_pytree_node",
    "tree_all",
    "tree_any",
    "tree_flatten",
    "tree_iter",
    "tree_leaves",
    "tree_map",
    "tree_map_",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]

PyTree = Any


class _Kind(NamedTuple):
    """How containers of one class come apart, and together again from parts and the rest."""

    flatten: Callable[[Any], tuple[list[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]


class TreeSpec(NamedTuple):
    """The structure of a tree.

    Attributes:
        type: the class of the container; None for a leaf.
        context: what it holds beside its parts, such as keys.
        children_specs: the structures of its parts.
    """

    type: Any
    context: Any
    children_specs: list["TreeSpec"]

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.type is None else sum(each.num_leaves for each in self.children_specs)

    def is_leaf(self) -> bool:
        """Return whether the tree is a leaf."""
        return self.type is None


def LeafSpec() -> TreeSpec:
    """Return the structure of a leaf."""
    return TreeSpec(None, None, [])


def _of_dict(tree: Any) -> tuple[list[Any], Any]:
    return list(tree.values()), list(tree)


_kinds: dict[type, _Kind] = {
    tuple: _Kind(lambda tree: (list(tree), None), lambda parts, _: tuple(parts)),
    list: _Kind(lambda tree: (list(tree), None), lambda parts, _: list(parts)),
    deque: _Kind(lambda tree: (list(tree), tree.maxlen), deque),
    dict: _Kind(_of_dict, lambda parts, keys: dict(zip(keys, parts, strict=True))),
    OrderedDict: _Kind(_of_dict, lambda parts, keys: OrderedDict(zip(keys, parts, strict=True))),
    defaultdict: _Kind(
        lambda tree: (list(tree.values()), (tree.default_factory, list(tree))),
        lambda parts, rest: defaultdict(rest[0], zip(rest[1], parts, strict=True)),
    ),
}
_named_tuple = _Kind(lambda tree: (list(tree), type(tree)), lambda parts, kind: kind(*parts))


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[list[Any], Any]],
    unflatten_fn: Callable[[Iterable[Any], Any], Any],
    **_: Any,
) -> None:
    """Make a class a container.

    Args:
        cls: the class; subclasses are not containers.
        flatten_fn: returns the parts of one, and the rest.
        unflatten_fn: makes one of parts and a rest.
        **_: how PyTorch serialises structures: accepted.

    Raises:
        ValueError: if it is one already.
    """
    if cls in _kinds:
        raise ValueError(f"{cls} is already registered as pytree node")
    _kinds[cls] = _Kind(flatten_fn, unflatten_fn)


def _kind_of(tree: Any, is_leaf: Callable[[Any], bool] | None) -> _Kind | None:
    if is_leaf is not None and is_leaf(tree):
        return None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _named_tuple
    return _kinds.get(type(tree))


def tree_flatten(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a tree in order, and its structure.

    Args:
        tree: containers in containers; what is no container is a leaf.
        is_leaf: says of a container that it is a leaf.
    """
    kind = _kind_of(tree, is_leaf)
    if kind is None:
        return [tree], LeafSpec()
    parts, context = kind.flatten(tree)
    leaves: list[Any] = []
    specs = []
    for part in parts:
        found, spec = tree_flatten(part, is_leaf)
        leaves += found
        specs.append(spec)
    return leaves, TreeSpec(type(tree), context, specs)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """Return the tree of a structure with `leaves`.

    Raises:
        ValueError: for another number of leaves.
    """
    values = list(leaves)
    if len(values) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten needs as many leaves as the structure has, {treespec.num_leaves}, got "
            f"{len(values)}"
        )
    return _built(iter(values), treespec)


def _built(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    parts = [_built(leaves, each) for each in spec.children_specs]
    is_named = issubclass(spec.type, tuple) and hasattr(spec.type, "_fields")
    kind = _named_tuple if is_named else _kinds[spec.type]
    return kind.unflatten(parts, spec.context)


def tree_iter(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Return an iterator over the leaves."""
    return iter(tree_leaves(tree, is_leaf))


def tree_leaves(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """Return the structure."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(
    func: Callable[..., Any],
    tree: PyTree,
    *rests: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """Return the tree with ``func(leaf, ...)`` for each leaf, and those of `rests` in its place.

    Raises:
        ValueError: if a tree of `rests` has another structure.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [leaves]
    for rest in rests:
        found, other = tree_flatten(rest, is_leaf)
        if other != spec:
            raise ValueError(f"tree_map needs trees of one structure, got {spec} and {other}")
        columns.append(found)
    return _built(iter([func(*each) for each in zip(*columns, strict=True)]), spec)


def tree_map_(
    func: Callable[..., Any],
    tree: PyTree,
    *rests: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """Call `func` for each leaf, as `tree_map`; return the tree."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_only(
    type_or_types: Any,
    func: Callable[[Any], Any],
    tree: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """Return the tree with ``func(leaf)`` for each leaf of a type; others stay.

    Args:
        type_or_types: a type, a tuple of them, or a function that says whether a leaf is meant.
        func: of a leaf.
        tree: any tree.
        is_leaf: as for `tree_flatten`.
    """
    is_meant = (
        (lambda leaf: isinstance(leaf, type_or_types))
        if isinstance(type_or_types, (type, tuple))
        else type_or_types
    )
    return tree_map(lambda leaf: func(leaf) if is_meant(leaf) else leaf, tree, is_leaf=is_leaf)


def tree_all(
    pred: Callable[[Any], bool], tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> bool:
    """Return whether `pred` is true of all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(
    pred: Callable[[Any], bool], tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> bool:
    """Return whether `pred` is true of any leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))
