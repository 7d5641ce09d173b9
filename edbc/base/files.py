"""Files by the names that users give: what stands there, and writing it whole or not at all.

What reads a file sees what it held before or all of what is written.

The data goes to a file in a temporary folder of its own beside the target, to the disk, and is then renamed over the
target; a full disk, an interrupt or a second process that writes the same file leave no half-written one. A symbolic
link is followed. A device or a pipe is refused: renaming over `/dev/null` would replace it.

A process that is killed in the middle leaves its temporary folder, `.NAME.RANDOM.tmp`. The next one that writes NAME
removes it: a writer holds a lock (flock) on its folder, which ends with the process however that ends, so a folder that
can be locked belongs to nobody. (A folder rather than a file, because what writes for us may make and rename files of
its own.) Between making and locking its own, a writer may lose it to such a clean-up; it looks afterwards whether the
folder is still there, and makes another when not.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from edbc.errors import EdbcError, printable

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where an abandoned folder stays
    fcntl = None  # type: ignore[assignment]

RANDOM = "????????"
"""What `tempfile` puts into names, as a pattern; `*` would find folders of files with longer names too."""

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
          stat.S_IFSOCK: "a socket"}  # fmt: skip


def one_line(path: str | os.PathLike[str]) -> str:
    """A path as errors name it: control characters escaped, '' for none, the middle left out of what no disk holds."""
    return printable(os.fsdecode(path)) or "''"


def found_at(path: str | os.PathLike[str]) -> str:
    """What stands at a path, in words: `nothing`, `a folder`, `a pipe`, or `a file` where it can be read."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.islink(path) else "nothing"
    except NotADirectoryError:
        return "a path through a file"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except ValueError:
        return "a path with a null character"
    if kind in _KINDS:
        return _KINDS[kind]
    return "a file" if os.access(path, os.R_OK) else "a file that may not be read"


def require_file(path: str | os.PathLike[str], expected: str, error: type[EdbcError], remedy: str) -> None:
    """Raise `error` with what is there unless a regular file that can be read stands at `path`."""
    found = found_at(path) if os.fspath(path) else "an empty name"
    if found != "a file":
        raise error(f"{one_line(path)}: expected {expected}, got {found}; {remedy}")


def require_target(path: str | os.PathLike[str], what: str, remedy: str, kept: Iterable[str | Path] = ()) -> None:
    """Raise EdbcError unless a file can be put at `path`: asked before long work, not after it, and never over a file
    of `kept`, which the same command reads or writes."""
    where, target = one_line(path), Path(os.path.realpath(path))
    found, folder = found_at(target), found_at(target.parent)
    if found not in ("nothing", "a file", "a file that may not be read"):
        raise EdbcError(f"{where}: expected to write {what} there, got {found}; {remedy}")
    if folder != "a folder":
        raise EdbcError(f"{where}: expected to write {what} there, got {folder} in place of its folder; {remedy}")
    if not os.access(target.parent, os.W_OK):
        raise EdbcError(f"{where}: expected to write {what} there, got a folder that may not be written to; {remedy}")
    for other in kept:
        if os.path.realpath(other) == str(target) or (found != "nothing" and _is_same(other, target)):
            raise EdbcError(
                f"{where}: expected to write {what} there, got the name of another file of this command "
                f"({one_line(other)}); {remedy}"
            )


def _is_same(path: str | Path, target: Path) -> bool:
    """True for two names of one file, hard links too."""
    try:
        return os.path.samefile(path, target)
    except (OSError, ValueError):
        return False


def replace_file(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Give `path` the content that `write` puts into the file that it is called with.

    Raises OSError with the reason, or what `write` raises; then `path` is as it was and nothing temporary remains.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    _remove_abandoned(target)
    with _temporary_folder(target) as folder:
        temporary = folder / target.name
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(_mode_of(target))
        temporary.replace(target)


def write_tensors(tensors: dict[str, Any], path: str | os.PathLike[str], what: str, remedy: str,
                  metadata: dict[str, str] | None = None) -> None:  # fmt: skip
    """Write a safetensors file of tensors that share no memory. Raises EdbcError, which says `what` cannot be written,
    and the remedy."""
    import safetensors
    from safetensors.torch import save_file

    try:
        replace_file(path, lambda temporary: save_file(tensors, temporary, metadata))
    except (OSError, safetensors.SafetensorError) as error:
        raise EdbcError(f"{path}: expected to write {what} there, got {error}; {remedy}") from None


def write_text(path: str | os.PathLike[str], text: str, what: str, remedy: str) -> None:
    """Write a text, as `write_tensors` writes tensors."""
    try:
        replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise EdbcError(f"{path}: expected to write {what} there, got: {error.strerror}; {remedy}") from None


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """A locked folder beside `target`, removed in the end."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        with _lock(folder, wait=True):
            if folder.exists():
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


def _remove_abandoned(target: Path) -> None:
    """Remove temporary folders of `target` that killed processes left."""
    for folder in target.parent.glob(f".{escape(target.name)}.{RANDOM}.tmp"):
        with _lock(folder, wait=False) as is_ours:
            if is_ours:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(folder: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a folder; says whether it is held. It is not when another process has it and we do not `wait`,
    when the folder is gone, and where there are no such locks: there nobody can take a folder for abandoned either.
    """
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _flock(handle, wait)
    finally:
        os.close(handle)


def _flock(handle: int, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _mode_of(path: Path) -> int:
    """Permissions of the file that is replaced, or those of a new file; a temporary file is private."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
