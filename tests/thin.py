"""Cases that reach nothing of edbc which others do not: `thin.py FOLDER > thin.txt` (`make thin`).

A case of a test is *thin* where all that it reaches is reached by `OTHERS` tests that are not, and where of the cases
of its test one in `PART` is not either. The longest are looked at first, and none that takes less than `SHORT`. What is
listed in thin.txt is slow (`conftest`); cases that are new are not until it is made anew.

What a test reaches are the branches of edbc's Python that it takes, and *words*, for what the same branches are given:
operations, dtypes and numbers of dimensions of types and of cells, operations of values, kinds of units, codes of
refusals, options of commands, and the kinds of arguments that a native loop is called with. Tests that start a process,
of which nothing is seen, are never thin. Nor are

- cases of `NATIVE`, whose subject are branches of native loops and of machine code, which nobody sees;
- cases of `OWN`, each of which holds what no other case does, whatever it reaches: the figures and the eager results of
  one model or program, what one page shows, the words of one refusal.

Tests that fail while they are watched are left out. Each folder's tests are run by a process of their own, and what
they reached is kept in FOLDER, so that an interruption costs one of them.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import coverage
import pytest

OTHERS, PART, SHORT = 3, 4, 0.05
NATIVE = (
    "tests/cells/arrays/", "tests/cells/kernels/", "tests/native/", "tests/run/cpu/", "tests/schedule/",
    "tests/train/backward/",
)  # fmt: skip
OWN = (
    "tests/examples/", "tests/models/", "tests/plan/", "tests/refusals/", "tests/tools/explain/test_pages.py",
    "tests/ordinary/test_ordinary.py::test_ordinary_code_gives_eager_results_and_gradients",
)  # fmt: skip
TESTS = Path(__file__).parent
WORDS = "words.json"
PROCESSES = ("subprocess.Popen", "os.fork", "os.posix_spawn")


class Watched:
    """A plugin: the seconds that each test took, and what it reached under its name."""

    def __init__(self, folder: Path):
        self.coverage = coverage.Coverage(
            branch=True, source=["edbc"], data_file=str(folder / "coverage"), config_file=False
        )
        self.file = folder / WORDS
        self.seconds: dict[str, float] = {}
        self.words: dict[str, set[str]] = {}
        self.errors: set[tuple[str, str, str]] = set()
        self.test = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """numba pickles what kernels are made of."""
        return object, ()

    def pytest_collection_finish(self) -> None:
        """edbc is loaded."""
        from numba.core.registry import CPUDispatcher

        from edbc.base.graph import NodeType
        from edbc.cells.opgraph import CellOp
        from edbc.cells.values.value import V
        from edbc.errors import EdbcError
        from edbc.native.kernelcache import _kept_kind
        from edbc.stages.graph import Unit

        self._hear(NodeType, "__init__", lambda t, *_: [t.op.split(" ")[0], *map(_kind, (*t.operands, *t.outputs))])
        self._hear(CellOp, "__init__", lambda op, *_: [f"{op.op} {_name(op.call)}", f"{op.op} {_kind(op.result)}"])
        self._hear(V, "__init__", lambda v, *_: [v.op])
        self._hear(Unit, "__init__", lambda unit, *_: [unit.kind])
        self._hear(EdbcError, "__init__", self._raised)
        self._hear(
            click.Command, "parse_args", lambda own, _, given: [f"{own.name} {x}" for x in given if x[:1] == "-"]
        )
        kept = _kept_kind(CPUDispatcher)
        kept.__call__ = CPUDispatcher.__call__
        self._hear(kept, "__call__", lambda own, *given: [" ".join([own.__name__, *map(_kind, given)])])
        sys.addaudithook(lambda event, _: self._say("", [f"process of {self.test}"]) if event in PROCESSES else None)
        self.coverage.start()

    def _raised(self, error: Exception, *_: Any) -> tuple[()]:
        self.errors.add((self.test, type(error).__name__, Exception.__str__(error)))
        return ()

    def _hear(self, kind: Any, method: str, words: Callable[..., Iterable[str]]) -> None:
        plain = getattr(kind, method)

        def heard(*arguments: Any, **keywords: Any) -> Any:
            result = plain(*arguments, **keywords)
            counts = sys.getprofile()  # what compiling counts the calls of instances with
            sys.setprofile(None)
            self._say(kind.__name__, words(*arguments))
            sys.setprofile(counts)
            return result

        setattr(kind, method, heard)

    def _say(self, of: str, words: Iterable[str]) -> None:
        self.words.setdefault(self.test, set()).update(f"{of} {word}" for word in words)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self.test = item.nodeid
        self.coverage.switch_context(self.test)
        begin = time.process_time()
        try:
            result = yield
            self.seconds[self.test] = time.process_time() - begin
            return result
        finally:
            self.coverage.switch_context("")
            self.test = ""

    def pytest_sessionfinish(self) -> None:
        """Codes of refusals are found last: that is edbc's code too."""
        from edbc.errors import EdbcError
        from edbc.refusals import refusal_of

        self.coverage.stop()
        self.coverage.save()
        for test, kind, text in self.errors:
            self.test = test
            self._say("refusal", [refusal_of(type(kind, (EdbcError,), {})(text)).code])
        self.file.write_text(json.dumps([self.seconds, {test: sorted(words) for test, words in self.words.items()}]))


