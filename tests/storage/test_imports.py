"""Imports that run when a program asks for a name: `offgrad_storage._imports`."""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from offgrad_storage import _imports

from tests.forked import run_in_child

PACKAGE = """
from typing import TYPE_CHECKING
from offgrad_storage._imports import lazy

if TYPE_CHECKING or not lazy(__name__):
    from some_package import other
    from some_package.numbers import (
        ONE,
        TWO as SECOND,  # a comment
    )

__all__ = ["ONE", "SECOND", "other"]

from_here = True
"""
NUMBERS = "import time\n\ntime.sleep(0.01)\nONE, TWO = object(), 2\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Import a package with lazy names."""
    folder = tmp_path / "some_package"
    folder.mkdir()
    for name, text in (("__init__", PACKAGE), ("numbers", NUMBERS), ("other", "")):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OFFGRAD_IMPORTS", raising=False)
    yield lambda: importlib.import_module("some_package")
    for name in [each for each in sys.modules if each.startswith("some_package")]:
        del sys.modules[name]
    _imports.origins.pop("some_package", None)


def is_loaded(name: str) -> bool:
    return f"some_package.{name}" in sys.modules


def test_a_module_is_imported_at_the_first_use_of_a_name(load: Callable[[], ModuleType]) -> None:
    package = load()
    assert set(dir(package)) >= {"ONE", "SECOND", "other", "from_here", "__name__"}
    assert not is_loaded("numbers")
    assert package.SECOND == 2
    assert is_loaded("numbers")
    assert "SECOND" in vars(package)
    assert not is_loaded("other")
    assert package.other is sys.modules["some_package.other"]


def test_a_star_import_gets_all_names(load: Callable[[], ModuleType]) -> None:
    load()
    found: dict[str, object] = {}
    exec("from some_package import *", found)
    assert {"ONE", "SECOND", "other"} <= set(found)


def test_other_names_are_missing(load: Callable[[], ModuleType]) -> None:
    with pytest.raises(AttributeError, match=r"'some_package' has no attribute 'TWO'"):
        load().TWO
    with pytest.raises(ImportError, match="cannot import name 'THREE'"):
        exec("from some_package import THREE")


def test_threads_get_the_same_object(load: Callable[[], ModuleType]) -> None:
    package, barrier = load(), threading.Barrier(4)
    found: set[object] = set()

    def use() -> None:
        barrier.wait()
        found.add(package.ONE)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 1


def test_a_fork_waits_for_the_import_of_another_thread(load: Callable[[], ModuleType]) -> None:
    package = load()
    thread = threading.Thread(target=lambda: package.ONE)
    thread.start()
    while not is_loaded("numbers"):
        time.sleep(0)
    run_in_child(lambda: package.SECOND)
    thread.join()
    assert not _imports._importing


@pytest.mark.parametrize("why", ["asked for", "no source", "no file"])
def test_imports_run_at_once(
    load: Callable[[], ModuleType], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def no_file(*_: object) -> None:
        raise ImportError

    if why == "asked for":
        monkeypatch.setenv("OFFGRAD_IMPORTS", "eager")
    else:
        source = no_file if why == "no file" else lambda *_: None
        monkeypatch.setattr(SourceFileLoader, "get_source", source)
    package = load()
    assert is_loaded("numbers")
    assert vars(package)["SECOND"] == 2
    assert "__getattr__" not in vars(package)
