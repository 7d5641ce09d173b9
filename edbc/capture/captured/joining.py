"""Capturing instances, and joining captured ones to the Capture of a mini-batch.

Instances that are captured together are recorded as one mini-batch and split natively. Where that cannot be (forward
needed a second attempt, or what it returned became nodes when it had run), each is recorded alone.

What is joined is what recording the instances together gives: nodes, operands and externals in the same order but for
those of an instance that company does not order (`captured.joinloops`), so outputs and gradients are the same bits.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.base.garbage import NoGarbageCollection
from edbc.capture.captured import checkloops, joinloops
from edbc.capture.captured.block import capture_of
from edbc.capture.captured.instance import NONE, WORD, Captured, Constants, Words, none_of, sections
from edbc.capture.captured.joinloops import Parts
from edbc.capture.captured.nesttext import Numbers, need, nest_in, require_text, stacks_in, text_of
from edbc.capture.captured.splitloops import split
from edbc.capture.captured.vocabulary import Lexicon, Longs, Nest, require_home
from edbc.capture.forward.build import Capture, build_collected
from edbc.capture.forward.left import Assigned, Left, recorded
from edbc.capture.forward.returned import Collected
from edbc.capture.forward.structures import LARGEST
from edbc.capture.record.recorder import Recorder
from edbc.capture.standins.objects import unchanged
from edbc.capture.standins.standin import class_of
from edbc.errors import EdbcError, InputError, UnsupportedError

_NONE = np.zeros(0, np.bool_)
WATCHED = 64
LARGEST_ALIKE = 512
"""Operands of a mini-batch that is told by its instances' structures, which takes no longer for a large one."""
_TENSORS, _IS_CPU = {torch.Tensor}, attrgetter("is_cpu")
_LOOKS_UP = np.ones(5, np.bool_)
_LOOKS_UP[[joinloops.WHOLE, joinloops.CONSTANT]] = False
"""Of every kind of source, whether its externals differ between instances of one structure."""
_DRAWS = "forward draws random numbers of Python or NumPy, which a captured instance would repeat"


class Part(NamedTuple):
    """What an instance adds to one mini-batch: a captured instance, or one that was recorded for it alone and may hold
    what none can be captured with."""

    words: bytes
    nest: Nest
    """What forward returned, places counted from the instance's first one."""
    constants: Sequence[tuple[int, Any]]
    """By source, a tensor of all or a list of each."""
    left: Left | None = None
    """What forward left on the instance."""
    order: Sequence[int] = ()
    """Of an instance that was recorded alone, its rows and constants as forward made them: externals, or -1 for what
    nothing reads."""
    structure: int | None = None
    """Of a captured instance the number of all but its rows and constants (`Lexicon.structure`)."""


def same_parts(one: Part, other: Part) -> bool:
    """True when both add the same to a mini-batch."""
    return (
        (one.words, one.nest) == (other.words, other.nest)
        and [source for source, _ in one.constants] == [source for source, _ in other.constants]
        and all(len(a) == len(b) for (_, a), (_, b) in zip(one.constants, other.constants, strict=True))
        and all(all(map(torch.equal, a, b)) for (_, a), (_, b) in zip(one.constants, other.constants, strict=True))
    )


def capture_each(
    shadow: nn.Module, recorder: Recorder, lexicon: Lexicon, instances: Sequence[Any]
) -> list[Captured | UnsupportedError]:
    """Run `forward` on instances and give what each adds to a mini-batch; an UnsupportedError in the place of one that
    cannot be captured: forward returns what has no text (`captured.nesttext`) or keeps it on the model, or reads a
    tensor of the instance that requires a gradient, or draws what its graph depends on, as in training it may (the
    first WATCHED instances are watched). Instances hold then what they held before. Raises what `forward.build.capture`
    raises."""
    if lexicon.num_watched >= WATCHED:
        return _captured_each(shadow, recorder, lexicon, instances)
    attempts = 0 if lexicon.draws else 2  # another thread may have drawn in the first
    for _ in range(attempts):
        state = _generators()
        found = _captured_each(shadow, recorder, lexicon, instances)
        if state == _generators():
            lexicon.num_watched += len(instances)
            return found
    lexicon.draws = True
    return [UnsupportedError(_DRAWS)] * len(instances)


