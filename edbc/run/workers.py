"""Mini-batches that workers make: `DataLoader(dataset, num_workers=4, collate_fn=edbc.collate(net))`.

(1) A worker runs forward, joins, and sends a `CapturedBatch`: one block of integers (`captured.joinloops`) and one
    buffer of constants per source, as bytes, for a tensor costs its sharing between processes. Nothing of a model
    travels back; under `spawn` the worker gets the model with parameters that have shapes and no data.
(2) Vocabularies travel as one text, which is read once. What has been recorded in the worker alone the receiving net
    has no operations for, so the first instance that has it travels too, once per worker, and is recorded there.
(3) What arrives is from another process. A checksum (CRC-32) tells bytes that were changed on the way; against those
    that were meant to mislead, lengths, types, operands, rows, offsets, nests and constants are checked before anything
    runs, and then the block is the mini-batch's graph as it stands.
(4) What capturing takes a worker and checking takes this process is measured, of processor time, for workers may wait
    for a core; and once what a mini-batch takes this process that comes through a pipe, of which a DataLoader lets
    nobody see more than its end.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import default_collate, get_worker_info

from edbc.base.graph import ValueClass
from edbc.capture.captured import checkloops
from edbc.capture.captured.instance import Captured, home_and_texts, tensor_of, vocabulary_of
from edbc.capture.captured.joining import WRONG, Joined, joined_parts, read_joined
from edbc.capture.captured.joinloops import Parts
from edbc.capture.captured.nesttext import need
from edbc.capture.captured.splitloops import split
from edbc.capture.captured.travelloops import narrow
from edbc.capture.captured.vocabulary import KINDS, Lexicon, Longs, Vocabulary, require_home
from edbc.capture.forward.build import Capture
from edbc.capture.forward.states import Memo
from edbc.capture.standins.objects import Closed
from edbc.capture.standins.standin import bits_of, dtype_name, torch_dtype
from edbc.errors import InputError, SlowTransfer, UnsupportedError, printable
from edbc.run.modelfile import files_of, import_model_file

if TYPE_CHECKING:
    from edbc.run.session import Net

Data = NDArray[np.uint8]
MEASURED = 16
"""Mini-batches that are timed before anything is said."""
_ARRIVED: dict[Any, list[Any]] = {}
"""Exemplars by the worker that sent them."""
_VOCABULARIES: dict[str, Vocabulary] = {}
_TEXTS: WeakKeyDictionary[Lexicon, tuple[Any, str]] = WeakKeyDictionary()
"""Of lexicons, with what they knew."""


class CapturedBatch(Closed):
    """The captured instances of one mini-batch, joined, as one value; a net takes it in place of a list. It has a
    length, and its items are `Captured`."""

    def __init__(self, of: Lexicon | Vocabulary, data: Data, nest_texts: Sequence[str],
                 constants: Sequence[tuple[int, torch.Tensor]]):  # fmt: skip
        self.of = of
        self.data = data
        """The block as it travels (`captured.travelloops`), read only."""
        self.nest_texts = nest_texts
        """Of each instance."""
        self.constants = constants
        """Of all instances, by source."""
        self.exemplars: list[Any] = []
        self.seconds = 0.0
        """What capturing took, of processor time; 0 where nothing was captured for it."""

    @classmethod
    def of_parts(cls, lexicon: Lexicon, parts: Sequence[Captured]) -> CapturedBatch:
        """The captured instances of one lexicon together."""
        joined = joined_parts(lexicon, parts)
        texts = [part.nest_text for part in parts]
        data = np.frombuffer(narrow(joined.block, joined.parts), np.uint8)
        return cls(lexicon, data, texts, list(joined.constants.items()))

    def __len__(self) -> int:
        return len(self.nest_texts)

    def __iter__(self) -> Iterator[Captured]:
        kinds = _kinds(self.of)
        parts = opened(self, len(kinds))
        words, begin, constants, constant_ptr, _ = split(
            parts.node_type, parts.operand_ptr, parts.operands, parts.operand_output, parts.external_source,
            parts.external_index, kinds, parts.node_ptr, parts.result_node, parts.result_output, parts.result_slot,
            parts.result_ptr, parts.detached.view(np.bool_),
        )  # fmt: skip
        pools = dict(self.constants)
        for i, text in enumerate(self.nest_texts):
            externals = constants[constant_ptr[i] : constant_ptr[i + 1]]
            sources, indices = parts.external_source[externals], parts.external_index[externals]
            try:
                own = {s: pools[s][torch.from_numpy(indices[sources == s])] for s in sources.tolist()}
            except (KeyError, IndexError):
                _require_fine(checkloops.INDEX, i)
            yield Captured(self.of, words[begin[i] : begin[i + 1]].tobytes(), text, tuple(own.items()))

    def __repr__(self) -> str:
        return f"<CapturedBatch of {len(self)} instances>"

    def _with(self, constants: Sequence[tuple[int, torch.Tensor]]) -> CapturedBatch:
        other = CapturedBatch(self.of, self.data, self.nest_texts, constants)
        other.exemplars, other.seconds = self.exemplars, self.seconds
        return other

    def to(self, *args: Any, **kwargs: Any) -> CapturedBatch:
        """The same with its constants on another device. A dtype is refused: capture in it."""
        moved = [(source, pool.to(*args, **kwargs)) for source, pool in self.constants]
        if any(a.dtype is not b.dtype for (_, a), (_, b) in zip(moved, self.constants, strict=True)):
            raise InputError(
                "a captured mini-batch: expected a device to move to, got a dtype; capture it in that dtype"
            )
        return self._with(moved)

    def pin_memory(self) -> CapturedBatch:
        """The same with its constants in pinned memory."""
        return self._with([(source, pool.pin_memory()) for source, pool in self.constants])

    def __reduce__(self) -> Any:
        """Plain bytes, numbers and texts; exemplars as `_pickled`."""
        constants = [
            (source, dtype_name(pool.dtype), list(pool.shape), bits_of(pool).cpu().numpy().tobytes())
            for source, pool in self.constants
        ]
        key = (os.getpid(), id(self.of))
        once: dict[str, str] = {}
        texts = [once.setdefault(text, text) for text in self.nest_texts]  # pickle sends one object once
        sent = _text_of(self.of), self.data.tobytes(), texts, constants, _pickled(self.exemplars)
        return _arrived, (*sent, key, self.seconds, _checksum(*sent))


def _pickled(exemplars: list[Any]) -> bytes:
    """Instances for another process. By pickle itself: torch's way of sending tensors refuses those that an eager
    forward has left on an instance, and where it does, a loader waits for ever. Raises InputError."""
    try:
        return pickle.dumps(exemplars) if exemplars else b""
    except Exception as error:
        raise InputError(
            "a captured mini-batch: expected instances that can be pickled, as one travels that shows what the process "
            f"which receives may not have recorded, got {printable(repr(error))}; or let the net capture some before "
            "the loader is made: net.capture_all(instances)"
        ) from None


def _text_of(of: Lexicon | Vocabulary) -> str:
    """A vocabulary as text, definition (2)."""
    if isinstance(of, Vocabulary):
        return json.dumps(home_and_texts(*of))
    text = _TEXTS.get(of)
    if text is None or text[0] != of.known():
        text = _TEXTS[of] = of.known(), json.dumps(home_and_texts(*of.vocabulary()))
    return text[1]


def _checksum(text: str, data: bytes, nest_texts: Any, constants: Any, exemplars: bytes) -> int:
    """Of all that says what a mini-batch is."""
    names = "\n".join([*nest_texts, *(f"{source} {name} {shape}" for source, name, shape, _ in constants)])
    checksum = zlib.crc32(names.encode(), _checksum_of(text))
    for block in (data, exemplars, *(raw for *_, raw in constants)):
        checksum = zlib.crc32(block, checksum)
    return checksum


@lru_cache(maxsize=8)
def _checksum_of(text: str) -> int:
    """Of a vocabulary, which comes with every mini-batch."""
    return zlib.crc32(text.encode())


def _arrived(text: str, data: bytes, nest_texts: Any, constants: Any, exemplars: bytes, key: Any, seconds: float,
             checksum: int) -> CapturedBatch:  # fmt: skip
    """What another process sent. Raises InputError where it is no batch; the net that takes it checks the rest."""
    try:
        vocabulary = _VOCABULARIES.get(text)
        if vocabulary is None:
            vocabulary = _VOCABULARIES[text] = vocabulary_of(json.loads(text))
        pools = [(int(source), tensor_of(raw, torch_dtype(name), shape)) for source, name, shape, raw in constants]
        need(checksum == _checksum(text, data, nest_texts, constants, exemplars))
        batch = CapturedBatch(vocabulary, np.frombuffer(data, np.uint8), nest_texts, pools)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError) as error:
        raise InputError(
            f"a captured mini-batch: expected what a worker sends, got something else ({error!r}); let a worker of "
            "this version of edbc send it"
        ) from None
    batch.exemplars = _ARRIVED.setdefault(key, [])
    if exemplars:
        batch.exemplars += pickle.loads(exemplars)
    batch.seconds = seconds
    return batch


def _kinds(of: Lexicon | Vocabulary) -> Longs:
    """Of every source its kind."""
    if isinstance(of, Lexicon):
        return of.facts().kind_of_source
    return np.array([KINDS.get(text.split(" ", 1)[0], -1) for text in of.sources], np.int64)


def opened(batch: CapturedBatch, num_sources: int) -> Parts:
    """The parts of a batch's block. Raises InputError where lengths or borders say what cannot be."""
    return _parts(checkloops.open_block(batch.data, num_sources), len(batch))


