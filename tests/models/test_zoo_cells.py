"""Cells against their equations, written out again on numpy arrays in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _sentences import Pair
from _text import word_id
from _trees import Tree
from helpers import bound
from torch import nn
from zoo import model, run, small

TOLERANCE = 1e-13
Weights = dict[str, np.ndarray]


def sigma(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def weights(module: nn.Module) -> Weights:
    return {name: value.detach().numpy() for name, value in module.named_parameters()}


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """Product with a weight, plus its bias where it has one."""
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", np.zeros(1))


def check(cell: nn.Module, formula, *shapes: tuple[int, ...]) -> None:
    """Random parameters, biases too, and random operands: cell and formula give the same, to 1e-13."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) * 0.4))
    operands = [rng.normal(size=shape) for shape in shapes]
    with torch.no_grad():
        actual = cell(*map(torch.from_numpy, operands))
    expected = formula(weights(cell), *operands)
    actual, expected = (item if isinstance(item, tuple) else (item,) for item in (actual, expected))
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=0, atol=TOLERANCE)


def tree_lstm_leaf(w: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    c = sigma(linear(w, "i", x)) * np.tanh(linear(w, "u", x))
    return sigma(linear(w, "o", x)) * np.tanh(c), c


def tree_lstm_internal(w: Weights, h1, c1, h2, c2) -> tuple[np.ndarray, np.ndarray]:
    e = np.concatenate([h1, h2])
    f1 = sigma(linear(w, "f1", h1) + w["f_bias"])
    f2 = sigma(linear(w, "f2", h2) + w["f_bias"])
    c = sigma(linear(w, "i", e)) * np.tanh(linear(w, "u", e)) + f1 * c1 + f2 * c2
    return sigma(linear(w, "o", e)) * np.tanh(c), c


def tree_gru_leaf(w: Weights, x: np.ndarray) -> np.ndarray:
    r, z = sigma(linear(w, "r", x)), sigma(linear(w, "z", x))
    return z * x + (1 - z) * np.tanh(linear(w, "c", r * x))


def tree_gru_internal(w: Weights, h1: np.ndarray, h2: np.ndarray) -> np.ndarray:
    total = np.zeros_like(h1)
    for k, h in (("1", h1), ("2", h2)):
        r = sigma(linear(w, f"r{k}", h) + w["r_bias"])
        z = sigma(linear(w, f"z{k}", h) + w["z_bias"])
        total += z * h + (1 - z) * np.tanh(linear(w, f"c{k}", r * h) + w["c_bias"])
    return total / 2


def mv_internal(w: Weights, v1, m1, v2, m2) -> tuple[np.ndarray, np.ndarray]:
    v = np.tanh(linear(w, "v", np.concatenate([m1 @ v2, m2 @ v1])))
    return v, w["m"] @ np.concatenate([m1, m2]) + w["m_bias"]


def lstm(w: Weights, x, h, c) -> tuple[np.ndarray, np.ndarray]:
    i, f, o = (sigma(linear(w, f"{gate}_x", x) + linear(w, f"{gate}_h", h)) for gate in "ifo")
    c = f * c + i * np.tanh(linear(w, "g_x", x) + linear(w, "g_h", h))
    return o * np.tanh(c), c


def gru(w: Weights, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    r, z = (sigma(linear(w, f"{gate}_x", x) + linear(w, f"{gate}_h", h)) for gate in "rz")
    return z * h + (1 - z) * np.tanh(linear(w, "c_x", x) + linear(w, "c_h", r * h))


def tagger_out(w: Weights, f: np.ndarray, b: np.ndarray) -> np.ndarray:
    return w["tags.weight"] @ np.tanh(w["hidden.weight"] @ np.concatenate([f, b]))


V, M = (8,), (8, 8)
CELLS = {
    ("tree_lstm", "leaf"): (tree_lstm_leaf, V),
    ("tree_lstm", "internal"): (tree_lstm_internal, V, V, V, V),
    ("tree_lstm_regression", "leaf"): (tree_lstm_leaf, V),
    ("tree_lstm_regression", "internal"): (tree_lstm_internal, V, V, V, V),
    ("tree_lstm_2type", "leaf"): (tree_lstm_leaf, V),
    ("tree_lstm_2type", "internal_a"): (tree_lstm_internal, V, V, V, V),
    ("tree_lstm_2type", "internal_b"): (tree_lstm_internal, V, V, V, V),
    ("tree_gru", "leaf"): (tree_gru_leaf, V),
    ("tree_gru", "internal"): (tree_gru_internal, V, V),
    ("mv_rnn", "internal"): (mv_internal, V, M, V, M),
    ("lattice_lstm", "char"): (lstm, V, V, V),
    ("lattice_lstm", "word"): (lstm, V, V, V),
    ("lattice_gru", "char"): (gru, V, V),
    ("lattice_gru", "word"): (gru, V, V),
    ("bilstm_tagger", "forward0"): (lstm, V, V, V),
    ("bilstm_tagger", "out"): (tagger_out, V, V),
    ("bilstm_tagger_char", "spell_forward"): (lstm, (4,), (4,), (4,)),
    ("bilstm_tagger_char", "backward1"): (lstm, V, V, V),
    ("lstm_nmt", "decoder"): (lstm, V, V, V),
}


@pytest.mark.parametrize(("name", "cell"), CELLS, ids=["-".join(key) for key in CELLS])
def test_cell_computes_its_equations(name: str, cell: str) -> None:
    """Every gate, bias and operand is where the equations have it."""
    formula, *shapes = CELLS[name, cell]
    check(small(name).get_submodule(cell), formula, *shapes)


def phrase(kind: int = 0) -> Tree:
    """`(3 (2 a) (3 b))` with word ids 4 and 7."""
    return Tree(3, kind, 0, Tree(2, 0, 4), Tree(3, 0, 7))


def test_tree_outputs_stand_in_post_order() -> None:
    """Left leaf, right leaf, phrase; the phrase reads the left child first."""
    network = small("tree_lstm")
    table, leaf, internal, out = (weights(m) for m in (network.embedding, network.leaf, network.internal, network.out))
    left, right = (tree_lstm_leaf(leaf, table["weight"][word]) for word in (4, 7))
    states = [left, right, tree_lstm_internal(internal, *left, *right)]

    for logits, (h, _) in zip(run(network, phrase())["logits"], states, strict=True):
        np.testing.assert_allclose(logits.numpy(), out["weight"] @ h + out["bias"], rtol=0, atol=TOLERANCE)


def test_kind_chooses_the_inner_cell() -> None:
    """Kind 0 runs internal_a, kind 1 internal_b, whose weights differ."""
    network = small("tree_lstm_2type")
    before = [run(network, phrase(kind))["logits"][-1] for kind in (0, 1)]
    with torch.no_grad():
        network.internal_b.u.bias.add_(1)
    after = [run(network, phrase(kind))["logits"][-1] for kind in (0, 1)]

    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_matrices_are_shared_modulo_their_number() -> None:
    """MV-RNN's word 4 + 256 has the matrix of word 4, and a leaf's output is its vector's."""
    network = small("mv_rnn", vocab_size=300)
    network.vectors.weight.data[260] = network.vectors.weight.data[4]
    one, other = phrase(), phrase()
    other.left.word = 260

    assert network.matrices.shape == (256, 8, 8)
    assert all(map(torch.equal, run(network, one)["logits"], run(network, other)["logits"]))
    out = weights(network.out)
    expected = out["weight"] @ weights(network.vectors)["weight"][4] + out["bias"]
    np.testing.assert_allclose(run(network, one)["logits"][0].numpy(), expected, rtol=0, atol=TOLERANCE)


def test_lattice_sums_the_arcs() -> None:
    """Two characters and a word over both: position 2 is the sum of a char step from 1 and a word step from 0."""
    network = small("lattice_lstm")
    w = weights(network)
    char, word, out = (weights(m) for m in (network.char, network.word, network.out))
    start = (w["h0"], w["c0"])
    first = lstm(char, w["characters.weight"][1], *start)
    second = lstm(char, w["characters.weight"][2], *first)
    whole = lstm(word, w["words.weight"][3], *start)

    logits = run(network, [[(0, 1)], [(1, 2), (0, 3)]])["logits"]
    for h, actual in zip([start[0], first[0], second[0] + whole[0]], logits, strict=True):
        np.testing.assert_allclose(actual.numpy(), out["weight"] @ h + out["bias"], rtol=0, atol=TOLERANCE)


def test_tagger_reads_both_ways() -> None:
    """The first word's tags use the whole backward stack, the last word's the whole forward stack; forget bias 1."""
    network = small("bilstm_tagger")
    table = weights(network)["embedding.weight"]
    w = {name: weights(getattr(network, name)) for name in ("forward0", "forward1", "backward0", "backward1", "out")}

    def stack(words: list[int], direction: str) -> list[np.ndarray]:
        outputs = [table[word] for word in words]
        for layer in "01":
            h = c = np.zeros(8)
            inputs, outputs = outputs, []
            for x in inputs:
                h, c = lstm(w[direction + layer], x, h, c)
                outputs.append(h)
        return outputs

    words = [3, 1, 4, 1]
    fs, bs = stack(words, "forward"), stack(words[::-1], "backward")[::-1]
    for f, b, actual in zip(fs, bs, run(network, words)["tags"], strict=True):
        np.testing.assert_allclose(actual.numpy(), tagger_out(w["out"], f, b), rtol=0, atol=TOLERANCE)
    assert (w["forward1"]["f_x.bias"] == 1).all()


def test_spelling_takes_the_place_of_the_look_up() -> None:
    """A word whose embedding equals the spelling of another gets the same tags."""
    network = small("bilstm_tagger_char", num_characters=20)
    letters = tuple(word_id(letter, 20) for letter in "seldom")
    with torch.no_grad():
        network.embedding.weight[5] = network.embed(letters)

    assert all(map(torch.equal, run(network, [1, letters, 2])["tags"], run(network, [1, 5, 2])["tags"]))


def test_decoder_starts_from_the_encoder() -> None:
    """Source words change the scores of target words, and one score vector comes per target word."""
    network = small("lstm_nmt")
    scores = run(network, Pair([1, 2], [3, 4, 5]))["words"]
    others = run(network, Pair([1, 6], [3, 4, 5]))["words"]

    assert [tuple(score.shape) for score in scores] == [(50,)] * 3
    assert not any(map(torch.allclose, scores, others))


@pytest.mark.parametrize("name", ["tree_lstm", "tree_gru", "tree_lstm_2type", "tree_lstm_regression", "mv_rnn"])
def test_chain_of_two_hundred_runs(name: str) -> None:
    """A tree that leans one way all along is within Python's stack."""
    tree = Tree(2, 0, 1)
    for _ in range(200):
        tree = Tree(2, 1, 0, Tree(2, 0, 2), tree)

    per_node, *_ = run(small(name), tree).values()
    assert len(per_node) == 401


def test_rows_that_make_no_fewer_types_are_none() -> None:
    """The results of a tree, stacked: as many types with rows, at the same cost."""
    trees = model("tree_lstm").sample(8, 0, vocab_size=50)
    assert bound(small("tree_lstm"), trees, "auto", rows=False).plan.ragged == ()
