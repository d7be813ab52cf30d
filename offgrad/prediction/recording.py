"""Recording: what one training step saved for backward, and when, in a file of its own.

It knows no policy: memory that only backward needs is recorded apart from all other memory, with
the moment at which the program dropped it. So `replay` can let any policy decide.
"""

import errno
import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

import numpy as np

from offgrad._checkpoint.writer import replacing
from offgrad.memory import format_nbytes
from offgrad.policies import SaveContext

VERSION = 1
"""Of the format. A reader refuses files of another."""

GZIP_MAGIC = b"\x1f\x8b"
"""The first bytes of a recording."""

_FORMAT = "offgrad recording"


class Kind(IntEnum):
    """The kind of an event; its value is in brackets."""

    MEMORY = 0
    """The bytes of all memory but that held for backward alone have changed [to so many]."""
    SAVE = 1
    """A tensor was saved [its index]."""
    FREE = 2
    """The program dropped a memory, which backward may need [its index]."""
    BEGIN = 3
    """A backward pass began [its index]."""
    USE = 4
    """Backward used a saved tensor [its index]."""
    DROP = 5
    """A saved tensor was released [its index]."""
    END = 6
    """A backward pass ended [its index]."""
    CHANGE = 7
    """The program changed a memory in place, after a save [its index]."""
    DONE = 8
    """Backward has dropped a tensor that it used [its index]."""


@dataclass(slots=True)
class SavedMemory:
    """A memory of which tensors were saved.

    Attributes:
        nbytes: its size.
        is_external: whether it is a NumPy array of the user's, which counts as no tensor memory.
    """

    nbytes: int
    is_external: bool = False


@dataclass(slots=True)
class Recipe:
    """How to compute a tensor again.

    Attributes:
        seconds: that the last operation takes.
        nbytes: of its outputs.
        inputs: of it: the index of a save, another recipe, or None for what is in memory anyway.
    """

    seconds: float
    nbytes: int
    inputs: "list[int | Recipe | None]"


@dataclass(slots=True)
class SavedTensorRecord:
    """One tensor saved for backward: the facts that policies get, and its place in memory.

    Attributes:
        op, slot, module, dtype, shape, is_parameter, is_output, made_by: see `SaveContext`.
        is_data: whether the program may hold it as well: an input, a target, a buffer.
        node_covers_storage: see `Save`.
        memory: the index of its memory.
        begin: the offset of its first element there, in bytes.
        strides: in bytes.
        recipe: how to compute it again; None if that is not possible.
        ratios: encoded bytes for each of the tensor's, by codec, as far as measured.
    """

    op: str
    slot: str
    module: str
    dtype: str
    shape: tuple[int, ...]
    is_parameter: bool
    is_output: bool
    made_by: str
    is_data: bool
    memory: int
    begin: int
    strides: tuple[int, ...]
    recipe: Recipe | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    node_covers_storage: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def key(self) -> tuple[str, str, str]:
        """Its class: op, slot and module."""
        return self.op, self.slot, self.module

    def context(self, storage: int = 0, step: int = 0, recompute_ops: int = 0) -> SaveContext:
        """Return what a policy gets to decide on; see `SaveContext`."""
        return SaveContext(
            op=self.op,
            slot=self.slot,
            module=self.module,
            dtype=np.dtype(self.dtype),
            shape=self.shape,
            nbytes=self.nbytes,
            is_parameter=self.is_parameter,
            is_output=self.is_output,
            storage=storage,
            step=step,
            made_by=self.made_by,
            recompute_ops=recompute_ops,
        )


