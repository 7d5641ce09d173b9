"""Lattices from text and a lexicon, against every substring tried."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lattice_gru
from _lattices import build_lattice
from _lexicon import LONGEST, SHORTEST, Lexicon
from _text import word_id
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 10**6


def lattice_reference(text: str, words: set[str]) -> list[list[tuple[int, int]]]:
    """Every substring of 2 to 8 characters looked up in the set of words: quadratic, and plain."""
    lattice = []
    for end in range(1, len(text) + 1):
        arcs = [(end - 1, word_id(text[end - 1], VOCAB))]
        for start in range(end):
            if SHORTEST <= end - start <= LONGEST and text[start:end] in words:
                arcs.append((start, word_id(text[start:end], VOCAB)))
        lattice.append(arcs)
    return lattice


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text("abc", max_size=30), st.sets(st.text("abc", min_size=1, max_size=10), max_size=30))
def test_lattice_has_every_word_and_no_other(text: str, words: set[str]) -> None:
    """The trie finds what trying every substring finds, in the same order."""
    assert build_lattice(text, Lexicon(words), VOCAB) == lattice_reference(text, words)


def test_characters_of_several_symbols_stay_whole() -> None:
    """A sentence may be a list of characters; a word spans list items."""
    lattice = build_lattice(["a", "\ufffd\ufffd", "b", "c"], Lexicon(["bc", "a\ufffd"]), VOCAB)

    assert [[start for start, _ in arcs] for arcs in lattice] == [[0], [1], [2], [3, 2]]


def test_steps_grow_with_the_text_alone() -> None:
    """Looking for words in n characters takes at most 9 trie look-ups per character, however many words overlap."""
    num_lookups = 0

    class CountingText(list):
        def __getitem__(self, index):
            nonlocal num_lookups
            num_lookups += 1
            return super().__getitem__(index)

    lexicon = Lexicon("a" * length for length in range(1, 20))
    matches = list(lexicon.matches(CountingText("a" * 5000)))

    assert num_lookups <= (LONGEST + 1) * 5000
    assert len(matches) == sum(5000 - length + 1 for length in range(SHORTEST, LONGEST + 1))


def test_weibo_lattices_have_the_published_number_of_words(data_dir, write: Callable[..., str]) -> None:
    """Weibo NER's training sentences with jieba's small list: 73,778 characters and 19,729 word arcs, 0 to 115."""
    lexicon = str(data_dir / "zh_lexicon_jieba" / "dict.txt.small")
    lattices = list(
        lattice_gru.load(str(data_dir / "weibo_ner" / "weiboNER_2nd_conll.train"), lexicon=lexicon, vocab_size=VOCAB)
    )
    num_words = sorted(sum(len(arcs) - 1 for arcs in lattice) for lattice in lattices)

    assert (len(lattices), sum(map(len, lattices)), sum(num_words)) == (1350, 73778, 19729)
    assert (num_words[0], num_words[-1]) == (0, 115)

    entries = {line.split(" ")[0] for line in Path(lexicon).read_text(encoding="utf-8").splitlines()}
    text = "".join(random.Random(0).sample("".join(sorted(entries)[::50]), 300)) + "中华人民共和国国务院"
    plain = lattice_gru.load(write(text + "\n"), lexicon=lexicon, text="plain", vocab_size=VOCAB)
    assert list(plain) == [lattice_reference(text, entries)]
