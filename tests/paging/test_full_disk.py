"""A real file system without space, in the middle of an optimizer's step."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import StoreError, StoreFullError

import offgrad
from offgrad import checkpoint, nn, optim
from tests.paging.test_faults import is_untouched, same, values

pytestmark = pytest.mark.usefixtures("kind_of_cache")

WIDTH = 512
PAGE = WIDTH * WIDTH * 4  # larger than what stores pack together


class Drive:
    """A file system whose free space a file takes, but for some pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def leave(self, pages: int) -> None:
        """Leave room for so many pages."""
        self.free()
        with open(self._ballast, "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(PAGE // 16)):
                    pass
            file.truncate(max(0, file.tell() - pages * PAGE))

    def free(self) -> None:
        """Take no space."""
        self._ballast.unlink(missing_ok=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Drive]:
    """Mount a file system of 128 MiB; skip where that is not allowed."""
    path = tmp_path / "drive"
    path.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(path)]
    else:
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(128 << 20)
        with contextlib.suppress(OSError):
            subprocess.run(
                ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)], check=False
            )
        command = ["mount", "-o", "loop", str(image), str(path)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip(f"this user may not mount {request.param}")
    try:
        yield Drive(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def prepared(directory: Path | None) -> Any:
    """Return a model with gradients, and an optimizer that has no state yet."""
    offgrad.manual_seed(3)
    context: Any = contextlib.nullcontext()
    if directory is not None:
        context = offgrad.offload_model("disk", window=4 * PAGE, directory=str(directory))
    with context:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    model(offgrad.ones(2, WIDTH)).square().sum().backward()
    return model, optimizer


def test_a_full_file_system_in_the_middle_of_a_step(drive: Drive) -> None:
    plain, other = prepared(None)
    before = values(plain, other)
    other.step()
    after = values(plain, other)
    partly = 0
    for room in range(0, 10, 2):
        folder = drive.path / str(room)  # the store of one folder keeps its file
        folder.mkdir()
        model, optimizer = prepared(folder)
        drive.leave(room)
        error = None
        for _ in range(2):  # again without space
            try:
                optimizer.step()
                error = None
                break
            except StoreFullError as caught:
                error = caught.with_traceback(None)
        drive.free()
        if error is not None:
            now = values(model, optimizer)
            done = sum(same(*each) for each in zip(now, after, strict=True))
            for each, old, new in zip(now, before, after, strict=True):
                assert same(each, new) or is_untouched(each, old)
            notes = " ".join(getattr(error, "__notes__", []))
            assert (f"updated {done} of {len(now)} parameters" in notes) == (done > 0)
            partly += done > 0
            optimizer.step()
        now = values(model, optimizer)
        assert all(same(*each) for each in zip(now, after, strict=True)), room
    assert partly


def test_a_full_file_system_under_a_checkpoint(drive: Drive, tmp_path: Path) -> None:
    model, optimizer = prepared(drive.path)
    expected = values(model, optimizer)
    path = drive.path / "run.pt"
    checkpoint.save(path, model=model, optimizer=optimizer)
    content = path.read_bytes()
    drive.leave(2)
    for background in (False, True):
        with pytest.raises((OSError, StoreError)):
            checkpoint.save(path, background=background, model=model, optimizer=optimizer).wait()
        assert path.read_bytes() == content
        assert {each.name for each in drive.path.glob("*run*")} == {"run.pt"}
    drive.free()
    now = values(model, optimizer)
    assert all(same(*each) for each in zip(now, expected, strict=True))
