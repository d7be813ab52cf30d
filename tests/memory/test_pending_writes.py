"""In-place changes wait for pending writes that other threads add meanwhile."""

from offgrad import memory
from offgrad.memory import Storage


class Write:
    """A pending write; once it is waited for, another thread may have added `following`."""

    def __init__(self, storage: Storage, following: "Write | None" = None) -> None:
        self.captured = False
        self._storage = storage
        self._following = following

    def wait_captured(self) -> None:
        self.captured = True
        if self._following is not None:
            self._storage.add_pending_write(self._following)


def test_a_write_added_while_another_is_waited_for() -> None:
    storage = Storage(memory.zeros(10))
    second = Write(storage)
    first = Write(storage, second)
    storage.add_pending_write(first)
    storage.write("add_")
    assert first.captured
    assert second.captured
    assert storage.version == 1


class SavedLate(Storage):
    """Another thread saves it at the last moment before its version is counted up."""

    late: Write | None = None

    @property
    def version(self) -> int:
        if self.late is not None and not self.pending_writes:
            self.add_pending_write(self.late)
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        self._version = value

    _version = 0


def test_a_write_added_just_before_the_version_is_counted_up() -> None:
    storage = SavedLate(memory.zeros(10))
    storage.late = late = Write(storage)
    storage.write("add_")
    assert late.captured
    assert storage.version == 1
