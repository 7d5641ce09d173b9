"""Questions about pictures as programs of modules, one per line: `17 (exist (and (find cube) (find red)))`.

The number is the picture's row in the table of feature maps. A module is a name, its word where it has one, and the
modules that it reads, each once. The outer module answers; the others make a map of where to look.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from _brackets import describe, expected, fold_brackets
from _samples import Quartet, sample_sizes
from _text import read_lines, word_id

from edbc.errors import InputError

HAS_WORD_AND_ARITY = {
    "find": (True, 0),
    "filter": (True, 1),
    "relocate": (True, 1),
    "and": (False, 2),
    "or": (False, 2),
    "exist": (False, 1),
    "describe": (True, 1),
}
"""Modules: whether a word follows the name, and how many modules are read."""
ANSWERS = ("exist", "describe")

MODULES: Quartet = (3, 8, 17, 20)
"""Modules per made-up program: questions of CLEVR's kind."""

_LINE = re.compile(r"([0-9]{1,9})[ \t]+(\(.*)")


@dataclass(slots=True)
class Module:
    """A module with those that it reads."""

    name: str
    word: int = 0
    """Word id, for the modules that have a word."""
    reads: list[Module] = field(default_factory=list)


@dataclass(slots=True)
class Question:
    """A program and the picture that it is about."""

    picture: int
    program: Module


def read_questions(path: str, vocab_size: int, num_pictures: int) -> Iterator[Question]:
    """Every question of a file, in order. Raises InputError at the first line that is none."""

    def close(parts: list, where: str) -> Module:
        module = _module(parts, where, vocab_size)
        if any(read.name in ANSWERS for read in module.reads):
            raise expected(where, f"modules that make a map inside '{module.name}'", "one that answers", "answer last")
        return module

    for number, line in read_lines(path):
        if not line.strip(" \t"):
            continue
        where = f"{path}:{number}"
        match = _LINE.fullmatch(line.strip(" \t"))
        if match is None or int(match[1]) >= num_pictures:
            what = f"a picture 0 to {num_pictures - 1} and a program in brackets"
            raise InputError(f"{where}: expected {what}, got '{line[:40]}'; see models/_programs.py")
        program = fold_brackets(match[2], where, close)
        if program.name not in ANSWERS:
            raise expected(where, " or ".join(ANSWERS), f"'{program.name}'", "the outer module answers")
        yield Question(int(match[1]), program)


def _module(parts: list, where: str, vocab_size: int) -> Module:
    name = parts[0] if parts else None
    if not isinstance(name, str) or name not in HAS_WORD_AND_ARITY:
        got = f"'{name}'" if isinstance(name, str) else describe(parts[:1])
        raise expected(where, f"one of {', '.join(HAS_WORD_AND_ARITY)}", got, "name a module")
    has_word, arity = HAS_WORD_AND_ARITY[name]
    words, reads = parts[1 : 1 + has_word], parts[1 + has_word :]
    is_complete = len(words) == has_word and len(reads) == arity
    if not is_complete or not all(isinstance(w, str) for w in words) or not all(isinstance(r, Module) for r in reads):
        what = f"{'a word and ' if has_word else ''}{arity} brackets after '{name}'"
        raise expected(where, what, describe(parts[1:]), "see models/_programs.py")
    return Module(name, word_id(words[0], vocab_size) if has_word else 0, reads)


def sample_questions(count: int, seed: int, vocab_size: int, num_pictures: int) -> list[Question]:
    """Made-up questions of 3 to 20 modules, with every module among them."""
    rng = random.Random(seed)

    def grow(size: int) -> Module:
        if size == 1:
            return Module("find", rng.randrange(vocab_size))
        if size == 2 or rng.random() < 0.6:
            return Module(rng.choice(["filter", "relocate"]), rng.randrange(vocab_size), [grow(size - 1)])
        left = rng.randint(1, size - 2)
        return Module(rng.choice(["and", "or"]), 0, [grow(left), grow(size - 1 - left)])

    def make(size: int) -> Question:
        name = rng.choice(ANSWERS)
        word = rng.randrange(vocab_size) if HAS_WORD_AND_ARITY[name][0] else 0
        return Question(rng.randrange(num_pictures), Module(name, word, [grow(size - 1)]))

    return [make(size) for size in sample_sizes(count, MODULES, rng)]
