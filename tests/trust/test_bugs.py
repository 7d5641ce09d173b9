"""Bugs and complaints that peers shipped, one test or more per row; docs/trust.md names the mechanism behind each.

Rows 1, 4, 6 to 10, 13 and 16 have more tests beside the code that they are about (`grep -rn "BUGS 4" tests`); those
here hold each row's claim in its own words, on models as small as the claim.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import mechanisms
import pytest
import torch
from chains import write_lengths
from helpers import bound, captured, counts, require_parity, seeded
from hostile_mechanisms import HOSTILE
from mechanisms import MECHANISMS, Mechanism, is_current
from torch import nn
from training_mechanisms import TRAINING

import edbc as package
from edbc.capture.code.mark import cell
from edbc.run.session import Stats
from edbc.tools.parity import Eager

ROWS = (1, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20)


def test_every_row_has_a_test_that_names_it(repository: Path) -> None:
    """Each row is claimed by the docstring of some test: `BUGS 1` or `BUGS 9, 11`."""
    claimed: set[int] = set()
    for path in (repository / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                rows = re.match(r"BUGS ((?:\d+, )*\d+)", ast.get_docstring(node) or "")
                claimed |= {int(number) for number in rows[1].split(", ")} if rows else set()
    assert claimed >= set(ROWS)


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *HOSTILE, *TRAINING], ids=lambda mechanism: str(mechanism.row))
def test_the_breakages_still_apply(mechanism: Mechanism) -> None:
    """What `python tests/trust/mechanisms.py` breaks is still there, in one place, and its tests exist."""
    assert is_current(mechanism)
    assert all((mechanisms.ROOT / test.split("::")[0]).is_file() for test in mechanism.tests)


def test_every_row_has_a_mechanism() -> None:
    """Each row of the table has one place whose breaking its tests must notice."""
    assert {mechanism.row for mechanism in MECHANISMS} == set(ROWS)


@cell
class Pair(nn.Module):
    """A product of one operand, scaled by another."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.product(x) * y


class SharedOperand(nn.Module):
    """All users read one value out of a batch of several: the one at `slot`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))
        self.pair = Pair()

    def forward(self, instance):
        width, slot = instance
        first = [self.pair(self.table[i], self.table[i + 1]) for i in range(width)]
        return [self.pair(self.table[i], first[slot]) for i in range(width)]


def test_a_shared_operand_is_read_from_its_own_slot() -> None:
    """BUGS 1: a value computed at any slot of an earlier batch, shared by all nodes of a later one, is read from its
    slot, with several instances side by side too."""
    instances = [(width, slot) for width in (1, 2, 5) for slot in range(width)]
    require_parity(seeded(SharedOperand), instances, sizes=(1, len(instances)))


class SharedSum(nn.Module):
    """A sum with several readers: other sums, a function, and the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))

    def forward(self, i):
        x = self.table
        shared = torch.tanh(x[i]) + torch.tanh(x[i + 1])
        left, right = shared + torch.tanh(x[i + 2]), torch.tanh(x[i + 3]) + shared
        return [left, right, torch.sigmoid(shared), shared, left + right]


def test_a_sum_with_several_readers_is_kept_for_all() -> None:
    """BUGS 8: a shared sum is one node, which no reader swallows; each of them has its value."""
    net = require_parity(seeded(SharedSum), [0, 3, 5], sizes=(1, 3))
    graph = net.mini_batch([0]).graph
    assert counts(graph)["sum"] == 4


class EqualResults(nn.Module):
    """Functions whose results look alike while their operands or keywords do not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 2, 4))

    def forward(self, i):
        x = self.table[i]
        return {
            "matrix": [x.sum(0), x.t().contiguous().sum(1), x.sum(0, keepdim=True)],
            "short": [x.double().sum(0).float(), x.bfloat16().sum(0).float()],
            "scaled": [torch.add(x, x, alpha=1), torch.add(x, x, alpha=2), x.softmax(0), x.softmax(1)],
        }


def test_signatures_tell_operands_and_keywords_not_only_results() -> None:
    """BUGS 4: equal output shapes with other input shapes, dtypes or keywords are types of their own, and right."""
    model = seeded(EqualResults)
    require_parity(model, [0, 1, 2], sizes=(3,))
    graph = captured(model, [0, 1]).graph
    operations = [t for t in graph.types if t.name in counts(graph)]
    assert len({t.signature for t in operations}) == len(operations)
    sums = [t for t in operations if "sum" in t.op]
    assert len(sums) >= 5
    assert all(count == 2 for count in counts(graph).values())


class Dropped(nn.Module):
    """Dropout, and rrelu, which is no identity outside of training: modules and functions, in a cell and between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.dropout = nn.Dropout(0.5)
        self.inside = cell(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.RReLU()))

    def forward(self, i):
        x = self.dropout(self.inside(self.table[i]))
        return nn.functional.dropout(nn.functional.rrelu(x - 1, 0.1, 0.3, self.training), 0.5, self.training)


