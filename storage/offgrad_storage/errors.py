"""The errors of stores. Messages name the store, the handle, the cause and the likely fix."""

from __future__ import annotations

import copy
import errno


class StoreError(Exception):
    """Base of all errors of stores. All other arrays in the store stay readable.

    Args:
        message: the rule, and how it was broken.
        store: name of the store.
        handle: description of the stored array.
        fix: the likely fix.
    """

    def __init__(self, message: str, *, store: str = "", handle: str = "", fix: str = "") -> None:
        where = ", ".join(part for part in (store, handle) if part)
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}. {fix}" if fix else text)
        self.message = message
        self.store = store
        self.handle = handle
        self.fix = fix

    def for_array(self, handle: str) -> StoreError:
        """This error for another stored array."""
        return type(self)(self.message, store=self.store, handle=handle, fix=self.fix)


class StoreClosedError(StoreError):
    """The store was used after, or was waiting during, ``close()``."""


class ForkedStoreError(StoreError):
    """A process used a store that belongs to its parent."""


class CorruptionError(StoreError):
    """The bytes read are not the bytes written."""


class MissingDataError(StoreError):
    """Stored bytes are missing: a file or folder was removed or truncated."""


class QuotaExceededError(StoreError):
    """The quota of the store is used up."""


class StoreFullError(StoreError):
    """The disk is full, or the user's disk quota or file size limit is reached."""


_FIXES = {
    errno.ENOSPC: "Free space on that disk, or choose another directory (OFFGRAD_SPILL_DIR)",
    errno.EDQUOT: "The disk quota of this user is spent: free space or choose another directory",
    errno.EFBIG: "Raise the file size limit (ulimit -f), or choose another directory",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), or close some",
    errno.ENFILE: "The system is out of open files: close some",
    errno.EACCES: "Choose a directory that this user may write to (OFFGRAD_SPILL_DIR)",
    errno.EROFS: "Choose a directory that is not read-only (OFFGRAD_SPILL_DIR)",
    errno.ENOENT: "The directory is gone: keep it while the store is open",
    errno.EIO: "The drive reports an input/output error: check it, or choose another directory",
}


_OPENING_FIX = "Choose a place that exists or can be made, and that this user may write to"


def as_store_error(
    error: BaseException, action: str, *, store: str, handle: str = "", opening: bool = False
) -> StoreError:
    """``error`` as a StoreError whose message names ``action``; a StoreError is returned itself.

    While ``opening`` a store, a missing file is no missing data. The result and its causes have no
    tracebacks, which would keep arrays alive.
    """
    if isinstance(error, StoreError):
        return _without_tracebacks(error)
    kind = StoreError
    fix = "See its __cause__, which is printed above it"
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            kind = StoreFullError
        elif isinstance(error, FileNotFoundError) and not opening:
            kind = MissingDataError
        if opening and error.errno in (None, errno.ENOENT, errno.EEXIST, errno.ENOTDIR):
            fix = _OPENING_FIX
        else:
            fix = _FIXES.get(error.errno or 0, fix)
    elif isinstance(error, MemoryError):
        fix = "Free memory, or keep less in flight"
    cause = f"{type(error).__name__}: {error}".rstrip(": ")
    result = kind(f"{action} failed: {cause}", store=store, handle=handle, fix=fix)
    result.__cause__ = error
    return _without_tracebacks(result)


def copy_for_raise(error: StoreError) -> StoreError:
    """A copy of ``error`` to raise: raising a stored error would add tracebacks to it."""
    result = copy.copy(error)
    result.__cause__ = error.__cause__
    return result


def _without_tracebacks(error: StoreError) -> StoreError:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            todo += [each.__cause__, each.__context__]
    return error
