"""The reading order of CONTRIBUTING is short, and none of its files refers to a later one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def reading_order() -> list[str]:
    """Return the files of the first table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[: text.index("Then, by topic")]
    return re.findall(r"^\| `([\w/.]+\.py)` \|", table, re.MULTILINE)


def module_of(file: str) -> str:
    return file.removeprefix("storage/").removesuffix(".py").replace("/", ".")


def test_an_hour_of_reading() -> None:
    files = reading_order()
    assert 5 <= len(files) <= 10
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
    assert lines <= 2000


def test_no_file_refers_to_a_later_one() -> None:
    files = reading_order()
    for index, file in enumerate(files):
        later = {module_of(each) for each in files[index + 1 :]}
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                assert not names & later, f"{file}, line {node.lineno}"
