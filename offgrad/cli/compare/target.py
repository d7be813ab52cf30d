"""What `offgrad compare` is asked to train, checked before any worker starts."""

import importlib.util
import sys
from difflib import get_close_matches
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
    # The top package only: finding a module inside it would run the package.
    top = parts[0]
    if top in sys.modules or (Path(top).is_dir() or Path(f"{top}.py").is_file()):
        return
    if importlib.util.find_spec(top) is None:
        raise ValueError(f"no module named {top!r} in this folder or among the installed packages")
