"""Captured instances by number, in one file.

The file is a safetensors file: `words`, those of all items one after the other; `begin`, where those of each begin, and
the end; `items`, their numbers; `nest`, the number of what each returns; and of each source of constants `constants.S`,
`(count, *shape)`, with `constants.S.begin`. Its metadata holds, as JSON under `edbc_captured`, the format, vocabulary,
the texts of nests, *exemplars* (items in which all of the vocabulary occurs, for nets that have to learn it) and a
digest of all of that and of the tensors. Nothing in it is executed, and altered files are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from edbc.base.files import require_file, write_tensors
from edbc.capture.captured.instance import WORD, Captured, home_and_texts, vocabulary_of
from edbc.capture.captured.joining import numbers_in, require_constants, require_words
from edbc.capture.captured.nesttext import need, nest_in, require_text
from edbc.capture.captured.vocabulary import Lexicon
from edbc.capture.standins.standin import bits_of
from edbc.errors import InputError, StaleError

FORMAT = 1
KEY = "edbc_captured"
_ERRORS = (ValueError, TypeError, KeyError, IndexError, RecursionError, RuntimeError, OverflowError)


def write_store(path: str | Path, captured: Mapping[int, Captured], lexicon: Lexicon) -> None:
    """Write captured instances of a lexicon under their numbers, whole or not at all. Raises EdbcError where nothing
    can be written."""
    items = sorted(captured)
    parts = [captured[item] for item in items]
    nests = list(dict.fromkeys(part.nest_text for part in parts))
    number_of = {text: number for number, text in enumerate(nests)}
    tensors = {
        "words": _tensor(np.frombuffer(b"".join([part.words for part in parts]), WORD)),
        "begin": _tensor(np.cumsum([0, *(len(part.words) // WORD.itemsize for part in parts)])),
        "items": _tensor(np.array(items, np.int64)),
        "nest": _tensor(np.array([number_of[part.nest_text] for part in parts], np.int64)),
    }
    for source in sorted({source for part in parts for source, _ in part.constants}):
        pools = [dict(part.constants).get(source) for part in parts]
        tensors[f"constants.{source}"] = torch.cat([pool.cpu() for pool in pools if pool is not None])
        ends = np.cumsum([0, *(0 if pool is None else len(pool) for pool in pools)])
        tensors[f"constants.{source}.begin"] = _tensor(ends)
    header = {
        "format": FORMAT, **home_and_texts(*lexicon.vocabulary()),
        "nests": nests, "exemplars": _exemplars(items, parts),
    }  # fmt: skip
    header["digest"] = _digest(header, tensors)
    metadata = {KEY: json.dumps(header)}
    write_tensors(tensors, path, "captured instances", "name another file", metadata)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _exemplars(items: Sequence[int], parts: Sequence[Captured]) -> list[int]:
    """Items in which every type, source, slot and class occurs that any of them has."""
    met: set[tuple[int, int]] = set()
    found = []
    for item, part in zip(items, parts, strict=True):
        here = numbers_in(part)
        if not here <= met:
            met |= here
            found.append(item)
    return found


def _digest(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(bits_of(tensor).numpy().data)
    return digest.hexdigest()


class Store:
    """What a file holds, in the numbers of a lexicon; instances are made of it when they are asked for."""

    def __init__(self, path: str | Path, lexicon: Lexicon, learn: Callable[[Sequence[int]], object], count: int):
        """Read a file of items below `count`; `learn` records items that have what the net has not met.

        Raises InputError for a file that is none, or was cut off or altered, StaleError for one of another home.
        """
        self.path, self._lexicon = Path(path), lexicon
        header, tensors = self._read()
        try:
            vocabulary = vocabulary_of(header)
            exemplars, nests = header["exemplars"], header["nests"]
            self._require_items(exemplars, count)
            maps = lexicon.read(vocabulary, lambda: learn(exemplars))
            self._words = tensors.pop("words").numpy()
            self._begin = tensors.pop("begin").numpy()
            items, self._nest = tensors.pop("items").tolist(), tensors.pop("nest").tolist()
            self._require_items(items, count)
            need(self._words.dtype == WORD and self._begin.dtype == np.int64 and self._begin.ndim == 1)
            need(len(self._begin) == len(items) + 1 == len(self._nest) + 1 and self._begin[0] == 0)
            need(bool((np.diff(self._begin) > 0).all()) and self._begin[-1] == len(self._words))
            numbers = lexicon.class_numbers(vocabulary)
            self._nests = [(nest_in(text, numbers), text) for text in nests]
            self._num_classes = len(vocabulary.classes)
            self._pools = []
            for name in sorted(name for name in tensors if not name.endswith(".begin")):
                source = int(maps[1][int(name.removeprefix("constants."))])
                self._pools.append((source, tensors[name], tensors[f"{name}.begin"].tolist()))
                need(len(self._pools[-1][2]) == len(items) + 1)
        except StaleError as error:
            raise StaleError(f"{self.path}: {error}, or name another file") from None
        except _ERRORS as error:
            raise self._refused(f"the tensors and texts of captured instances ({type(error).__name__})") from None
        self._place = {item: place for place, item in enumerate(items)}
        self.nbytes = self._words.nbytes + sum(pool.nbytes for _, pool, _ in self._pools)
        try:
            require_words(self._words, self._begin, lexicon, maps)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def _read(self) -> tuple[Any, dict[str, torch.Tensor]]:
        require_file(self.path, "captured instances", InputError, "check the path")
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                header = json.loads((file.metadata() or {}).get(KEY, "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, is no mapping
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise self._refused(f"a safetensors file ({error})") from None
        if not isinstance(header, dict):
            raise self._refused("captured instances")
        if header.get("format") != FORMAT:
            raise StaleError(f"{self.path}: expected format {FORMAT}, got {header.get('format')}; capture again")
        given = header.pop("digest", None)
        if _digest(header, tensors) != given:
            raise self._refused("the bytes that its digest was made of (the file was altered)")
        return header, tensors

    def _require_items(self, items: list[int], count: int) -> None:
        need(all(type(item) is int and item >= 0 for item in items))
        if max(items, default=-1) >= count:
            raise self._refused(f"items of a data set of {count:,}")

    def _refused(self, what: str) -> InputError:
        return InputError(f"{self.path}: expected {what}, got something else; remove the file and capture again")

    def __contains__(self, item: int) -> bool:
        return item in self._place

    def __iter__(self) -> Any:
        return iter(self._place)

    def __getitem__(self, item: int) -> Captured:
        """An item. Raises InputError, with its number, where nest or constants do not fit its words."""
        place = self._place[item]
        words = self._words[self._begin[place] : self._begin[place + 1]]
        constants = tuple(
            (source, pool[begin[place] : begin[place + 1]])
            for source, pool, begin in self._pools
            if begin[place] < begin[place + 1]
        )
        try:
            text, theirs = self._nests[self._nest[place]]
            require_text(theirs, int(words[3]), self._num_classes)
            require_constants(self._lexicon, words, constants)
        except (InputError, *_ERRORS) as error:
            raise InputError(f"{self.path}, item {item}: {error}") from None
        return Captured(self._lexicon, words.tobytes(), text, constants, is_own=True)
