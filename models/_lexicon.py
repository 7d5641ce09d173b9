"""A word list as a trie, and the words that it finds in a text.

A trie is a tree of dictionaries keyed by characters; finding every word that ends or begins anywhere in a text of n
characters takes at most n x L steps for words of up to L characters, so the time is linear in the text. (Aho and
Corasick's automaton, CACM 1975, would save the factor L, which is 8 here, and pay with a link per trie node.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from _text import read_lines, split_words

from edbc.errors import InputError

SHORTEST, LONGEST = 2, 8
"""Words of other lengths are left out: single characters are in the lattice already."""

_END = ""
"""Key that marks the end of a word; no character equals it."""


class Lexicon:
    """A set of words that can be searched for in a text."""

    def __init__(self, words: Iterable[str]):
        self._root: dict = {}
        for word in words:
            if SHORTEST <= len(word) <= LONGEST:
                node = self._root
                for character in word:
                    node = node.setdefault(character, {})
                node[_END] = True

    def matches(self, text: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Start and end of every occurrence of a word in a sequence of characters, by start, short words first.

        >>> list(Lexicon(["ab", "bc", "abcd"]).matches("abcd"))
        [(0, 2), (0, 4), (1, 3)]
        """
        for start in range(len(text)):
            node = self._root
            for end in range(start, len(text)):
                following = node.get(text[end])
                if following is None:
                    break
                node = following
                if _END in node:
                    yield start, end + 1


def read_lexicon(path: str) -> Lexicon:
    """The first item of each line, `word frequency part-of-speech` in jieba's lists; blank lines are skipped.

    Raises InputError for a line of more than three items.
    """
    return Lexicon(_read_words(path))


def _read_words(path: str) -> Iterator[str]:
    for number, line in read_lines(path):
        items = split_words(line)
        if len(items) > 3:
            raise InputError(
                f"{path}:{number}: expected 'word frequency part-of-speech', got {len(items)} items; "
                "write one word per line"
            )
        if items:
            yield items[0]
