"""Readers of circuits, molecules, programs, plans and transitions: what they build, against independent judges."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from itertools import combinations, islice, product
from pathlib import Path

import dag_gru
import lstm_lm
import networkx as nx
import pytest
import transition_parser
import tree_fc
from _circuits import KINDS, ONE_OPERAND, read_circuit, sample_circuits
from _molecules import ATOMS, build_junction_tree, join_clusters, read_molecules, read_strings, sample_smiles
from _plans import ARITIES, EXTRAS, WIDTHS, read_plans, sample_plans
from _programs import HAS_WORD_AND_ARITY, Module, Question, read_questions, sample_questions
from _samples import sample_sizes
from _smiles import Molecule, find_rings, parse_smiles
from _text import word_id
from _transitions import LEFT, RIGHT, SHIFT, find_transitions, follow, sample_heads
from _treebank import Node, read_treebank
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.errors import InputError, ModelError

Write = Callable[..., str]

BENCH = "# half adder\nOUTPUT(s)\nOUTPUT(c)\ns = XOR(a, b)\nc = and(b, a)\nINPUT(a)\nINPUT(b)\n"
PLAN = (
    '[{"Plan": {"Node Type": "Limit", "Plan Rows": 9, "Plan Width": 4, "Startup Cost": 0, "Total Cost": 7.5, "Plans": '
    '[{"Node Type": "Seq Scan", "Relation Name": "t", "Plan Rows": 9, "Plan Width": 4, "Startup Cost": 0.0, '
    '"Total Cost": 7}]}}]\n'
)
QUESTION = "3 (exist (and (find cube) (relocate left (find ball))))\n"

READERS: dict[str, tuple[Callable[[str], list], str, str]] = {
    "treebank": (lambda path: list(read_treebank(path, 100)), "(ROOT (NP (DT the) (NN cat)))\n", "input.txt"),
    "bench": (lambda path: list(dag_gru.load(path)), BENCH, "input.bench"),
    "smi": (lambda path: list(read_molecules(path, 100)), "CC(=O)Oc1ccccc1C(=O)O aspirin\n", "input.smi"),
    "csv": (lambda path: list(read_molecules(path, 100)), 'name,smiles\n"a, b",CCO \n', "input.csv"),
    "questions": (lambda path: list(read_questions(path, 100, 8)), QUESTION, "input.txt"),
    "plans": (lambda path: list(read_plans(path)), PLAN, "input.json"),
    "tree_fc": (lambda path: list(tree_fc.load(path, leaves=4)), "a b c d\n", "input.txt"),
    "lstm_lm": (lambda path: list(lstm_lm.load(path)), "a b c\n", "input.txt"),
}


@pytest.mark.parametrize("reader", READERS)
def test_text_files_of_every_make_read_the_same(reader: str, write: Write) -> None:
    """Byte-order mark, Windows line ends and a missing last line end change nothing; empty files have no instance."""
    read, text, name = READERS[reader]
    expected = read(write(text, name))

    assert expected
    assert read(write(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), name)) == expected
    assert read(write(text.rstrip("\n"), name)) == expected
    assert read(write("", name)) == []
    with pytest.raises(InputError, match="expected UTF-8, got byte 0xff"):
        read(write(text.encode() + b"\xff\n", name))
    with pytest.raises(InputError, match="expected a readable file"):
        read(str(Path(write(text, name)).parent / ("absent-" + name)))


BROKEN = [
    ("treebank", "(S)", ":1: expected a label and one word, or a label and children, got word; "),
    ("treebank", "(S (A a) b)", ":1: expected a label and one word, or a label and children, got word, bracket, word"),
    ("treebank", "((A a))", ":1: expected a label and one word, or a label and children, got bracket; "),
    ("bench", BENCH + "s = not(a)", ":8: expected 's' driven once, got again (first in line 4); "),
    ("bench", BENCH.replace("(a, b)", "(a, d)"), ":4: expected 'd' to be an input or a gate, got neither; "),
    ("bench", BENCH + "OUTPUT(d)", ":8: expected 'd' to be an input or a gate, got neither; "),
    ("bench", BENCH.replace("XOR", "dff"), ":4: expected a gate of and, nand, or, nor, xor, not, buf, got 'dff'; "),
    ("bench", BENCH.replace("XOR", "not"), ":4: expected one signal in brackets, got 'a, b'; "),
    ("bench", BENCH.replace("(a, b)", "(a,)"), ":4: expected signals between commas in brackets, got 'a,'; "),
    ("bench", BENCH + "s : a", ":8: expected INPUT(x), OUTPUT(x) or y = gate(a, b), got 's : a'; "),
    ("bench", "OUTPUT(a)\na = not(b)\nb = not(a)", ": expected gates without a cycle, got one through 'a'; "),
    ("smi", "C1CC", ":1: expected ring 1 closed, got 'the end' at character 5 of 'C1CC'; "),
    ("smi", "C(C", ":1: expected ')', got 'the end' at character 4 of 'C(C'; "),
    ("smi", "CC=", ":1: expected another atom, got 'the end' at character 4 of 'CC='; "),
    ("smi", "=C", ":1: expected an atom first, got '=' at character 1 of '=C'; "),
    ("smi", "C)", ":1: expected an open branch, got ')' at character 2 of 'C)'; "),
    ("smi", "CXC", ":1: expected an atom, a bond, a bracket or a ring number, got 'X' at character 2 of 'CXC'; "),
    ("smi", "C1C1", ":1: expected a ring of three atoms or more, got '1' at character 4 of 'C1C1'; "),
    ("csv", "name,string\na,C", ":1: expected a column 'smiles', got name, string; "),
    ("csv", "name,smiles\na,b,C", ":2: expected 2 columns, got 3; "),
    ("questions", "8" + QUESTION[1:], ":1: expected a picture 0 to 7 and a program in brackets, got '8 (exist"),
    ("questions", "3 (find cube)", ":1: expected exist or describe, got 'find'; "),
    ("questions", "3 (exist (exist (find a)))", ":1: expected modules that make a map inside 'exist', got one that "),
    ("questions", "3 (exist (and (find a)))", ":1: expected 2 brackets after 'and', got bracket; "),
    ("questions", "3 (exist (find))", ":1: expected a word and 0 brackets after 'find', got nothing; "),
    ("questions", "3 (exist (look a))", ":1: expected one of find, filter, "),
    ("plans", "{", ":1: expected one JSON document, got '{' (Expecting property name"),
    ("plans", PLAN.replace("Seq Scan", "Foreign Scan"), ":1: expected an operator with a 'Node Type' of Seq Scan, "),
    ("plans", PLAN.replace('"Limit"', '"Hash Join"'), ":1: expected 2 'Plans' under Hash Join, got 1; "),
    ("plans", PLAN.replace("7.5", "-1"), ":1: expected 'Total Cost' to be a number from 0 to 1e30, got -1; "),
    ("plans", PLAN.replace("7.5", "1e999"), ":1: expected 'Total Cost' to be a number from 0 to 1e30, got inf; "),
    ("plans", PLAN.replace("7.5", '"7"'), ":1: expected 'Total Cost' to be a number from 0 to 1e30, got '7'; "),
    ("plans", "[" * 5000, ":1: expected one JSON document, got '[[["),
    ("tree_fc", "a b c", ":1: expected 4 words, got 3; "),
]


@pytest.mark.parametrize(("reader", "text", "message"), BROKEN)
def test_broken_text_is_refused(reader: str, text: str, message: str, write: Write) -> None:
    """The message names file and line, what was expected, what was there, and what to do."""
    read, _, name = READERS[reader]
    path = write(text, name)

    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(path + message)
    assert "; " in str(error.value)


def test_treebank_tree_is_read_as_written(write: Write) -> None:
    """Pre-terminals are leaves with their tag as label; a phrase may have one child."""
    (tree,) = read_treebank(write("(ROOT (NP (NN cat)))\n"), 100)

    assert tree == Node("ROOT", 0, [Node("NP", 0, [Node("NN", word_id("cat", 100))])])


def test_treebank_file_is_read_whole(data_dir) -> None:
    """GUM's training trees: 3,707 trees, 141,497 nodes, 76,760 words."""
    trees = list(read_treebank(str(data_dir / "gum_const_trees/gum-const-train.txt"), 100))
    nodes = [node for tree in trees for node in tree]

    assert (len(trees), len(nodes), sum(not node.children for node in nodes)) == (3707, 141497, 76760)


