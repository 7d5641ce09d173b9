"""Writing files whole or not at all: what reads a file sees what it held before or all of what is written.

The data goes to a temporary file of its own in the same folder, to the disk, and is then renamed over the target; a
full disk, an interrupt or a second process that writes the same file leave no half-written one. A symbolic link is
followed. A device or a pipe is refused: renaming over `/dev/null` would replace it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace_file(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Give `path` the content that `write` puts into the file that it is called with.

    Raises OSError with the reason, or what `write` raises; then `path` is as it was and no temporary file remains.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(_mode_of(target))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode_of(path: Path) -> int:
    """Permissions of the file that is replaced, or those of a new file; a temporary file is private."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
