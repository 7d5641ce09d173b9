"""Cutting a recording where instances wait: what runs now, what stays, and that neither changes any value."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from edbc.capture.forward import buildloops
from edbc.capture.forward.carried import Carried, Piece, copy_to_host
from edbc.capture.forward.cutting import Parts
from edbc.native.pointers import record_of
from edbc.run.cpu.walk import Memory, bind_tables, record_of_memory

FIRST_VALUE, FIRST_EXTERNAL, NEXT_VALUE = 1000, 7000, 5000
EXTERNALS = 6
SOURCES = [0, 1, 2, 0, 1, 2]
"""Of the externals."""


class Recorded:
    """A random recording over entries of 0 to 3 operands and 1 or 2 outputs, each of one of three classes."""

    def __init__(self, seed: int, count: int = 40):
        rng = random.Random(seed)
        kinds = 8
        self.arity = [rng.randrange(4) for _ in range(kinds)]
        self.outputs = [rng.choice([1, 1, 2]) for _ in range(kinds)]
        self.classes = [[rng.randrange(3) for _ in range(n)] for n in self.outputs]
        self.entries = [rng.randrange(kinds) for _ in range(count)]
        self.operands: list[list[int]] = []
        self.value_of: list[tuple[int, int]] = []
        for node, entry in enumerate(self.entries):
            known = len(self.value_of)
            recent = range(max(0, known - 8), known)
            self.operands.append([
                rng.choice(recent) if known and rng.random() < 0.7 else -1 - rng.randrange(EXTERNALS)
                for _ in range(self.arity[entry])
            ])  # fmt: skip
            self.value_of += [(node, j) for j in range(self.outputs[entry])]
        self.live = sorted(rng.sample(range(len(self.value_of)), rng.randrange(1, 12)))
        self.wanted = rng.sample(self.live, rng.randrange(1, len(self.live) + 1))
        self.was_read = np.array([rng.random() < 0.2 for _ in range(kinds)])
        self.aborted = rng.choice([0, 0, count // 3])

    def terms(self) -> list[Any]:
        """What each value is, written out."""
        found: list[Any] = []
        for node, entry in enumerate(self.entries):
            operands = tuple(found[ref] if ref >= 0 else ("x", -1 - ref) for ref in self.operands[node])
            found += [hash((entry, j, operands)) for j in range(self.outputs[entry])]
        return found

    def cut(self, may_wait: bool) -> Parts:
        """By the native loop."""
        local = [ref for operands in self.operands for ref in operands]
        refs = [FIRST_VALUE + ref if ref >= 0 else ref - FIRST_EXTERNAL for ref in local]
        ptr = np.cumsum([0, *self.outputs])
        recorded = (self.entries, refs, [FIRST_VALUE + v for v in self.live], [FIRST_VALUE + v for v in self.wanted])
        flat = [c for classes in self.classes for c in classes]
        of_entries = [np.array(x, np.int64) for x in (self.arity, self.outputs, ptr, flat)]
        new = SOURCES, list(range(EXTERNALS))
        found = buildloops.cut(
            np.concatenate([np.array(x, np.int64) for x in (*recorded, *new)]), *map(len, recorded), FIRST_VALUE,
            FIRST_EXTERNAL, np.empty((2, EXTERNALS), np.int64), 0, self.aborted, may_wait, NEXT_VALUE,
            record_of(of_entries), 3, self.was_read.copy(),
        )  # fmt: skip
        return Parts(found)

    def expected(self, may_wait: bool) -> tuple[set[int], set[int]]:
        """Nodes that run and nodes that stay, by definition (1)."""
        read = {self.entries[self.value_of[v][0]] for v in self.wanted} | set(np.flatnonzero(self.was_read).tolist())
        live = {self.value_of[v][0] for v in self.live}
        needed = self.closure({v for v in live if self.entries[v] in read} | {self.value_of[v][0] for v in self.wanted})
        if may_wait:
            return needed, self.closure(live) - needed
        return self.closure(live | needed | set(range(self.aborted, len(self.entries)))), set()

    def closure(self, nodes: set[int]) -> set[int]:
        found, todo = set(), list(nodes)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += [self.value_of[ref][0] for ref in self.operands[node] if ref >= 0]
        return found


@pytest.mark.parametrize("may_wait", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_what_runs_is_what_is_needed(seed: int, may_wait: bool) -> None:
    """No node more and none less; what nobody will read is dropped."""
    recorded = Recorded(seed)
    parts = recorded.cut(may_wait)
    runs, stays = recorded.expected(may_wait)

    assert sorted(parts.nodes.tolist()) == sorted(runs)
    assert parts.entries.tolist() == [recorded.entries[v] for v in parts.nodes.tolist()]
    assert parts.later_entries.tolist() == [recorded.entries[v] for v in sorted(stays)]
    assert parts.num_later == sum(recorded.outputs[recorded.entries[v]] for v in stays)


@pytest.mark.parametrize("may_wait", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_no_value_changes(seed: int, may_wait: bool) -> None:
    """What a stand-in stood for is what it stands for behind the cut, computed now or later; carried values stand class
    by class."""
    recorded = Recorded(seed)
    parts = recorded.cut(may_wait)
    values: list[Any] = []
    carried: list[Any] = []

    def external(ref: int) -> Any:
        number = -1 - (ref + FIRST_EXTERNAL)
        return ("x", number) if number < EXTERNALS else carried[number - EXTERNALS]

    def compute(entries: Any, refs: list[int], of_value: Any, of_external: Any) -> list[Any]:
        found: list[Any] = []
        at = 0
        for entry in entries.tolist():
            operands = tuple(
                found[of_value(r)] if r >= 0 else of_external(r) for r in refs[at : at + recorded.arity[entry]]
            )
            at += recorded.arity[entry]
            found += [hash((entry, j, operands)) for j in range(recorded.outputs[entry])]
        return found

    values = compute(parts.entries, parts.refs.tolist(), lambda r: r, lambda r: ("x", int(parts.indices[-1 - r])))
    carried += [values[v] for v in parts.results.tolist()]
    later = compute(parts.later_entries, parts.later_refs.tolist(), lambda r: r - NEXT_VALUE, external)
    moved = [later[ref - NEXT_VALUE] if ref >= 0 else external(ref) for ref in parts.moved.tolist()]
    classes = [c for entry in parts.entries.tolist() for c in recorded.classes[entry]]

    assert parts.foreign < 0
    assert moved == [recorded.terms()[v] for v in recorded.live]
    assert len(set(parts.indices.tolist())) == len(parts.indices)
    bounds = parts.result_ptr.tolist()
    for c in range(3):
        assert {classes[v] for v in parts.results[bounds[c] : bounds[c + 1]].tolist()} <= {c}


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_instances_makes_no_structure(seed: int) -> None:
    """Groups of nodes that share no value, recorded in any order, are cut into the same nodes, operands, sources of
    these, and results; also where groups differ in nothing but sources."""
    groups, rng = [(Recorded(10 * seed + i % 4, 12), i // 4) for i in range(7)], random.Random(seed)
    alike = groups[0][0]
    found = []
    for _ in range(3):
        rng.shuffle(groups)
        whole = Recorded(seed)
        whole.entries, whole.operands, whole.value_of = [], [], []
        whole.arity, whole.outputs, whole.classes, whole.aborted = alike.arity, alike.outputs, alike.classes, 0
        whole.live, whole.wanted, whole.was_read = [], [], np.zeros(8, np.bool_)
        for group, shift in groups:
            base = len(whole.value_of)
            for entry, operands in zip(group.entries, group.operands, strict=True):
                arity = whole.arity[entry]
                given = (*operands, -1, -1, -1)[:arity]
                known = [base + ref if ref >= 0 else -1 - (shift - 1 - ref) % EXTERNALS for ref in given]
                whole.operands.append([ref if ref < len(whole.value_of) else -1 for ref in known])
                whole.value_of += [(len(whole.entries), j) for j in range(whole.outputs[entry])]
                whole.entries.append(entry)
            whole.live += [v for v in range(base, len(whole.value_of)) if (v - base) % 3 == 0]
        whole.wanted = whole.live
        parts = whole.cut(True)
        found.append([parts.entries.tolist(), _shape_of(parts), parts.results.tolist()])

    assert found[0] == found[1] == found[2]


def _shape_of(parts: Parts) -> list[int]:
    """Operands, of externals the source."""
    sources = parts.sources.tolist()
    return [ref if ref >= 0 else -1 - sources[-1 - ref] for ref in parts.refs.tolist()]


def test_keys_tell_structures() -> None:
    """Cuts of equal keys have equal entries, operands, results and sources, wherever their externals are; cuts that
    differ in any of these have others."""
    found: dict[bytes, Any] = {}
    for seed in range(300):
        parts = Recorded(seed % 200, count=12).cut(bool(seed % 2))
        told = [x.tolist() for x in (parts.entries, parts.refs, parts.results, parts.result_ptr, parts.sources)]
        assert found.setdefault(parts.key, told) == told
    assert len(set(map(str, found.values()))) == len(found) < 300


def test_a_foreign_operand_is_told() -> None:
    """The first one, and nothing else is done."""
    recorded = Recorded(3)
    at = next(i for i, operands in enumerate(recorded.operands) if operands)
    recorded.operands[at][0] = -1 - EXTERNALS

    assert recorded.cut(True).foreign == sum(map(len, recorded.operands[:at]))


def as_piece(table: torch.Tensor) -> Piece:
    """The rows in the middle of a piece of memory of the table's own, behind those of somebody else."""
    memory = np.concatenate([np.zeros(64, np.uint8), table.numpy().reshape(-1).view(np.uint8), np.ones(64, np.uint8)])
    of_row = table.stride(0) * table.itemsize
    return Piece(memory, 64, len(memory) - 64, memory.ctypes.data + 64, of_row, tuple(table.shape), table.dtype)


