"""Cases that reach nothing of edbc which others do not: `thin.py TESTS... > thin.txt` (`make thin`).

A case of a test is *thin* where each branch of edbc's Python that it takes is taken by `OTHERS` tests that are not, and
where of the cases of its test a third is not either. The longest are looked at first, and none that takes less than
`SHORT`. What is listed in thin.txt is slow (`conftest`); cases that are new are not until it is made anew.

Branches of native loops and of what is in tables are not seen, so tests of these are not given: of rooms that are
Python throughout alone.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import coverage
import pytest

OTHERS, SHORT = 4, 0.05


class Watched:
    """A plugin: the seconds that each test took, and its branches under its name."""

    def __init__(self, file: str):
        self.coverage = coverage.Coverage(branch=True, source=["edbc"], data_file=file, config_file=False)
        self.seconds: dict[str, float] = {}

    def pytest_collection_finish(self) -> None:
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        begin = time.process_time()
        yield
        self.seconds[item.nodeid] = time.process_time() - begin
        self.coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()


def branches(file: str) -> dict[str, set[int]]:
    """Numbers of those that each test takes, from a file of coverage's."""
    found: dict[str, set[int]] = defaultdict(set)
    numbers: dict[tuple[int, ...], int] = {}
    query = "select context, file_id, fromno, tono from arc join context on context.id = context_id where context != ''"
    for test, *branch in sqlite3.connect(file).execute(query):
        found[test].add(numbers.setdefault(tuple(branch), len(numbers)))
    return found


def thin(of: Mapping[str, set[int]], seconds: Mapping[str, float]) -> Iterator[str]:
    """See the module's docstring. Linear in the branches of all tests."""
    count = Counter(branch for taken in of.values() for branch in taken)
    left = Counter(name.partition("[")[0] for name in of)
    least = {test: -(-cases // 3) for test, cases in left.items()}
    for name in sorted(of, key=lambda name: -seconds[name]):
        test, is_case, _ = name.partition("[")
        is_long = is_case and seconds[name] > SHORT and left[test] > least[test]
        if is_long and all(count[branch] > OTHERS for branch in of[name]):
            left[test] -= 1
            count.subtract(of[name])
            yield name


def main(arguments: Iterable[str]) -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what pytest prints is no list
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "coverage")
        watched = Watched(file)
        code = pytest.main(["-q", "--every-case", "-p", "no:cacheprovider", *arguments], plugins=[watched])
        if code == 0:
            names = sorted(thin(branches(file), watched.seconds))
            os.write(out, "".join(f"{name}\n" for name in names).encode())
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
