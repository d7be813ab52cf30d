"""The text and its batches."""

import hashlib
import zlib
from pathlib import Path

import numpy as np
import pytest

from offgrad.cli.compare import dataset
from offgrad.cli.compare.dataset import batch, load_text

DIGEST = "768fecee28cab25bff8c62a8882abbb895ad3455ab862a24067dd90035ad5467"


def test_the_bundled_text_is_the_same_everywhere() -> None:
    text = load_text(None)
    assert text.dtype == np.uint8
    assert text.size == 1 << 19
    assert hashlib.sha256(text.tobytes()).hexdigest() == DIGEST
    assert 0.1 < len(zlib.compress(text.tobytes())) / text.size < 0.3, "neither noise nor a loop"


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / ".hidden").write_bytes(b"no")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(b"\x00\xff")
    assert load_text(tmp_path / "b.txt").tobytes() == b"second"
    assert load_text(tmp_path).tobytes() == b"second\x00\xff"


def test_reading_stops_at_the_maximum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MAX_NBYTES", 10)
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 6)
    assert load_text(tmp_path).tobytes() == b"aaaaaabbbb"


@pytest.mark.parametrize("content", [None, b""])
def test_nothing_to_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="does not exist" if content is None else "no text"):
        load_text(path)


def test_batches_depend_on_seed_and_step_alone() -> None:
    words = np.arange(200, dtype=np.uint8)
    tokens, targets = batch(words, 3, batch=50, context=10, seed=7)
    assert tokens.shape == targets.shape == (50, 10)
    assert tokens.dtype == targets.dtype == np.int64
    np.testing.assert_array_equal(tokens + 1, targets)
    np.testing.assert_array_equal(batch(words, 3, 50, 10, 7)[0], tokens)
    assert (batch(words, 4, 50, 10, 7)[0] != tokens).any()
    assert (batch(words, 3, 50, 10, 8)[0] != tokens).any()


def test_the_shortest_text() -> None:
    tokens, targets = batch(np.arange(5, dtype=np.uint8), 0, batch=3, context=4, seed=0)
    assert tokens.tolist() == [[0, 1, 2, 3]] * 3
    assert targets.tolist() == [[1, 2, 3, 4]] * 3
