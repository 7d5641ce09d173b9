"""Bidirectional DAG-GRU over logic circuits (Thost and Chen, ICLR 2021; Li et al., DAC 2022): a score per gate."""

import random
from pathlib import Path

import torch
from torch import nn

import edbc

KINDS = ("input", "nand", "and", "nor", "or", "xor", "not", "buf")


class Circuit:
    """Gates in topological order: the kind of each and the gates that it reads."""

    def __init__(self, kinds, reads):
        self.kinds, self.reads = kinds, reads
        self.readers = [[] for _ in kinds]
        for gate, operands in enumerate(reads):
            for operand in operands:
                self.readers[operand].append(gate)


class DAGGRU(nn.Module):
    """One GRU cell per kind of gate and direction; a gate aggregates the states of its predecessors by their mean."""

    def __init__(self, size):
        super().__init__()
        self.features = nn.Embedding(len(KINDS), size)
        self.forwards = nn.ModuleDict({kind: edbc.cell(nn.GRUCell(size, size)) for kind in KINDS})
        self.backwards = nn.ModuleDict({kind: edbc.cell(nn.GRUCell(size, size)) for kind in KINDS})
        self.start = nn.Parameter(torch.randn(size))
        self.out = nn.Linear(2 * size, 1)

    def forward(self, circuit):
        gates = range(len(circuit.kinds))
        ahead = self.sweep(circuit, gates, circuit.reads, self.forwards)
        back = self.sweep(circuit, reversed(gates), circuit.readers, self.backwards)
        return [self.out(torch.cat([ahead[gate], back[gate]])) for gate in gates]

    def sweep(self, circuit, order, neighbours, cells):
        states = {}
        for gate in order:
            kind = circuit.kinds[gate]
            heard = [states[other] for other in neighbours[gate]]
            message = torch.stack(heard).mean(dim=0) if heard else self.start
            states[gate] = cells[kind](self.features(torch.tensor(KINDS.index(kind))), message)
        return states


def read_bench(path):
    gates, outputs = {}, []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].replace(" ", "").strip()
        if line.lower().startswith("output("):
            outputs.append(line[7:-1])
        elif line.lower().startswith("input("):
            gates[line[6:-1]] = ("input", [])
        elif line:
            name, call = line.split("=")
            kind, operands = call.rstrip(")").split("(")
            gates[name] = (kind.lower().replace("buff", "buf"), operands.split(","))
    return gates, outputs


def cone(gates, outputs):
    """The circuit that computes some outputs."""
    number, kinds, reads, waiting = {}, [], [], list(reversed(outputs))
    while waiting:
        name = waiting[-1]
        kind, operands = gates[name]
        missing = [operand for operand in operands if operand not in number]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        if name not in number:
            number[name] = len(kinds)
            kinds.append(kind)
            reads.append([number[operand] for operand in operands])
    return Circuit(kinds, reads)


def build(hidden_size=64, **config):
    return DAGGRU(hidden_size)


def load(*paths, whole=False, **config):
    for path in paths:
        gates, outputs = read_bench(path)
        yield from [cone(gates, outputs)] if whole else (cone(gates, [output]) for output in outputs)


def sample(count, seed, **config):
    rng = random.Random(seed)
    circuits = []
    for _ in range(count):
        kinds, reads = ["input"] * 4, [[]] * 4
        for gate in range(4, rng.randrange(5, 60)):
            kinds.append(rng.choice(KINDS[1:]))
            reads.append(
                [rng.randrange(gate) for _ in range(1 if kinds[-1] in ("not", "buf") else rng.choice([2, 2, 3, 9]))]
            )
        circuits.append(Circuit(kinds, reads))
    return circuits