def test_dropout_does_nothing_in_eval_mode() -> None:
    """BUGS 11: with `eval()` outputs are eager's, bit-equal between runs, and no node is dropout's; masks of training
    are tested in tests/train/test_random.py."""
    model = seeded(Dropped)
    net = require_parity(model, [0, 1, 4], sizes=(1, 3))
    assert torch.equal(torch.stack(net([0, 1])), torch.stack(net([0, 1])))
    assert not [t for t in net.mini_batch([0]).graph.types if "dropout" in t.signature]
    for instance, result in zip([0, 1, 4], net([0, 1, 4]), strict=True):
        torch.testing.assert_close(result, Eager(model).run([instance])[0])


def test_explain_says_what_batches_and_what_not(edbc, chain: Path) -> None:
    """BUGS 12: `explain` names the types, why two do not batch together, and the time of each part of a run."""
    text = edbc("explain", chain).stdout
    assert "step" in text
    assert re.search(r"construction|graph", text)
    assert "scheduling" in text or "schedule" in text
    report = json.loads(edbc("explain", chain, "--format", "json").stdout)
    assert report["schema"] == 1
    assert "step" in json.dumps(report)


class Looking(nn.Module):
    """Reads one value in the middle of forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.how = how

    def forward(self, i):
        x = torch.tanh(self.table[i])
        if self.how == "item" and x[0].item() > 0:
            return x
        if self.how == "bool" and x.sum() > 0:
            return x
        if self.how == "argmax":
            return self.table[int(x.argmax())]
        return x if self.how == "none" else list(x.numpy())


@pytest.mark.parametrize("how", ["item", "bool", "argmax", "numpy"])
def test_reading_a_value_ends_no_batching(how: str) -> None:
    """BUGS 13: `.item()`, `if tensor:`, an argmax as an index and `.numpy()` are batched with those of other instances:
    at most two batches of any number of them. An argmax that is an index alone is read nowhere."""
    torch.manual_seed(1)
    model, stats, instances = Looking(how), Stats(), list(range(5)) * 4
    net = bound(model, instances)
    with torch.no_grad():
        results, _ = net.run(instances, stats)
        expected = [model(instance) for instance in instances]
        for ours, theirs in zip(results, expected, strict=True):
            assert list(map(float, ours)) == pytest.approx(list(map(float, theirs)), rel=1e-5)
    assert stats.batches <= 3
    assert stats.segments == (0 if how == "argmax" else 2)


def test_the_host_s_share_of_time_is_told(edbc, chain: Path) -> None:
    """BUGS 15: `run` prints seconds and shares of construction, scheduling and execution, which make up the total."""
    lengths = write_lengths(chain.parent, *range(20))
    text = edbc("run", chain, "--input", lengths).stdout
    shares = [int(share) for share in re.findall(r"(?:construction|scheduling|execution) [\d.]+ s \((\d+) %\)", text)]
    seconds = json.loads(edbc("run", chain, "--input", lengths, "--format", "json").stdout)["seconds"]

    assert len(shares) == 3
    assert abs(sum(shares) - 100) <= 2
    assert min(seconds.values()) > 0
    assert seconds["construction"] + seconds["scheduling"] + seconds["execution"] == pytest.approx(seconds["total"])


class ChildSum(nn.Module):
    """A child-sum tree of any arity, with cells of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.leaf, self.inner = Pair(), Pair()

    def forward(self, tree):
        if isinstance(tree, int):
            return self.leaf(self.table[tree], self.table[0])
        children = [self.forward(child) for child in tree]
        return self.inner(sum(children), children[-1])


def test_children_of_any_number_batch_together() -> None:
    """BUGS 16: nodes of 2, 3 and 9 children are one type of sum, executed in one batch, and equal eager."""
    trees = [(1, 2), (1, 2, 3), tuple(i % 5 for i in range(9)), ((1, 2), 3, (0, 0, 4, 1))]
    net = require_parity(seeded(ChildSum), trees, sizes=(4,))
    graph = net.mini_batch(trees[:3]).graph
    assert counts(graph)["sum"] == 3
    _, prepared = net.run(trees[:3])
    kinds = [graph.types[kind].name for kind, _ in prepared.schedule.batches()]
    assert kinds.count("sum") == 1


def test_nothing_is_built_against_libtorch(repository: Path) -> None:
    """BUGS 17: the package has Python files and data only, and its build needs nothing but setuptools."""
    suffixes = {path.suffix for path in Path(package.__file__).parent.rglob("*") if path.is_file()}
    configuration = (repository / "pyproject.toml").read_text()

    assert suffixes <= {".py", ".pyc", ".json", ".txt", ".typed", ".nbi", ".nbc", ".lock", ".stamp", ""}
    assert re.search(r'^requires = \["setuptools>=\d+"\]$', configuration, re.M)
    assert "ext_modules" not in configuration
    for path in Path(package.__file__).parent.rglob("*.py"):
        assert not re.search(r"cpp_extension|load_inline|CUDAExtension", path.read_text()), path