def _parts(found: Sequence[Any], count: int) -> Parts:
    what, where, arrays = found
    parts = Parts(*arrays)
    if what == checkloops.FINE and not len(parts.result_ptr) == len(parts.node_ptr) == count + 1:
        what, where = checkloops.LENGTHS, 0
    _require_fine(what, where)
    return parts


def _require_fine(what: int, where: int) -> None:
    if what != checkloops.FINE:
        raise InputError(f"a captured mini-batch: expected {WRONG[what]}, got others at place {where}; send it again")


def batch_capture(net: Net, batch: CapturedBatch) -> Capture:
    """The Capture of a mini-batch, checked: it may be from elsewhere."""
    lexicon, started = net.lexicon, time.thread_time()
    vocabulary = batch.of
    if isinstance(vocabulary, Lexicon):
        require_home(vocabulary.home, lexicon.home)
        vocabulary = vocabulary.vocabulary()
    maps = lexicon.read(vocabulary, lambda: net.capture_each(list(batch.exemplars)))
    pools = {int(maps[1][source]): pool for source, pool in batch.constants if 0 <= source < len(maps[1])}
    lengths = _pool_lengths(lexicon, pools)
    *found, slot, fewest = checkloops.check_block(batch.data, *maps, lengths, lexicon.facts().checked)
    parts = _parts(found, len(batch))
    result_ptr = parts.result_ptr.tolist()
    nests = lexicon.nests(vocabulary, batch.nest_texts, result_ptr, fewest)
    capture = read_joined(lexicon, Joined(batch.data, parts, slot, pools), nests, result_ptr)
    _measure(net, batch, time.thread_time() - started)
    return capture


