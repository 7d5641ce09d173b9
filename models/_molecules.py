"""Junction trees of molecules: files of SMILES strings read, and molecules made up.

Definitions (Jin, Barzilay and Jaakkola, "Junction Tree Variational Autoencoder for Molecular Graph Generation", ICML
2018, section 2).

(1) A *cluster* is a ring, a bond outside rings, or a molecule's only atom.
(2) Clusters that share atoms can be joined; the *junction tree* is a spanning tree of them in which joined clusters
    share as many atoms as possible. Parts that no bond connects have trees of their own. (The paper merges rings that
    share more than two atoms and adds a cluster for an atom where three or more meet; here neither is done.)

Files: `.smi` has a string per line, perhaps with a name behind it; `.csv` has a header with a column `smiles`.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from _samples import Quartet, sample_sizes
from _smiles import Molecule, find_rings, parse_smiles
from _text import read_lines, split_words, word_id

from edbc.errors import InputError

ATOMS: Quartet = (6, 23, 31, 37)
"""Atoms per molecule, hydrogen left out, of ZINC's validation molecules."""


@dataclass(slots=True)
class JunctionTree:
    """Clusters in an order in which every cluster comes after its parent, roots first of their tree."""

    clusters: list[int]
    """Ids of the clusters' labels."""
    parents: list[int | None]

    def children(self) -> list[list[int]]:
        """The clusters of which each cluster is the parent."""
        result: list[list[int]] = [[] for _ in self.clusters]
        for cluster, parent in enumerate(self.parents):
            if parent is not None:
                result[parent].append(cluster)
        return result


def read_molecules(path: str, vocab_size: int) -> Iterator[JunctionTree]:
    """The junction tree of every molecule of a file, in order. Raises InputError at the first broken line."""
    for number, text in read_strings(path):
        yield build_junction_tree(parse_smiles(text, f"{path}:{number}"), vocab_size)


def read_strings(path: str) -> Iterator[tuple[int, str]]:
    """Line and SMILES string of each molecule, in the format that the file's name tells."""
    return _read_csv(path) if path.endswith(".csv") else _read_smi(path)


def _read_smi(path: str) -> Iterator[tuple[int, str]]:
    for number, line in read_lines(path):
        if words := split_words(line):
            yield number, words[0]


def _read_csv(path: str) -> Iterator[tuple[int, str]]:
    rows = csv.reader(line for _, line in read_lines(path))
    header = next(rows, None)
    if header is None:
        return
    if "smiles" not in header:
        raise InputError(f"{path}:1: expected a column 'smiles', got {', '.join(header)[:60]}; name the column")
    column = header.index("smiles")
    for row in rows:
        if row and len(row) != len(header):
            raise InputError(f"{path}:{rows.line_num}: expected {len(header)} columns, got {len(row)}; quote commas")
        if row:
            yield rows.line_num, row[column].strip()


def build_junction_tree(molecule: Molecule, vocab_size: int) -> JunctionTree:
    """Definition (2), with the cluster of the lowest number as the root of each tree."""
    clusters = _clusters(molecule)
    neighbours = join_clusters([atoms for atoms, _ in clusters])
    tree = JunctionTree([], [])
    place: dict[int, int] = {}
    for root in range(len(clusters)):
        stack: list[tuple[int, int | None]] = [] if root in place else [(root, None)]
        while stack:
            cluster, parent = stack.pop()
            place[cluster] = len(tree.clusters)
            tree.clusters.append(word_id(clusters[cluster][1], vocab_size))
            tree.parents.append(parent)
            stack += [(other, place[cluster]) for other in neighbours[cluster] if other not in place]
    return tree


