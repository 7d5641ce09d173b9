"""The engine `ray`: a job on Ray Data, on this machine or on a cluster.

    files -> tasks that read rows -> actors that write parts -> the process that started the job, a row per part

Ray moves blocks of rows, holds readers back while actors are busy, and starts again what died: an actor that is killed,
a node that is taken away. Results do not travel, so driver and object store hold texts and names only.

Readers are tasks and need a CPU. Actors that take them all would starve the readers, and the job would hang without a
word: so the room is counted before the job starts, and again when no part has come for PATIENCE, for a cluster may lose
a node, and with it the room.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from queue import Empty, Full, Queue
from typing import Any

from edbc import errors
from edbc.errors import DeviceError, EdbcError
from edbc.native.threads import num_cores
from edbc.reach.jobs import Job, Parts, Writer, Written, each_part, require_workers, rows_of

READERS = 1
"""CPUs that are left to tasks that read."""
_OF_READER = 0.5
"""CPUs of one: another number than an actor's, for Ray would make one stage of two that ask for the same, and then a
large file would be one actor's work."""
STORE = 1 << 28
"""Bytes of the object store that is started here: rows are texts."""
PATIENCE = 60.0
"""Seconds without a part after which a job ends, if its cluster has lost the room for it."""
_BLOCKS = 200
"""Blocks of file names at most."""


def run_ray(job: Job, workers: int | None, address: str | None) -> Parts:
    """Every part as it is written. Raises what a worker raised, DeviceError without Ray or when it gives up."""
    try:
        import ray
    except ImportError:
        raise DeviceError("ray: expected Ray here, got none; install edbc[reach], or use --engine processes") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(ray, address)
    try:
        size = _workers(ray, workers)
        with closing(watched(_parts(_dataset(ray, job, size)), lambda: _lost(ray, size))) as parts:
            yield from parts
    except (EdbcError, KeyboardInterrupt, GeneratorExit):
        if is_ours:  # threads of Ray Data's tell by tracebacks that Ray is gone
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        raise
    except Exception as error:
        raise _reason(error) from None
    finally:
        if is_ours:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    """Join the cluster at an address, or start one here."""
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    try:
        if address is None:
            # "local": without an address Ray would join whatever cluster it finds here
            ray.init("local", num_cpus=max(2, num_cores()), object_store_memory=STORE, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise DeviceError(
            f"ray: expected a cluster at {address or 'this machine'}, got: {error}; check --address"
        ) from None


def _workers(ray: Any, workers: int | None) -> int:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    left = cpus - READERS
    size = max(1, left) if workers is None else workers
    require_workers(size, left, f"{size} workers of 1 CPU and {READERS} CPU for reading are {size + READERS}, and the "
                    f"cluster has {cpus}")  # fmt: skip
    return size


def _dataset(ray: Any, job: Job, size: int) -> Any:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = job.keep_order
    context.log_internal_stack_trace_to_stdout = False
    files = [{"number": number, "path": path} for number, path in enumerate(job.files)]
    names = ray.data.from_items(files, override_num_blocks=min(len(files), _BLOCKS))
    rows = names.map_batches(_read, fn_kwargs={"by_line": job.by_line}, batch_size=None, num_cpus=_OF_READER)
    return rows.map_batches(
        Writer, fn_constructor_kwargs=job.predictor, batch_size=job.batch_size if job.by_line else 1,
        compute=ray.data.ActorPoolStrategy(size=size), num_cpus=1,
    )  # fmt: skip


def _parts(dataset: Any) -> Parts:
    for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
        yield from each_part(batch)


def _lost(ray: Any, size: int) -> str:
    """What the cluster has no room for any more; empty where it has."""
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if size + READERS <= cpus:
        return ""
    return (
        f"ray: expected {size} CPUs for workers and {READERS} for reading, got {cpus} since a node went away; start "
        "again with fewer --workers"
    )


def watched(parts: Parts, lost: Callable[[], str]) -> Parts:
    """The parts, which a thread waits for. Raises what that raises, and DeviceError when none comes for PATIENCE and
    `lost` says why."""
    found: Queue[Written | Exception | None] = Queue(1)
    ended = threading.Event()

    def give(one: Written | Exception | None) -> None:
        while not ended.is_set():
            with suppress(Full):
                found.put(one, timeout=0.2)
                return

    def wait_for() -> None:
        try:
            for part in parts:
                give(part)
                if ended.is_set():
                    return
            give(None)
        except Exception as error:
            give(error)
        finally:
            parts.close()

    threading.Thread(target=wait_for, daemon=True, name="edbc parts").start()
    try:
        while (one := _next(found, lost)) is not None:
            if isinstance(one, Exception):
                raise one
            yield one
    finally:
        ended.set()


def _next(found: Queue[Written | Exception | None], lost: Callable[[], str]) -> Written | Exception | None:
    while True:
        try:
            return found.get(timeout=PATIENCE)
        except Empty:
            if why := lost():
                raise DeviceError(why) from None


def _read(files: dict[str, Any], by_line: bool) -> Iterator[dict[str, Any]]:
    """In a task: rows of some files, a block at a time."""
    for number, path in zip(files["number"].tolist(), files["path"].tolist(), strict=True):
        yield from rows_of(path, number, by_line)


def _reason(error: Exception) -> EdbcError:
    """What edbc raised in a worker, which comes as text, or one line of what Ray says."""
    text = str(error)
    for name, message in reversed(re.findall(r"^(?:edbc\.errors\.)(\w+): (.+)$", text, re.MULTILINE)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, EdbcError):
            return kind(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return DeviceError(f"ray: {type(error).__name__}: {lines[-1] if lines else 'no reason given'}; see /tmp/ray")