def _pool_lengths(lexicon: Lexicon, pools: dict[int, torch.Tensor]) -> Longs:
    """How many constants there are of each source. Raises InputError for those of other shapes and dtypes."""
    lengths = np.zeros(len(lexicon.table.sources), np.int64)
    for number, pool in pools.items():
        source = lexicon.table.sources[number]
        found = ValueClass(tuple(pool.shape[1:]), dtype_name(pool.dtype))
        if source.kind != "constant" or not pool.ndim or found != source.value_class:
            raise InputError(
                f"a captured mini-batch: expected constants {source.value_class}, got {found}; send it again"
            )
        lengths[number] = len(pool)
    return lengths


def _measure(net: Net, batch: CapturedBatch, seconds: float) -> None:
    """Say once where receiving takes this process longer than capturing would have; checking took it so many seconds.
    Definition (4)."""
    times = net.transfers
    if not batch.seconds or len(times) > MEASURED:
        return
    times.append((batch.seconds, seconds))
    if len(times) == MEASURED:
        captured, checked = map(min, zip(*times, strict=True))  # the first are slow
        received = checked + min(_through_pipe(batch) for _ in range(3))
        if received > captured:
            warnings.warn(
                f"a mini-batch takes this process {1e3 * received:.2f} ms to receive, and would take "
                f"{1e3 * captured:.2f} ms to capture: workers cost more than they spare; take num_workers=0, or a "
                "CapturedDataset",
                SlowTransfer, 2,
            )  # fmt: skip
        times.append((0.0, 0.0))


def _through_pipe(batch: CapturedBatch) -> float:
    """Seconds of processor time that receiving a mini-batch takes, once more."""
    sent = batch._with(batch.constants)
    sent.exemplars = []
    data = pickle.dumps(sent)
    here, there = Pipe(duplex=False)
    with here, there:
        sender = threading.Thread(target=there.send_bytes, args=(data,))
        sender.start()
        started = time.thread_time()
        pickle.loads(here.recv_bytes())
        took = time.thread_time() - started
        sender.join()
    return took


# --- in the worker -------------------------------------------------------------------------------------------------


