"""Combinational circuits from `.bench` and binary `.aig` files, one instance per output.

Definitions.

(1) A *gate* has a kind (`KINDS`) and operands, the signals that it reads, in order and with repeats. Primary inputs and
    the constant false are gates without operands.
(2) The *cone* of an output is the output's gate and every gate that it depends on. A cone is an instance: its gates are
    numbered operands first, the output's gate last.
(3) In an and-inverter graph an edge may be inverted; here an inverter is a gate `not`, one per inverted signal.

`.bench` (ISCAS'85, Brglez and Fujiwara 1985): `INPUT(x)`, `OUTPUT(y)`, `y = nand(a, b)` in any order; `#` starts a
comment. `.aig` (Biere, "The AIGER And-Inverter Graph (AIG) Format", 2007): header `aig M I L O A`, a line per output,
then two numbers per AND gate in 7-bit groups; latches are refused and symbols are not looked at.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from _samples import Quartet, sample_sizes
from _text import open_input, read_lines

from edbc.errors import InputError

KINDS = ("input", "false", "and", "nand", "or", "nor", "xor", "not", "buf")
ONE_OPERAND = ("not", "buf")

GATES: Quartet = (1, 70, 788, 1530)
"""Gates per cone, inverters counted: minimum, median, third quartile and largest of the 1,057 cones below 2,000 gates.

