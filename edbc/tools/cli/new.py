"""`edbc new`: a commented model file to start from, which compiles and runs as it is, or one around a class."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

import click

from edbc.errors import ModelError

TEMPLATE = '''"""TITLE: say in one line what the model does; `edbc models` shows it.

This file runs in plain PyTorch as it is. With edbc:

COMMANDS
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import edbc


# One instance. Anything goes: a dataclass, a tuple, a tree of tuples. The structure may differ from one to the next.
@dataclass
class Tree:
    word: int = -1
    left: Tree | None = None
    right: Tree | None = None


# A cell is ONE node of the graph that edbc batches. Write it for one node, without a batch dimension: tensors in,
# tensors out, the same operations every time.
@edbc.cell
class Combine(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.linear = nn.Linear(2 * size, size)
        self.gate = nn.Linear(2 * size, size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        both = torch.cat([left, right], dim=-1)
        gate = torch.sigmoid(self.gate(both))
        return gate * torch.tanh(self.linear(both)) + (1 - gate) * (left + right) / 2


# The model handles one instance. Recursion, loops and ifs over the instance are fine. So is looking at a computed value
# (`if h.sum() > 0`): the instance waits there, and the others of the mini-batch go on.
class Model(nn.Module):
    def __init__(self, size: int, vocab_size: int, num_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.combine = Combine(size)
        self.out = nn.Linear(size, num_classes)

    def forward(self, tree: Tree) -> Tensor:
        return self.out(self.encode(tree))

    def encode(self, tree: Tree) -> Tensor:
        if tree.left is None or tree.right is None:
            return self.embedding.weight[tree.word]
        return self.combine(self.encode(tree.left), self.encode(tree.right))


# The three functions that edbc calls. `build`'s keyword arguments are the config: `--set hidden_size=512`.
def build(hidden_size: int = 64, vocab_size: int = 1000, num_classes: int = 2) -> nn.Module:
    return Model(hidden_size, vocab_size, num_classes)


# Instances from files: `--input FILE`, one sentence per line here, read as a tree that leans to the right.
def load(*paths: str, vocab_size: int = 1000) -> Iterator[Tree]:
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            yield from (parse(line, vocab_size) for line in lines if line.strip())


# Optional: one line as an instance. Engines of many processes and servers, which read lines themselves, call it.
def parse(line: str, vocab_size: int = 1000) -> Tree:
    return leaning([zlib.crc32(word.encode()) % vocab_size for word in line.split()])


def leaning(words: list[int]) -> Tree:
    tree = Tree(words[-1])
    for word in reversed(words[:-1]):
        tree = Tree(-1, Tree(word), tree)
    return tree


# Instances made up, for compiling with no data and for CI. Equal arguments must give equal instances.
def sample(count: int, seed: int, vocab_size: int = 1000) -> list[Tree]:
    generator = random.Random(seed)
    return [made_up(generator, generator.randint(1, 20), vocab_size) for _ in range(count)]


def made_up(generator: random.Random, num_words: int, vocab_size: int) -> Tree:
    if num_words == 1:
        return Tree(generator.randrange(vocab_size))
    split = generator.randint(1, num_words - 1)
    return Tree(-1, made_up(generator, split, vocab_size), made_up(generator, num_words - split, vocab_size))
'''


def commands(path: Path, *lines: tuple[str, str]) -> str:
    """Commands and what they do, in columns; FILE and STEM stand for the model file."""
    told = [(text.replace("FILE", path.as_posix()).replace("STEM", path.stem), what) for text, what in lines]
    width = max(len(text) for text, _ in told)
    return "\n".join(f"    {text:{width}}    {what}" for text, what in told)


_COMPILE = "edbc compile FILE -o plans/STEM.yaml", "learn how to batch it, write a plan"
_RUN = "edbc run plans/STEM.yaml --verify", "run made-up instances, compare with eager PyTorch"
_EXPLAIN = "edbc explain plans/STEM.yaml", "what batches with what, and why"
_CHECK = "edbc check plans/", "in CI: nothing got worse"


def run_new(name: str, source: str | None = None) -> None:
    """Write the file; refuse to replace one. `source` names a class that exists, `module:Class`."""
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise click.BadParameter(f"expected a name that Python can import, got {path.stem!r}")
    if path.stem in sys.stdlib_module_names or path.stem in ("edbc", "numpy", "torch"):
        raise click.BadParameter(f"expected a name of its own, got {path.stem!r}, which other code imports")
    if path.exists():
        raise ModelError(f"{path}: expected no file there, got one; choose another name")
    title = path.stem.replace("_", " ").strip().capitalize() or "Model"
    if source is not None:
        from edbc.tools.cli.around import file_around

        text = file_around(source, path, commands(path, _COMPILE, _RUN, _CHECK))
    else:
        text = TEMPLATE.replace("TITLE", title)
        text = text.replace("COMMANDS", commands(path, _COMPILE, _RUN, _EXPLAIN, _CHECK))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: expected to write the file, got: {error.strerror}; choose another folder") from None
    click.echo(f"{path}: written; next: edbc compile {path} -o plans/{path.stem}.yaml")
