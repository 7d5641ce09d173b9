"""`Captured`: what one instance adds to a mini-batch, as a value.

The bytes of a captured instance, all integers little-endian:

    "EDBC-CAPTURED"   13 bytes
    version           1 byte, FORMAT
    header length     4 bytes
    header            JSON: home and vocabulary (`captured.vocabulary`), nest (`captured.nesttext`), and of each source
                      of constants its number in the vocabulary, dtype and shape, the number of constants first
    words             4 bytes each (`captured.joinloops`), their number in the header
    constants         source after source, as they stand in memory
    digest            BLAKE2b-128 of everything before

Reading them executes nothing, and altered bytes are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.kept import Kept
from edbc.capture.captured.joinloops import HEADER
from edbc.capture.captured.nesttext import Numbers, need, nest_in, require_text
from edbc.capture.captured.vocabulary import Home, Lexicon, Vocabulary, source_text
from edbc.capture.standins.objects import Closed
from edbc.capture.standins.standin import bits_of, dtype_name, torch_dtype
from edbc.errors import InputError, StaleError

if TYPE_CHECKING:
    from edbc.capture.captured.joining import Part

FORMAT = 1
MAGIC = b"EDBC-CAPTURED"
DIGEST = 16
WORD = np.dtype("<i4")
Words = NDArray[np.int32]
Constants = tuple[tuple[int, torch.Tensor], ...]
"""Number of a source, and its constants, `(count, *shape)`."""


class Captured(Closed):
    """One instance as `net.capture` gives it: an immutable value. `net` takes it wherever it takes instances, where its
    home is the net's (`captured.vocabulary`).

    Equal values have equal bytes and hashes. `bytes` and pickle give the defined format of the module's docstring;
    nothing in it is executed when it is read.
    """

    __slots__ = ("_adopted", "_bytes", "constants", "is_own", "nest_text", "of", "part", "words")

    def __init__(self, of: Lexicon | Vocabulary, words: bytes, nest_text: str, constants: Constants = (), *,
                 is_own: bool = False):  # fmt: skip
        self.of = of
        """What the numbers mean."""
        self.words = words
        self.nest_text = nest_text
        self.constants = constants
        self.is_own = is_own
        """Whether its lexicon made or checked it. All else is checked before anything reads it."""
        self.part: Part | None = None
        """What it adds to a mini-batch of this lexicon, once it has."""
        self._bytes: bytes | None = None
        self._adopted: WeakKeyDictionary[Lexicon, Captured] | None = None

    @property
    def adopted(self) -> WeakKeyDictionary[Lexicon, Captured]:
        """The same in the numbers of other lexicons, once they have read and checked it."""
        if self._adopted is None:
            self._adopted = WeakKeyDictionary()
        return self._adopted

    # --- what it is ------------------------------------------------------------------------------------------------

    def _header(self) -> tuple[int, ...]:
        return tuple(np.frombuffer(self.words, WORD, HEADER).tolist())

    num_nodes = property(lambda self: self._header()[0], doc="Nodes of its dataflow graph.")
    num_operands = property(lambda self: self._header()[1], doc="Operands of all of its nodes.")
    num_externals = property(lambda self: self._header()[2], doc="Look-ups, constants and draws that it reads.")
    num_results = property(lambda self: self._header()[3], doc="Tensors that forward returns.")

    @property
    def nbytes(self) -> int:
        """Bytes of words and constants."""
        return len(self.words) + sum(pool.nbytes for _, pool in self.constants)

    @property
    def home(self) -> Home:
        """What it was captured with, besides the instance."""
        return self.of.home

    def __repr__(self) -> str:
        return f"<Captured: {self.num_nodes} nodes, {self.num_operands} operands, {self.num_results} results>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Captured):
            return NotImplemented
        if self.of is other.of and (self.words, self.nest_text) != (other.words, other.nest_text):
            return False
        return bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self)[-DIGEST:])

    # --- where it is -----------------------------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Captured:
        """The same with its constants on another device (`.to("cuda")`). A dtype is refused: capture in it."""
        moved = tuple((source, pool.to(*args, **kwargs)) for source, pool in self.constants)
        if any(a.dtype is not b.dtype for (_, a), (_, b) in zip(moved, self.constants, strict=True)):
            raise InputError("a captured instance: expected a device to move to, got a dtype; capture it in that dtype")
        return Captured(self.of, self.words, self.nest_text, moved, is_own=self.is_own)

    def pin_memory(self) -> Captured:
        """The same with its constants in pinned memory."""
        pinned = tuple((source, pool.pin_memory()) for source, pool in self.constants)
        return Captured(self.of, self.words, self.nest_text, pinned, is_own=self.is_own)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def __bytes__(self) -> bytes:
        if self._bytes is None:
            try:
                self._bytes = _written(self)
            except NONE as error:  # one that was made by hand
                raise none_of(error) from None
        return self._bytes

    def __reduce__(self) -> Any:
        return Captured.from_bytes, (bytes(self),)

    @staticmethod
    def from_bytes(data: bytes) -> Captured:
        """The captured instance with these bytes. Raises InputError for bytes that are none, are cut off or altered,
        StaleError for another version of the format. The net that takes it checks the rest."""
        if not data.startswith(MAGIC):
            raise _no_captured("its first bytes")
        if len(data) <= len(MAGIC) or data[len(MAGIC)] != FORMAT:
            version = data[len(MAGIC)] if len(data) > len(MAGIC) else "none"
            raise StaleError(f"a captured instance: expected format {FORMAT}, got {version}; capture it again")
        if hashlib.blake2b(data[:-DIGEST], digest_size=DIGEST).digest() != data[-DIGEST:]:
            raise _no_captured("the bytes that its digest is of; they were cut off or altered")
        try:
            return _read(data)
        except NONE as error:
            raise none_of(error) from None


NONE = ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, RuntimeError
"""What reading raises where there is no captured instance."""


def none_of(error: BaseException) -> InputError:
    """The error in place of one of these."""
    return _no_captured(f"a header and as many numbers as it says ({type(error).__name__})")


def _no_captured(what: str) -> InputError:
    return InputError(f"a captured instance: expected {what}, got others; capture it again")


def sections(words: Words) -> tuple[Words, Words, Words]:
    """Views of the words of one instance: types of nodes, sources of externals, slots of results."""
    n, m, k, r, _, s = words[:HEADER].tolist()
    sources = HEADER + 2 * n + 2 * m
    slots = sources + k + 2 * r
    return words[HEADER : HEADER + n], words[sources : sources + k], words[slots : slots + s]


def _written(captured: Captured) -> bytes:
    """Numbers are those of a vocabulary that says what is used alone, in the order of first use: so equal values have
    equal bytes whatever else their nets know."""
    words = np.frombuffer(captured.words, WORD).copy()
    types, sources, slots = sections(words)
    of = captured.of
    used = [_renumbered(part) for part in (types, sources, slots)]
    if isinstance(of, Vocabulary):
        texts = [[known[i] for i in found] for known, found in zip(of[1:4], used, strict=True)]
    else:
        texts = [
            [of.table.graph_types()[i].signature for i in used[0]],
            [source_text(of.table.sources[i]) for i in used[1]],
            [of.slots[i].text for i in used[2]],
        ]
    numbers, names = Numbers(), list(of.classes)
    nest_text = nest_in(captured.nest_text, numbers)
    place = {number: i for i, number in enumerate(used[1])}
    pools = sorted((place[source], pool.detach().cpu().contiguous()) for source, pool in captured.constants)
    header = {
        **home_and_texts(captured.home, *texts, [names[i] for i in numbers]), "nest": nest_text, "words": len(words),
        "constants": [[source, dtype_name(pool.dtype), list(pool.shape)] for source, pool in pools],
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [MAGIC, bytes([FORMAT]), len(text).to_bytes(4, "little"), text, words.tobytes()]
    data = b"".join([*parts, *(bits_of(pool).numpy().tobytes() for _, pool in pools)])
    return data + hashlib.blake2b(data, digest_size=DIGEST).digest()


def _renumbered(part: Words) -> list[int]:
    """Write numbers in the order of first use in place of those that stand there, and say what they were."""
    found, first, inverse = np.unique(part, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), WORD)
    rank[order] = np.arange(len(order))
    part[:] = rank[inverse.reshape(-1)]
    return [int(x) for x in found[order]]


_INTERNED: Kept[Vocabulary, Vocabulary] = Kept(4096)
"""One object for equal vocabularies, so that a net reads each once."""


def home_and_texts(home: Home, *texts: Sequence[str]) -> dict[str, Any]:
    """A vocabulary as it stands in headers of JSON."""
    return {"home": home._asdict(), **{name: list(of) for name, of in zip(Vocabulary._fields[1:], texts, strict=True)}}


def vocabulary_of(header: Any) -> Vocabulary:
    """The vocabulary in a header of JSON. Raises what `Captured.from_bytes` and readers of files expect."""
    texts = [header[name] for name in Vocabulary._fields[1:]]
    need(all(type(part) is list and all(type(text) is str for text in part) for part in texts))
    home = Home(**header["home"])
    need(all(type(text) is str for text in home))
    vocabulary = Vocabulary(home, *map(tuple, texts))
    return _INTERNED.of(vocabulary, lambda: vocabulary)


def _read(data: bytes) -> Captured:
    at = len(MAGIC) + 1
    length = int.from_bytes(data[at : at + 4], "little")
    header = json.loads(data[at + 4 : at + 4 + length])
    at += 4 + length
    vocabulary, count = vocabulary_of(header), header["words"]
    need(type(count) is int)
    words = data[at : at + 4 * count]
    need(len(words) == 4 * count >= 4 * HEADER)
    at += 4 * count
    constants: list[tuple[int, torch.Tensor]] = []
    for source, name, shape in header["constants"]:
        need(type(source) is int and all(type(size) is int and size >= 0 for size in shape))
        dtype = torch_dtype(name)
        size = math.prod(shape) * dtype.itemsize
        raw = data[at : at + size]
        need(len(raw) == size)
        constants.append((source, tensor_of(raw, dtype, shape)))
        at += size
    need(at == len(data) - DIGEST)
    num_results = int(np.frombuffer(words, WORD, HEADER)[3])
    nest_text = require_text(header["nest"], num_results, len(vocabulary.classes))
    return Captured(vocabulary, words, nest_text, tuple(constants))


def tensor_of(raw: bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of its own memory with these bytes."""
    if not raw:
        return torch.empty(*shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).view(*shape)