The 159 larger ones, of two arithmetic circuits, have more gates than all others together and are left out.
"""

INPUT_SHARE = 0.2

Signal = Any
"""A name in a `.bench` file, a literal in an `.aig` file."""
Definition = tuple[str, Sequence[Signal]]
"""Kind and operands of the gate that drives a signal."""


@dataclass(slots=True)
class Circuit:
    """A cone, definition (2)."""

    kinds: list[int]
    """Index into KINDS by gate."""
    operands: list[list[int]]
    """Earlier gates that each gate reads."""

    @property
    def users(self) -> list[list[int]]:
        """Later gates that read each gate, once per reading."""
        users: list[list[int]] = [[] for _ in self.kinds]
        for gate, operands in enumerate(self.operands):
            for operand in operands:
                users[operand].append(gate)
        return users


def read_cones(path: str) -> Iterator[Circuit]:
    """The cone of each output of a circuit, in the order of the outputs. Raises InputError for what is no circuit."""
    define, outputs = read_circuit(path)
    return (_cone(define, output, path) for output in outputs)


def read_circuit(path: str) -> tuple[Callable[[Signal], Definition], list[Signal]]:
    """How each signal is defined, and the outputs."""
    if path.endswith(".aig"):
        return _read_aig(path)
    if path.endswith(".bench"):
        return _read_bench(path)
    raise InputError(f"{path}: expected a file named *.bench or *.aig, got another name; rename or convert it")


def _cone(define: Callable[[Signal], Definition], output: Signal, path: str) -> Circuit:
    """Depth first, without recursion. O(gates and operands of the cone)."""
    number: dict[Signal, int] = {}
    entered: set[Signal] = set()
    circuit = Circuit([], [])
    stack = [output]
    while stack:
        signal = stack[-1]
        if signal in number:
            stack.pop()
            continue
        kind, operands = define(signal)
        missing = [operand for operand in operands if operand not in number]
        if missing and signal in entered:
            raise InputError(f"{path}: expected gates without a cycle, got one through '{signal}'; cut it")
        if missing:
            entered.add(signal)
            stack += reversed(missing)
            continue
        stack.pop()
        number[signal] = len(circuit.kinds)
        circuit.kinds.append(KINDS.index(kind))
        circuit.operands.append([number[operand] for operand in operands])
    return circuit


_PORT = re.compile(r"(INPUT|OUTPUT)\s*\(\s*([^\s(),=]+)\s*\)", re.IGNORECASE)
_GATE = re.compile(r"([^\s(),=]+)\s*=\s*(\w+)\s*\(([^()]*)\)")


def _read_bench(path: str) -> tuple[Callable[[Signal], Definition], list[Signal]]:
    gates: dict[Signal, tuple[str, list[str], int]] = {}
    outputs: list[tuple[str, int]] = []
    for number, line in read_lines(path):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = f"{path}:{number}"
        port = _PORT.fullmatch(text)
        if port and port[1].upper() == "OUTPUT":
            outputs.append((port[2], number))
            continue
        name, kind, operands = (port[2], "input", []) if port else _gate(text, where)
        if name in gates:
            raise InputError(f"{where}: expected '{name}' driven once, got again (first in line {gates[name][2]}); "
                             "remove one")  # fmt: skip
        gates[name] = (kind, operands, number)
    readers = [(name, number) for _, operands, number in gates.values() for name in operands]
    for name, number in readers + outputs:
        if name not in gates:
            raise InputError(f"{path}:{number}: expected '{name}' to be an input or a gate, got neither; define it")
    return lambda signal: gates[signal][:2], [name for name, _ in outputs]


def _gate(text: str, where: str) -> tuple[str, str, list[str]]:
    match = _GATE.fullmatch(text)
    if match is None:
        raise InputError(
            f"{where}: expected INPUT(x), OUTPUT(x) or y = gate(a, b), got '{text[:40]}'; rewrite the line"
        )
    name, kind = match[1], match[2].lower().replace("buff", "buf")
    operands = [operand.strip() for operand in match[3].split(",")]
    if kind not in KINDS[2:]:
        raise InputError(f"{where}: expected a gate of {', '.join(KINDS[2:])}, got '{match[2]}'; only these are known")
    if not all(operands) or (kind in ONE_OPERAND and len(operands) > 1):
        wanted = "one signal" if kind in ONE_OPERAND else "signals between commas"
        raise InputError(f"{where}: expected {wanted} in brackets, got '{match[3].strip()}'; correct the gate")
    return name, kind, operands


def _read_aig(path: str) -> tuple[Callable[[Signal], Definition], list[Signal]]:
    """Signals are AIGER's literals: twice the variable, plus one where inverted."""
    with open_input(path) as file:
        num_inputs, num_outputs, num_ands = _aig_header(file.readline(), path)
        outputs: list[Signal] = [_aig_output(file, path, 2 + k, num_inputs + num_ands) for k in range(num_outputs)]
        ands = _aig_ands(file, path, num_inputs, num_ands)

    def define(literal: int) -> Definition:
        if literal == 0:
            return "false", ()
        if literal & 1:
            return "not", (literal ^ 1,)
        first_and = 2 * (num_inputs + 1)
        return ("input", ()) if literal < first_and else ("and", ands[(literal - first_and) // 2])

    return define, outputs


def _aig_header(line: bytes, path: str) -> tuple[int, int, int]:
    items = line.split()
    if len(items) != 6 or items[0] != b"aig" or not all(item.isdigit() and len(item) < 10 for item in items[1:]):
        raise InputError(f"{path}:1: expected 'aig M I L O A', got {line[:40]!r}; only binary AIGER files are read")
    maximum, num_inputs, num_latches, num_outputs, num_ands = map(int, items[1:])
    if num_latches or maximum != num_inputs + num_ands:
        raise InputError(f"{path}:1: expected no latches and M = I + A, got {line.decode().strip()!r}; "
                         "only combinational circuits are read")  # fmt: skip
    return num_inputs, num_outputs, num_ands


def _aig_output(file: BinaryIO, path: str, number: int, maximum: int) -> int:
    item = file.readline(20).strip()
    if not item.isdigit() or int(item) > 2 * maximum + 1:
        raise InputError(f"{path}:{number}: expected an output's literal up to {2 * maximum + 1}, got {item!r}; "
                         "the file is broken")  # fmt: skip
    return int(item)


def _aig_ands(file: BinaryIO, path: str, num_inputs: int, num_ands: int) -> list[tuple[int, int]]:
    ands = []
    for k in range(num_ands):
        left = 2 * (num_inputs + 1 + k)
        pair: list[int] = []
        for _ in range(2):
            delta = _aig_delta(file, path)
            if delta > left or (not pair and delta == 0):
                raise InputError(f"{path}: expected AND gate {k} to read earlier literals, got a step of {delta} from "
                                 f"{left} before byte {file.tell()}; the file is broken")  # fmt: skip
            left -= delta
            pair.append(left)
        ands.append((pair[0], pair[1]))
    return ands


def _aig_delta(file: BinaryIO, path: str) -> int:
    value = 0
    for shift in range(0, 35, 7):
        byte = file.read(1)
        if not byte:
            raise InputError(f"{path}: expected another AND gate, got the end of the file; the file is cut short")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise InputError(f"{path}: expected a number of at most 5 bytes, got more before byte {file.tell()}; "
                     "the file is broken")  # fmt: skip


CONSTANT_SHARE = 0.2
"""Of the made-up and-inverter cones, those with the constant false among their sources."""


def sample_circuits(count: int, seed: int) -> list[Circuit]:
    """Made-up cones with the sizes of the benchmark circuits, about as deep: the size to the power of 0.6."""
    rng = random.Random(seed)
    return [_grow(size, rng) for size in sample_sizes(count, GATES, rng)]


def _grow(size: int, rng: random.Random) -> Circuit:
    """Gates in levels, each reading the level below and any earlier one; what nothing reads, a later gate reads too."""
    if size == 1:
        return Circuit([KINDS.index(rng.choice(("input", "input", "input", "false")))], [[]])
    style = rng.choice([("and", "and", "not"), ("and", "nand", "nand", "or", "nor", "xor", "not", "not", "buf")])
    has_constant = "nand" not in style and rng.random() < CONSTANT_SHARE
    depth = min(size - 1, max(1, round(size**0.6)))
    inner = [0 if rng.random() < INPUT_SHARE else rng.randrange(depth) for _ in range(size - 1 - depth)]
    levels = [*sorted([*range(depth), *inner]), depth]
    kinds, operands = [], []
    unread: list[int] = []
    for gate, level in enumerate(levels):
        kind = rng.choice(style) if level else "false" if has_constant and gate == 0 else "input"
        reads = _choose_operands(gate, level, levels, kind, unread, rng)
        unread = [other for other in unread if other not in reads] + [gate]
        kinds.append(KINDS.index(kind))
        operands.append(reads)
    _read_the_rest(kinds, operands, unread, levels, rng)
    return Circuit(kinds, operands)


def _choose_operands(
    gate: int, level: int, levels: list[int], kind: str, unread: list[int], rng: random.Random
) -> list[int]:
    if level == 0:
        return []
    first = levels.index(level - 1) if level - 1 in levels[:gate] else 0
    below = [other for other in unread if levels[other] == level - 1] or range(first, levels.index(level))
    reads = [rng.choice(below)]
    if kind not in ONE_OPERAND:
        earlier = [other for other in unread if levels[other] < level and other not in reads]
        reads.append(rng.choice(earlier or range(levels.index(level))))
    return reads


def _read_the_rest(
    kinds: list[int], operands: list[list[int]], unread: list[int], levels: list[int], rng: random.Random
) -> None:
    """Give every gate but the last a user: a gate of a higher level, whose kind takes any number of operands."""
    wide = KINDS.index("and")
    for gate in unread[:-1]:
        later = [user for user in range(gate + 1, len(kinds)) if levels[user] > levels[gate]]
        user = rng.choice(later[:50])
        if KINDS[kinds[user]] in ONE_OPERAND:
            kinds[user] = wide
        operands[user].append(gate)