@dataclass(slots=True)
class Recording:
    """One training step. Times count seconds from its beginning, without those of the recorder.

    Attributes:
        seconds: of the step.
        memories: of which tensors were saved.
        saves: the saved tensors, in order.
        passes: for each backward pass, the saves that it planned to use, in order.
        kinds, times, values: of the events, in order; see `Kind`.
        machine: facts of the machine, as text.
    """

    seconds: float = 0.0
    memories: list[SavedMemory] = field(default_factory=list)
    saves: list[SavedTensorRecord] = field(default_factory=list)
    passes: list[list[int]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)

    def add(self, kind: Kind, seconds: float, value: int) -> None:
        """Append an event."""
        self.kinds.append(int(kind))
        self.times.append(seconds)
        self.values.append(value)

    @property
    def saved_nbytes(self) -> int:
        """The bytes of all memories saved but parameters', each counted once."""
        held = {each.memory for each in self.saves if not each.is_parameter}
        return sum(self.memories[index].nbytes for index in held)

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, lists and dicts, ready for JSON."""
        return {"format": _FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it into a file, as compressed JSON. What was in the file stays after an error.

        Raises:
            OSError: if the file cannot be written.
        """
        if not Path(path).absolute().parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        with (
            replacing(os.fspath(path)) as file,
            gzip.open(file, "wt", encoding="utf-8", compresslevel=5) as text,
        ):
            json.dump(self.to_dict(), text, separators=(",", ":"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file that `save` wrote, or a profile that recorded saves.

        Raises:
            OSError: if there is no such file, or it cannot be read.
            ValueError: if it is no recording, is damaged, or is of another version.
        """
        try:
            data = Path(path).read_bytes()
            content = json.loads(gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data)
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError):
            raise _not_a_recording(path, "it is no JSON, or damaged") from None
        if isinstance(content, dict) and {"timeline", "spans"} <= content.keys():
            if "saves" not in content:
                raise _not_a_recording(path, "it is a profile without what steps saved")
            content = content["saves"]
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise _not_a_recording(path, "it is JSON of another kind")
        if content.get("version") != VERSION:
            found = content.get("version")
            raise ValueError(
                f"{Path(path)} is a recording of version {found!r}, and this version of offgrad "
                f"reads {VERSION}; record it again"
            )
        try:
            recording = cls(
                seconds=float(content["seconds"]),
                memories=[SavedMemory(**each) for each in content["memories"]],
                saves=[_tensor_record(each) for each in content["saves"]],
                passes=[list(map(int, each)) for each in content["passes"]],
                machine={str(key): str(value) for key, value in content["machine"].items()},
                kinds=list(map(int, content["kinds"])),
                times=list(map(float, content["times"])),
                values=list(map(int, content["values"])),
            )
            recording.check()
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as error:
            raise _not_a_recording(path, str(error) or type(error).__name__) from None
        return recording

    def check(self) -> None:
        """Raise ValueError unless all parts refer to parts that exist."""
        if not len(self.kinds) == len(self.times) == len(self.values):
            raise ValueError("its events are incomplete")
        bounds = {
            Kind.SAVE: len(self.saves), Kind.USE: len(self.saves), Kind.DROP: len(self.saves),
            Kind.DONE: len(self.saves),
            Kind.FREE: len(self.memories), Kind.CHANGE: len(self.memories),
            Kind.BEGIN: len(self.passes), Kind.END: len(self.passes),
        }  # fmt: skip
        for kind, value in zip(self.kinds, self.values, strict=True):
            bound = bounds.get(Kind(kind))
            if value < 0 or (bound is not None and value >= bound):
                raise ValueError(f"an event refers to number {value} of {bound}")
        for number, each in enumerate(self.saves):
            self._check_save(number, each)
        if any(not 0 <= each < len(self.saves) for one in self.passes for each in one):
            raise ValueError("a backward pass uses a tensor that was not saved")

    def _check_save(self, number: int, save: SavedTensorRecord) -> None:
        if not 0 <= save.memory < len(self.memories):
            raise ValueError(f"save {number} refers to memory {save.memory}")
        if any(not -1 < each < number for each in _saves_of(save.recipe)):
            raise ValueError(f"save {number} is computed from one that comes later")
        last = sum((n - 1) * step for n, step in zip(save.shape, save.strides, strict=True) if n)
        end = save.begin + last + np.dtype(save.dtype).itemsize
        whole = self.memories[save.memory].nbytes
        if save.nbytes and not 0 <= save.begin < end <= whole:
            raise ValueError(f"save {number} does not lie in its memory")

    def __repr__(self) -> str:
        return (
            f"<Recording of {len(self.saves)} saved tensors, {format_nbytes(self.saved_nbytes)}, "
            f"in {self.seconds:.3f} s>"
        )


def _tensor_record(values: Mapping[str, Any]) -> SavedTensorRecord:
    record = SavedTensorRecord(**values)
    record.shape, record.strides = tuple(record.shape), tuple(record.strides)
    record.recipe = _recipe(values["recipe"])
    record.ratios = {str(codec): float(ratio) for codec, ratio in record.ratios.items()}
    for name in (record.op, record.slot, record.module, record.made_by):
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")
    np.dtype(record.dtype)
    return record


def _recipe(values: Any) -> Recipe | None:
    if values is None:
        return None
    inputs = [each if each is None or isinstance(each, int) else _recipe(each)
              for each in values["inputs"]]  # fmt: skip
    return Recipe(float(values["seconds"]), int(values["nbytes"]), inputs)


def _saves_of(recipe: Recipe | None) -> Sequence[int]:
    """Return the indices of the saves that a recipe takes."""
    found: list[int] = []
    for each in () if recipe is None else recipe.inputs:
        found += [each] if isinstance(each, int) else _saves_of(each)
    return found


def _not_a_recording(path: str | os.PathLike[str], reason: str) -> ValueError:
    return ValueError(
        f"{Path(path)} is no recording of offgrad: {reason}. `offgrad profile --saves "
        "FILE SCRIPT` writes one, and so does save() of offgrad.profiler.profile(saves=True)"
    )