def _name(of: Any) -> str:
    return str(getattr(of, "__name__", ""))


def _kind(of: Any) -> str:
    """Of a class of values, or of an argument."""
    return f"{getattr(of, 'dtype', type(of).__name__)}[{len(getattr(of, 'shape', ()))}]"


def reached(folder: Path, numbers: dict[tuple[Any, ...], int]) -> tuple[dict[str, set[int]], dict[str, float]]:
    """Numbers of what each test of a room reached, and its seconds."""
    found: dict[str, set[int]] = defaultdict(set)
    query = (
        "select context, path, fromno, tono from arc join context on context.id = context_id "
        "join file on file.id = file_id"
    )
    for test, *branch in sqlite3.connect(folder / "coverage").execute(query):
        found[test].add(numbers.setdefault(tuple(branch), len(numbers)))
    seconds, words = json.loads((folder / WORDS).read_text())
    for test in words:
        found[test].update(numbers.setdefault((word,), len(numbers)) for word in words[test])
    return {test: found[test] for test in seconds}, seconds


def thin(of: Mapping[str, set[int]], seconds: Mapping[str, float]) -> Iterator[str]:
    """See the module's docstring. Linear in what all tests reach."""
    count = Counter(branch for taken in of.values() for branch in taken)
    left = Counter(name.partition("[")[0] for name in of)
    least = {test: -(-cases // PART) for test, cases in left.items()}
    for name in sorted(of, key=lambda name: -seconds[name]):
        test, is_case, _ = name.partition("[")
        may_be = is_case and seconds[name] > SHORT and left[test] > least[test] and not name.startswith((*NATIVE, *OWN))
        if may_be and all(count[branch] > OTHERS for branch in of[name]):
            left[test] -= 1
            count.subtract(of[name])
            yield name


def watch(room: Path, folder: Path) -> None:
    """Run the tests of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(file) for file in sorted(room.glob("test_*.py"))]
    pytest.main(["-q", "--every-case", "-p", "no:cacheprovider", *files], plugins=[Watched(folder)])


def main(folder: Path) -> Iterator[str]:
    """Run what was not run yet, and say what is thin."""
    numbers: dict[tuple[Any, ...], int] = {}
    of: dict[str, set[int]] = {}
    seconds: dict[str, float] = {}
    for room in sorted({file.parent for file in TESTS.rglob("test_*.py")}):
        kept = folder / room.relative_to(TESTS.parent)
        if not (kept / WORDS).exists():
            subprocess.run([sys.executable, __file__, room, kept], check=True, stdout=sys.stderr)
        in_room, took = reached(kept, numbers)
        of |= in_room
        seconds |= took
    return thin(of, seconds)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        watch(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        print(*sorted(main(Path(sys.argv[1]))), sep="\n")
