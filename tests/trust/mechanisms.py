"""The mechanism behind each row of the bugs' table, and how to break it: does a test notice?

    python tests/trust/mechanisms.py [ROW ...]

So with the mechanisms of training, in `training_mechanisms`: by name, `training` means all of them. Each row edits one
place of a copy of the repository, as a careless change would, and runs a few tests there; some must fail. It prints
what failed, which docs/trust.md records, and exits 1 when nothing did.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUGS = "tests/trust/test_bugs.py"


class Mechanism(NamedTuple):
    """One place that keeps a row's bug out."""

    row: int | str
    """Of the bugs' table, or a name of its own."""
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MECHANISMS = (
    Mechanism(1, "an operand's row ignores its node's slot in the batch", "edbc/run/passes/placeloops.py",
              "= begin + np.int64(p - first)", "= begin", (BUGS,)),
    Mechanism(4, "signatures leave out constants and keywords", "edbc/capture/record/signature.py",
              'return "; ".join(part for part in (text, views) if part)', "return views", (BUGS,)),
    Mechanism(6, "no guard for a mini-batch without nodes", "edbc/run/cpu/cpubackend.py",
              " if len(of_batch) else []", "",
              ("tests/capture/forward/test_structures.py", "tests/trust/test_faults.py::"
               "test_one_node_and_200_000_nodes_in_one_mini_batch", "tests/run/passes/test_placeloops.py")),
    Mechanism(7, "a repeated operand is recorded once", "edbc/capture/record/recorder.py",
              "        self.refs.extend(operands)\n        first =",
              "        self.refs.extend(dict.fromkeys(operands))\n        first =",
              ("tests/capture/forward/test_structures.py",)),
    Mechanism(8, "sums with several readers are merged into each of them", "edbc/capture/forward/buildloops.py",
              "    absorber = absorbed_sums", "    uses = np.minimum(uses, 1)\n    absorber = absorbed_sums",
              (BUGS,)),
    Mechanism(9, "changes in place are not noticed", "edbc/capture/semantics/rules.py",
              '    """True for `add_`, `__iadd__`, `__setitem__`, `out=` and `inplace=True`."""\n',
              "    return False\n", ("tests/capture/semantics/test_refusals.py",)),
    Mechanism(10, "no second attempt on a large stack", "edbc/capture/forward/forward.py",
              "                        if has_large_stack or is_deep:\n", "                        if True:\n",
              ("tests/capture/forward/test_structures.py",)),
    Mechanism(11, "rrelu counts as dropout, which does nothing in eval mode", "edbc/capture/semantics/rules.py",
              'feature_dropout alpha_dropout feature_alpha_dropout".split()\n)\n"""They draw',
              'feature_dropout alpha_dropout feature_alpha_dropout rrelu".split()\n)\n"""They draw', (BUGS,)),
    Mechanism(12, "types that differ in one thing are not told", "edbc/tools/explain/signatures.py",
              "    groups: dict[tuple[object, ...], list[tuple[str, Signature]]] = {}\n",
              "    types = ()\n    groups: dict[tuple[object, ...], list[tuple[str, Signature]]] = {}\n",
              ("tests/tools/explain/test_signatures.py",)),
    Mechanism(13, "a recorded tensor has a value: nought", "edbc/capture/standins/standin.py",
              "        return self.rec.reading(self) if place < 0 else self.rec.reading(self, False, place)\n",
              "        return torch.zeros(self.shape, dtype=self.dtype)\n",
              (BUGS, "tests/capture/forward/test_fibers.py")),
    Mechanism(14, "memory is not asked about", "edbc/native/memory.py",
              "    if size < WORTH_ASKING:\n        return\n", "    return\n", ("tests/trust/test_faults.py",)),
    Mechanism(15, "the time of scheduling is not counted", "edbc/run/session.py",
              "seconds.scheduling += now - self.last", "seconds.scheduling += 0.0", (BUGS,)),
    Mechanism(16, "sums of each arity are a type of their own", "edbc/capture/record/recorder.py",
              "NodeType(op, op, (slot.base,), (slot.base,), variadic=True)",
              "NodeType(op, op + str(count), (slot.base,), (slot.base,), variadic=True)",
              (BUGS, "tests/capture/record/test_variadic.py")),
    Mechanism(17, "a native extension is built when a module is imported", "edbc/native/pool.py",
              "from __future__ import annotations\n",
              "from __future__ import annotations\n\n# from torch.utils.cpp_extension import load_inline\n", (BUGS,)),
    Mechanism(19, "one policy's batches come in reverse order", "edbc/schedule/scheduler.py",
              "    by_depth = Schedule(graph, *depth_walk(*arrays_of(graph), graph.num_types))\n",
              "    kinds, ptr, nodes = depth_walk(*arrays_of(graph), graph.num_types)\n"
              "    parts = np.split(nodes, ptr[1:-1])[::-1]\n"
              "    ptr = np.cumsum([0, *map(len, parts)]).astype(ptr.dtype)\n"
              "    by_depth = Schedule(graph, np.ascontiguousarray(kinds[::-1]), ptr, np.concatenate(parts))\n",
              ("tests/trust/test_zoo_policies.py::test_every_policy_gives_eager_s_outputs[tree_lstm]",)),
    Mechanism(20, "constants of a mini-batch are taken in their order, not by index", "edbc/run/passes/boundary.py",
              "arenas.bind_each(c, rows, [pool[i] for i in index.tolist()])",
              "arenas.bind_each(c, rows, pool[: len(index)])",
              ("tests/trust/test_parity_property.py::test_permuting_splitting_and_joining",)),
)  # fmt: skip


def is_current(mechanism: Mechanism) -> bool:
    """True when the edit still applies, in one place."""
    return (ROOT / mechanism.file).read_text().count(mechanism.old) == 1


def failures(mechanism: Mechanism, folder: Path) -> list[str]:
    """Names of the tests that fail with the mechanism broken."""
    file = folder / mechanism.file
    intact = file.read_text()
    file.write_text(intact.replace(mechanism.old, mechanism.new))
    options = ["-q", "--maxfail=3", "-p", "no:cacheprovider", "-k", "not breakages"]
    command = [sys.executable, "-m", "pytest", *options, *mechanism.tests]
    try:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    finally:
        file.write_text(intact)
    crashed = [f"the process, by signal {-result.returncode}"] if result.returncode < 0 else []
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.M) + crashed


def main() -> None:
    """Break each mechanism, or those of the rows given."""
    from hostile_mechanisms import HOSTILE
    from training_mechanisms import TRAINING

    rows = set(sys.argv[1:])
    unnoticed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repository"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "build", ".venv"))
        for mechanism in (*MECHANISMS, *HOSTILE, *TRAINING):
            if not rows or str(mechanism.row) in rows or ("training" in rows and mechanism in TRAINING):
                found = failures(mechanism, folder)
                unnoticed += not found
                print(f"{mechanism.row!s:>2}  {mechanism.what}: {', '.join(found) or 'NOTHING FAILED'}", flush=True)
    sys.exit(bool(unnoticed))


if __name__ == "__main__":
    main()
