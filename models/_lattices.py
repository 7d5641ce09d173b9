"""Lattices of characters and words over Chinese sentences, read as integers or built from text and a lexicon.

Definitions (Zhang and Yang, "Chinese NER Using Lattice LSTM", ACL 2018, section 3).

(1) A sentence of n characters has positions 0 to n; position 0 is the start, position i stands behind character i.
(2) An *arc* into position i is a pair (j, id), j < i: the text between positions j and i. With j = i - 1 it is a
    character and `id` a row of the character table; any other arc is a word and `id` a row of the word table.
(3) A *lattice* is the list of the arcs into positions 1 to n: `lattice[i - 1]` has the arcs into position i, the
    character first.

The file of integers (ED-Batch's) has the number of lattices; then for each lattice the number m = n + 1 of positions, m
tag ids, and m lines, one per position: the number k of arcs into it and k pairs `from id`. Blanks and line ends
separate; the tags are not looked at.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from _lexicon import Lexicon
from _samples import Quartet, sample_sizes
from _text import read_lines, split_words, word_id

from edbc.errors import InputError, ModelError
from edbc.vertex import VertexInstance

Arc = tuple[int, int]
Lattice = list[list[Arc]]

_COLUMNS = re.compile(r"([0-9]|[^0-9\t]+)[0-9]+\t[^\t]+")

POSITIONS: Quartet = (3, 39, 98, 211)
"""Positions per lattice of ED-Batch's training lattices, position 0 counted."""

WORD_ARCS_AFTER = ((0.429, 0.559, 0.012), (0.591, 0.314, 0.095), (0.576, 0.276, 0.148))
"""Shares of positions with 0, 1, 2 word arcs after a position with 0, 1, 2: words overlap less often than not."""
WORD_ARCS_LIKE_BEFORE = 0.38
"""Chance that a position with more than two word arcs follows one with two or more, per further arc."""
DENSITY_SPREAD = 0.12
"""How far the share of positions without a word moves from one lattice to another."""


def read_lattices(path: str, vocab_size: int) -> Iterator[Lattice]:
    """Every lattice of a file of integers, ids modulo `vocab_size`. Raises InputError at the first broken line."""
    integers = _Integers(path)
    if not integers.has_more():
        return
    for _ in range(integers.next("the number of lattices")):
        yield _read_lattice(integers, vocab_size)
    if integers.has_more():
        raise integers.error("the end of the file after the last lattice", "more", "correct the number of lattices")


def _read_lattice(integers: _Integers, vocab_size: int) -> Lattice:
    num_positions = integers.next("the number of positions")
    if num_positions < 2:
        raise integers.error("at least 2 positions", str(num_positions), "a lattice has a character or more")
    for _ in range(num_positions):
        integers.next("a tag id")
    if integers.next("the number of arcs into position 0"):
        raise integers.error("no arcs into position 0", "some", "position 0 is the start")
    return [_read_arcs(integers, position, vocab_size) for position in range(1, num_positions)]


def _read_arcs(integers: _Integers, position: int, vocab_size: int) -> list[Arc]:
    num_arcs = integers.next("the number of arcs")
    if not num_arcs:
        raise integers.error(f"an arc into position {position}", "none", "every position but 0 is reached")
    arcs = []
    for _ in range(num_arcs):
        start = integers.next("the position that an arc comes from")
        if start >= position:
            raise integers.error(f"a position below {position}", str(start), "arcs run forwards")
        arcs.append((start, integers.next("an id") % vocab_size))
    return arcs


class _Integers:
    """The integers of a file one after another, with the line of the last one."""

    def __init__(self, path: str):
        self.path = path
        self.line = 0
        self._lines = read_lines(path)
        self._waiting: list[str] = []

    def has_more(self) -> bool:
        """True when another item follows."""
        while not self._waiting:
            numbered = next(self._lines, None)
            if numbered is None:
                return False
            self.line, text = numbered
            self._waiting = split_words(text)[::-1]
        return True

    def next(self, meaning: str) -> int:
        """The next integer."""
        if not self.has_more():
            raise self.error(meaning, "the end of the file", "the file is cut short")
        item = self._waiting.pop()
        if not (item.isascii() and item.isdigit() and len(item) < 10):
            raise self.error(meaning, f"'{item[:40]}'", "the file holds integers from 0 to 999999999 only")
        return int(item)

    def error(self, expected: str, got: str, remedy: str) -> InputError:
        """The error at the last line read."""
        return InputError(f"{self.path}:{self.line}: expected {expected}, got {got}; {remedy}")


