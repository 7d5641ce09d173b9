"""What `thin` says of cases: those that it lists reach nothing alone, and they are there."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import thin


def test_every_branch_is_still_taken_by_others() -> None:
    """By as many tests as took it, or by OTHERS; of each test one case in PART is left, and the short ones; of native
    loops, and of what holds something of its own, all."""
    rng = Random(0)
    names = [f"a.py::test_{rng.randrange(9)}[{i}]" for i in range(200)] + ["a.py::test_alone"]
    never = [f"{room}[{i}]" for room in (*thin.NATIVE, *thin.OWN) for i in range(5)]
    names += never
    of = {name: set(rng.sample(range(60), 20)) | ({60} if name == names[0] else set()) for name in names}
    seconds = {name: rng.random() for name in names} | {names[1]: thin.SHORT}
    left = of.keys() - set(thin.thin(of, seconds))

    assert {*names[:2], "a.py::test_alone", *never} <= left
    assert len(left) < 100 + len(never)
    for branch in range(61):
        before, after = (sum(branch in of[name] for name in some) for some in (names, left))
        assert after >= min(before, thin.OTHERS)
    for test in {name.partition("[")[0] for name in names}:
        all_of, left_of = ([name for name in some if name.partition("[")[0] == test] for some in (names, left))
        assert thin.PART * len(left_of) >= len(all_of)


def test_words_are_of_the_test_that_runs(tmp_path: Path) -> None:
    """In the order in which tests run."""

    class Made:
        def __init__(self, word: str):
            self.word = word

    watched = thin.Watched(tmp_path)
    watched._hear(Made, "__init__", lambda made, *_: [made.word])
    for watched.test in ("a", "b"):
        assert Made(watched.test).word == watched.test
    assert watched.words == {"a": {"Made a"}, "b": {"Made b"}}


def test_what_is_listed_is_there(repository: Path) -> None:
    """Functions, in order; a case that was renamed runs, and its line goes when the list is made anew."""
    lines = (repository / "tests" / "thin.txt").read_text().splitlines()
    assert lines == sorted(lines)
    for file in {line.partition("::")[0] for line in lines}:
        tests = {
            node.name for node in ast.parse((repository / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        listed = {line.partition("::")[2].partition("[")[0] for line in lines if line.startswith(f"{file}::")}
        assert listed <= tests, file