def _generators() -> tuple[Any, ...]:
    """The states of Python's and NumPy's random generators; torch's is watched wherever forward is recorded."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return random.getstate(), name, keys.tobytes(), *rest


def _captured_each(
    shadow: nn.Module, recorder: Recorder, lexicon: Lexicon, instances: Sequence[Any]
) -> list[Captured | UnsupportedError]:
    first, known = recorder.first_instance, lexicon.known()
    restores, parts, recorder.captures = lexicon.keeps_on_instances is not False, None, True
    try:
        with unchanged(instances) if restores else nullcontext():
            if len(instances) > 1 and not lexicon.records_alone:
                parts = recorded_together(shadow, recorder, lexicon, instances)
                lexicon.records_alone = parts is None
            if parts is None:
                parts = [
                    part_of(shadow, recorder, lexicon, item, number) for number, item in enumerate(instances, first)
                ]
    finally:
        recorder.first_instance, recorder.captures = first, False
    lexicon.keeps_on_instances = bool(lexicon.keeps_on_instances)
    if lexicon.keeps_on_instances and not restores:
        error = UnsupportedError("forward keeps on it, unlike others, what no captured instance holds; capture again")
        return [error] * len(parts)
    found = [_captured(lexicon, part) for part in parts]
    if lexicon.known() != known:
        for captured, instance in zip(found, instances, strict=True):
            if isinstance(captured, Captured):
                for number in numbers_in(captured):
                    lexicon.exemplars.setdefault(number, instance)
    return found


def numbers_in(captured: Captured) -> set[tuple[int, int]]:
    """All types (0), sources (1), slots (2) and classes of results (3) in a captured instance."""
    numbers, classes = [set(section.tolist()) for section in sections(np.frombuffer(captured.words, WORD))], Numbers()
    nest_in(captured.nest_text, classes)
    return {(what, i) for what, of in enumerate((*numbers, classes)) for i in of}


def _captured(lexicon: Lexicon, part: Part) -> Captured | UnsupportedError:
    if any(tensor.requires_grad for _, pool in part.constants for tensor in pool):
        return UnsupportedError(
            "forward reads a tensor that requires a gradient, from which a captured instance would be cut off"
        )
    results = num_results(part.words)
    if not results and lexicon.keeps_on_instances:
        return UnsupportedError("forward returns no tensor, and what it keeps on it no captured instance holds")
    try:
        text = text_of(part.nest.nest, results, lexicon.class_number, part.nest.assigned)
    except UnsupportedError as error:
        return error
    constants = tuple((source, torch.stack(pool)) for source, pool in part.constants)
    return Captured(lexicon, part.words, text, constants, is_own=True)


def num_results(words: bytes) -> int:
    """Of an instance with these words."""
    return int(np.frombuffer(words, WORD, joinloops.HEADER)[3])


def recorded_together(
    shadow: nn.Module, recorder: Recorder, lexicon: Lexicon, instances: Sequence[Any]
) -> list[Part] | None:
    """The parts of instances that are recorded as one mini-batch; None where they cannot be told apart."""
    with NoGarbageCollection():
        recording, collected = recorded(shadow, recorder, instances, settles=True)
        if collected.is_on_instances:
            lexicon.keeps_on_instances = True
        is_one_piece = recording.aborted == (0, 0) and len(recording.entries) == recording.instance_ends[-1]
        if not is_one_piece or collected.left is not None:
            return None
        built = build_collected(recording, collected)
        ends = np.array([0, *recording.instance_ends], np.int64)
        if built.recorded_as is not None:
            ends = np.searchsorted(built.recorded_as, ends).astype(np.int64)
        return _split(built, collected, lexicon, ends)


def part_of(shadow: nn.Module, recorder: Recorder, lexicon: Lexicon, instance: Any, number: int,
            with_order: bool = False) -> Part:  # fmt: skip
    """An instance recorded alone, `number` in messages."""
    recorder.first_instance = number
    with NoGarbageCollection():
        recording, collected = recorded(shadow, recorder, [instance], settles=True)
        if collected.is_on_instances:
            lexicon.keeps_on_instances = True
        built = build_collected(recording, collected)
        whole = np.array([0, built.graph.num_nodes], np.int64)
        parts = _split(built, collected._replace(result_ptr=[0, len(built.result_node)]), lexicon, whole)
    if parts is None:
        raise UnsupportedError(f"instance {number}: expected rows and offsets below 2**31, got larger ones")
    part, left = parts[0]._replace(nest=parts[0].nest._replace(stacks=collected.stacks)), collected.left
    if left is not None and recorder.captures:
        return part._replace(nest=part.nest._replace(assigned=left.assigned()))
    return part._replace(left=left, order=_order(built, part, lexicon) if with_order else ())


def _order(built: Capture, part: Part, lexicon: Lexicon) -> list[int]:
    """See `Part.order`: the words have rows as forward made them, and constants as they are first read."""
    kinds = lexicon.facts().kind_of_source
    reads = np.concatenate([built.graph.operands, built.result_node])
    read, first = np.unique(-1 - reads[reads < 0], return_index=True)
    is_constant = kinds[built.external_source[read]] == joinloops.CONSTANT
    rows, constants = read[~is_constant], read[is_constant][np.argsort(first[is_constant])]
    rows = rows[kinds[built.external_source[rows]] != joinloops.WHOLE]
    place = np.full(len(built.external_source), -1, np.int64)
    num_whole = int(np.frombuffer(part.words, WORD, joinloops.HEADER)[2]) - len(rows) - len(constants)
    place[rows] = num_whole + np.arange(len(rows))
    place[constants] = num_whole + len(rows) + np.arange(len(constants))
    given = np.isin(kinds[built.external_source], (joinloops.ROW, joinloops.CONSTANT))
    return [int(e) for e in place[given]]


def _split(built: Capture, collected: Collected, lexicon: Lexicon, ends: Longs) -> list[Part] | None:
    graph, facts = built.graph, lexicon.facts()
    words, begin, constants, constant_ptr, fault = split(
        graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, built.external_source,
        built.external_index, facts.kind_of_source, ends, built.result_node, built.result_output,
        lexicon.slot_numbers(built.result_slots), np.array(collected.result_ptr, np.int64),
        _NONE if built.detached is None else built.detached,
    )  # fmt: skip
    if fault >= 0:
        return None
    parts = []
    borders, of_constants = begin.tolist(), constant_ptr.tolist()
    for i, nest in enumerate(collected.nests):
        own_constants = constants[of_constants[i] : of_constants[i + 1]]
        own_words = words[borders[i] : borders[i + 1]].tobytes()
        stacks = stacks_in(nest) if collected.stacks else ()
        parts.append(Part(own_words, Nest(nest, stacks), _pools(built, own_constants)))
    return parts


def _pools(built: Capture, externals: Longs) -> list[tuple[int, list[torch.Tensor]]]:
    """The constants of an instance by source, in their order."""
    pools: dict[int, list[torch.Tensor]] = {}
    for e in externals.tolist():
        source = int(built.external_source[e])
        pools.setdefault(source, []).append(built.constants[source][int(built.external_index[e])])
    return list(pools.items())


# --- joining -------------------------------------------------------------------------------------------------------


class Joined(NamedTuple):
    """A mini-batch in the numbers of a lexicon: a block, its parts, and constants by source."""

    block: np.ndarray
    parts: Parts
    slot: int
    """See `joinloops.one_of`."""
    constants: dict[int, Any]


def join(lexicon: Lexicon, words: Words, count: int, constants: dict[int, Any]) -> Joined:
    """So many instances of a lexicon, whose words stand one after the other, as a mini-batch with the constants of all.
    O(words), natively."""
    facts = lexicon.facts()
    block, parts, slot = joinloops.join(words, count, facts.kind_of_source, facts.class_of_source)
    return Joined(block, Parts(*parts), slot, constants)


def joined(lexicon: Lexicon, parts: Sequence[Part]) -> Capture:
    """The Capture of a mini-batch. O(words) natively, and some Python per instance."""
    key = tuple([part.structure for part in parts])
    nests = [part.nest for part in parts]
    if None not in key:
        words, constants = partial(_words_of, parts), _constants_of([part.constants for part in parts])
        return joined_alike(lexicon, key, words, nests, constants)
    of_all = joined_parts(lexicon, parts)
    left = [part.left for part in parts]
    capture = read_joined(lexicon, of_all, nests, of_all.parts.result_ptr.tolist(), left)
    if len(capture.graph.operands) > LARGEST:
        return capture
    return with_known_graph(lexicon, capture, (*[structure_of(part.words) for part in parts], *capture.stacks))


def joined_alike(lexicon: Lexicon, key: tuple[int | None, ...], words: Callable[[], Words], nests: Sequence[Nest],
                 constants: dict[int, Any]) -> Capture:  # fmt: skip
    """The Capture of a mini-batch whose instances have these structures. A small one that looks nothing up is joined
    once: the next of these structures differs in constants alone, and its words are not asked for."""
    known = lexicon.joined.get(key)
    if known is not None and known.graph.types is lexicon.table.graph_types():
        return known.changed(constants=constants)
    of_all = join(lexicon, words(), len(nests), constants)
    capture = read_joined(lexicon, of_all, nests, of_all.parts.result_ptr.tolist())
    if len(capture.graph.operands) > LARGEST_ALIKE or None in key:  # large instances have no number
        return capture
    capture = with_known_graph(lexicon, capture, (lexicon, *key))  # whose numbers they are
    if not (_LOOKS_UP[lexicon.facts().kind_of_source[capture.external_source]]).any():
        lexicon.joined.add(key, capture.changed(constants={}, is_known=True))
    return capture


def _words_of(parts: Sequence[Part] | Sequence[Captured]) -> Words:
    return np.frombuffer(b"".join([part.words for part in parts]), WORD)


def joined_parts(lexicon: Lexicon, parts: Sequence[Part] | Sequence[Captured]) -> Joined:
    """Parts as a mini-batch in the numbers of a lexicon."""
    return join(lexicon, _words_of(parts), len(parts), _constants_of([part.constants for part in parts]))


def _constants_of(instances: Sequence[Sequence[tuple[int, Any]]]) -> dict[int, Any]:
    """The constants of all instances by source."""
    pools: dict[int, list[Any]] = defaultdict(list)
    for constants in instances:
        for source, pool in constants:
            pools[source].append(pool)
    return {source: as_one(found) for source, found in pools.items()}


def read_joined(lexicon: Lexicon, joined: Joined, nests: Sequence[Nest], result_ptr: list[int],
                left: Sequence[Left | None] = ()) -> Capture:  # fmt: skip
    """The Capture of a mini-batch whose instances return these nests, and of which those recorded for it `left`
    something."""
    numbers = joined.parts.result_slot
    if joined.slot < 0:
        slots = [lexicon.slots[i] for i in numbers.tolist()]
    else:
        slots = [lexicon.slots[joined.slot]] * len(numbers)
    distinct = {id(nest): nest for nest in nests}.values()
    stacks = [
        (first + start, end if stop is None else first + stop)
        for nest, first, end in zip(nests, result_ptr, result_ptr[1:], strict=False)
        for start, stop in nest.stacks
    ] if any(nest.stacks for nest in distinct) else []  # fmt: skip
    capture = capture_of(lexicon.table, joined.parts, slots, [nest.nest for nest in nests], joined.constants, stacks,
                         result_ptr)  # fmt: skip
    if not left and not any(nest.assigned for nest in distinct):
        return capture
    of_all = _left_of_all(lexicon, nests, left or [None] * len(nests), result_ptr)
    return capture.changed(left=of_all) if of_all else capture


def _left_of_all(lexicon: Lexicon, nests: Sequence[Nest], left: Sequence[Left | None], result_ptr: list[int]
                 ) -> list[Left | Assigned]:  # fmt: skip
    """What a mini-batch leaves, in the order of its instances; of those that assign to the same, one after the other,
    the last one's."""
    found: list[Left | Assigned] = []
    for nest, of_recorded, first in zip(nests, left, result_ptr, strict=False):
        if of_recorded is not None:
            found.append(of_recorded.moved(first))
        elif nest.assigned:
            if found and type(found[-1]) is Assigned and found[-1].nests is nest.assigned:
                found.pop()
            found.append(Assigned(lexicon.view, nest.assigned, first))
    return found


