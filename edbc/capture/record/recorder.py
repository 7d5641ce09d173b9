"""Define-by-run capture: the user's `forward(instance)` runs on stand-ins and leaves a record of its nodes.

The programming model is DyNet's (Neubig et al., "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS
2017, section 2): Python runs per instance, so recursion, loops and any code over the input's structure work; what it
builds is a graph. Two things differ from DyNet: a module marked as a cell is one node (Cavs's vertex function, Xu et
al., 2018), and look-ups, constants and views are operands instead of nodes.

A recorder is used by one thread at a time. Its hot paths, a call of a cell and a torch function of recorded tensors,
are a dictionary look-up by slots, two list appends per node and one small object per output; calls of modules are
unrolled (`record.calls`). Nodes are asked for the line that makes them, and the type keeps the lines: all nodes of a
recorder's first LOOKS mini-batches, and of every LOOKS-th one from then on, because asking takes a fifth of a recorded
call.
"""

from __future__ import annotations

import functools
import itertools
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType, FrameType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.base.graph import NodeType, ValueClass
from edbc.base.kept import Kept
from edbc.capture.code.automatic import MOST_TYPES, NotACell, SharesMemory
from edbc.capture.forward.carried import Carried
from edbc.capture.ragged.expand import reduction_entry, run_type
from edbc.capture.ragged.expandloops import extent
from edbc.capture.ragged.kept import NO_ROWS
from edbc.capture.ragged.masks import call_of_sizes, made_of_sizes
from edbc.capture.ragged.program import Below, CannotKeep, Numbers, Program, Reduction, RunOf, Says, Triple, size_of
from edbc.capture.ragged.rows import Pool, Written, adopted, holds, rows_at, rows_described, version_of
from edbc.capture.ragged.rules import function_at_once, ragged_call
from edbc.capture.ragged.symbols import Size
from edbc.capture.ragged.value import All, Constant, Drawn, Held, Number, Offset, Ragged, Sizes, Whole, ragged_class
from edbc.capture.ragged.value import filled as repeated
from edbc.capture.ragged.whole.amounts import told
from edbc.capture.ragged.whole.recipes import Claim, Recipe
from edbc.capture.ragged.whole.runs import Pairs, cut
from edbc.capture.record.draws import INSTANCE_BITS, as_written, refuse_drawing
from edbc.capture.record.excerpts import Excerpts, excerpts, rows_seen_again
from edbc.capture.record.functionalise import (
    Changes,
    MustKeepBooks,
    OfChange,
    assign_item,
    assigns_rows,
    change_in_place,
    changed_alone,
    has_own_memory,
    is_alone,
)
from edbc.capture.record.keys import is_constant, quick_key
from edbc.capture.record.lookup import look_up_of
from edbc.capture.record.numbers import LONG, lift_floats, lift_number
from edbc.capture.record.recording import Recording
from edbc.capture.record.signature import call_type, function_type
from edbc.capture.record.special import (
    CATS,
    MAX_STEPS,
    AsItIs,
    OfMany,
    by_values,
    derived,
    filled,
    is_view,
    lazy_stack,
    made_of_numbers,
    num_steps,
    of_many,
    read_function,
    refuse_what_cannot_be_batched,
    selected,
    special,
    view,
    with_numbers,
    without_gradient,
)
from edbc.capture.record.table import Draw, Entry, Hole, Operation, SharedRef, TypeTable, fill
from edbc.capture.semantics import autocast, rules
from edbc.capture.semantics.randomness import NO_VALUES, Dispatched, draws
from edbc.capture.semantics.shapes import (
    KNOWN,
    filled_by,
    filled_with_zeros,
    flat,
    key_by_shape,
    pick,
    run_on_meta,
    split_outputs,
    told_by_shape,
)
from edbc.capture.standins.lazy import Stack
from edbc.capture.standins.made import (
    CODES,
    Buffer,
    Description,
    Made,
    Showing,
    described_filling,
    is_buffer,
    key_of_sum,
    made_again,
    with_wholes,
)
from edbc.capture.standins.nests import mapped, rebuilt
from edbc.capture.standins.source import asked_by_torch, assigned_name, location_of, user_frame, user_location
from edbc.capture.standins.standin import (
    PLAIN,
    Copied,
    Lazy,
    Rows,
    Shared,
    Slot,
    Value,
    answer_all_of_torch,
    class_of,
    is_matrix,
    key_of_items,
    key_with_any_number,
    refuse,
    short_key,
    torch_dtype,
    value_of,
)
from edbc.capture.standins.unread import Later, Site, looked_at, read_now

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView
    from edbc.errors import UnsupportedError

_STACK = torch.stack
_STRIDED = torch.strided
REF_BITS = 40
"""A recorder numbers values and externals from its own serial number times 2 ** REF_BITS on."""
LOOKS = 16
"""See the module's docstring."""
_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of arguments, which torch's functions take too."""
TAKES_NUMBERS, IN_PYTHON = object(), object()
"""In the place of an entry: a function takes the number of a tensor that it is given (`h.expand(count, -1)`); what it
calls is recorded, for it draws (`record.draws`)."""
MAX_VARIANTS = 512
"""Signatures that differ only in constants before recording stops, because nothing would batch."""


class OfNumber(NamedTuple):
    """The entry of a function of a value and any number, which is an operand (`record.numbers`): at place `at`."""

    entry: Entry
    dtype: torch.dtype
    at: int


class OfConstant(NamedTuple):
    """A call that gives a constant, the same for all nodes that ask for it: `key` tells which."""

    key: Any
    make: Callable[[], torch.Tensor]
    described: Description | None
    """The same as forward makes it, where nothing forbids it."""


class OfParameters(NamedTuple):
    """A call that gives functions of parameters alone; `is_vector` tells of one that is no matrix and no view."""

    result: Any
    is_vector: bool = False


class OfStacks(NamedTuple):
    """The entry of a function some of whose arguments are stacks: nodes, where they are none yet, before its own."""

    entry: Entry


def _is_number(value_class: ValueClass) -> bool:
    """Whether values are of one element, which Python has numbers for as torch has."""
    return value_class.size == 1 and not torch_dtype(value_class.dtype).is_complex


def _require_recorded(entry: Entry, recorded: frozenset[int] | None) -> None:
    """Raise NotACell for a call one of whose results eager code has at once, of what the instance brought alone."""
    if recorded is not None and not all(map(recorded.intersection, entry.demands)):
        raise NotACell("it computes with what the instance brings alone")


def _leaf_of_nobody() -> tuple[torch.Tensor, torch.Tensor]:
    """One of `Recorder.leaves`: how many references torch itself has to one depends on its version."""
    leaf = torch.ones(1, requires_grad=True)
    return leaf, leaf.clone()


def _leaves_behind(tensor: torch.Tensor, most: int = 64) -> list[torch.Tensor]:
    """The leaves that a tensor requires a gradient for; none where more than so many functions lead to them."""
    if tensor.is_leaf:
        return [tensor]
    found: list[torch.Tensor] = []
    functions: list[Any] = [tensor.grad_fn]
    for function in functions:
        if hasattr(function, "variable"):
            found.append(function.variable)
        functions += [of for of, _ in function.next_functions if of is not None and of not in functions]
        if len(functions) > most:
            return []
    return found


MOST_KINDS = 4096
"""Shapes of tensors that instances bring, each with its dtype, of which it is kept what they are."""


_OF_NUMBER = torch.Size(())


@functools.lru_cache(maxsize=4096)
def _scalar(number: float, dtype: torch.dtype, _shown: str = "") -> torch.Tensor:
    """`()`, for all mini-batches, with and without gradients."""
    with torch._C._InferenceMode(False):  # the context that does so is forward's (`semantics.gradmode`)
        exact = torch.scalar_tensor(number, dtype=torch.float64 if dtype.is_floating_point else dtype, device="cpu")
        return exact.to(dtype)  # 1e300 as torch takes it beside a tensor of float32: infinite


_ONE = torch.Size((1,))


