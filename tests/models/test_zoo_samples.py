"""Made-up instances have the sizes and shapes of the data sets they stand for."""

from __future__ import annotations

import random
from collections.abc import Iterable
from statistics import mean, median

import bilstm_tagger
import bilstm_tagger_char
import child_sum_tree_lstm
import dag_gru
import lattice_lstm
import lstm_nmt
import pytest
import transition_parser
import tree_lstm
from _lattices import Lattice
from _molecules import ATOMS, sample_smiles
from _samples import sample_sizes, size_at
from _smiles import find_rings, parse_smiles
from _treebank import Node
from _trees import Tree

COUNT = 400


def quartet(sizes: Iterable[int]) -> tuple[int, int, int, int]:
    """Minimum, median, 95th percentile, maximum."""
    ordered = sorted(sizes)
    return ordered[0], round(median(ordered)), ordered[round(0.95 * (len(ordered) - 1))], ordered[-1]


def num_leaves(tree: Tree) -> int:
    return sum(node.left is None for node in tree)


def depth(tree: Tree) -> int:
    return 1 if tree.left is None or tree.right is None else 1 + max(depth(tree.left), depth(tree.right))


def num_words(lattice: Lattice) -> int:
    return sum(len(arcs) - 1 for arcs in lattice)


def test_sizes_follow_their_statistics() -> None:
    """Minimum, median, 95th percentile and maximum come back, and sizes never fall as the quantile grows."""
    sizes = [size_at(k / 1000, (3, 39, 98, 211)) for k in range(1001)]

    assert [sizes[0], sizes[500], sizes[950], sizes[1000]] == [3, 39, 98, 211]
    assert sizes == sorted(sizes)


def test_trees_look_like_the_treebank() -> None:
    """Leaves 2 / 19 / 36 / 52 as in SST; depths near its 2 / 11 / 18 / 30; both kinds of phrase."""
    trees = tree_lstm.sample(COUNT, seed=1)

    assert quartet(map(num_leaves, trees)) == (2, 19, 36, 52)
    shallow, middle, deep, deepest = quartet(map(depth, trees))
    assert shallow == 2
    assert 10 <= middle <= 12
    assert 17 <= deep <= 19
    assert 22 <= deepest <= 34
    assert mean(node.kind for tree in trees for node in tree) == pytest.approx(0.5, abs=0.02)


def test_trees_are_as_deep_as_real_ones_of_their_size(data_dir) -> None:
    """Mean depth of trees with 10 to 30 leaves is within a tenth of SST's, size for size."""
    real = list(tree_lstm.load(str(data_dir / "sst_trees" / "train-first4000.txt")))
    made = tree_lstm.sample(2000, seed=2)
    for low in (10, 15, 20, 25):
        sizes = range(low, low + 5)
        expected = mean(depth(tree) for tree in real if num_leaves(tree) in sizes)
        assert mean(depth(tree) for tree in made if num_leaves(tree) in sizes) == pytest.approx(expected, rel=0.1)


def test_sentences_have_wikiner_lengths() -> None:
    """Words 1 / 21 / 49 / 144 for both taggers; three words in ten are spelled, in seven letters at the median."""
    sentences = bilstm_tagger_char.sample(COUNT, seed=1)
    spelled = [len(word) for words in sentences for word in words if isinstance(word, tuple)]

    assert quartet(map(len, bilstm_tagger.sample(COUNT, seed=1))) == (1, 21, 49, 144)
    assert quartet(map(len, sentences)) == (1, 21, 49, 144)
    assert len(spelled) / sum(map(len, sentences)) == pytest.approx(0.31, abs=0.02)
    assert quartet(spelled)[1:3] == (7, 11)
    assert min(spelled) >= 1


def test_pairs_have_iwslt_lengths() -> None:
    """Source 2 / 15 / 39 / 93, target about 2 / 19 / 47 / 122, and long goes with long."""
    pairs = lstm_nmt.sample(COUNT, seed=1)
    low, middle, high, highest = quartet(len(pair.target) for pair in pairs)

    assert quartet(len(pair.source) for pair in pairs) == (2, 15, 39, 93)
    assert (low, highest) == (2, 122)
    assert 17 <= middle <= 21
    assert 43 <= high <= 55
    assert mean(len(pair.target) / len(pair.source) for pair in pairs) == pytest.approx(1.27, abs=0.1)


