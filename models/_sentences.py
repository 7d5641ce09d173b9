"""Sentences as lines of words: tagged (`word|TAG word|TAG`), plain, and in two languages side by side.

Words are separated by blanks; blank lines are skipped. Lengths of made-up sentences follow the data sets that the zoo
is measured on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from _samples import Quartet, sample_quantiles, sample_sizes, size_at
from _text import read_lines, split_words, word_id

from edbc.errors import InputError

WIKINER_WORDS: Quartet = (1, 21, 49, 144)
"""Words per sentence of WikiNER's first 1,200 sentences."""
ENGLISH_WORDS: Quartet = (2, 15, 39, 93)
"""Words per English sentence of IWSLT'15 tst2012."""
VIETNAMESE_WORDS: Quartet = (2, 19, 47, 122)
"""Words per Vietnamese sentence of the same file."""


def read_tagged(path: str) -> Iterator[list[str]]:
    """Words of each sentence; a word ends at the last `|` of its item. Raises InputError for an item without one."""
    for number, line in read_lines(path):
        words = [_untagged(item, path, number) for item in split_words(line)]
        if words:
            yield words


def read_words(path: str) -> Iterator[list[str]]:
    """Words of each line of plain text."""
    for _, line in read_lines(path):
        words = split_words(line)
        if words:
            yield words


def _untagged(item: str, path: str, number: int) -> str:
    word, _, tag = item.rpartition("|")
    if not word or not tag:
        raise InputError(f"{path}:{number}: expected word|TAG, got '{item[:40]}'; write a tag after every word")
    return word


@dataclass(slots=True)
class Pair:
    """A sentence and its translation, as word ids."""

    source: list[int]
    target: list[int]


def read_pairs(source: str, target: str, vocab_size: int) -> Iterator[Pair]:
    """Line i of both files, side by side; a line that is blank in both is skipped.

    Raises InputError where one file ends before the other, or one line is blank and the other is not.
    """
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        if left is None or right is None:
            longer, number = (target, right[0]) if right else (source, left[0])
            shorter = source if longer is target else target
            raise InputError(
                f"{shorter}:{number}: expected a line to go with {longer}:{number}, got the end of the file; "
                "the two files need the same number of lines"
            )
        (number, source_line), (_, target_line) = left, right
        words, translation = split_words(source_line), split_words(target_line)
        if bool(words) != bool(translation):
            blank = target if words else source
            raise InputError(f"{blank}:{number}: expected a translation, got a blank line; blank both lines or neither")
        if words:
            yield Pair([word_id(w, vocab_size) for w in words], [word_id(w, vocab_size) for w in translation])


def sample_sentences(count: int, seed: int, vocab_size: int, lengths: Quartet = WIKINER_WORDS) -> list[list[int]]:
    """Made-up sentences as word ids."""
    rng = random.Random(seed)
    return [sample_words(length, vocab_size, rng) for length in sample_sizes(count, lengths, rng)]


def sample_pairs(count: int, seed: int, vocab_size: int) -> list[Pair]:
    """Made-up English sentences with Vietnamese translations: long sentences have long translations, more or less."""
    rng = random.Random(seed)
    return [
        Pair(
            sample_words(size_at(quantile, ENGLISH_WORDS), vocab_size, rng),
            sample_words(size_at(_near(quantile, rng), VIETNAMESE_WORDS), vocab_size, rng),
        )
        for quantile in sample_quantiles(count, rng)
    ]


def _near(quantile: float, rng: random.Random) -> float:
    """A quantile close by, the closer the nearer to an extreme, so that few are pushed against the end."""
    return min(1.0, max(0.0, rng.gauss(quantile, 0.3 * quantile * (1 - quantile))))


def sample_words(length: int, vocab_size: int, rng: random.Random) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(length)]