# Circuits


def evaluate(define: Callable, signal: Hashable, inputs: dict[Hashable, bool], known: dict[Hashable, bool]) -> bool:
    """The value of a signal, by definition; without recursion."""
    stack = [signal]
    while stack:
        current = stack[-1]
        kind, operands = define(current)
        missing = [operand for operand in operands if operand not in known]
        if missing:
            stack += missing
            continue
        values = [known[operand] for operand in operands]
        known[stack.pop()] = inputs[current] if kind == "input" else apply(kind, values)
    return known[signal]


def apply(kind: str, values: list[bool]) -> bool:
    """What a gate makes of its operands."""
    result = {
        "false": lambda: False,
        "and": lambda: all(values),
        "or": lambda: any(values),
        "xor": lambda: sum(values) % 2 == 1,
        "buf": lambda: values[0],
    }
    opposite = {"nand": "and", "nor": "or", "not": "buf"}
    return result[kind]() if kind in result else not result[opposite[kind]]()


def test_bench_circuit_computes_its_function(write: Write) -> None:
    """A half adder adds, its lines being in no order; kinds are read in either case."""
    define, (total, carry) = read_circuit(write(BENCH, "input.bench"))
    for a, b in product([False, True], repeat=2):
        known: dict[Hashable, bool] = {}
        inputs = {"a": a, "b": b}

        assert evaluate(define, total, inputs, known) + 2 * evaluate(define, carry, inputs, known) == a + b