def structure_of(words: bytes) -> bytes:
    """What of an instance's words tells its graph: all but which rows and constants it reads."""
    return words[: len(words) - WORD.itemsize * int.from_bytes(words[8:12], "little")]


def with_known_graph(lexicon: Lexicon, capture: Capture, key: Any) -> Capture:
    """A small mini-batch with the very graph of an earlier one of its structure (`forward.structures`)."""
    structures = lexicon.table.structures
    graph = structures.get(key)
    if graph is None or graph.types is not capture.graph.types:
        structures.add(key, capture.graph)
        return capture
    return capture.changed(graph=graph, is_known=True)


def as_one(pools: list[Any]) -> Any:
    """The constants of one source: one tensor, or a list where some instance's were recorded for it. Where some are on
    a device, as captured instances that were moved there, all are."""
    if set(map(type, pools)) == _TENSORS and all(map(_IS_CPU, pools)):
        return pools[0] if len(pools) == 1 else torch.cat(pools)
    firsts = [pool if type(pool) is torch.Tensor else pool[0] for pool in pools if type(pool) is not list or pool]
    device = next((first.device for first in firsts if not first.is_cpu), None)
    if device is not None:
        pools = [[t.to(device) for t in pool] if type(pool) is list else pool.to(device) for pool in pools]
    if any(type(pool) is list for pool in pools):
        return [tensor for pool in pools for tensor in pool]
    return pools[0] if len(pools) == 1 else torch.cat(pools)


