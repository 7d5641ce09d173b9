"""What memory is left, known before a mini-batch takes it, and one error for when there is not enough.

Linux hands out more memory than it has and kills the process that uses it, so asking the allocator is not enough: a
large buffer is first held against what is available, which is the least of what the kernel calls available, what the
control group leaves, and what the process's own limit on address space leaves.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from edbc.errors import DeviceError

try:
    import resource
except ImportError:  # there are no limits of this kind outside of Unix
    resource = None  # type: ignore[assignment]

WORTH_ASKING = 1 << 28
"""Bytes of a buffer below which looking is not worth its 50 microseconds."""
_REMEDY = "use a smaller --batch-size, or smaller instances"
_SIZE = r"[\d.]+ (?:bytes|[KMGT]iB)"
"""As torch writes it."""
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Bytes that this process may still take; None where nothing tells."""
    known = [left for left in (_of_machine(), _of_control_group(), _of_address_space()) if left is not None]
    return max(0, min(known)) if known else None


def require_memory(size: int, what: str) -> None:
    """Raise DeviceError when `what` needs more bytes than are available."""
    if size < WORTH_ASKING:
        return
    left = available_bytes()
    if left is not None and size > left:
        raise _out_of_memory(what, f"{size:,} bytes")


class MemoryErrors:
    """Python's and torch's own errors of a failed allocation become the one of this module. Every mini-batch enters it
    a few times; a generator would take 2.5 times as long (by hand)."""

    __slots__ = ("what",)

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MemoryError):
            raise _out_of_memory(self.what, "more memory") from None
        if isinstance(error, RuntimeError) and is_failed_allocation(error):
            raise _on_device(self.what, str(error)) or _on_host(self.what, str(error)) from None


def _on_host(what: str, message: str) -> DeviceError:
    asked = re.search(r"allocate (\d+) bytes", message)
    return _out_of_memory(what, f"{int(asked.group(1)):,} more bytes" if asked else "more memory")


def _on_device(what: str, message: str) -> DeviceError | None:
    """What torch's allocator of a GPU tells: that memory is not the host's."""
    asked = re.search(rf"allocate ({_SIZE})", message)
    free = re.search(rf"(GPU \d+) has a total capacity of {_SIZE} of which ({_SIZE}) is free", message)
    if asked is None or free is None:
        return None
    return DeviceError(
        f"out of memory for {what}: expected {asked[1]} more on {free[1]}, got {free[2]} available; {_REMEDY}"
    )


def _out_of_memory(what: str, needed: str) -> DeviceError:
    left = available_bytes()
    available = "less than that" if left is None else f"{left:,} available"
    return DeviceError(f"out of memory for {what}: expected {needed}, got {available}; {_REMEDY}")


def is_failed_allocation(error: RuntimeError) -> bool:
    """True for torch's RuntimeError when memory is short, on the host or on a device."""
    return "can't allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError"


def _of_machine() -> int | None:
    fields = _fields(Path("/proc/meminfo"))
    return 1024 * fields["MemAvailable"] if "MemAvailable" in fields else None


def _of_control_group() -> int | None:
    with suppress(OSError, ValueError):
        return int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    return None


def _of_address_space() -> int | None:
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _fields(Path("/proc/self/status")).get("VmSize")
    return None if limit == resource.RLIM_INFINITY or used is None else limit - 1024 * used


def _fields(path: Path) -> dict[str, int]:
    """`Name:   123 kB` lines as numbers."""
    with suppress(OSError):
        return {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.M)}
    return {}