def test_aig_adder_adds(data_dir) -> None:
    """The 128-bit adder: inputs are two numbers, low bits first, outputs their sum."""
    define, outputs = read_circuit(str(data_dir / "circuits/epfl/adder.aig"))
    rng = random.Random(0)
    for _ in range(3):
        a, b = rng.getrandbits(128), rng.getrandbits(128)
        inputs = {2 * (k + 1): bool((a >> k if k < 128 else b >> (k - 128)) & 1) for k in range(256)}
        known: dict[Hashable, bool] = {}

        assert sum(evaluate(define, output, inputs, known) << k for k, output in enumerate(outputs)) == a + b


@pytest.mark.parametrize(
    ("name", "outputs", "sizes"),
    [
        ("iscas85/c17.bench", 2, (8, 8, 8)),
        ("iscas85/c432.bench", 7, (38, 162, 182)),
        ("iscas85/c880.bench", 26, (4, 12, 175)),
        ("iscas85/c2670.bench", 140, (1, 1, 950)),
        ("epfl/cavlc.aig", 11, (20, 107, 136)),
        ("epfl/i2c.aig", 142, (1, 21, 72)),
        ("epfl/adder.aig", 129, (5, 389, 767)),
    ],
)
def test_cones_have_the_published_sizes(name: str, outputs: int, sizes: tuple[int, int, int], data_dir) -> None:
    """Number of outputs; minimum, median and maximum of gates per cone, inverters of .aig files not counted."""
    inverter = KINDS.index("not")
    cones = list(dag_gru.load(str(data_dir / "circuits" / name)))
    counts = sorted(len(c.kinds) - (c.kinds.count(inverter) if name.endswith(".aig") else 0) for c in cones)

    assert len(cones) == outputs
    assert (counts[0], counts[len(counts) // 2], counts[-1]) == sizes


def assert_cone(circuit) -> None:
    """Operands come earlier, all but the last gate are read, and gates without operands are sources."""
    for gate, operands in enumerate(circuit.operands):
        kind = KINDS[circuit.kinds[gate]]
        assert all(operand < gate for operand in operands)
        assert bool(operands) == (kind not in ("input", "false"))
        assert len(operands) == 1 or kind not in ONE_OPERAND
    assert [bool(users) for users in circuit.users] == [True] * (len(circuit.kinds) - 1) + [False]


def test_cones_are_whole_and_in_order(data_dir) -> None:
    """Real and made-up cones alike."""
    for circuit in [*dag_gru.load(str(data_dir / "circuits/iscas85/c432.bench")), *sample_circuits(60, seed=1)]:
        assert_cone(circuit)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"aag 3 2 0 1 1\n", ":1: expected 'aig M I L O A', got "),
        (b"", ":1: expected 'aig M I L O A', got "),
        (b"aig 3 2 0 1\n", ":1: expected 'aig M I L O A', got "),
        (b"aig 3 2 1 1 1\n", ":1: expected no latches and M = I + A, got "),
        (b"aig 9 2 0 1 1\n", ":1: expected no latches and M = I + A, got "),
        (b"aig 3 2 0 1 1\n8\n\x02\x02", ":2: expected an output's literal up to 7, got b'8'; "),
        (b"aig 3 2 0 1 1\n6\n\x02", ": expected another AND gate, got the end of the file; "),
        (b"aig 3 2 0 1 1\n6\n\x00\x02", ": expected AND gate 0 to read earlier literals, got a step of 0 from 6 "),
        (b"aig 3 2 0 1 1\n6\n\x02\x09", ": expected AND gate 0 to read earlier literals, got a step of 9 from 4 "),
        (b"aig 3 2 0 1 1\n6\n\xff\xff\xff\xff\xff\x01", ": expected a number of at most 5 bytes, got more before "),
        (b"aig 999999999 999999998 0 1 1\n6\n", ": expected another AND gate, got the end of the file; "),
        (b"aig 999999999 0 0 1 999999999\n6\n", ": expected another AND gate, got the end of the file; "),
    ],
)
def test_broken_aig_is_refused(content: bytes, message: str, write: Write) -> None:
    """Header, outputs and gates are checked, and nothing is allocated on the header's word."""
    path = write(content, "input.aig")

    with pytest.raises(InputError) as error:
        list(dag_gru.load(path))
    assert str(error.value).startswith(path + message)