# --- from elsewhere ------------------------------------------------------------------------------------------------

WRONG = {
    checkloops.TRUNCATED: "as many words as its lengths say",
    checkloops.LENGTHS: "lengths of at least 0",
    checkloops.TYPE: "a type that its vocabulary has and this net has recorded",
    checkloops.ARITY: "as many operands as its type takes",
    checkloops.OPERAND: "operands that stand before it",
    checkloops.OUTPUT: "outputs that its operands have",
    checkloops.CLASS: "operands of the sizes and dtypes that its type takes",
    checkloops.SOURCE: "a source that its vocabulary has and this net has recorded",
    checkloops.INDEX: "a row of its table",
    checkloops.EXCERPT: "an excerpt inside of its operand",
    checkloops.SLOT: "results of the sizes and dtypes that its slots say",
    checkloops.DETACHED: "nodes of its own, in order",
}


def own_part(lexicon: Lexicon, captured: Captured, number: int) -> Part:
    """A captured instance in the numbers of this lexicon. One that it has not made is checked, once per net; messages
    name it by its number. Raises StaleError for one of another home, InputError for numbers that mean nothing here."""
    here = captured if captured.of is lexicon and captured.is_own else captured.adopted.get(lexicon)
    if here is None:
        try:
            here = captured.adopted[lexicon] = _adopted(lexicon, captured)
        except EdbcError as error:
            raise type(error)(f"instance {number}: {error}") from None
    if here.part is None:
        structure = number_of_structure(lexicon, here.words, here.nest_text)
        here.part = Part(here.words, lexicon.nest(here.nest_text), here.constants, structure=structure)
    return here.part