class Recorder:
    """Records mini-batches of one model. With `in_cell` it records the inside of a cell, and the names of variables."""

    __slots__ = (
        "_calls", "_carried", "_class_of_constant", "_constant_of_id", "_constant_of_key", "_constants_of_class",
        "_first_detached", "_mini_batches", "_num_calls", "_num_indices", "_numbers", "_of_state", "_reductions",
        "_switches", "_variants", "_whole", "added", "addition", "apart", "asked_size", "autocast", "before_books",
        "books", "caches", "calls", "captures", "changes_state", "claims", "constants", "contents", "counted",
        "described", "descriptions", "device", "drawn", "drawn_classes", "drawn_operands", "draws", "entries",
        "entry_of_excerpts", "equal_sizes", "external_index", "external_source", "first_external", "first_instance",
        "first_value", "flows", "forget_calls", "formed", "found_forwards", "functions", "gone", "has_buffers", "home",
        "in_cell", "in_fragment", "indices", "instance", "is_apart", "is_of_ragged", "is_view", "joined", "keeping",
        "keeps_books", "kept_forwards", "kept_wholes", "last_external", "last_stacked", "leaf_kinds", "leaves",
        "lets_wait", "literals", "looks", "lookups", "made", "made_of", "makers", "max_reads", "met", "modes",
        "most_entries", "names", "needs_deep_stack", "next_value", "no_nodes", "nodes_of_runs", "nonzeros", "not_kept",
        "note_unread", "num_amounts", "num_runs", "numbers", "of_more", "overlaps", "parts", "plain", "positions",
        "ragged", "ragged_constants", "read_forwards", "read_sites", "reading", "reading_at_once", "reads",
        "reads_at_once", "recipes", "recorded_reads", "refs", "refused", "remade", "remembers", "returned", "room",
        "root", "rows", "run_segment", "seen_in_place", "shared", "shares_equal", "shown", "shown_wholes", "shows",
        "sites", "sizes", "sizes_asked", "stacked", "standing", "sum", "symbolic", "table", "taken", "takes_locks",
        "tells_amounts", "tells_apart", "told_by", "tracer", "unread", "unread_names", "wholes", "within", "zeros",
    )  # fmt: skip
    _serial = itertools.count(1)
    """Refs are above what Python has one object for (`functionalise`, definition (4))."""
    has_ended = False
    """Whether nothing is recorded now (`standins.ended`)."""

    def __init__(self, table: TypeTable, device: torch.device | None = None, in_cell: bool = False,
                 home: autocast.State = None):  # fmt: skip
        self.table = table
        self.device = device or torch.device("cpu")
        self.in_cell = in_cell
        self.needs_deep_stack = False
        self.keeps_books = False
        """Whether it knows which stand-ins share memory, so that they may change in place (`record.functionalise`)."""
        self.books: Changes | None = None
        self.gone: frozenset[tuple[str, str]] = frozenset()
        """Attributes that modules are to have of this instance alone (`alike.alike`), by path and name."""
        self.modes = 0
        """Of torch functions, that record (`code.rebind.Everywhere`)."""
        self.root: nn.Module | None = None
        """The copy of the model that runs."""
        self.before_books: Callable[[], None] | None = None
        """What is to be done before books are kept."""
        self.seen_in_place: dict[Any, bool] = {}
        """Whether a view shows its content itself, by the slots of both."""
        self.overlaps: dict[Any, bool] = {}
        """Whether a view shows one element in several places, by the shape of its content and its steps."""
        self.is_view: dict[int, bool] = {}
        self.is_apart: dict[int, bool] = {}
        """What `functionalise` knows of entries."""
        self.positions: dict[Any, tuple[tuple[int, ...] | None, torch.Tensor]] = {}
        self.joined: dict[Any, tuple[int, range] | None] = {}
        """What writing through a chain of views writes to, by the content's slot and the chain."""
        self.instance = 0
        """Number of the instance in its mini-batch."""
        self.flows = True
        """False where forward has switched gradients off."""
        self.in_fragment = False
        """True while it records a vertex function."""
        self.looks = True
        """True when nodes are asked for their lines."""
        self._mini_batches = 0
        self.caches: dict[tuple[nn.Module, str], dict[str, Any]] = {}
        """Attributes that the instance which runs has assigned, by module and name, as they were (`code.assigned`,
        definition (5))."""
        self.remembers = False
        """Whether each instance finds what the one before has left of these."""
        self.lets_wait = True
        """Whether nodes may wait for a later segment (`forward.cutting`)."""
        self.drawn_operands: list[Value] = []
        self.drawn_classes: list[ValueClass] = []
        """In a cell: operands for what it draws; the classes of those that were not known beforehand."""
        self.first_instance = 0
        """Number of a mini-batch's first instance in messages: counted along a stream, not 0 in every mini-batch."""
        self.next_value = next(Recorder._serial) << REF_BITS
        self.last_external = -self.next_value
        """Ref of the external that was made last: they count downwards."""
        self.home = self.autocast = home
        """States of torch.autocast (`semantics.autocast`): of the call of the net, and now."""
        self.changes_state = False
        """Whether forward changes that or the gradient mode on its way."""
        self.functions: dict[Any, Any] = {}
        self.described: dict[Any, Any] = {}
        """The entries of functions and arguments, TAKES_NUMBERS or IN_PYTHON."""
        self.makers: dict[Any, Any] = {}
        """What calls make that are described (`capture.standins.made`)."""
        self._calls: dict[Any, Entry | NotACell] = {}
        self._variants: dict[Any, int] = {}
        self._num_calls: dict[str, int] = {}
        self.most_entries = sys.maxsize
        """In a cell."""
        self.numbers: dict[Any, set[Any] | bool] = {}
        self._reductions: dict[Any, Entry] = {}
        self.entry_of_excerpts: dict[Slot, Entry] = {}
        self.rows: dict[Any, Excerpts] = {}
        """What `value[index]` and `value[start:stop]` are, by the value's slot: excerpts that are nodes."""
        self.shown: dict[Any, Any] = {}
        """What views show of so many rows of a table (`record.excerpts`)."""
        self.plain: dict[Any, Any] = {}
        """Calls of one output by their short keys: entries of nodes, and slots of views."""
        self.added: Slot | None = None
        """Slot of which two were added last, by the entry of number `addition`, which gives a `sum`."""
        self.addition = -1
        self.sum: Slot
        self._of_state: dict[autocast.State, tuple[dict[Any, Any], ...]] = {}
        self.forget_calls: list[Callable[[], None]] = []
        """What makes the calls of modules forget what they know of another state."""
        self.returned = ""
        """Once forward has run, the line of nodes made of what it returned: its own, whoever called."""
        self.sites: defaultdict[int, dict[int, CodeType]] = defaultdict(dict)
        """By entry: code by the offset of its call, for call sites that have been noted."""
        self.tracer: ModelView
        """What knows the model's cells and parameters."""
        self.shared: list[Shared] = []
        """Stand-ins for parameters, which stay."""
        self._class_of_constant: dict[Any, tuple[int, Slot]] = {}
        self._carried: dict[int, int] = {}
        """Sources of carried values, by the number of their class."""
        self.run_segment: Any = None
        """What executes what has been recorded where an instance reads a value (`forward.fibers`); None where nothing
        can be executed."""
        self.of_more: set[str] = set()
        """Calls of the instance's own tensors that compute of parameters too."""
        self.reads = False
        """Whether forward reads values, as far as is known."""
        self.reading: Callable[..., Any] | None = None
        """What gives the tensor that a stand-in stands for, or its number; None where values are not read."""
        self.note_unread: Callable[[], Any] | None = None
        """What notes a read at which somebody may look later (`standins.unread`), where reads are noted."""
        self.read_sites: Kept[tuple[int, int], Site] = Kept(4096)
        """Where forward reads, by the identity of the code and the place in it."""
        self.reading_at_once: frozenset[str] = frozenset()
        """Lines that are known to read at once."""
        self.unread: list[Later] = []
        """Such reads of the instance that runs."""
        self.reads_at_once = False
        """Whether there are none, as forward does what only Python's own integers can."""
        self.takes_locks = False
        """Whether a function that was on the stack of a read takes what may be a lock (`standins.locks`)."""
        self.made: list[Value] | None = None
        """Stand-ins for values of nodes since the last segment; None where nobody waits for values."""
        self.max_reads = 0
        """Of one instance."""
        self.recorded_reads: Any = None
        """What was read of the mini-batch."""
        self.captures = False
        """Whether what is recorded is kept without the caller's objects (`capture.captured`)."""
        self.shows: Any = None
        """What shows forward stand-ins in the place of what an instance brings (`alike.alike`)."""
        self.standing = 0
        """References to the recorder that stay (`forward.left`)."""
        self.ragged: frozenset[str] = frozenset()
        """Classes whose values are rows (`capture.ragged`)."""
        self.is_of_ragged: dict[Any, bool] = {}
        self.leaf_kinds: Kept[Any, Any] = Kept(MOST_KINDS)
        self.met: dict[Any, None] = {}
        """What leaves that could be nothing else were: two ends of edges, columns, matrices as large as others have
        rows; before this mini-batch, `told_by`."""
        self.told_by: dict[Any, None] = {}
        """What tells tensors of instances apart (`ragged.together.reading`), by all that it depends on."""
        """What `is_ragged` knows."""
        self.sizes: Sizes | None = None
        """Leading sizes by class, where they are asked for."""
        self.no_nodes: Counter[tuple[str, str]] = Counter()
        """Of this mini-batch: calls of automatic cells that are no nodes, by the cell's name and why."""
        self.taken: set[str] = set()
        """Automatic cells that were called with ragged values, and recorded by their operations."""
        self.keeping: frozenset[int] = frozenset()
        """While what closed code records is to be kept (`ragged.kept`), 0 and the sizes of what it was given."""
        self.kept_forwards = 0
        """Of how many keys `forward` was tried (`ragged.together`)."""
        self.read_forwards = self.found_forwards = 0
        """How many instances were looked at for that, and of how many forward was known."""
        self.unread_names: dict[Any, frozenset[Any]] = {}
        """Of dicts with these names, those by which no kept forward has read anything; and of instances that are tuples
        of a class and length, in which places (`ragged.together`)."""
        self.not_kept: dict[Any, set[tuple[int, ...]]] = {}
        """Sizes at which what calls of a key record could not be kept."""
        self.kept_wholes: list[Lazy] = []
        """What has become a node in such code, which is none any more if that is forgotten."""
        self.symbolic = False
        """Whether sizes are given as symbols (`ragged.symbols`)."""
        self.claims: list[Claim] = []
        """What is told of sizes, which is to be right for others (`ragged.masks`)."""
        self.equal_sizes: list[tuple[Triple, Triple | tuple[Triple, Triple]]] = []
        """Those that have to be equal, by registers; or to be as many as pairs of two others."""
        self.shares_equal = False
        """Whether equal nodes are to be one, where runs are of many calls."""
        self.within: list[tuple[Triple, int, int]] = []
        """Bounds within which code that is being kept does the same, by registers."""
        self.tells_apart = True
        """Whether what is being kept may be for indices alone that are none of the numbers that they are compared with;
        `apart` says of which."""
        self.apart: list[tuple[Triple, int]] = []
        """Numbers that indices must not be, by registers."""
        self.room = np.array([64, 256, 4096])
        """For nodes, refs and registers of runs (`ragged.expandloops`)."""
        self.tells_amounts, self.num_amounts = True, 0
        """Whether arithmetic with sizes gives amounts, and how many it has given (`ragged.symbols`)."""
        self.asked_size = False
        """Whether somebody has asked for the size of a ragged value."""
        self.sizes_asked: list[Any] = []
        """Sizes that a rule has asked."""
        self.counted = False
        """Whether a rule has recorded what depends on one."""
        self.contents = 0
        """How often what a call records depended on numbers in a tensor that it got, which another one may not have."""
        self.stacked: dict[str, set[str]] = {}
        """Functions that took ragged values whole, with the lines that called them."""
        self.begin()

    def begin(self) -> None:
        """Forget the last mini-batch."""
        self.__class__ = Recorder
        answer_all_of_torch()
        self.returned = ""
        self.looks = self.in_fragment or self._mini_batches < LOOKS or self._mini_batches % LOOKS == 0
        self._mini_batches += 1
        if len(self.met) > len(self.told_by):  # the same for all of a mini-batch
            self.told_by = dict(self.met)
            self.leaf_kinds.clear()
        self.put_caches_back()
        self.entries: list[int] = []
        self.refs: list[int] = []
        self.refused: list[UnsupportedError] = []
        self.external_source: list[int] = []
        self.external_index: list[int] = []
        self.constants: dict[int, Any] = {}
        self._constants_of_class: dict[Any, tuple[int, Any, Slot]] = {}
        self.names: dict[int, str] = {}
        self.descriptions: list[Any] = []
        """Of this mini-batch (`capture.standins.made`)."""
        self.no_nodes.clear()
        self._switches: list[int] = [] if self.flows else [0]
        self.draws: list[Draw] = []
        """What was drawn, of this instance or in this cell."""
        self.num_runs = self.nodes_of_runs = 0
        """Entries that are runs (`ragged.program`), and what they come to."""
        self.formed: list[int] = []
        """Runs among whose nodes no sums or patterns are looked for: they are steps."""
        self.calls: list[int] = []
        """Of how many calls each of them is, where not all are of one."""
        self.indices: list[np.ndarray] = []
        """What they read, and how many numbers these are."""
        self._num_indices = 0
        self.first_value, self.first_external = self.next_value + 0, -self.last_external  # an integer of its own
        self.forget_externals()
        self._first_detached = self.next_value + 0  # an integer of its own
        """The first value since gradients were switched."""
        self.parts: dict[tuple[int, int, int], int] = {}
        """Refs of what has been taken, by the whole's, the entry and the offset: taken again it is the same."""
        self.has_buffers = False
        """Whether forward has filled some (`standins.made`)."""
        self.wholes: dict[int, list[Showing]] = {}
        """What they were shown as, by the rows that these show."""
        self.last_stacked = 0
        """The last value of which names are not told apart: of rows (`capture.ragged`), of earlier segments."""
        self.books = Changes(self) if self.keeps_books else None

    def look_seldom(self) -> None:
        """Ask for lines as seldom from now on as after many mini-batches."""
        self._mini_batches = max(self._mini_batches, LOOKS + 1)

    def places_read_at_once(self) -> frozenset[str]:
        """The lines whose values are looked at before anything else is recorded (`standins.unread`)."""
        return self.reading_at_once | {site.where for site in self.read_sites.values() if site.at_once}

    def keep_books(self) -> None:
        """From now on, know which stand-ins share memory; first of all run what moves operations as it was written."""
        if self.before_books is not None:
            self.before_books()
            self.before_books = None
            return
        self.keeps_books = True
        self.books = Changes(self)
        self.forget_unrolled()
        self.functions.clear()  # what is known of calls does not tell which of them are views
        self.plain.clear()
        self.added = None

    def change(self, name: Any, new: Any, overwrites: bool = False) -> Any:
        """Let a stand-in show another value from now on: a change in place."""
        self.open_books().assign(name, new, overwrites)
        return name

    def assigns_rows(self, rows: Ragged, index: Any, value: Any) -> bool:
        """See `functionalise.assigns_rows`."""
        return assigns_rows(self, rows, index, value)

    def assign(self, buffer: Buffer, index: tuple[Any, ...], value: Any) -> None:
        """`buffer[index] = value`."""
        assign_item(self, buffer, index, value)

    def open_books(self, *kind: type) -> Changes:
        """Which stand-ins share memory. Raises MustKeepBooks where nobody knows."""
        if self.books is None:
            raise MustKeepBooks(*kind)
        return self.books

    def cut(self, entries: list[int], refs: list[int], num_values: int) -> None:
        """Go on behind what has been recorded, with these of its nodes, whose values come next (`forward.cutting`)."""
        self.entries, self.refs, self.parts = entries, refs, {}
        self._switches = [] if self.flows else [len(entries)]
        self.first_value = self.next_value
        self.next_value += num_values
        self.last_stacked = self.next_value - 1  # names that shared a ref, an integer, have equal ones from here on

    def carry(self, class_number: int, count: int) -> Carried:
        """New externals for as many values of a class, which a segment will compute, and what is to hold them."""
        source = self._carried.get(class_number)
        if source is None:
            source = self.table.given_source("carried", self.table.classes()[class_number])
            self._carried[class_number] = source
        pool: Carried | None = self.constants.get(source)
        if pool is None:
            pool = self.constants[source] = Carried(_is_number(self.table.classes()[class_number]))
        first = pool.length
        pool.length = first + count
        self.external_source += [source] * count
        self.external_index += range(first, first + count)
        self.last_external -= count
        return pool

    def mend(self) -> None:
        """Forget what a node that was being recorded when an exception came (recursion that is too deep) has left half:
        its operands, or its place among the values."""
        self.next_value, at = self.first_value, 0
        for count, number in enumerate(self.entries):
            if number < 0:
                program = self.table.programs[-1 - number]
                end, sizes = at + 3 * program.num_args, self.refs[at + 2 : at + 3 * program.num_args : 3]
            else:
                end = at + self.table.entries[number].num_operands
            if end > len(self.refs):
                del self.entries[count:]
                break
            self.next_value += (sum(size_of(size, sizes) for size in program.counts) if number < 0
                                else len(self.table.entries[number].output_slots))  # fmt: skip
            at = end
        del self.refs[at:]
        externals = min(len(self.external_source), len(self.external_index))
        del self.external_source[externals:], self.external_index[externals:]
        self.last_external = -self.first_external - externals

    def forget_externals(self) -> None:
        """From now on, nothing refers to an external that exists already."""
        self._constant_of_id: dict[int, tuple[torch.Tensor, int, Value, Written | torch.Tensor]] = {}
        self._constant_of_key: dict[Any, Value] = {}
        self._whole: dict[Any, Value] = {}
        self.zeros: set[int] = set()
        """Refs of zeros, and where ranges of them begin."""
        self.remade: dict[int, Number | Constant | Held | Offset | Whole] = {}
        """What every mini-batch has anew, by refs, where classes are ragged."""
        self.literals: dict[int, np.ndarray] = {}
        """Indices that no tensor of the instance's holds, by offset."""
        self.recipes: dict[int, Recipe] = {}
        """And those that follow from sizes."""
        self._numbers: dict[int, tuple[torch.Tensor, int, Numbers]] = {}
        self.shown_wholes: set[int] = set()
        """Of this mini-batch, values that show the memory of rows in another shape."""
        self.made_of: dict[int, list[Ragged | list[int]]] = {}
        """By their first ref, rows of integers that are made of others, and of integers that code has: these."""
        self.lookups: dict[int, tuple[Shared | Below | All | Recipe, Numbers | Size | None]] = {}
        """Rows of tables by the ref of the first, with the indices that they were looked up by; None for all rows."""
        self.drawn: dict[int, Drawn] = {}
        """Rows of random numbers by the ref of the first, by the arguments of the run that they are an argument of."""
        self.leaves: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Constants that require gradients, and their copies."""
        self.ragged_constants: dict[Any, tuple[torch.Tensor | Numbers, Ragged, Any]] = {}
        self.nonzeros: dict[Any, Any] = {}
        """What products with matrices of the instance's read of those (`ragged.products`)."""

    def let_go(self) -> None:
        """When forward has run: `forget_externals`, and no gradient for leaves that forward made and nobody has any
        more, as of `torch.zeros(1, n, requires_grad=True)`, or of what it computed of them."""
        given = self.leaves
        self.forget_externals()
        if self.has_buffers:
            self.wholes = {}
            self.descriptions = [made for made in self.descriptions if type(made) is Made]
        if given:
            self.descriptions = [made for made in self.descriptions if sys.getrefcount(made) > 3]  # who else has it?
            given.append(_leaf_of_nobody())
            leaves = {id(leaf): (leaf,) for tensor, _ in given for leaf in _leaves_behind(tensor)}
            behind = [(kept, [id(leaf) for leaf in _leaves_behind(tensor)]) for tensor, kept in given]
            given.clear()
            counts = {key: sys.getrefcount(leaf) for key, (leaf,) in leaves.items()}
            alone = counts[behind[-1][1][0]]
            for kept, keys in behind:
                if keys and all(counts[key] == alone for key in keys):
                    kept.detach_()

    def shares(self, stand_in: Shared) -> None:
        """Note a stand-in for a parameter, unless it goes with the trace of a cell."""
        if not self.in_cell:
            self.shared.append(stand_in)
            self.standing += 1

    def finish(
        self, results: list[Any], instance_ends: list[int] | None = None, aborted: tuple[int, int] = (0, 0)
    ) -> Recording:
        """The record of what has run since `begin`."""
        return Recording(
            self.table,
            self.entries,
            self.refs,
            self.external_source,
            self.external_index,
            self.constants,
            results,
            self.names,
            self.first_value,
            self.first_external,
            instance_ends or [],
            self.detached(),
            aborted,
        )

    # --- gradients -------------------------------------------------------------------------------------------------

    def switch_gradients(self, flows: bool) -> None:
        """See `semantics.gradmode`."""
        if self.in_fragment:
            refuse("a vertex function switches gradients off or on", "use .detach() of what shall have no gradient")
        self.flows = flows
        self._switches.append(len(self.entries))
        self._first_detached = self.next_value + 0  # an integer of its own

    def flowing(self, make: Callable[[], Value]) -> Value:
        """What `make` makes, recorded as where gradients are on."""
        self.switch_gradients(True)
        try:
            return make()
        finally:
            self.switch_gradients(False)

    def requires_none(self, value: Value) -> bool:
        """Whether a value requires no gradient, as far as that is known where gradients are off: it is a constant that
        requires none, or made of parameters that do not, or was computed since."""
        if value.ref >= 0:
            return not self.flows and value.ref >= self._first_detached
        number = -1 - (value.ref + self.first_external)
        if number < 0:
            return False
        source = self.external_source[number]
        ref = self.table.sources[source].ref
        if ref is not None:
            return not any(self.tracer.shared(SharedRef(name)).requires_grad for name in ref.names)
        pool = self.constants.get(source)
        if type(pool) is Pool:
            return not pool.requires_grad(self.external_index[number])
        return type(pool) is list and not pool[self.external_index[number]].requires_grad

    def requires_none_of(self, item: Any) -> bool:
        """The same of any stand-in, and of real tensors."""
        if type(item) is Ragged:
            return all(self.requires_none(value_of(self, ref, item.row)) for ref in item.refs)
        if type(item) is Shared:
            return not any(self.tracer.shared(SharedRef(name)).requires_grad for name in item.ref.names)
        return self.requires_none(item) if type(item) is Value else not item.requires_grad

    def has_switched(self, entry: int) -> bool:
        """Whether gradients were off for an entry from that one on."""
        return any(place >= entry for place in self._switches)

    def detached(self) -> Sequence[int] | np.ndarray:
        """Nodes recorded without gradients."""
        if not self._switches:
            return ()
        borders = [*self._switches, len(self.entries)]
        ranges = [np.arange(a, b) for a, b in zip(borders[::2], borders[1::2], strict=False)]
        return np.concatenate(ranges)

    def without_gradient(self, result: Any) -> Any:
        """What was there before gradients went off, seen such that none passes."""
        return without_gradient(self, result, None)

    # --- torch.autocast --------------------------------------------------------------------------------------------

    def switch_autocast(self) -> None:
        """See `semantics.autocast`. What is known of calls belongs to the state in which they were made."""
        now = autocast.state()
        if now == self.autocast:
            return
        self._of_state[self.autocast] = (self.functions, self.described, self._calls, self.plain)
        self.autocast = now
        self.functions, self.described, self._calls, self.plain = self._of_state.get(now, ({}, {}, {}, {}))
        self.added = None
        self.forget_unrolled()

    def forget_unrolled(self) -> None:
        """Let all calls of cells and modules be general ones again (`record.calls`)."""
        for forget in self.forget_calls:
            forget()

    def _require_known_state(self) -> None:
        """Raise where torch.autocast was switched by other means than its context."""
        if autocast.state() != self.autocast:
            refuse(
                "torch's autocast state was changed by a function while recording",
                "use the context torch.autocast instead",
            )

    def _marked(self, draft: NodeType, state: autocast.State) -> NodeType:
        """A type whose nodes run in a state of torch.autocast, as its signature must tell where it is not home."""
        if state == self.home:
            return draft
        constants = "; ".join(filter(None, (draft.constants, autocast.state_text(state))))
        return replace(draft, constants=constants)

    def _effective(self, func: Callable[..., Any], template: Any, slots: Sequence[Slot]) -> tuple[autocast.State, bool]:
        """The state that a function is recorded under, and whether that changes what it computes. Where it computes
        the same at home, it is recorded as there."""
        states = {self.autocast, self.home} - {None}
        if not states:
            return None, False
        self._require_known_state()
        args, kwargs = filled_with_zeros(template, slots, self.shared_meta)
        here, home = (autocast.effect(func, args, kwargs, state) for state in (self.autocast, self.home))
        return (self.home if here == home else self.autocast), here is not None

    def changes(self, func: Callable[..., Any], template: Any) -> bool:
        """Whether torch.autocast changes what a function of parameters computes now."""
        return self._effective(func, template, ())[1]

    # --- externals -------------------------------------------------------------------------------------------------

    def external(self, source: int, index: int, slot: Slot) -> Value:
        """A new external: item `index` of a source."""
        self.external_source.append(source)
        self.external_index.append(index)
        self.last_external -= 1
        return value_of(self, self.last_external, slot)

    def constant(self, tensor: torch.Tensor) -> Value:
        """The external for a tensor that the instance or the user's code brought; one per tensor and mini-batch.

        The tensor is copied: the user's code may fill it anew for the next node. A copy of one that requires a gradient
        stays connected to it.
        """
        if self.books is not None:
            stand_in = self.books.stand_in(tensor)
            if stand_in is not tensor:
                return stand_in
        version = version_of(tensor)
        known: Any = self._constant_of_id.get(id(tensor))
        if known is not None and known[1] == version and holds(tensor, known[3]):
            return known[2]
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            refuse(
                "a parameter was used that is not one of the model's (a module in a plain list or dict, or one made in "
                "forward)",
                "make modules in __init__ and keep them in attributes, nn.ModuleList or nn.ModuleDict, so that the "
                "model knows their parameters",
            )
        known = self._constants_of_class.get((tensor.shape, tensor.dtype)) if self.sizes is None else None
        copied: Written | torch.Tensor
        if known is None:
            copied = self._kept(tensor)
            value = self._new_constant(copied)
        else:  # `_new_constant` without its calls: an instance brings one at least
            source, pool, slot = known
            is_plain = type(pool) is Pool and not tensor.requires_grad and tensor.layout is _STRIDED
            self.external_source.append(source)
            self.external_index.append(len(pool))
            if is_plain:
                copied = pool.copied(tensor)
            else:
                copied = self._kept(tensor)
                pool.append(copied)
            value = Value()
            value.rec = self
            value.ref = self.last_external = self.last_external - 1
            value.slot = slot
            if self.made is not None:
                self.made.append(value)
        self._constant_of_id[id(tensor)] = (tensor, version, value, copied)
        if self.keeping:  # the model's: what an instance brings are arguments
            self.remade[value.ref] = Held(tensor)
        return value

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, which is connected to the user's tensor where that requires a gradient."""
        kept = tensor.clone() if tensor.layout is _STRIDED else tensor.to_dense()
        if kept.requires_grad:
            self.leaves.append((tensor, kept))
        return kept

    def _new_constant(self, tensor: torch.Tensor) -> Value:
        if self.sizes is not None:
            self.note_sizes(tensor)
        source, pool, slot = self._pool_of(tensor.shape, tensor.dtype)
        pool.append(tensor)
        return self.external(source, len(pool) - 1, slot)

    def _pool_of(self, shape: torch.Size, dtype: torch.dtype) -> tuple[int, Any, Slot]:
        """Of constants of a shape the source, where they are, and the slot. They are rows of one table, unless they are
        looked at one by one: of pieces that others hold too, and where values are read, segment by segment."""
        known = self._constants_of_class.get((shape, dtype))
        if known is None:
            source, slot = self.slot_of_constant(shape, dtype)
            is_list = not self.ragged and (self.reads or self.in_fragment or self.in_cell or self.shows is not None)
            pool = self.constants.setdefault(source, [] if is_list else Pool(shape, dtype))
            known = self._constants_of_class[shape, dtype] = source, pool, slot
        return known

    def written(self, numbers: Any, array: Any, dtype: torch.dtype, shape: torch.Size) -> Value:
        """The constant of an array's numbers, once per `numbers` and mini-batch."""
        known = self._constant_of_key.get(numbers)
        if known is None:
            source, pool, slot = self._pool_of(shape, dtype)
            if type(pool) is Pool:
                pool.write(array)
            else:
                pool.append(torch.frombuffer(array, dtype=dtype).view(shape))
            known = self._constant_of_key[numbers] = self.external(source, len(pool) - 1, slot)
        return known

    def tensor_of_constant(self, value: Value) -> torch.Tensor:
        """The copy that a constant's external reads, where no class is ragged."""
        number = -1 - (value.ref + self.first_external)
        copy: torch.Tensor = self.constants[self.external_source[number]][self.external_index[number]]
        return copy

    def slot_of_constant(self, shape: torch.Size, dtype: torch.dtype) -> tuple[int, Slot]:
        """The source and slot of constants of a shape."""
        key = shape, dtype
        known = self._class_of_constant.get(key)
        return known or self._new_class_of_constant(key, torch.empty(shape, dtype=dtype, device="meta"))

    def _new_class_of_constant(self, key: Any, tensor: torch.Tensor) -> tuple[int, Slot]:
        value_class = class_of(tensor)
        found = self.table.given_source("constant", value_class), self.table.slot(value_class)
        self._class_of_constant[key] = found
        return found

    def rows_of_table(self, table: Shared, indices: Sequence[int], checked: bool = False) -> Ragged | None:
        """Rows of a parameter, where their class is ragged; indices that are `checked` are of rows from 0 on, and of
        another number in other instances."""
        row_shape, dtype = table.shape[1:], table.dtype
        self.note_size(len(indices), row_shape, dtype)
        if not self.ragged or not (checked or self.is_ragged(table.tensor)) or not table.shape[0]:
            return None
        if checked and table.rows:  # it has been looked at
            self.external_index += indices
        else:
            for index in {*indices[:1], *([min(indices), max(indices)] if len(indices) else [])}:
                table.lookup(index)  # raises where there is no such row
            if not len(indices):
                table.lookup(0)
            self.external_index += [index if index >= 0 else index + table.rows for index in indices]
        self.external_source += [table.source] * len(indices)
        first = self.last_external - 1
        self.last_external -= len(indices)
        return Ragged(self, range(first, first - len(indices), -1), table.row_slot)

    def keep_row(self, table: Shared, index: int, row: Value) -> None:
        """Note that a row of a parameter is what every call that is kept looks up."""
        self.remade[row.ref] = Offset(table.source, index, table.row_slot)

    def rows_between(self, table: Shared, which: slice) -> Ragged | None:
        """Those of a slice. As many first ones as a symbol says are so many in any call that is kept; None for all but
        a few at an end, as a table of items without that for padding, which no instance has to do with."""
        size = which.stop
        first, last = which.start or 0, 0 if size is None else size or 1
        are_few = type(first) is type(last) is int and 0 <= first <= LONG and -LONG <= last <= 0
        if are_few and which.step in (None, 1) and len(table.tensor) - first + last > LONG:
            return None
        if not (self.symbolic and type(size) is Size and which.start in (None, 0) and which.step in (None, 1)):
            places = range(*which.indices(len(table.tensor)))
            if self.keeping and 0 < len(places) <= LONG and self.ragged and self.is_ragged(table.tensor):
                rows = [table.lookup(place) for place in places]  # the same in every call that is kept
                return rows_at(self, [row.ref for row in rows], rows[0].slot)
            return self.rows_of_table(table, places)
        if size.value > len(table.tensor):
            raise CannotKeep
        found = self.rows_of_table(table, range(size.value))
        if found is not None:
            self.lookups[found.refs.start] = table, size
        return found

    def corner(self, table: Shared, index: Any) -> Any:
        """A corner of a buffer by sizes that are symbols, where it is a triangle (`ragged.whole.runs`); else None."""
        return cut(self, table, index) if self.symbolic and self.flows else None

    def rows_described(self, described: Description, like: Triple | None, at: int = 0) -> Ragged:
        """A constant that forward makes, of a symbol's size, or one that it changes."""
        rows = rows_described(self, described, like, at)
        rows.is_own = True
        return rows

    def mask_of_sizes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A constant that forward makes of several symbols' sizes (`ragged.masks`); None for others."""
        return made_of_sizes(self, func, args, kwargs)

    def constant_row(self, row: torch.Tensor) -> Value:
        """The external for a row that others may equal (zeros), once per mini-batch."""
        return self.shared_constant(("row", row.dtype, tuple(row.shape), row.numpy().tobytes()), lambda: row)

    def constant_rows(self, rows: torch.Tensor) -> range:
        """Externals for the rows of a matrix that nobody changes."""
        source, pool, _ = self._pool_of(rows.shape[1:], rows.dtype)
        first, count = self.last_external - 1, len(rows)
        self.external_source += [source] * count
        self.external_index += range(len(pool), len(pool) + count)
        pool.add(rows)
        self.last_external -= count
        return range(first, first - count, -1)

    def note_size(self, size: int, row_shape: Sequence[int], dtype: torch.dtype, at: int = 0) -> None:
        """Where sizes are asked for, note one (`capture.ragged`)."""
        if self.sizes is not None:
            shape = (*row_shape[:at], size, *row_shape[at:])
            self.sizes.setdefault((dtype, shape), set()).add(at)

    def note_sizes(self, tensor: torch.Tensor) -> None:
        """Those of a tensor of the instance's; of masks and indices the leading one. Numbers of every two rows are of a
        class for each number of rows."""
        shape = tuple(tensor.shape)
        if len(shape) > 2 and any(a == b > 1 for a, b in itertools.pairwise(shape)):
            return
        for at, size in enumerate(shape if tensor.is_floating_point() else shape[:1]):
            self.note_size(size, shape[:at] + shape[at + 1 :], tensor.dtype, at)

    def note_stacked(self, name: str) -> None:
        """A function takes a ragged value whole: a type per size."""
        if self.looks:
            self.stacked.setdefault(name, set()).add(user_location())

    def shared_constant(self, key: Any, make: Callable[[], torch.Tensor]) -> Value:
        """The constant that `make` gives, under a name of its own."""
        return self.copied(self.constant_of(key, make))

    def constant_of(self, key: Any, make: Callable[[], torch.Tensor]) -> Value:
        """The same, once per `key` and mini-batch."""
        known = self._constant_of_key.get(key)
        if known is None:
            known = self._constant_of_key[key] = self._new_constant(make())
            if self.ragged:
                self.remade[known.ref] = Constant(key, make)
        return known

    def number(self, number: float, dtype: torch.dtype) -> Value:
        """A Python number as an operand, `()`."""
        key = (number, dtype) if number else (number, dtype, repr(number))  # zeros have signs
        value = self._constant_of_key.get(key)
        if value is None:
            value = self._constant_of_key[key] = self._new_number(key)
        if self.ragged:
            self.remade[value.ref] = Number(number, dtype)
        return value

    def _new_number(self, key: Any) -> Value:
        """Written where constants are, which takes a fifth of the time that a tensor takes."""
        number, dtype = key[:2]
        code = CODES.get(dtype)
        if self.sizes is None and code is not None:
            source, pool, slot = self._pool_of(_OF_NUMBER, dtype)
            if type(pool) is Pool:
                try:
                    pool.write(array(code, (number,)))
                except OverflowError:  # of an integer, as torch will say
                    return self._new_constant(_scalar(*key))
                return self.external(source, len(pool) - 1, slot)
        return self._new_constant(_scalar(*key))

    def draw(self, draw: Draw, value_class: ValueClass) -> Value:
        """Random numbers, new ones for every call; see `record.draws`."""
        self.refuse_draws_where_read()
        number, slot = len(self.draws), self.table.slot(value_class)
        self.draws.append(draw)
        if number < len(self.drawn_operands):
            return self.drawn_operands[number]
        if self.in_cell:
            self.drawn_classes.append(value_class)
            return self.external(self.table.given_source("operand", value_class), number, slot)
        refs = self.drawn_externals(Drawn(draw, value_class, None), [number], [self.instance])
        return value_of(self, refs.start, slot)

    def refuse_draws_where_read(self) -> None:
        """Raise UnsupportedError where forward reads values: what it records may be recorded again."""
        if self.reads and not self.in_cell:
            refuse("random numbers are drawn in a forward that reads values", "draw outside of it, pass the numbers in")

    def next_instance(self, number: int) -> None:
        """From now on it is this instance of the mini-batch that runs."""
        self.put_caches_back()
        self.instance = number
        self.draws = []
        self.unread = []

    def put_caches_back(self) -> None:
        """Let modules have what was there before an instance assigned it."""
        for (module, name), before in self.caches.items() if not self.remembers else ():
            vars(module).pop(name, None)
            vars(module).update(before)
        self.caches.clear()

    def as_value(self, item: Any) -> Any:
        """A parameter, a tensor or what is no node yet as a value; anything else as it is."""
        kind = type(item)
        if kind is Shared:
            return self.whole(item)
        if kind is torch.Tensor:
            rows = adopted(self, item) if self.ragged else item
            return self.constant(item) if rows is item else rows
        return item.materialise() if issubclass(kind, Lazy) else item

    def as_operand(self, item: Any) -> Any:
        """The same for an argument of a cell, where matrices of parameters stay what they are. Raises TypeError for
        rows in code that is being kept: whoever calls is to ask the general call."""
        if self.symbolic and type(item) in (Ragged, Pairs):
            raise TypeError("rows are no operand")
        return item if is_matrix(item) else self.as_value(item)

    def whole(self, shared: Shared) -> Value:
        """The external for a parameter passed as an operand (a learned initial state)."""
        value = self._whole.get(shared.key)
        if value is None:
            source = self.table.source(shared.ref, shared.tensor, kind="whole")
            value = self.external(source, 0, self.table.slot(class_of(shared.tensor)))
            self._whole[shared.key] = value
            if self.ragged:
                self.remade[value.ref] = Whole(shared)
        return value

    def _whole_of(self, ref: SharedRef) -> Value:
        return self.whole(Shared(self, ref, self.tracer.shared(ref).detach()))

    # --- nodes -----------------------------------------------------------------------------------------------------

    def emit(self, entry: Entry, operands: Sequence[int]) -> Any:
        """Append a node and return what the user's call returns."""
        if self.in_cell:
            if len(self.entries) >= self.most_entries:
                raise NotACell(f"it has more than {self.most_entries} operations")
            name = assigned_name(self.tracer.boundary)
            if name is not None:
                self.names[len(self.entries)] = name
        elif self.looks:
            self.note_site(entry.index, sys._getframe(1), self.sites[entry.index])
        self.entries.append(entry.index)
        self.refs.extend(operands)
        first = self.next_value
        slots = entry.output_slots
        self.next_value = first + len(slots)
        if entry.outputs.__class__ is Hole:
            return value_of(self, first, slots[0])
        values = [value_of(self, first + i, slot) for i, slot in enumerate(slots)]
        return entry.outputs.__class__(values) if entry.flat else fill(entry.outputs, values)

    def again(self, entry: Entry, operands: Sequence[int]) -> Value:
        """`emit` for an entry of `plain` (the hot path), from a stand-in's own method."""
        if self.looks:
            self.note_site(entry.index, sys._getframe(2), self.sites[entry.index])
        self.entries.append(entry.index)
        self.refs.extend(operands)
        value = Value()
        value.rec = self
        value.ref = number = self.next_value
        value.slot = entry.output_slots[0]
        self.next_value = number + 1
        if self.made is not None:
            self.made.append(value)
        return value

    def note_site(self, entry: int, frame: FrameType, seen: dict[int, CodeType]) -> None:
        """Keep the line of the user's code from which, by way of `frame`, a node of an entry is being made."""
        user = None if self.returned else user_frame(start=frame)
        if user is None or entry < 0:  # pseudo-entries of the vertex front end belong to no table
            return
        key = user.f_lasti if user is frame else -1 - user.f_lasti  # a frame of a library is asked for its caller anew
        if seen.get(key) is not user.f_code:
            seen[key] = user.f_code
            self.table.add_site(self.table.entries[entry].type_index, location_of(user))

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`; adding nothing (`sum(list)` starts with 0) is no node."""
        for zero, other in ((left, right), (right, left)) if self.flows and self.books is None else ():
            if type(zero) in (int, float) and zero == 0 and type(other) is Value and other.slot.floats:
                return self.copied(other)
        return self.function(torch.add, (left, right), {})

    def reduction(self, op: str, items: Sequence[Value]) -> Value:
        """A node of the variadic type `op` over values of one slot without views; of one item, that item."""
        if len(items) == 1:
            return self.copied(items[0]) if self.flows else self.without_gradient(items[0])
        slot = items[0].slot
        entry = self._reductions.get((op, slot, len(items)))
        if entry is None:
            entry = self._new_reduction(op, slot, len(items))
        return self.emit(entry, [item.ref for item in items])

    def sum_of(self, items: Sequence[Any]) -> Value | None:
        """The values of one slot in one node, where additions of two of it are known to be fused; else None."""
        slot = self.added
        two = None if slot is None else self._reductions.get(("sum", slot, 2))
        if two is None or two.index != self.addition or not self.flows or self.books is not None:
            return None
        if self.in_cell or self.in_fragment or self.symbolic or self.shows is not None:
            return None
        if any(type(item) is not Value or item.slot is not slot for item in items):
            return None
        return self.reduction("sum", items)

    # --- runs (`capture.ragged`) ------------------------------------------------------------------------------------

    def run(self, program: Program, flat: Sequence[int]) -> list[range]:
        """A call on rows as one entry: a program and its arguments, triples one after the other. The refs of its
        results."""
        self.entries.append(-1 - program.index)
        self.refs += flat
        self.num_runs += 1
        sizes, begin, results = flat[2::3], self.next_value, []
        for count in program.counts:
            end = begin + (sizes[count] if type(count) is int else size_of(count, sizes))
            results.append(range(begin, end))
            begin = end
        self.next_value = begin
        return results

    def run_together(self, program: Program, lines: np.ndarray) -> np.ndarray:
        """Calls on rows, each with a line of arguments, as one entry; the first ref of each result of each call, result
        by result. A mini-batch with such an entry has no others."""
        count = len(lines)
        self.entries.append(-1 - program.index)
        self.refs.append(lines.reshape(-1))  # type: ignore[arg-type]
        self.num_runs += 1
        self.calls.append(count)
        sizes, begins = [*lines.T[2::3]], np.empty((len(program.counts), count), np.int64)
        known: dict[int, Any] = {}
        for k, size in enumerate(program.counts):
            of_calls = size_of(size, sizes, known)
            ends = np.arange(1, count + 1) * of_calls if type(of_calls) is int else of_calls.cumsum()
            begins[k] = self.next_value + ends - of_calls
            self.next_value += int(ends[-1])
        return begins

    def place(self) -> tuple[int, int, int, int]:
        """How many entries and refs there are, the next value, and how many draws."""
        return len(self.entries), len(self.refs), self.next_value, len(self.draws)

    def hold(self, numbers: np.ndarray, is_literal: bool = True) -> Numbers:
        """Indices for runs, which nobody changes."""
        offset, count = self._num_indices, len(numbers)
        self.indices.append(numbers)
        self._num_indices += count
        if is_literal:
            self.literals[offset] = numbers
        lowest, highest = extent(numbers)
        return Numbers(offset, count, lowest, highest, numbers)

    def numbers_of(self, tensor: torch.Tensor) -> Numbers:
        """The indices in a tensor of one dimension, once per mini-batch."""
        version = version_of(tensor)
        known = self._numbers.get(id(tensor))
        if known is not None and known[1] == version and np.array_equal(tensor.detach().numpy(), known[2].array):
            return known[2]
        held = self.hold(tensor.detach().numpy().astype(np.int64), False)
        self._numbers[id(tensor)] = tensor, version, held
        return held

    def says(self) -> None:
        """Code takes a branch that prints, warns or logs, which a call that is kept would not when it comes again.
        Raises NotACell or Says."""
        if self.in_cell:
            if self.most_entries < sys.maxsize:  # of a marked cell it is its author's
                raise NotACell("it takes a branch that prints, warns or logs")
        elif self.keeping or self.shows is not None:
            raise Says

    def know_numbers(self, tensor: torch.Tensor, numbers: Numbers) -> None:
        """Note which indices a tensor has."""
        self._numbers[id(tensor)] = tensor, version_of(tensor), numbers

    def tensor_of(self, numbers: Numbers) -> torch.Tensor:
        """Indices as a tensor."""
        tensor = torch.from_numpy(numbers.array)
        self.know_numbers(tensor, numbers)
        return tensor

    def looked_up(self, table: Shared, numbers: Numbers) -> Ragged:
        """Rows of a parameter by indices of the instance's. Raises CannotKeep where they are no rows."""
        found = None
        if numbers.size and numbers.lowest >= 0 and numbers.highest < table.shape[0]:
            found = self.rows_of_table(table, numbers.array.tolist(), True)
        if found is None:
            raise CannotKeep
        self.lookups[found.refs.start] = table, numbers
        return found

    def row_repeated(self, table: Shared, number: int, size: Size) -> Ragged:
        """One row of a parameter, as often as a symbol says. Raises CannotKeep where it is looked up in a way of its
        own."""
        if look_up_of(table.ref) is not None or not self.flows:
            raise CannotKeep
        row: Any = self.whole(table)[number]
        return Ragged(self, repeated(self, row.ref, size.value, size.like), row.slot)

    def rows_of_numbers(self, numbers: Numbers) -> Ragged:
        """Integers of the instance's as rows of `()`. Raises CannotKeep where there are none."""
        if not numbers.size:
            raise CannotKeep
        key = "integers", numbers.offset
        if key not in self.ragged_constants:
            integers = torch.from_numpy(numbers.array)
            refs = self.constant_rows(integers)
            self.lookups[refs.start] = Below(), numbers
            row = self.slot_of_constant(integers.shape[1:], integers.dtype)[1]
            self.ragged_constants[key] = numbers, Ragged(self, refs, row), None
        return self.ragged_constants[key][1]

    def rows_of_places(self, count: Size) -> Ragged:
        """Integers from 0 on as rows of `()`, as many as a symbol says. Raises CannotKeep where there are none."""
        if not count.value:
            raise CannotKeep
        places = torch.arange(count.value)
        refs = self.constant_rows(places)
        self.lookups[refs.start] = Below(), count
        return Ragged(self, refs, self.slot_of_constant(places.shape[1:], places.dtype)[1])

    def are_below(self, rows: Ragged, size: int) -> bool:
        """Whether all integers of such rows are from 0 to `size` - 1; so they have to be in other instances."""
        for part in self.made_of.get(rows.refs.start, ()):
            if not (self.are_below(part, size) if isinstance(part, Ragged) else 0 <= min(part) <= max(part) < size):
                return False
        if rows.refs.start in self.made_of:
            return True
        below, numbers = self.lookups.get(rows.refs.start, (None, None))
        if type(below) is not Below or type(numbers) is not Numbers or not Below(size).holds(numbers):
            return False
        self.lookups[rows.refs.start] = Below(size if below.size is None else min(size, below.size)), numbers
        return True

    def forget_since(self, entries: int, refs: int, value: int, draws: int) -> None:
        """Forget what has been recorded since `place` said so."""
        del self.entries[entries:], self.refs[refs:], self.draws[draws:]
        self.formed = [place for place in self.formed if place < entries]
        self.next_value, self.parts, self.last_stacked = value, {}, min(self.last_stacked, value - 1)
        for lazy in self.kept_wholes:
            lazy.whole = None
        self.kept_wholes = []
        self.zeros = {ref for ref in self.zeros if ref < value}  # other values will have the refs of those forgotten
        known = self.ragged_constants.items()
        self.ragged_constants = {key: item for key, item in known if item[1].refs.start < value}
        switches = [place for place in self._switches if place <= entries]
        self._switches = switches[: len(switches) // 2 * 2]  # gradients are on, as when that began

    def note_reduction(self, op: str, slot: Slot) -> int:
        """The number of a reduction for runs, whose type gets the line at hand."""
        if self.looks:
            draft = NodeType(op, op, (slot.base,), (slot.base,), variadic=True)
            self.table.add_type(draft, [self.returned or user_location()])
        return self.table.programs.variadic(Reduction(op, slot, self.home))

    def note_run(self, run: RunOf) -> int:
        """The number of a function of runs, whose type gets the line at hand."""
        if self.looks:
            self.table.add_type(run_type(run), [self.returned or user_location()])
        return self.table.programs.variadic(run)

    def note_sites(self, program: Program) -> None:
        """Keep the line that a known call comes from."""
        for entry in program.entries:
            self.note_site(entry, sys._getframe(1), self.sites[entry])

    def is_zero(self, ref: int) -> bool:
        """Whether a constant is all zeros."""
        number = -1 - (ref + self.first_external) if ref < 0 else -1
        if number >= 0 and ref not in self.zeros and ref in self.remade:
            pool = self.constants.get(self.external_source[number])
            if type(pool) is Pool and not pool[self.external_index[number]].any():
                self.zeros.add(ref)
        return ref in self.zeros

    def drawn_from(self, ref: int) -> tuple[Draw, ValueClass] | None:
        """What an external draws, if it does."""
        number = -1 - (ref + self.first_external) if ref < 0 else -1
        source = self.table.sources[self.external_source[number]] if number >= 0 else None
        return None if source is None or source.draw is None else (source.draw, source.value_class)

    def number_of_draw(self, ref: int) -> int:
        """How many numbers the instance had drawn before those that an external holds."""
        return self.external_index[-1 - (ref + self.first_external)] & ((1 << INSTANCE_BITS) - 1)

    def drawn_rows(self, drawn: Drawn, count: int) -> range:
        """Random numbers for so many rows."""
        refs = self.drawn_externals(drawn, range(len(self.draws), len(self.draws) + count), [self.instance] * count)
        self.draws += [drawn.draw] * count
        return refs

    def drawn_externals(self, drawn: Drawn, numbers: Sequence[int], instances: Sequence[int]) -> range:
        """Random numbers that are an instance's draw of a number each."""
        self.refuse_draws_where_read()
        source = self.table.drawn_source(drawn.draw, drawn.value_class)
        self.external_source += [source] * len(instances)
        self.external_index += [(i << INSTANCE_BITS) + k for i, k in zip(instances, numbers, strict=True)]
        first = self.last_external - 1
        self.last_external -= len(instances)
        self.drawn[first] = drawn
        return range(first, first - len(instances), -1)

    def is_ragged(self, tensor: Any) -> bool:
        """Whether a tensor is of a ragged class along its first dimension."""
        return self.has_rows(tensor.shape[1:], tensor.dtype)

    def place_of_rows(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """The first dimension along which tensors of a shape are of a ragged class; -1 where they are of none. Of one
        number, `torch.tensor([t])`, that is beside what is of one size, more often than rows of which there is one."""
        if shape == _ONE:
            return -1
        for at in range(len(shape)):
            if self.has_rows(shape[:at] + shape[at + 1 :] if at else shape[1:], dtype, at):  # type: ignore[operator]
                return at
        return -1

    def has_rows(self, row_shape: Sequence[int], dtype: torch.dtype, at: int = 0) -> bool:
        """Whether tensors of such rows along a dimension are."""
        key = row_shape, dtype, at
        known = self.is_of_ragged.get(key)
        if known is None:
            known = self.is_of_ragged[key] = self.table.is_class_among(ragged_class(*key), self.ragged)
        return known

    def select(self, value: Value, index: int) -> Value:
        """Element `index` of the first dimension, as a node whose type does not depend on the index."""
        size = value.slot.shape[0]
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {size}")
        return self.chosen(value, self.number(index % size, torch.int64))

    def chosen(self, value: Value, number: Value) -> Value:
        """The element of the first dimension that an integer `()` names, from 0 on; nobody asks if there is one."""
        entry = self._reductions.get(("select", value.slot, 1))
        if entry is None:
            template: Any = ((Hole(0), Hole(1)), {})
            slots = (value.slot, number.slot)
            metas = [run_on_meta(pick, template, slots, self.shared_meta)]
            entry = self._new_function(pick, "select", template, slots, Hole(0), metas)
            self._reductions["select", value.slot, 1] = entry
        return self.emit(entry, (value.ref, number.ref))

    def take(self, value: Any, known: Excerpts) -> Any:
        """What a call takes of a value; see `record.excerpts`."""
        whole: Value = value.materialise() if issubclass(type(value), Lazy) else value
        if self.books is None and known.outputs.__class__ is Hole:
            return self._part(whole, known, known.offsets[0])
        parts = [self._part(whole, known, offset) for offset in known.offsets]
        if self.books is not None:
            for part, step in zip(parts, known.steps, strict=True):
                self.books.share(whole, part, (step,))
        return parts[0] if known.outputs.__class__ is Hole else fill(known.outputs, parts)

    def _part(self, whole: Value, known: Excerpts, offset: int) -> Value:
        if known.entry is None:
            slot = whole.slot
            return value_of(self, whole.ref, self.table.slot(slot.base) if slot.views else slot)
        key = whole.ref, known.entry.index, offset
        taken = self.parts.get(key)
        if taken is not None and self.flows:
            return value_of(self, taken, known.entry.output_slots[0])
        self.external_source.append(known.source)
        self.external_index.append(offset)
        self.last_external -= 1
        if self.ragged:
            self.remade[self.last_external] = Offset(known.source, offset, known.entry.operation.slots[1])
        part: Value = self.emit(known.entry, (whole.ref, self.last_external))
        if self.flows and not self.ragged:
            self.parts[key] = part.ref
        return part

    def call(self, path: str, kind: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
             recorded: frozenset[int] | None = None) -> Any:  # fmt: skip
        """Record the call of a cell or leaf module whose arguments are not all plain recorded values; of an automatic
        cell with the numbers of the operands that were recorded, where not all were."""
        operands: list[int] = []
        parts: list[Any] = [path, len(args)]
        quick = None
        if quick_key((*args, *kwargs.items()), parts, operands, self, True):
            quick = tuple(parts)
            entry = self.functions.get(quick)
            if entry is not None:
                return self._emit_call(entry, operands, recorded)
        operands = []
        slots: list[Slot] = []
        if self.unread:
            args, kwargs = mapped(read_now, args), mapped(read_now, kwargs)
        described, template = self.describe((args, kwargs), operands, slots, shared_as_operand=True)
        key = (path, described)
        entry = self._calls.get(key)
        if entry is None:
            lifted = lift_floats(self, path, kind, args, kwargs)
            if lifted is not None:
                return self.call(path, kind, module, *lifted, recorded=recorded)
            entry = self._calls[key] = self._new_call(path, kind, template, tuple(slots))
        if isinstance(entry, NotACell):
            raise NotACell(*entry.args)
        if quick is not None:
            self.functions[quick] = entry
        return self._emit_call(entry, operands, recorded)

    def is_outgrown(self, name: str) -> bool:
        """Whether an automatic cell was called in more ways than are cells."""
        return self._num_calls.get(name, 0) > MOST_TYPES

    def learn_of_calls(self, other: Recorder) -> None:
        """Which calls of automatic cells are none, as another has found."""
        self._calls = {key: entry for key, entry in other._calls.items() if isinstance(entry, NotACell)}

    def _emit_call(self, entry: Entry, operands: list[int], recorded: frozenset[int] | None) -> Any:
        """`emit`, with what the cell draws. Raises NotACell where the call is no node."""
        _require_recorded(entry, recorded)
        if self.books is not None and not has_own_memory(self, entry):
            raise SharesMemory
        draws = entry.operation.draws
        if draws:
            slots = entry.operation.slots[-len(draws) :]
            operands += [self.draw(draw, slot.base).ref for draw, slot in zip(draws, slots, strict=True)]
        return self.emit(entry, operands)

    def function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None
    ) -> Any:
        """Record a torch function or tensor method."""
        if not _OTHER_NAMES.keys().isdisjoint(kwargs):
            kwargs = {_OTHER_NAMES.get(key, key): value for key, value in kwargs.items()}
        of_rows = bool(self.ragged)
        if of_rows and name is None:
            result = function_at_once(self, func, args, kwargs)
            of_rows = result is not NO_ROWS
            if of_rows and result is not NotImplemented:
                return result
        if self.has_buffers and not (
            args and is_buffer(args[0]) and rules.changes_in_place(func, rules.name_of(func), kwargs)
        ):
            args, kwargs = with_wholes(args), with_wholes(kwargs) if kwargs else kwargs
        if self.shows is not None:
            if self.books is not None and self.books.has_stand_in((args, kwargs)):
                args, kwargs = mapped(self.books.stand_in, (args, kwargs))
            result = self.shows.at_once(func, args, kwargs, name)
            if result is not NotImplemented:
                return result
        if not self.flows:
            for item in flat(args, kwargs):  # before what the call itself makes
                if isinstance(item, Lazy) and type(item) is not Ragged:
                    item.materialise()
            first_value = self.next_value
            return without_gradient(self, self._recorded(func, args, kwargs, name, of_rows), first_value)
        return self._recorded(func, args, kwargs, name, of_rows)

    def _recorded(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None, of_rows: bool
    ) -> Any:
        if self.shows is not None and len(args) == 2:
            args = self.shows.operands(func, *args)
        if self.symbolic:
            result = call_of_sizes(self, func, args, kwargs)
            if result is not None:
                return result
            args, kwargs = told(self, func, args, kwargs)
        if of_rows:
            result = ragged_call(self, func, args, kwargs, name)
            if result is not NotImplemented:
                return result
        if func is _STACK:
            stack = lazy_stack(self, False, args, kwargs)
            if stack is not NotImplemented:
                return stack
        operands: list[Any] = []
        key = self._key(func, args, kwargs, operands)
        if key is None and args and type(args[0]) is Rows and not self.unread:
            shown = rows_seen_again(self, func, args, kwargs)
            if shown is not None:
                return shown
        known = None if key is None else self.functions.get(key)
        if known is None and len(args) == 2 and not kwargs:
            lifted = self.functions.get(key_with_any_number(func, *args))
            if lifted is not None:
                operands.insert(lifted.at, self.number(args[lifted.at], lifted.dtype).ref)
                return self.emit(lifted.entry, operands)
        if known is not None:
            if known.__class__ is not Entry:
                return self._known(known, args, operands)
            if func in CATS and self.books is None and not self.in_cell:
                self.plain[key_of_items(func, args, kwargs)] = known  # None is nobody's key
            if self.looks or self.in_cell or known.outputs.__class__ is not Hole:
                return self.emit(known, operands)
            if len(args) == 2 and type(args[0]) is type(args[1]) is Value:
                self.remember(known, func, args, kwargs)  # it was found by a call with an operand of another kind
            self.entries.append(known.index)  # `emit` without its call
            self.refs.extend(operands)
            value = Value()
            value.rec = self
            value.ref = number = self.next_value
            value.slot = known.output_slots[0]
            self.next_value = number + 1
            if self.made is not None:
                self.made.append(value)
            return value
        if func in CATS:  # only now: nearly all are nodes
            stack = lazy_stack(self, True, args, kwargs)
            if stack is not NotImplemented:
                return stack
        operands.clear()  # nobody but names holds refs now (`functionalise`, definition (4))
        return self._function(func, args, kwargs, name or rules.name_of(func), key)

    def _key(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any]) -> Any:
        """What tells a call from others (`record.keys`), None where nothing does; `operands` are put into the list."""
        parts: list[Any] = [func, len(args)]
        for item in args:
            kind = type(item)
            if kind is Value:  # `quick_key` without its call
                operands.append(item.ref)
                parts.append(item.slot)
            elif kind in PLAIN:
                parts += kind, item
            elif (kind is Rows and item is args[0] and rules.name_of(func) in rules.VIEWS) or not quick_key(
                (item,), parts, operands, self, False
            ):
                return None
        return None if kwargs and not quick_key(kwargs.items(), parts, operands, self, False) else tuple(parts)

    def _known(self, known: Any, args: tuple[Any, ...], operands: list[Any]) -> Any:
        """What a call gives that is no node, or not of these operands alone."""
        if known.__class__ is OfStacks:
            return self.emit(known.entry, [x.materialise().ref if type(x) is Stack else x for x in operands])
        if known.__class__ is Excerpts:
            return self.take(args[0], known)
        if known.__class__ is AsItIs:
            return self.copied(args[0]) if known.copies else args[0]
        if known.__class__ is OfConstant:
            return self.constant_of_call(known)
        if known.__class__ is OfChange:
            operands.clear()
            if not is_alone(self, args[0]):
                return change_in_place(self, *known[1:], args, {})
            return changed_alone(self, args[0], self.function(known.anew, args, {}))
        if known.__class__ is OfMany:
            return selected(self, args[0], known)
        if known.__class__ is OfParameters:
            return self._of_parameters(known)
        return self.seen(args[0], *known)

    def _of_parameters(self, known: OfParameters) -> Any:
        """What it gives; where names of memory are told apart, a vector is a value that may change, and so is what
        was seen to change."""
        changes = self.tracer.changing and type(known.result) is Shared and known.result.ref in self.tracer.changing
        is_apart = (known.is_vector or changes) and self.books is not None
        return self.copied(self.whole(known.result)) if is_apart else known.result

    def seen(self, value: Any, outputs: Any, slots: Sequence[Slot], flat: bool) -> Any:
        """A view of a value, or several; `flat` tells of a tuple of them (`is_flat`)."""
        if issubclass(type(value), Lazy):
            value = value.materialise()
        elif type(value) is torch.Tensor:  # the instance's, in the shape of a recorded one
            value = self.constant(value)
        values = [value_of(self, value.ref, slot) for slot in slots]
        if self.books is not None:
            for seen in values:  # stacks are values by then
                self.books.share(value, seen, seen.slot.views[len(value.slot.views) :])
        if flat:
            return outputs.__class__(values)
        return values[0] if outputs.__class__ is Hole else fill(outputs, values)

    def constant_of_call(self, known: OfConstant) -> Any:
        """What `zeros_like` and its like give: a description, or a constant."""
        found = None if known.described is None or self.ragged else made_again(self, known.described)
        return self.shared_constant(known.key, known.make) if found is None else found

    def copied(self, value: Value) -> Value:
        """What has the same elements in memory of its own: another name."""
        return value_of(self, Copied(value.ref), value.slot)

    def _function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, key: Any
    ) -> Any:
        """A torch function that is not known by `key` yet, or has no key."""
        if self.unread:
            args, kwargs = mapped(looked_at, args), mapped(looked_at, kwargs)
        if not args and name in rules.VIEWS and "input" in kwargs:  # the first argument by its name
            rest = {keyword: value for keyword, value in kwargs.items() if keyword != "input"}
            return self._recorded(func, (kwargs["input"],), rest, name, bool(self.ragged))
        if rules.changes_in_place(func, name, kwargs):
            if rules.changes_nothing(name, args, kwargs):
                return args[0]
            return change_in_place(self, func, name, args, kwargs, key)
        if self.reading is not None and name in rules.READS and rules.looks_at_values(func, name):
            return read_function(func, args, kwargs)
        if name in rules.MAKES_OF_NUMBERS:
            return made_of_numbers(self, func, name, args, kwargs)
        refuse_what_cannot_be_batched(self, func, name, args, kwargs)
        if rules.is_mask(name, args):
            return by_values(self, func, name, args, kwargs)
        taken = excerpts(self, func, name, key, args, kwargs)
        if taken is not None:
            return taken
        if name in ("getitem", "unbind") and (many := of_many(self, name, args, kwargs)) is not None:
            if key is not None:
                self.functions[key] = many
            return selected(self, args[0], many)
        if name in rules.FILLS:
            filling = filled(func, name, args, kwargs)
            if filling is not None:
                known = self.functions[key] = OfConstant(*filling, described_filling(filling[1]()))
                return self.constant_of_call(known)
        result = special(self, func, name, args, kwargs, key)
        if result is not NotImplemented:
            return result
        if name in rules.VIEWS and is_view(name, args, kwargs):
            result = view(self, func, name, key, args, kwargs)
            if key is not None and type(args[0]) is Shared and type(result) is not Value:
                self.functions[key] = OfParameters(result)
            return result
        lifted = lift_number(self, func, name, args, kwargs)
        if lifted is not None:
            result = self.function(func, lifted, kwargs, name)
            at = 0 if lifted[0] is not args[0] else 1
            entry = self.described.get((func, self.describe((lifted, kwargs), [], [])[0]))
            if key is not None and entry is not None:
                short = key_with_any_number(func, *args)
                self.functions[short] = OfNumber(entry, lifted[at].slot.dtype, at)
                if self.books is None:
                    self.plain[short] = self.functions[short]
            return result
        return self.node(func, args, kwargs, name, key)

    def node(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        key: Any = None,
    ) -> Any:
        """A torch function as a node; of parameters alone, as another parameter; or what it says of shapes."""
        operands: list[int] = []
        slots: list[Slot] = []
        if self.unread:
            args, kwargs = mapped(read_now, args), mapped(read_now, kwargs)
        described, template = self.describe((args, kwargs), operands, slots)
        entry = self.described.get((func, described))
        if entry is TAKES_NUMBERS:
            counted = with_numbers(args[:1], args[1:], kwargs)
            assert counted is not None
            return self.function(func, *counted, name)
        if entry is IN_PYTHON:
            return as_written(func)(*args, **kwargs)
        if entry is None:
            name = name or rules.name_of(func)
            by_shape = key_by_shape(func, template, slots, self.tracer.shared)
            result: Any = KNOWN.get(by_shape)
            if result is None:
                failure, dispatched = None, Dispatched()
                try:
                    result = run_on_meta(func, template, slots, self.shared_meta, dispatched)
                except Exception as error:
                    if not dispatched.shape_by_value or name in NO_VALUES:
                        failure = error
                if failure is not None:
                    counted = with_numbers(args[:1], args[1:], kwargs)
                    if counted is None:
                        raise failure
                    self.described[func, described] = TAKES_NUMBERS
                    return self.function(func, *counted, name)
                if dispatched.shape_by_value and name not in NO_VALUES:
                    return by_values(self, func, name, args, kwargs)
                if dispatched.draws or (dispatched.is_foreign and self._draws(func, template, slots)):
                    if not self.tracer.may_draw or type(func) is not FunctionType:
                        refuse_drawing(name)
                    self.described[func, described] = IN_PYTHON
                    return as_written(func)(*args, **kwargs)
                is_of_shape = not (dispatched.looks or dispatched.is_foreign)
                if by_shape is not None and is_of_shape and isinstance(result, torch.Tensor) and result.is_meta:
                    KNOWN.add(by_shape, result)
            if not all(slot.shape.numel() for slot in slots):
                self._try_on_none(func, template, slots)
            outputs, metas = split_outputs(result)
            if not metas:
                return result if asked_by_torch(func) else told_by_shape(func, name, template, slots, self.shared_meta)
            if not all(isinstance(x, torch.Tensor | NoneType) for x in flat([result])):
                refuse(f"'{name}' returns numbers beside tensors, which may depend on values", "compute them apart")
            if any(meta.layout is not torch.strided for meta in metas):
                refuse(f"'{name}' returns a tensor that is not strided", "compute with strided tensors")
            first = next((a for a in flat(args, kwargs) if type(a) is Shared), None)
            if first is not None and not slots:
                if num_steps(template) > MAX_STEPS:
                    args, kwargs = fill(template, (), self._whole_of)
                    return self.function(func, args, kwargs, name)
                result = derived(self, func, name, described, template, first)
                is_vector = type(result) is Shared and not result.is_matrix and name not in rules.VIEWS
                found = OfParameters(result, is_vector)
                if key is not None:
                    self.functions[key] = found
                return self._of_parameters(found)
            entry = self._new_function(func, name, template, tuple(slots), outputs, metas)
            self.described[func, described] = entry
        if self.books is not None and self.books.is_view(entry):
            result = self.emit(entry, operands)
            self.books.hold([*flat(args, kwargs), *flat(result)])
            return result
        if key is not None:
            of_stacks = any(type(arg) is Stack for arg in flat(args, kwargs))
            self.functions[key] = OfStacks(entry) if of_stacks else entry
            if type(entry.outputs) is Hole:
                self.remember(entry, func, args, kwargs)
        return self.emit(entry, operands)

    def remember(self, known: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find a node's entry of one output, or a view's slot, by its short key from now on."""
        if args and self.books is None and not self.in_cell:
            key = key_of_sum(self, func, args) if type(args[0]) is Made else short_key(func, args, kwargs)
            if key is not None:
                self.plain[key] = known

    def _draws(self, func: Callable[..., Any], template: Any, slots: Sequence[Slot]) -> bool:
        """Whether a function draws random numbers, as made-up operands tell."""
        makers = (torch.ones, torch.zeros, functools.partial(torch.full, fill_value=0.5))
        calls = (filled_by(make, template, slots, self.shared_meta) for make in makers)
        return any(draws(functools.partial(func, *args, **kwargs)) for args, kwargs in calls)

    def _try_on_none(self, func: Callable[..., Any], template: Any, slots: Sequence[Slot]) -> None:
        """Raise what a function of tensors without elements raises (the maximum of none), which shapes do not tell."""
        args, kwargs = filled_by(torch.zeros, template, slots, self.shared_meta)
        with torch.no_grad():
            func(*args, **kwargs)

    # --- describing arguments --------------------------------------------------------------------------------------

    def describe(self, item: Any, operands: list[int], slots: list[Slot], shared_as_operand: bool = False) -> Any:
        """A hashable key and a template of (nested) arguments; values go to `operands` and `slots` as they are met.

        No closure: one that calls itself would keep the recorder until the garbage collector comes (`forward.left`).
        """
        kind, rest = type(item), (operands, slots, shared_as_operand)
        if kind is Value:
            operands.append(item.ref)
            slots.append(item.slot)
            return item.slot, Hole(len(slots) - 1)
        if kind is Shared:
            as_operand = shared_as_operand and not item.is_matrix
            return self.describe(self.whole(item), *rest) if as_operand else (item.key, item.ref)
        if issubclass(kind, Lazy):
            return self.describe(item.materialise(), *rest)
        if kind is tuple or kind is list or kind is torch.Size:
            pairs = [self.describe(x, *rest) for x in item]
            kind = list if kind is list else tuple
            return (kind, *[k for k, _ in pairs]), kind([t for _, t in pairs])
        if kind is dict:
            pairs = [self.describe(x, *rest) for x in item.values()]
            return (dict, *item, *[k for k, _ in pairs]), dict(zip(item, [t for _, t in pairs], strict=True))
        if kind is slice:
            return (slice, item.start, item.stop, item.step), item
        if isinstance(item, torch.Tensor):
            return self.describe(self.constant(item), *rest)
        if kind is float or kind is complex:
            return (kind, repr(item)), item
        if isinstance(item, np.generic):
            return self.describe(item.item(), *rest)
        if isinstance(item, np.ndarray):
            return self.describe(self.constant(torch.from_numpy(item)), *rest)
        if isinstance(item, tuple):
            pairs = [self.describe(x, *rest) for x in item]
            return (kind, *[k for k, _ in pairs]), rebuilt(item, [t for _, t in pairs])
        if issubclass(kind, Later):
            return self.describe(item.now, *rest)
        if item is None or item is Ellipsis or is_constant(item):
            return (kind, item), item
        return refuse(
            f"a cell or an operation got an object of class {kind.__name__}",
            "pass tensors, numbers, strings, or lists, tuples and dicts of them",
        )

    # --- new types -------------------------------------------------------------------------------------------------

    def _bound_variants(self, what: str, slots: tuple[Slot, ...]) -> None:
        count = self._variants[what, slots] = self._variants.get((what, slots), 0) + 1
        if count > MAX_VARIANTS:
            refuse(
                f"{what} was called with more than {MAX_VARIANTS} different constants, each a type of its own",
                "pass what differs from node to node as a tensor",
            )

    def _new_call(self, path: str, kind: str, template: Any, slots: tuple[Slot, ...]) -> Entry | NotACell:
        """The entry of a call that was not met before; of one that is none of an automatic cell, why."""
        given = slots
        try:
            self._bound_variants(path, slots)
            if not self.in_cell:
                slots = self.table.as_shown(slots)
            self._num_calls[path] = self._num_calls.get(path, 0) + 1
            if path in self.tracer.automatic and self.is_outgrown(path):
                raise NotACell(f"it was called in more than {MOST_TYPES} ways")
            if self.autocast != self.home:
                self._require_known_state()
            called = Operation(kind, path, None, template, slots, autocast=self.autocast)
            outputs, classes = self.tracer.output_classes(called)
        except Exception as error:
            if path not in self.tracer.automatic:
                raise
            return NotACell(*error.args) if type(error) is NotACell else NotACell(str(error))  # without its frames
        drawn = self.tracer.draws(called)
        drawn_slots = tuple(self.table.slot(value_class) for _, value_class in drawn)
        operation = called  # of which the tracer keeps the trace
        if drawn:
            operation = replace(called, slots=(*slots, *drawn_slots), draws=tuple(draw for draw, _ in drawn))
        draft = self._marked(call_type(path, kind, template, operation.slots, classes, len(drawn)), self.autocast)
        index = self.table.add_type(draft, [self.returned or user_location()])
        demands = self.tracer.demands(called) if path in self.tracer.automatic else ()
        slots_of_outputs = tuple(map(self.table.slot, classes))
        given = (*given, *operation.slots[len(given) :])
        return self.table.add_entry(index, operation, slots_of_outputs, outputs, demands=demands, given=given)

    def _new_function(
        self,
        func: Callable[..., Any],
        name: str,
        template: Any,
        slots: tuple[Slot, ...],
        outputs: Any,
        metas: list[torch.Tensor],
    ) -> Entry:
        self._bound_variants(name, slots)
        if not self.in_cell:
            slots = self.table.as_shown(slots)
        state, is_changed = self._effective(func, template, slots)
        if (
            not self.in_cell
            and not is_changed
            and name == "add"
            and len(slots) == 2
            and slots[0] is slots[1]
            and not slots[0].views
            and template == ((Hole(0), Hole(1)), {})
        ):
            return self._new_reduction("sum", slots[0], 2)
        draft = self._marked(function_type(name, template, slots, metas), state)
        index = self.table.add_type(draft, [self.returned or user_location()])
        operation = Operation("function", name, func, template, slots, autocast=state)
        return self.table.add_entry(index, operation, tuple(self.table.slot(class_of(meta)) for meta in metas), outputs)

    def _new_reduction(self, op: str, slot: Slot, count: int) -> Entry:
        entry = reduction_entry(self.table, op, slot, count, self.home, [self.returned or user_location()])
        self._reductions[op, slot, count] = entry
        return entry

    def shared_meta(self, ref: SharedRef) -> torch.Tensor:
        """A parameter without its data."""
        return self.tracer.shared(ref).detach().to("meta")