def test_aig_literals_become_inverters(write: Write) -> None:
    """Output NOT(a AND NOT b): and, inverter of b, inverter of the and; a constant is a gate too."""
    one, other = dag_gru.load(write(b"aig 3 2 0 2 1\n7\n1\n\x01\x03", "input.aig"))

    assert [KINDS[kind] for kind in one.kinds] == ["input", "not", "input", "and", "not"]
    assert one.operands == [[], [0], [], [1, 2], [3]]
    assert [KINDS[kind] for kind in other.kinds] == ["false", "not"]


def test_circuit_of_another_name_is_refused(write: Write) -> None:
    """The name tells the format."""
    with pytest.raises(InputError, match=r"expected a file named \*\.bench or \*\.aig"):
        list(dag_gru.load(write(BENCH, "input.v")))


# Molecules


def as_graph(molecule: Molecule) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(molecule.atoms)))
    graph.add_edges_from((a, b) for a, b, _ in molecule.bonds)
    return graph


def test_smiles_is_read_as_written() -> None:
    """Branches, double bonds, rings of two digits, bracket atoms and parts without a bond."""
    molecule = parse_smiles("C%12=C(Cl)[nH+]C%12.[Na+]", "example:1")

    assert molecule.atoms == ["C", "C", "Cl", "n", "C", "Na"]
    assert molecule.bonds == [(0, 1, "="), (1, 2, "-"), (1, 3, "-"), (3, 4, "-"), (4, 0, "-")]


@pytest.mark.parametrize(
    ("name", "counts"),
    [("zinc-valid-first8000.smi", (8000, 185364, 22066)), ("esol-first900.csv", (900, 11954, 1273))],
)
def test_molecule_files_are_read_whole(name: str, counts: tuple[int, int, int], data_dir) -> None:
    """Molecules, heavy atoms and independent rings as the data's description counts them."""
    molecules = [parse_smiles(text, name) for _, text in read_strings(str(data_dir / "molecules" / name))]
    rings = sum(len(m.bonds) - len(m.atoms) + nx.number_connected_components(as_graph(m)) for m in molecules[:900])
    found = sum(len(find_rings(molecule)) for molecule in molecules)

    assert (len(molecules), sum(len(molecule.atoms) for molecule in molecules), found) == counts
    assert sum(len(find_rings(molecule)) for molecule in molecules[:900]) == rings


CAGES = ["C12C3C4C1C5C2C3C45", "C1C2CC3CC1CC(C2)C3", "C1CC2CCC1C2", "C12CC1C2", "C1CC2(C1)CCC2"]


