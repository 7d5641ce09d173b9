"""The zoo makes the graphs that its figures were measured on."""

from __future__ import annotations

from itertools import islice

import pytest
from _conllu import read_conllu
from _sentences import read_pairs, read_tagged
from zoo import count_calls, model, small

FIRST_32 = {
    "tree_lstm": (["sst_trees/train-first4000.txt"], {"leaf": 615, "internal": 583, "out": 1198}),
    "tree_gru": (["sst_trees/train-first4000.txt"], {"leaf": 615, "internal": 583, "out": 1198}),
    "tree_lstm_regression": (["sst_trees/train-first4000.txt"], {"leaf": 615, "internal": 583, "rating": 1198}),
    "tree_lstm_2type": (
        ["sst_trees/train-first4000.txt"],
        {"leaf": 615, "internal_a": 292, "internal_b": 291, "out": 1198},
    ),
    "mv_rnn": (["sst_trees/train-first4000.txt"], {"internal": 583, "out": 1198}),
    "lattice_lstm": (["zh_lattice_edbatch/train.txt"], {"char": 1501, "word": 844, "out": 1533}),
    "lattice_gru": (["zh_lattice_edbatch/train.txt"], {"char": 1501, "word": 844, "out": 1533}),
    "bilstm_tagger": (
        ["wikiner_tags/first1200.txt"],
        dict.fromkeys(["forward0", "forward1", "backward0", "backward1", "out"], 807),
    ),
    "lstm_nmt": (
        ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
        {"encoder": 612, "decoder": 809, "out": 809},
    ),
}


@pytest.mark.parametrize("name", FIRST_32)
def test_nodes_of_the_first_mini_batch(name: str, data_dir) -> None:
    """Cells and projections called on the first 32 instances of the shared file."""
    paths, expected = FIRST_32[name]
    instances = islice(model(name).load(*(str(data_dir / path) for path in paths), vocab_size=50), 32)

    assert dict(count_calls(small(name), instances)) == expected


def test_tree_lstm_has_2396_nodes(data_dir) -> None:
    """Leaves, inner nodes and one projection each, on the first 32 trees: twice 1,198."""
    trees = islice(model("tree_lstm").load(str(data_dir / "sst_trees/train-first4000.txt"), vocab_size=50), 32)

    assert count_calls(small("tree_lstm"), trees).total() == 2396


@pytest.mark.parametrize("name", ["lattice_lstm", "lattice_gru"])
@pytest.mark.parametrize(("count", "nodes"), [(1, 35), (8, 1093), (32, 4638)])
def test_lattice_nodes(name: str, count: int, nodes: int, data_dir) -> None:
    """Cells, one projection per position with the start, and a sum wherever two arcs or more meet."""
    lattices = list(islice(model(name).load(str(data_dir / "zh_lattice_edbatch/train.txt"), vocab_size=50), count))
    sums = sum(len(arcs) >= 2 for lattice in lattices for arcs in lattice)

    assert count_calls(small(name), lattices).total() + sums == nodes


def test_every_file_is_read_whole(data_dir) -> None:
    """As many instances and words as the data's own description counts."""

    def totals(sentences) -> tuple[int, int]:
        lengths = [len(sentence) for sentence in sentences]
        return len(lengths), sum(lengths)

    pairs = list(
        read_pairs(str(data_dir / "iwslt15_envi/tst2012.en"), str(data_dir / "iwslt15_envi/tst2012.vi"), vocab_size=50)
    )
    assert totals(read_tagged(str(data_dir / "wikiner_tags/first1200.txt"))) == (1200, 28192)
    assert totals(read_conllu(str(data_dir / "ud_ewt/en_ewt-ud-train-every10th.conllu"))) == (1255, 20455)
    assert totals(read_conllu(str(data_dir / "ud_ewt/en_ewt-ud-dev-every2nd.conllu"))) == (1001, 12652)
    assert totals(pair.source for pair in pairs) == (1553, 27983)
    assert totals(pair.target for pair in pairs) == (1553, 34297)
    assert sum(1 for _ in model("tree_lstm").load(str(data_dir / "sst_trees/dev.txt"))) == 1101


def test_character_tagger_spells_rare_words_only(data_dir) -> None:
    """Both spelling cells run once per letter of a rare word; a concatenation joins their ends."""
    char = model("bilstm_tagger_char")
    sentences = list(islice(char.load(str(data_dir / "wikiner_tags/first1200.txt"), vocab_size=50), 32))
    letters = sum(len(word) for words in sentences for word in words if isinstance(word, tuple))

    calls = count_calls(small("bilstm_tagger_char", num_characters=256), sentences)
    assert letters == 1723
    assert calls["spell_forward"] == calls["spell_backward"] == letters
    assert calls["forward0"] == calls["out"] == 807
