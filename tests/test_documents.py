"""Links and repository paths in the documents lead to files that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "storage/README.md",
    *sorted(f"docs/adr/{path.name}" for path in (ROOT / "docs/adr").glob("*.md")),
]
FOLDERS = ("offgrad/", "storage/", "tests/", "docs/", "benchmarks/", "examples/", ".ci/")

# A code block begins and ends with a fence; its programs and commands are tested elsewhere.
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)

# Former paths that a document names on purpose, as the history in the changelog may.
OLD_PATHS: set[tuple[str, str]] = set()  # (document, path)


def prose(document: str) -> str:
    return FENCED.sub("", (ROOT / document).read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = HEADING.findall(FENCED.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def dead_links(document: str) -> Iterator[str]:
    for target in LINK.findall(prose(document)):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield target


def mentioned_paths(document: str) -> Iterator[str]:
    """Yield the words in backticks that look like paths from the root of the repository.

    A path may be a pattern (``tests/parity/test_module_*``), or name a test (``FILE::test``).
    """
    for code in CODE.findall(prose(document)):
        for word in code.split():
            path = word.strip("(),;:'\"").partition("::")[0]
            if path.startswith(FOLDERS) and not re.search(r"[<>{}$=]", path):
                yield path


def dead_paths(document: str) -> Iterator[str]:
    for path in mentioned_paths(document):
        if (document, path) not in OLD_PATHS and not any(ROOT.glob(path.rstrip("/"))):
            yield path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    assert list(dead_links(document)) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    assert list(dead_paths(document)) == []


def test_decisions_are_numbered_without_gaps() -> None:
    paths = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1))
    for number, path in enumerate(paths, 1):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. ")


def test_dead_links_and_paths_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "# A page\n[gone](gone.md) [here](#a-page) [no](#no) `tests/gone.py` `pytest tests/a*`\n"
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/a.py").touch()
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert list(dead_links("page.md")) == ["gone.md", "#no"]
    assert list(dead_paths("page.md")) == ["tests/gone.py"]