def test_rings_are_a_minimum_cycle_basis() -> None:
    """As many bonds in rings as networkx's basis has; cages too, and made-up molecules."""
    rng = random.Random(0)
    strings = CAGES + [sample_smiles(size, rng) for size in sample_sizes(60, ATOMS, rng)]
    for text in strings:
        molecule = parse_smiles(text, "test:1")
        rings = find_rings(molecule)
        expected = nx.minimum_cycle_basis(as_graph(molecule))

        assert sorted(map(len, rings)) == sorted(map(len, expected))
        for ring in rings:
            edges = nx.Graph([molecule.bonds[bond][:2] for bond in ring])
            assert nx.is_connected(edges)
            assert all(degree == 2 for _, degree in edges.degree)


def cluster_atoms(molecule: Molecule) -> list[set[int]]:
    """Atoms of each ring, of each bond outside rings, and of each atom without a bond."""
    rings = find_rings(molecule)
    in_ring = {bond for ring in rings for bond in ring}
    ends = [{a, b} for a, b, _ in molecule.bonds]
    bound = set().union(*ends)
    return [
        *(set().union(*(ends[bond] for bond in ring)) for ring in rings),
        *(pair for bond, pair in enumerate(ends) if bond not in in_ring),
        *({atom} for atom in range(len(molecule.atoms)) if atom not in bound),
    ]


def test_junction_tree_joins_what_shares_most() -> None:
    """Joined clusters share as many atoms in all as in networkx's maximum spanning tree; one root per part."""
    rng = random.Random(1)
    for text in [*CAGES, "C", "C.CC", *(sample_smiles(size, rng) for size in (6, 15, 23, 37))]:
        molecule = parse_smiles(text, "test:1")
        clusters = cluster_atoms(molecule)
        shared = nx.Graph()
        for i, j in combinations(range(len(clusters)), 2):
            if clusters[i] & clusters[j]:
                shared.add_edge(i, j, weight=len(clusters[i] & clusters[j]))
        joined = [(i, j) for i, others in enumerate(join_clusters(clusters)) for j in others if i < j]
        tree = build_junction_tree(molecule, 1000)

        assert sum(len(clusters[i] & clusters[j]) for i, j in joined) == nx.maximum_spanning_tree(shared).size("weight")
        assert len(tree.clusters) == len(clusters)
        assert len(tree.parents) - tree.parents.count(None) == len(joined)
        assert tree.parents.count(None) == nx.number_connected_components(as_graph(molecule))
        assert all(parent is None or parent < cluster for cluster, parent in enumerate(tree.parents))


def test_benzoic_acid_has_one_ring_and_four_bonds() -> None:
    """Labels are independent of the order in which the string names the atoms."""
    tree = build_junction_tree(parse_smiles("OC(=O)c1ccccc1", "test:1"), 10**6)
    labels = ["ring c c c c c c", "C-O", "C=O", "C-c"]

    assert sorted(tree.clusters) == sorted(word_id(label, 10**6) for label in labels)
    other = build_junction_tree(parse_smiles("c1ccccc1C(O)=O", "test:1"), 10**6)
    assert sorted(other.clusters) == sorted(tree.clusters)


# Programs and plans


def test_question_is_read_as_written(write: Write) -> None:
    """A picture and nested modules with their words."""
    (question,) = read_questions(write(QUESTION), 100, 8)
    cube, left, ball = (word_id(word, 100) for word in ("cube", "left", "ball"))
    away = Module("relocate", left, [Module("find", ball)])

    assert question == Question(3, Module("exist", 0, [Module("and", 0, [Module("find", cube), away])]))


def test_made_up_programs_are_programs() -> None:
    """3 to 20 modules, each with as many inputs as its kind has, all seven kinds."""

    def modules(module: Module) -> list[Module]:
        return [module] + [inner for read in module.reads for inner in modules(read)]

    programs = [modules(question.program) for question in sample_questions(100, 1, 50, 8)]

    assert {len(program) for program in programs} == set(range(3, 21))
    assert {module.name for program in programs for module in program} == set(HAS_WORD_AND_ARITY)
    for module in (module for program in programs for module in program):
        assert len(module.reads) == HAS_WORD_AND_ARITY[module.name][1]