def _clusters(molecule: Molecule) -> list[tuple[set[int], str]]:
    """Atoms and label of each cluster: the symbols in order of the alphabet, with the order of a bond between them."""
    rings = find_rings(molecule)
    in_ring = {bond for ring in rings for bond in ring}
    found: list[tuple[set[int], str]] = []
    for ring in rings:
        atoms = {atom for bond in ring for atom in molecule.bonds[bond][:2]}
        found.append((atoms, f"ring {' '.join(sorted(molecule.atoms[atom] for atom in atoms))}"))
    for bond, (a, b, order) in enumerate(molecule.bonds):
        if bond not in in_ring:
            found.append(({a, b}, order.join(sorted([molecule.atoms[a], molecule.atoms[b]]))))
    bound = {atom for atoms, _ in found for atom in atoms}
    return found + [({atom}, symbol) for atom, symbol in enumerate(molecule.atoms) if atom not in bound]


def join_clusters(clusters: list[set[int]]) -> list[list[int]]:
    """Neighbours of each cluster in a maximum spanning forest by number of shared atoms (Kruskal 1956)."""
    shared: dict[tuple[int, int], int] = defaultdict(int)
    clusters_of_atom: dict[int, list[int]] = defaultdict(list)
    for cluster, atoms in enumerate(clusters):
        for atom in sorted(atoms):
            for other in clusters_of_atom[atom]:
                shared[other, cluster] += 1
            clusters_of_atom[atom].append(cluster)
    leader = list(range(len(clusters)))

    def find(cluster: int) -> int:
        while leader[cluster] != cluster:
            leader[cluster] = cluster = leader[leader[cluster]]
        return cluster

    neighbours: list[list[int]] = [[] for _ in clusters]
    for one, other in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if find(one) != find(other):
            leader[find(one)] = find(other)
            neighbours[one].append(other)
            neighbours[other].append(one)
    return neighbours


RINGS = (
    (6, 1, "c{0}ccc({1})cc{0}"),
    (6, 1, "c{0}ccnc({1})c{0}"),
    (6, 1, "C{0}CCN({1})CC{0}"),
    (5, 1, "c{0}cc({1})sc{0}"),
    (5, 1, "C{0}CC({1})CN{0}"),
    (9, 2, "c{0}ccc{2}c(c{0})cc({1})[nH]{2}"),
)
"""Ring systems as SMILES with their atoms and rings; what follows stands at {1}."""
CHAINS = ((1, "C{1}"), (1, "N{1}"), (1, "O{1}"), (2, "C(=O){1}"), (2, "C(C){1}"), (3, "C(=O)N{1}"), (3, "S(=O)(=O){1}"))
RING_SHARE = 0.5


def sample_molecules(count: int, seed: int, vocab_size: int) -> list[JunctionTree]:
    """Made-up molecules with ZINC's numbers of atoms and rings."""
    rng = random.Random(seed)
    strings = [sample_smiles(num_atoms, rng) for num_atoms in sample_sizes(count, ATOMS, rng)]
    return [build_junction_tree(parse_smiles(text, "sample"), vocab_size) for text in strings]


def sample_smiles(num_atoms: int, rng: random.Random, num_rings: int = 0) -> str:
    """A string of pieces side by side or in branches, `num_rings` ring numbers being taken."""
    if num_atoms == 0:
        return ""
    if num_atoms >= 6 and rng.random() < 0.15:
        branch = rng.randint(1, 4)
        stem = sample_smiles(branch, rng, num_rings)
        return f"C({stem}){sample_smiles(num_atoms - 1 - branch, rng, num_rings)}"
    rings = [piece for piece in RINGS if piece[0] < num_atoms]
    if rings and num_rings < 6 and rng.random() < RING_SHARE:
        size, closures, piece = rng.choice(rings)
        rest = sample_smiles(num_atoms - size, rng, num_rings + closures)
        return piece.format(num_rings + 1, rest, num_rings + 2)
    size, piece = rng.choice([piece for piece in CHAINS if piece[0] <= num_atoms])
    return piece.format("", sample_smiles(num_atoms - size, rng, num_rings))