def number_of_structure(lexicon: Lexicon, words: bytes, nest_text: str) -> int | None:
    """The number of a small instance's structure; None of another."""
    if int.from_bytes(words[4:8], "little") > LARGEST:
        return None
    return lexicon.structure(structure_of(words), nest_text)


def own_parts(lexicon: Lexicon, instances: Sequence[Captured], first: int) -> list[Part]:
    """`own_part` of each, counted from `first`."""
    return [
        item.part if item.part is not None and item.of is lexicon else own_part(lexicon, item, number)
        for number, item in enumerate(instances, first)
    ]


def _adopted(lexicon: Lexicon, captured: Captured) -> Captured:
    of = captured.of
    if isinstance(of, Lexicon) and of is not lexicon:  # of another mode of the net, or of another net of this process
        require_home(of.home, lexicon.home)
        return _adopted(lexicon, Captured.from_bytes(bytes(captured)))
    if isinstance(of, Lexicon):  # made by hand
        counts = lexicon.known()
        maps = np.arange(len(counts[0])), np.arange(counts[1]), np.arange(counts[2])
        classes = {i: i for i in range(counts[3])}
    else:
        maps, classes = lexicon.read(of), lexicon.class_numbers(of)
    try:
        return _checked(lexicon, captured, maps, classes)
    except NONE as error:
        raise none_of(error) from None