class Collate:
    """A `collate_fn`: items to what stands for them in a mini-batch. See `collate`."""

    def __init__(self, net: Net, instance: int | str | None = None):
        self.net = net
        self.instance = instance
        here = net.in_mode().lexicon
        self._told = {here: len(here.exemplars)}
        """How many exemplars of each lexicon the receiving process has, as far as this one knows."""

    def __call__(self, items: Sequence[Any]) -> Any:
        """The mini-batch of some items; see `collate`."""
        if self.instance is None:
            return self._batch(items)
        first = items[0]
        places = list(
            first if isinstance(first, dict) else range(len(first)) if isinstance(first, list | tuple) else ()
        )
        if self.instance not in places:
            raise InputError(
                f"a mini-batch of {len(items)} items: expected an instance at {self.instance!r} of each, got "
                f"{type(first).__name__} without; say where it is (edbc.collate(net, instance=0)), or leave it out"
            )
        columns = {place: self._column(items, place) for place in places}
        if isinstance(first, dict):
            return columns
        return list(columns.values()) if isinstance(first, list) else tuple(columns.values())

    def _column(self, items: Sequence[Any], key: Any) -> Any:
        column = [item[key] for item in items]
        return self._batch(column) if key == self.instance else _stacked(column)

    def _batch(self, instances: Sequence[Any]) -> Any:
        lexicon = self.net.in_mode().lexicon
        started = time.thread_time()
        parts = self.net.capture_each(instances)
        if not all(type(part) is Captured and part.of is lexicon for part in parts):  # as they are
            pairs = zip(parts, instances, strict=True)
            return [item if isinstance(part, UnsupportedError) else part for part, item in pairs]
        batch = CapturedBatch.of_parts(lexicon, parts)  # type: ignore[arg-type]
        new = list(lexicon.exemplars.values())[self._told.get(lexicon, 0) :]
        batch.exemplars = list({id(instance): instance for instance in new}.values())
        self._told[lexicon] = len(lexicon.exemplars)
        if get_worker_info() is not None:
            _pickled(batch.exemplars)  # what cannot be is told here: a queue's thread only prints, and nothing arrives
        batch.seconds = 0.0 if Captured in set(map(type, instances)) else time.thread_time() - started
        return batch

    def __reduce__(self) -> Any:
        return Collate, (self.net.skeleton, self.instance)


def _stacked(column: list[Any]) -> Any:
    """Numbers, and tensors of one shape, as the tensor that a DataLoader makes of them; else the list."""
    is_number = all(type(item) in (int, float, bool) for item in column)
    is_tensor = all(isinstance(item, torch.Tensor) for item in column) and len({item.shape for item in column}) == 1
    return default_collate(column) if is_number or is_tensor else column


class Skeleton:
    """What a net is pickled as for workers that are not forks: a net of the plan and of the model without its weights.
    A net has one, so that what refers to it in one pickle refers to one net again."""

    def __init__(self, net: Net):
        self._net = net

    def __reduce__(self) -> Any:
        """As bytes, for a file descriptor would travel with every tensor."""
        net = self._net
        model = weightless(net.model)
        return _without_weights, (type(net), net.plan, files_of(model), pickle.dumps(model), net.binding)


def _without_weights(kind: type[Net], plan: Any, files: Sequence[str], model: bytes, options: dict[str, Any]) -> Net:
    for file in files:
        import_model_file(file)
    return kind(plan, pickle.loads(model), backend="reference", **options)


def weightless(model: nn.Module) -> nn.Module:
    """A copy of a model whose parameters have shapes, dtypes and one element of memory each: enough to record. Nothing
    of it is on a device, which a process takes seconds and hundreds of megabytes to open."""
    import copy

    memo = Memo(model)
    for parameter in model.parameters():
        empty = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    memo |= {id(buffer): buffer.detach().cpu() for buffer in model.buffers() if not buffer.is_cpu}
    return copy.deepcopy(model, memo)


def collate(net: Net, instance: int | str | None = None) -> Collate:
    """A `collate_fn` for a DataLoader: forward runs where it is called, in a worker say, and what comes back is a
    `CapturedBatch`, which `net` takes in place of a list of instances.

    An item is an instance; or a tuple, list or dict with one at `instance`. Then a mini-batch is such a tuple, list or
    dict too, with the batch in that place; numbers, and tensors of one shape, become one tensor, all else a list. Items
    may be captured already. Where an instance of a mini-batch cannot be captured, the mini-batch is a list with that
    one as it is.
    """
    return Collate(net, instance)
