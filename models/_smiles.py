"""Molecules from SMILES strings, and the rings in them.

SMILES (Weininger, "SMILES, a chemical language and information system", 1988) writes a molecule as a walk over its
atoms: neighbours stand side by side, brackets hold branches, and a pair of equal digits closes a ring. Hydrogen that is
not written, charges, chirality and bond direction make no difference here; atoms and bonds do.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from edbc.errors import InputError

_TOKEN = re.compile(
    r"(?P<atom>Cl|Br|[BCNOPSFIbcnops*])"
    r"|\[[0-9]*(?P<symbol>[A-Z][a-z]?|[a-z]{1,2}|\*)(?:[@A-Z0-9+:-]*)\]"
    r"|(?P<bond>[-=#$:~/\\])"
    r"|(?P<ring>[0-9]|%[0-9]{2})"
    r"|(?P<other>[().])"
)


@dataclass(slots=True)
class Molecule:
    """Atoms by number, and bonds as pairs of atoms with the sign of their order (`-` for single and aromatic ones)."""

    atoms: list[str] = field(default_factory=list)
    bonds: list[tuple[int, int, str]] = field(default_factory=list)

    def neighbours(self) -> list[list[tuple[int, int]]]:
        """For each atom, the atom at the other end of each of its bonds, and the bond's number."""
        result: list[list[tuple[int, int]]] = [[] for _ in self.atoms]
        for bond, (a, b, _) in enumerate(self.bonds):
            result[a].append((b, bond))
            result[b].append((a, bond))
        return result


def parse_smiles(text: str, where: str) -> Molecule:
    """The molecule. Raises InputError for a string that is not SMILES.

    >>> parse_smiles("C1=CC1O", "example:1").bonds
    [(0, 1, '='), (1, 2, '-'), (2, 0, '-'), (2, 3, '-')]
    """
    return _Walk(text, where).molecule()


class _Walk:
    """The state of reading one string: the atom that the next one binds to, open branches, open rings."""

    def __init__(self, text: str, where: str):
        self.text, self.where = text, where
        self.result = Molecule()
        self.last: int | None = None
        self.order = ""
        self.branches: list[int] = []
        self.rings: dict[str, tuple[int, str]] = {}

    def molecule(self) -> Molecule:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise self._error("an atom, a bond, a bracket or a ring number", self.text[position], position)
            self._take(match, position)
            position = match.end()
        if self.branches or self.rings or self.order or self.last is None:
            missing = f"ring {min(self.rings)} closed" if self.rings else "')'" if self.branches else "another atom"
            raise self._error(missing, "the end", position)
        return self.result

    def _take(self, match: re.Match[str], position: int) -> None:
        if symbol := match["atom"] or match["symbol"]:
            self._add_atom(symbol)
        elif self.last is None:
            raise self._error("an atom first", match[0], position)
        elif match["bond"]:
            self.order = "-" if match["bond"] in "/\\:-" else match["bond"]
        elif match["ring"]:
            self._close_ring(match["ring"].removeprefix("%").lstrip("0") or "0", position)
        elif match[0] == "(":
            self.branches.append(self.last)
        elif match[0] == ".":
            self.last = None
        elif not self.branches:
            raise self._error("an open branch", match[0], position)
        else:
            self.last = self.branches.pop()

    def _add_atom(self, symbol: str) -> None:
        self.result.atoms.append(symbol)
        atom = len(self.result.atoms) - 1
        if self.last is not None:
            self.result.bonds.append((self.last, atom, self.order or "-"))
        self.last, self.order = atom, ""

    def _close_ring(self, number: str, position: int) -> None:
        assert self.last is not None
        if number not in self.rings:
            self.rings[number] = (self.last, self.order)
        else:
            start, order = self.rings.pop(number)
            is_bond = any({a, b} == {start, self.last} for a, b, _ in self.result.bonds)
            if start == self.last or is_bond:
                raise self._error("a ring of three atoms or more", number, position)
            self.result.bonds.append((self.last, start, self.order or order or "-"))
        self.order = ""

    def _error(self, expected: str, got: str, position: int) -> InputError:
        return InputError(
            f"{self.where}: expected {expected}, got '{got}' at character {position + 1} of '{self.text[:60]}'; "
            "correct the SMILES string"
        )


def find_rings(molecule: Molecule) -> list[list[int]]:
    """A smallest set of rings, each as the numbers of its bonds: independent, and as many as there are ring closures.

    The shortest ring through each bond, short ones first, as far as they are independent (no ring is the symmetric
    difference of others); where those do not suffice, rings along a spanning tree complete them. O(bonds x atoms).
    """
    neighbours = molecule.neighbours()
    parents, closures = _spanning_forest(molecule, neighbours)
    if not closures:
        return []
    candidates = [ring for bond in range(len(molecule.bonds)) if (ring := _shortest_ring(molecule, neighbours, bond))]
    candidates.sort(key=len)
    candidates += [_tree_ring(molecule, parents, bond) for bond in closures]
    basis: dict[int, int] = {}
    rings: list[list[int]] = []
    for ring in candidates:
        if len(rings) < len(closures) and _is_independent(sum(1 << bond for bond in ring), basis):
            rings.append(ring)
    return rings


def _spanning_forest(
    molecule: Molecule, neighbours: list[list[tuple[int, int]]]
) -> tuple[dict[int, tuple[int, int] | None], list[int]]:
    """Parent atom and bond of each atom (None at a root), and the bonds that the forest leaves out."""
    parents: dict[int, tuple[int, int] | None] = {}
    for root in range(len(molecule.atoms)):
        if root in parents:
            continue
        parents[root] = None
        stack = [root]
        while stack:
            atom = stack.pop()
            for other, bond in neighbours[atom]:
                if other not in parents:
                    parents[other] = (atom, bond)
                    stack.append(other)
    used = {parent[1] for parent in parents.values() if parent}
    return parents, [bond for bond in range(len(molecule.bonds)) if bond not in used]


def _shortest_ring(molecule: Molecule, neighbours: list[list[tuple[int, int]]], bond: int) -> list[int] | None:
    """Bonds of a shortest ring through a bond, or None for a bond outside rings."""
    start, goal, _ = molecule.bonds[bond]
    via: dict[int, tuple[int, int]] = {start: (start, bond)}
    queue = deque([start])
    while queue and goal not in via:
        atom = queue.popleft()
        for other, step in neighbours[atom]:
            if step != bond and other not in via:
                via[other] = (atom, step)
                queue.append(other)
    if goal not in via:
        return None
    ring = [bond]
    while goal != start:
        goal, step = via[goal]
        ring.append(step)
    return sorted(ring)


def _tree_ring(molecule: Molecule, parents: dict[int, tuple[int, int] | None], closure: int) -> list[int]:
    """Bonds of the ring that one left-out bond closes over the spanning forest."""
    ring = {closure}
    for atom in molecule.bonds[closure][:2]:
        step = parents[atom]
        while step:
            ring ^= {step[1]}
            step = parents[step[0]]
    return sorted(ring)


def _is_independent(ring: int, basis: dict[int, int]) -> bool:
    """True when no symmetric difference of rings in `basis` (by highest bond) is this one, which then joins them."""
    while ring:
        highest = ring.bit_length()
        if highest not in basis:
            basis[highest] = ring
            return True
        ring ^= basis[highest]
    return False