WAYS: dict[str, Any] = {"tensors": lambda table: table, "lists": list, "pieces": as_piece}
"""To have what a segment carries."""


@pytest.mark.parametrize("way", WAYS)
def test_carried_rows_are_those_of_their_tables(way: str) -> None:
    """By number over all tables, as tensors, as numbers and by address."""
    carried, rows = Carried(), []
    for seed in range(20):
        table = torch.arange(6.0 * (seed + 1)).view(-1, 3) + 100 * seed
        carried.add(WAYS[way](table))
        rows += list(table)
    carried.length = len(rows)

    assert all(torch.equal(a, b) for a, b in zip(carried, rows, strict=True))
    assert carried.in_tables is (way != "lists")
    if carried.in_tables:
        order = np.random.default_rng(0).permutation(len(rows))
        assert bound_to(carried, order) == [carried[i].data_ptr() for i in order.tolist()]


def bound_to(carried: Carried, index: np.ndarray) -> list[int]:
    """The addresses of rows that native code finds, which stand in other places than in order."""
    zero, count = np.zeros(1, np.int64), len(index)
    memory = Memory(zero, zero, zero, zero[None], zero[None], zero, np.zeros(count, np.int64))
    record = record_of_memory(memory)
    bind_tables(np.arange(count)[::-1].copy(), index, np.array([(0, 0, count, *carried.where())]), record, 0)
    return record[-count:][::-1].tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.int16])
