"""Sentences with dependencies in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format).

Comment lines start with `#`; a word is ten columns separated by tabs, numbered from 1; a blank line ends a sentence.
Ranges (`3-4`, one token written for two words) and decimals (`8.1`, words that are not in the text) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from _text import read_lines

from edbc.errors import InputError

NUM_COLUMNS = 10
_SKIPPED_ID = re.compile(r"[0-9]+[-.][0-9]+")


@dataclass(slots=True)
class Word:
    """One word of a sentence."""

    form: str
    tag: str
    """Universal part of speech."""
    head: int
    """Number of the word it depends on, from 1; 0 for the root."""
    relation: str


def read_conllu(path: str) -> Iterator[list[Word]]:
    """Every sentence that has a word. Raises InputError at the first broken line."""
    sentence: list[Word] = []
    number = 0
    for number, line in read_lines(path):
        if not line.strip():
            if sentence:
                yield _with_valid_heads(sentence, path, number)
            sentence = []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != NUM_COLUMNS:
                raise InputError(
                    f"{path}:{number}: expected {NUM_COLUMNS} columns separated by tabs, got {len(columns)}; "
                    "see the CoNLL-U format"
                )
            if not _SKIPPED_ID.fullmatch(columns[0]):
                sentence.append(_word(columns, len(sentence) + 1, f"{path}:{number}"))
    if sentence:
        yield _with_valid_heads(sentence, path, number + 1)


def _word(columns: list[str], expected_id: int, where: str) -> Word:
    identifier, form, head = columns[0], columns[1], columns[6]
    if identifier != str(expected_id):
        raise InputError(f"{where}: expected word {expected_id}, got '{identifier[:20]}'; words are numbered from 1")
    if not form:
        raise InputError(f"{where}: expected a word in column 2, got nothing; write _ for a word that is not known")
    if not (head.isascii() and head.isdigit() and len(head) < 9):
        raise InputError(f"{where}: expected the number of a word in column 7, got '{head[:20]}'; 0 is the root")
    return Word(form, columns[3], int(head), columns[7])


def _with_valid_heads(sentence: list[Word], path: str, end: int) -> list[Word]:
    for position, word in enumerate(sentence, start=1):
        if word.head > len(sentence):
            raise InputError(
                f"{path}:{end}: expected heads up to {len(sentence)} in the sentence that ends here, got {word.head} "
                f"at word {position}; a head is a word of the same sentence"
            )
    return sentence
