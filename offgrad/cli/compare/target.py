"""What `offgrad compare` is asked to train, checked before any worker starts."""

import ast
import importlib.util
import os
import sys
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from offgrad.cli.compare.models import MODELS

_FORMS = (
    f"a built-in model ({', '.join(MODELS)}), a script such as train.py, or package.module:step"
)


def check_target(target: str, arguments: tuple[str, ...]) -> None:
    """Check that a target is a model, a readable script, or a callable of a module that exists.

    Raises:
        ValueError: if not; the message is one line.
    """
    if target.endswith(".py"):
        _check_script(Path(target))
        return
    if arguments:
        raise ValueError(f"only a script takes arguments, got {' '.join(arguments)} for {target}")
    if ":" in target:
        _check_callable(target)
    elif target not in MODELS:
        near = get_close_matches(target, MODELS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{target!r} is not {_FORMS}{hint}")


def check_batch(batch: object, target: str, arguments: tuple[str, ...]) -> None:
    """Check that a script is told the batch size by one of its arguments.

    Raises:
        ValueError: if not; the message is one line.
    """
    if batch is None or not target.endswith(".py"):
        return
    if not any("{batch}" in each for each in arguments):
        raise ValueError(
            f"--batch: {target} learns the batch size from {{batch}} in its arguments: "
            f"offgrad compare {target} --batch {batch} -- --batch-size {{batch}}"
        )


def _check_script(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is not Python: {error}") from None


def _check_callable(target: str) -> None:
    module, _, name = target.partition(":")
    parts = module.split(".")
    if not all(part.isidentifier() for part in (*parts, *name.split("."))):
        raise ValueError(f"{target!r} is not {_FORMS}")
    spec = _find(parts)
    first = name.partition(".")[0]
    names = _names(spec)
    if names is not None and first not in names:
        near = get_close_matches(first, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{module} has no {first!r}{hint}")


def _find(parts: list[str]) -> ModuleSpec:
    """Return where a module is, without running it or a package around it.

    Raises:
        ValueError: it does not exist; the message is one line.
    """
    top = parts[0]
    loaded = getattr(sys.modules.get(top), "__spec__", None)
    # A worker looks in this folder first.
    spec = loaded or PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    spec = spec or importlib.util.find_spec(top)
    if spec is None:
        raise ValueError(f"no module named {top!r} in this folder or among the installed packages")
    for number in range(2, len(parts) + 1):
        inner = ".".join(parts[:number])
        spec = PathFinder.find_spec(inner, spec.submodule_search_locations or [])
        if spec is None:
            raise ValueError(f"no module named {inner!r}")
    return spec


_DYNAMIC = {"__getattr__", "globals", "exec", "setattr", "vars", "locals"}


def _names(spec: ModuleSpec) -> set[str] | None:
    """Return all names that a module's source binds anywhere; None if that cannot be known."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the worker says what is wrong with it
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return None if found & (_DYNAMIC | {"*"}) else found