def test_carried_numbers(way: str, dtype: torch.dtype) -> None:
    carried, numbers = Carried(are_numbers=True), []
    for seed in range(5):
        table = (torch.arange(seed + 1).view(-1, 1) + 10 * seed).to(dtype)
        carried.add(WAYS[way](table))
        numbers += table.flatten().tolist()
    carried.length = len(numbers)

    found = [carried.number(i) for i in range(len(numbers))]
    assert found == numbers
    assert list(map(type, found)) == list(map(type, numbers))


def test_one_copy_to_the_host() -> None:
    """Rows, and of numbers their whole tables; nothing else crosses afterwards."""
    rows, numbers = Carried(), Carried(are_numbers=True)
    for seed in range(3):
        rows.add(torch.full((4, 2), float(seed)))
        numbers.add(torch.arange(5) + 10 * seed)
    rows.length, numbers.length = 12, 15

    assert copy_to_host([(rows, 1), (rows, 9), (numbers, 11), (numbers, 12), (rows, 1)]) == 2 * 2 * 4 + 5 * 8
    assert [rows.on_host(i).tolist() for i in (1, 9)] == [[0.0, 0.0], [2.0, 2.0]]
    assert sorted(rows._on_host) == [1, 9]
    assert [numbers.number(i) for i in range(10, 15)] == [20, 21, 22, 23, 24]
    assert numbers.numbers[:10] == [None] * 10


def test_many_tables_are_searched() -> None:
    """A row of the first of them, from behind thousands."""
    carried = Carried()
    tables = [torch.full((2, 1), float(n)) for n in range(3000)]
    for table in tables:
        carried.add(table)
    carried.length = 6000
    found = bound_to(carried, np.array([0, 5999, 3001, 1]))

    assert found == [tables[t].data_ptr() + 4 * r for t, r in ((0, 0), (2999, 1), (1500, 1), (0, 1))]