def test_lattices_look_like_the_corpus() -> None:
    """Positions 3 / 39 / 98 / 211 and arcs into a position as in ED-Batch's lattices; every arc comes from before."""
    lattices = lattice_lstm.sample(COUNT, seed=1)
    arity = [len(arcs) for lattice in lattices for arcs in lattice]

    assert quartet(len(lattice) + 1 for lattice in lattices) == (3, 39, 98, 211)
    for size, share in {1: 0.52, 2: 0.42, 3: 0.055, 4: 0.006}.items():
        assert arity.count(size) / len(arity) == pytest.approx(share, abs=0.02)
    for lattice in lattices:
        for last, arcs in enumerate(lattice):
            assert [start for start, _ in arcs[:1]] == [last]
            assert all(0 <= start < last for start, _ in arcs[1:])
            assert len({start for start, _ in arcs}) == len(arcs)


def test_word_density_is_the_corpus_own(data_dir) -> None:
    """Word arcs per position, lattice by lattice: quartiles within 0.06 of the data's."""
    real = list(lattice_lstm.load(str(data_dir / "zh_lattice_edbatch" / "train.txt")))
    made = lattice_lstm.sample(len(real), seed=2)

    def densities(lattices: list[Lattice]) -> list[float]:
        return sorted(num_words(lattice) / (len(lattice) + 1) for lattice in lattices)

    for at in (0.05, 0.25, 0.5, 0.75, 0.95):
        place = round(at * (len(real) - 1))
        assert densities(made)[place] == pytest.approx(densities(real)[place], abs=0.06)


def node_depth(tree: Node) -> int:
    return 1 + max(map(node_depth, tree.children), default=0)


def test_treebank_trees_look_like_gum() -> None:
    """Words 1 / 19 / 46 / 101, depth near 2 / 9 / 17 / 34; half of the phrases have two children, a quarter one."""
    trees = child_sum_tree_lstm.sample(COUNT, seed=1)
    words = [sum(not node.children for node in tree) for tree in trees]
    arities = [len(node.children) for tree in trees for node in tree if node.children]
    _, middle, deep, deepest = quartet(map(node_depth, trees))

    assert quartet(words) == (1, 19, 46, 101)
    assert 8 <= middle <= 10
    assert 15 <= deep <= 19
    assert 20 <= deepest <= 36
    assert arities.count(1) / len(arities) == pytest.approx(0.27, abs=0.04)
    assert arities.count(2) / len(arities) == pytest.approx(0.49, abs=0.05)
    assert max(arities) >= 7


def test_cones_look_like_the_benchmarks() -> None:
    """Gates 1 / 70 / 788 / 1530; cones of 50 to 200 gates are 7 to 40 deep, as most of the circuits' are."""
    circuits = dag_gru.sample(100, seed=1)
    depths = []
    for circuit in circuits:
        levels: list[int] = []
        for operands in circuit.operands:
            levels.append(1 + max((levels[operand] for operand in operands), default=-1))
        if 50 <= len(levels) < 200:
            depths.append(levels[-1])

    sizes = quartet(len(circuit.kinds) for circuit in circuits)
    assert (sizes[0], sizes[3]) == (1, 1530)
    assert 65 <= sizes[1] <= 75
    assert 760 <= sizes[2] <= 800
    assert 7 <= min(depths) <= median(depths) <= max(depths) <= 40


def test_sentences_to_parse_have_ud_lengths() -> None:
    """Words 1 / 14 / 38 / 104, two transitions each."""
    sentences = transition_parser.sample(COUNT, seed=1)

    assert quartet(len(sentence.words) for sentence in sentences) == (1, 14, 38, 104)
    assert all(len(sentence.transitions) == 2 * len(sentence.words) for sentence in sentences)


def test_molecules_look_like_zinc() -> None:
    """Atoms 6 / 23 / 31 / 37, rings 0 / 3 / 4 / 6 give or take one."""
    rng = random.Random(1)
    molecules = [parse_smiles(sample_smiles(size, rng), "sample") for size in sample_sizes(COUNT, ATOMS, rng)]
    rings = quartet(len(find_rings(molecule)) for molecule in molecules)

    assert quartet(len(molecule.atoms) for molecule in molecules) == (6, 23, 31, 37)
    assert all(abs(made - real) <= 1 for made, real in zip(rings, (0, 3, 4, 6), strict=True))
