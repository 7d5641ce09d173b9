"""The engine `processes`: a job on a pool of processes of this machine, with nothing to install.

The process that started the job reads files and hands out batches of rows, a few ahead of those that are done, so its
memory stays flat. Batches come back in any order; of several that fail, the first in the order of the input is told.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any

import torch

from edbc.errors import DeviceError
from edbc.native.threads import num_cores
from edbc.reach.jobs import Job, Parts, Writer, Written, each_part, require_workers, rows_of

AHEAD = 3
"""Batches per worker that wait or run."""
_WRITER: list[Writer] = []


def run_processes(job: Job, workers: int | None) -> Parts:
    """Every part as it is written. Raises what a worker raised, and DeviceError when one died."""
    cores = num_cores()
    workers = cores if workers is None else workers
    require_workers(workers, cores, f"{workers} workers on {cores} cores that this process may use")
    threads = max(1, cores // workers)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (job.predictor, threads))
    try:
        yield from _written(pool, job, AHEAD * workers)
    except BrokenProcessPool:
        raise DeviceError(
            "processes: expected workers that live, got one that ended (killed, or out of memory); use fewer --workers "
            "or a smaller --batch-size, or --engine ray, which starts workers again"
        ) from None
    finally:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _written(pool: ProcessPoolExecutor, job: Job, most: int) -> Iterator[Written]:
    waiting: list[Future[dict[str, Any]]] = []
    for batch in batches(job):
        waiting.append(pool.submit(_work, batch))
        if len(waiting) >= most:
            wait(waiting, return_when=FIRST_COMPLETED)
            yield from _ended(waiting)
    wait(waiting, return_when=FIRST_EXCEPTION)
    yield from _ended(waiting)


def _ended(waiting: list[Future[dict[str, Any]]]) -> Iterator[Written]:
    """Parts of batches that have ended, which are taken out. Where one failed, raises what the first in order did, for
    which those before it are waited for."""
    ended = [future for future in waiting if future.done()]
    has_failed = any(future.exception() for future in ended)
    for future in waiting if has_failed else ended:
        yield from each_part(future.result())
    waiting[:] = [future for future in waiting if future not in ended]


def batches(job: Job) -> Iterator[dict[str, list[Any]]]:
    """Rows of all files in order, `batch_size` at a time; files one by one where they are read as a whole."""
    size = job.batch_size if job.by_line else 1
    rest: dict[str, list[Any]] = {"file": [], "line": [], "text": []}
    for number, path in enumerate(job.files):
        for rows in rows_of(path, number, job.by_line):
            rest = {name: rest[name] + rows[name] for name in rest}
            while len(rest["file"]) >= size:
                yield {name: column[:size] for name, column in rest.items()}
                rest = {name: column[size:] for name, column in rest.items()}
    if rest["file"]:
        yield rest


def _begin(options: dict[str, Any], threads: int) -> None:
    """In a worker: the plan is bound once. Ctrl-C is for the process that started it, and the worker ends with that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        _WRITER.append(Writer(**options))
    except Exception as error:  # a pool hides what its initialiser raises
        _WRITER.append(error)  # type: ignore[arg-type]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    writer = _WRITER[0]
    if isinstance(writer, Exception):
        raise writer
    return writer(batch)
