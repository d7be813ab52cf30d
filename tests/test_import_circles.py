"""No import circle, function-local imports included; those of annotations alone do not count.

import-linter's layers leave circles within a layer unseen.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import offgrad_storage
import pytest

import offgrad

LAZY = {
    "offgrad._display",
    "offgrad._checkpoint.reader",
    "offgrad._checkpoint.unpickler",
    "offgrad._checkpoint.writer",
    "offgrad.cli.compare.curve",
    "offgrad.cli.compare.plot",
    "offgrad.kernels._compilers",
    "offgrad.kernels._meta",
    "offgrad.policies",
    "offgrad.policies.base",
    "offgrad.profiler.plot",
    "offgrad.session.scope",
    "offgrad.session.session",
    "offgrad_storage.testing.machine",
    "offgrad_storage.zarr.codec",
}
"""Imported in functions, so that Matplotlib, Numba, Rich, hypothesis, zipfile and others, and the
modules of sessions and stores, are loaded when first needed.
"""


class Import:
    """One imported name in a module's source."""

    def __init__(self, importer: str, imported: str, line: int, local: bool) -> None:
        self.importer, self.imported, self.line, self.local = importer, imported, line, local

    def __str__(self) -> str:
        where = " in a function" if self.local else ""
        return f"{self.importer}, line {self.line}, imports {self.imported}{where}"


def sources() -> dict[str, Path]:
    """Return the files of both packages by module name."""
    found = {}
    for package in (offgrad, offgrad_storage):
        (folder,) = map(Path, package.__path__)
        for path in folder.rglob("*.py"):
            *parts, last = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts if last == "__init__" else [*parts, last])] = path
    return found


def imports_of(module: str, source: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield the dotted names that `source` imports, their lines and whether in a function."""

    def visit(node: ast.AST, local: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((each.name, child.lineno, local) for each in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = module.split(".")
                    above = child.level - is_package
                    package = ".".join(parts[: len(parts) - above])
                    base = f"{package}.{base}".rstrip(".")
                yield from ((f"{base}.{each.name}", child.lineno, local) for each in child.names)
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                for statement in child.orelse:
                    yield from visit(ast.Module([statement], []), local)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, local or inside)

    yield from visit(ast.parse(source), False)


def project_imports() -> list[Import]:
    """Return all imports of the project's own modules, names of a module as that module."""
    modules = sources()
    found = []
    for module, path in sorted(modules.items()):
        is_package = path.name == "__init__.py"
        for name, line, local in imports_of(module, path.read_text(), is_package):
            imported = name
            while imported and imported not in modules:
                imported = imported.rpartition(".")[0]
            if imported and imported != module:
                found.append(Import(module, imported, line, local))
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of nodes that reach each other (strongly connected, more than one)."""
    reached: dict[str, set[str]] = {}
    for node in graph:
        seen: set[str] = set()
        todo = [node]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        reached[node] = seen
    found = {
        frozenset(other for other in seen if node in reached.get(other, ()))
        for node, seen in reached.items()
        if node in seen
    }
    return sorted(map(sorted, found))


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return project_imports()


def test_no_circle(imports: list[Import]) -> None:
    graph: dict[str, set[str]] = {}
    for each in imports:
        graph.setdefault(each.importer, set()).add(each.imported)
    found = circles(graph)
    inside = [
        str(each)
        for each in imports
        if any(each.importer in circle and each.imported in circle for circle in found)
    ]
    assert not found, "\n".join(inside)


def test_imports_in_functions_are_listed(imports: list[Import]) -> None:
    local = [each for each in imports if each.local]
    assert not [str(each) for each in local if each.imported not in LAZY]


def test_imports_are_found() -> None:
    source = """
from typing import TYPE_CHECKING
from . import sibling
from .. import above
from ..other.module import name

if TYPE_CHECKING:
    import for_annotations
else:
    import at_run_time

class A:
    import in_class

def f():
    with x:
        import deep.module as alias
"""
    found = [(name, local) for name, _, local in imports_of("a.b.c", source, False)]
    assert found == [
        ("typing.TYPE_CHECKING", False),
        ("a.b.sibling", False),
        ("a.above", False),
        ("a.other.module.name", False),
        ("at_run_time", False),
        ("in_class", False),
        ("deep.module", True),
    ]
    (name, *_), *_ = imports_of("a.b", "from . import child", True)
    assert name == "a.b.child"


def test_circles_are_found() -> None:
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
    assert circles({"a": {"b"}, "b": {"c"}}) == []