def test_plan_is_read_as_written(write: Write) -> None:
    """Logarithms of the estimates, and the table's name as one of 16."""
    (limit,) = read_plans(write(PLAN))
    (scan,) = limit.reads

    assert (limit.type, scan.type) == ("limit", "scan")
    assert limit.features == pytest.approx([2.302585, 1.609438, 0, 2.140066], abs=1e-6)
    assert scan.features[4:] == [float(k == word_id("t", 16)) for k in range(16)]


def test_widths_of_operators_differ() -> None:
    """Features have the width of their type, in made-up plans of every type."""

    def operators(operator) -> list:
        return [operator] + [inner for read in operator.reads for inner in operators(read)]

    found = [operator for plan in sample_plans(60, 1) for operator in operators(plan)]

    assert {operator.type for operator in found} == set(EXTRAS)
    assert all(len(operator.features) == WIDTHS[operator.type] for operator in found)
    assert all(len(operator.reads) == ARITIES[operator.type] for operator in found)
    assert len(set(WIDTHS.values())) >= 5


# Transitions


def heads_of(transitions: list[int], num_words: int) -> list[int]:
    """The tree that transitions build."""
    heads = [0] * num_words
    for transition, (stack, _) in zip(transitions, follow(transitions), strict=True):
        if transition == LEFT:
            heads[stack[-2] - 1] = stack[-1]
        elif transition == RIGHT:
            heads[stack[-1] - 1] = stack[-2]
    return heads


def is_projective(heads: list[int]) -> bool:
    """No two arcs cross, and every word hangs from the root."""
    arcs = [sorted((word, head)) for word, head in enumerate(heads, start=1)]
    crossing = any(a < c < b < d for (a, b), (c, d) in product(arcs, repeat=2))
    tree = nx.DiGraph((head, word) for word, head in enumerate(heads, start=1))
    return not crossing and 0 in tree and len(nx.descendants(tree, 0)) == len(heads)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, n), min_size=n, max_size=n)))
def test_transitions_exist_exactly_for_projective_trees(heads: list[int]) -> None:
    """And where they exist they are 2n and build the tree."""
    transitions = find_transitions(heads)

    assert (transitions is not None) == is_projective(heads)
    if transitions is not None:
        assert len(transitions) == 2 * len(heads)
        assert transitions.count(SHIFT) == len(heads)
        assert heads_of(transitions, len(heads)) == heads


def test_made_up_trees_are_projective() -> None:
    """Of any length."""
    rng = random.Random(0)
    for length in [*range(1, 40), 104]:
        heads = sample_heads(length, rng)
        transitions = find_transitions(heads)

        assert transitions is not None
        assert heads_of(transitions, length) == heads


@pytest.mark.parametrize(
    ("name", "left"), [("en_ewt-ud-train-every10th.conllu", 1255 - 32), ("en_ewt-ud-dev-every2nd.conllu", 1001 - 12)]
)
def test_sentences_that_are_not_projective_are_left_out(name: str, left: int, data_dir) -> None:
    """As many as the data's description counts; what is left has two transitions per word."""
    sentences = list(transition_parser.load(str(data_dir / "ud_ewt" / name)))

    assert len(sentences) == left
    assert all(len(sentence.transitions) == 2 * len(sentence.words) for sentence in sentences)


# Running text


def test_text_is_cut_into_pieces(write: Write) -> None:
    """`length` words at a time over the ends of sentences; the rest is dropped; 0 keeps the sentences."""
    path = write("a b c\nd\n\ne f g h\n")
    ids = [word_id(letter, 100) for letter in "abcdefgh"]

    assert list(lstm_lm.load(path, length=3, vocab_size=100)) == [ids[:3], ids[3:6]]
    assert list(lstm_lm.load(path, vocab_size=100)) == [ids[:3], ids[3:4], ids[4:]]
    assert [len(words) for words in islice(lstm_lm.sample(5, seed=0, length=64), 5)] == [64] * 5
    with pytest.raises(ModelError, match="length: expected a number of words"):
        list(lstm_lm.load(path, length=-1))


@pytest.mark.parametrize("leaves", [0, 1, 3, 100])
def test_complete_trees_have_powers_of_two(leaves: int) -> None:
    """Other numbers of leaves are refused."""
    with pytest.raises(ModelError, match="leaves: expected a power of two"):
        tree_fc.sample(1, seed=0, leaves=leaves)
