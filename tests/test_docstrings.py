"""The examples in docstrings run, and the classes that users meet first have one.

An example sees the names of its module, `offgrad` and `offgrad_storage`.
"""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import offgrad_storage
import pytest

import offgrad
import offgrad.utils.checkpoint

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Example = tuple[str, str, str, int]


def examples() -> Iterator[Example]:
    """Yield the module, qualified name, text and line of each docstring with an example.

    Sources are parsed rather than imported: collecting tests imports neither Zarr nor Matplotlib.
    """

    def visit(node: ast.AST, name: str) -> Iterator[Example]:
        if isinstance(node, Documented):
            text = ast.get_docstring(node, clean=True) or ""
            if ">>>" in text:
                yield module, name, text, getattr(node, "lineno", 1)
        for child in ast.iter_child_nodes(node):
            inner = getattr(child, "name", "") if isinstance(child, Documented) else ""
            yield from visit(child, f"{name}.{inner}".strip(".") if inner else name)

    for package in (offgrad, offgrad_storage):
        (folder,) = map(Path, package.__path__)
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text()
            if ">>>" in source:
                parts = path.relative_to(folder.parent).with_suffix("").parts
                module = ".".join(parts).removesuffix(".__init__")
                yield from visit(ast.parse(source), "")


@pytest.mark.parametrize(
    ("module", "name", "text", "line"),
    [pytest.param(*each, id=f"{each[0]}:{each[1]}".strip(":")) for each in examples()],
)
def test_example(
    module: str, name: str, text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = importlib.import_module(module)
    names = vars(loaded) | {"offgrad": offgrad, "offgrad_storage": offgrad_storage}
    test = doctest.DocTestParser().get_doctest(
        text, names, f"{module}.{name}", loaded.__file__, line
    )
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize(
    "documented",
    [
        offgrad.session.OffloadSession,
        offgrad.policies.When,
        offgrad.policies.Budget,
        offgrad.utils.checkpoint.checkpoint,
        offgrad_storage.DiskStore,
    ],
    ids=lambda each: each.__name__,
)
def test_it_has_an_example(documented: Any) -> None:
    assert ">>>" in (documented.__doc__ or ""), f"{documented.__qualname__} has no example"