def _checked(lexicon: Lexicon, captured: Captured, maps: Sequence[Longs], classes: dict[int, int]) -> Captured:
    """In the numbers of this lexicon, which `maps` and `classes` give."""
    words = np.frombuffer(captured.words, WORD).copy()
    require_words(words, np.array([0, len(words)]), lexicon, maps)
    need(not any(pool.requires_grad for _, pool in captured.constants))
    constants = tuple((int(maps[1][source]), pool.contiguous()) for source, pool in captured.constants)
    require_constants(lexicon, words, constants)
    text = require_text(captured.nest_text, num_results(captured.words), len(captured.of.classes))
    text = nest_in(text, classes)
    lexicon.nest(text)
    return Captured(lexicon, words.tobytes(), text, constants, is_own=True)


def require_words(words: Words, begin: Longs, lexicon: Lexicon, maps: Sequence[Longs]) -> None:
    """Put words that came from elsewhere, those of instance i from `begin[i]` on, into the numbers of this lexicon.
    Raises InputError for the first thing that is wrong with them."""
    found = checkloops.translate(words, begin, *maps)
    if found[0] == checkloops.FINE:
        found = checkloops.check(words, begin, lexicon.facts().checked)
    what, which, where = map(int, found)
    if what != checkloops.FINE:
        many = f" (number {which})" if len(begin) > 2 else ""
        raise InputError(
            f"a captured instance{many}: expected {WRONG[what]}, got others at place {where}; capture it again"
        )


def require_constants(lexicon: Lexicon, words: Words, constants: Constants) -> None:
    """As many constants of each source as there are externals of it, of its class."""
    sources = lexicon.table.sources
    counts = np.bincount(sections(words)[1], minlength=len(sources))
    given = dict(constants) if len(dict(constants)) == len(constants) else {}
    wanted = [i for i, source in enumerate(sources) if source.kind == "constant" and counts[i]]
    for source in {*wanted, *given}:
        pool, value_class = given.get(source), sources[source].value_class
        if pool is None or source not in wanted or len(pool) != counts[source] or class_of(pool[0]) != value_class:
            got = "none" if pool is None else f"{len(pool)} of shape {tuple(pool.shape[1:])}, {pool.dtype}"
            raise InputError(
                f"a captured instance: expected {counts[source]} constants {value_class}, got {got}; capture it again"
            )