def lattice_vertices(lattice: Lattice) -> VertexInstance:
    """The vertices of a lattice: type 0 is position 0, then for each position its arcs (1 a character, 2 a word), which
    come from a position, and the position itself (3), which comes from its arcs; input `id`."""
    vertices: list[tuple[int, Sequence[int]]] = [(0, ())]
    ids = [0]
    vertex_of_position = [0]
    for last, arcs in enumerate(lattice):
        first = len(vertices)
        vertices += [(1 if start == last else 2, (vertex_of_position[start],)) for start, _ in arcs]
        ids += [id_ for _, id_ in arcs]
        vertex_of_position.append(len(vertices))
        vertices.append((3, range(first, len(vertices))))
        ids.append(0)
    return VertexInstance.build(vertices, {"id": ids})


def build_lattice(text: Sequence[str], lexicon: Lexicon, vocab_size: int) -> Lattice:
    """The lattice of a sentence: its characters, and an arc for every word of the lexicon in it, by start."""
    lattice = [[(position, word_id(character, vocab_size))] for position, character in enumerate(text)]
    for start, end in lexicon.matches(text):
        lattice[end - 1].append((start, word_id("".join(text[start:end]), vocab_size)))
    return lattice


def read_sentences(path: str, form: str) -> Iterator[Sequence[str]]:
    """The characters of each sentence of a text file.

    Form `columns` (Weibo NER): a line has a character, its place in its word as a number, a tab and a tag; a blank line
    ends a sentence. What the corpus could not encode stands there as several symbols and counts as one character. Form
    `plain`: a sentence per line.
    """
    if form == "plain":
        return (line.strip() for _, line in read_lines(path) if line.strip())
    if form == "columns":
        return _read_columns(path)
    raise ModelError(f"text: expected 'columns' or 'plain', got '{form}'; see models/_lattices.py")


def _read_columns(path: str) -> Iterator[list[str]]:
    characters: list[str] = []
    for number, line in read_lines(path):
        if line:
            characters.append(_character(line, path, number))
        elif characters:
            yield characters
            characters = []
    if characters:
        yield characters


def _character(line: str, path: str, number: int) -> str:
    match = _COLUMNS.fullmatch(line)
    if match is None:
        raise InputError(
            f"{path}:{number}: expected a character, a number, a tab and a tag, got '{line[:40]}'; "
            "for a sentence per line use --set text=plain"
        )
    return match[1]


def sample_lattices(count: int, seed: int, vocab_size: int) -> list[Lattice]:
    """Made-up lattices with the sizes, word densities and overlaps of ED-Batch's training lattices."""
    rng = random.Random(seed)
    return [_grow(num_positions - 1, rng, vocab_size) for num_positions in sample_sizes(count, POSITIONS, rng)]


def _grow(num_characters: int, rng: random.Random, vocab_size: int) -> Lattice:
    density = rng.uniform(-DENSITY_SPREAD, DENSITY_SPREAD)
    lattice: Lattice = []
    num_words = 0
    for position in range(1, num_characters + 1):
        num_words = _next_num_words(num_words, density, rng)
        starts = [position - 1, *sorted(_word_starts(position, num_words, rng))]
        lattice.append([(start, rng.randrange(vocab_size)) for start in starts])
    return lattice


def _next_num_words(before: int, density: float, rng: random.Random) -> int:
    none, one, _ = WORD_ARCS_AFTER[min(before, 2)]
    draw = rng.random() + density
    if draw < none:
        return 0
    if draw < none + one:
        return 1
    num_words = 2
    while num_words <= before and rng.random() < WORD_ARCS_LIKE_BEFORE:
        num_words += 1
    return num_words


def _word_starts(position: int, num_words: int, rng: random.Random) -> set[int]:
    """Starts of words that end at a position: 2 characters long, each further word a character longer or two."""
    starts, length = set(), 1
    for _ in range(num_words):
        length += 1 if rng.random() < 0.97 else 2
        if length <= position:
            starts.add(position - length)
    return starts
