"""A script or module of the user, run as ``python`` runs it.

A command returns a function that does so: `offgrad.cli.main` calls it once click and the handlers
of signals are out of the way.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from io import open_code
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from offgrad.cli.errors import BadValue


class Script:
    """A file, a folder or ZIP archive with ``__main__.py``, or a module, and its arguments.

    The program sees what it would see without offgrad: its ``sys.argv``, ``sys.path[0]`` and
    ``__main__``. Its exceptions pass through, so that the exit status is the same, and are printed
    without the frames of offgrad.

    Args:
        name: a path, or the name of a module as of ``python -m``.
        arguments: of the program.
        is_module: whether `name` is a module.

    Raises:
        BadValue: there is no such file, or the name is no name of a module.
    """

    def __init__(self, name: str, arguments: tuple[str, ...], is_module: bool = False) -> None:
        self.name, self.arguments, self.is_module = name, arguments, is_module
        if is_module:
            if name.endswith(".py") and os.path.exists(name):
                raise BadValue(f"-m takes the name of a module: {name} without -m is a script")
            if not all(part.isidentifier() for part in name.split(".")):
                raise BadValue(f"-m takes a module such as package.module, got {name!r}")
        elif not os.path.exists(name):
            near = f"; there is {name}.py" if os.path.exists(f"{name}.py") else ""
            raise BadValue(f"there is no script {name}{near}")
        elif os.path.isdir(name) and not (Path(name) / "__main__.py").is_file():
            raise BadValue(f"{name} is a folder without __main__.py")

    def run(self) -> None:
        """Run the program to its end.

        Raises:
            BadValue: the module does not exist, or the file cannot be read.
            BaseException: any that the program raises, SystemExit included.
        """
        try:
            main, code = self._load()
            sys.modules["__main__"] = main
            # The compiled program is the next frame: exec has none.
            exec(code, main.__dict__)
        except BadValue:
            raise
        except BaseException as error:
            _print_without_our_frames(error)
            raise

    def _load(self) -> tuple[ModuleType, CodeType]:
        """Return the module ``__main__`` of the program, not yet run, and its code."""
        if self.is_module:
            sys.argv = ["-m", *self.arguments]
            _replace_first_path(os.getcwd())
            spec: ModuleSpec | None = _find_module(self.name)
        elif os.path.isdir(self.name) or _is_archive(self.name):
            sys.argv = [self.name, *self.arguments]
            place = os.path.abspath(self.name)
            _replace_first_path(place)
            spec = PathFinder.find_spec("__main__", [place])
        else:
            sys.argv = [self.name, *self.arguments]
            _replace_first_path(os.path.dirname(os.path.realpath(self.name)))
            return self._load_file()
        if spec is None:
            raise BadValue(f"{self.name} has no module __main__")
        loader: Any = spec.loader
        code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
        if code is None:
            raise BadValue(f"{spec.name} has no Python code to run")
        main = importlib.util.module_from_spec(spec)
        main.__name__ = "__main__"
        if self.is_module:
            sys.argv[0] = spec.origin or self.name
        return main, code

    def _load_file(self) -> tuple[ModuleType, CodeType]:
        path = os.path.abspath(self.name)
        main = ModuleType("__main__")
        main.__file__ = path
        main.__dict__["__cached__"] = None
        try:
            if path.endswith(".pyc"):
                main.__loader__ = compiled = SourcelessFileLoader("__main__", path)
                return main, compiled.get_code("__main__")  # type: ignore[return-value]
            with open_code(path) as file:
                source = file.read()
        except OSError as error:
            raise BadValue(f"{self.name} cannot be read: {error.strerror}") from None
        main.__loader__ = SourceFileLoader("__main__", path)
        return main, compile(source, path, "exec", dont_inherit=True)


def _find_module(name: str) -> ModuleSpec:
    """Return the module to run, ``__main__`` of a package; its parents are imported.

    Raises:
        BadValue: it does not exist.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of an import in a package
        spec = None
    if spec is None:
        raise BadValue(f"there is no module {name}")
    return spec


def _is_archive(path: str) -> bool:
    if path.endswith((".py", ".pyc")):
        return False
    import zipfile  # at first use: it takes 10 ms

    return zipfile.is_zipfile(path)


def _replace_first_path(folder: str) -> None:
    """Put the program's folder where offgrad's own stands, as Python does without ``-P``."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def _print_without_our_frames(error: BaseException) -> None:
    """Let whatever prints the uncaught `error` see the frames of the program alone."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    hook = sys.excepthook

    def show(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        if value is error:
            traceback = frames
            value.__traceback__ = frames
        hook(kind, value, traceback)

    sys.excepthook = show


def _is_ours(traceback: TracebackType) -> bool:
    name = traceback.tb_frame.f_code.co_filename
    return name == __file__ or name.startswith("<frozen ")
