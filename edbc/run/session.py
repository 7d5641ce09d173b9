"""Loading a plan, binding it to a model, running mini-batches: the runtime's public face.

    net = edbc.load("plans/tree_lstm.yaml").bind(model)
    outputs = net(instances)

Binding compares every cell of the plan with what the model's own code does now, operation by operation, before anything
executes; memory orders and batches come from the plan, operations and parameters from the model.
"""

from __future__ import annotations

import copy
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch
from torch import nn
from torch.autograd import forward_ad

from edbc.base.arguments import LAYOUTS, require_name
from edbc.base.garbage import NoGarbageCollection
from edbc.base.graph import Graph, NodeType
from edbc.base.kept import Kept
from edbc.capture.alike.alike import Alike
from edbc.capture.captured.instance import Captured
from edbc.capture.captured.joining import Part, capture_each, joined, own_part, own_parts, part_of
from edbc.capture.captured.structurecache import StructureCache, structure_cache
from edbc.capture.captured.vocabulary import Home, Lexicon, home_of, training_of, triangular
from edbc.capture.code.shadow import ModelView, dtype_of, flags_of, recording_shadow
from edbc.capture.forward.build import Capture, capture, fused
from edbc.capture.forward.cutting import RunSegment
from edbc.capture.forward.cutting import Segment as Cutout
from edbc.capture.forward.deep import run_deep
from edbc.capture.forward.fibers import MAX_READS, Reads
from edbc.capture.forward.structures import MOST
from edbc.capture.patterns.fusions import patterns_of
from edbc.capture.ragged.program import MOST_TEMPLATES
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import Entry, TypeTable
from edbc.capture.semantics.autocast import State, entered, left, state, without_state
from edbc.capture.semantics.modes import on_host
from edbc.capture.semantics.sizes import without_numbers
from edbc.capture.standins.standin import Slot, class_of, dtype_name, torch_dtype
from edbc.capture.standins.unread import DoesNotHold
from edbc.capture.vertex.vertexinstance import VertexInstance
from edbc.capture.vertex.vertexprogram import VertexProgram
from edbc.cells.canonical import cell_graph
from edbc.cells.carry import carry_over
from edbc.cells.lower import check_order, lower
from edbc.cells.opgraph import CellGraph
from edbc.cells.parts import ON_CPU, ON_DEVICE
from edbc.cells.program import Program
from edbc.cells.rows.reduction import ReductionKernel
from edbc.cells.rows.segmented import RunKernel
from edbc.errors import (
    DeviceError,
    InputError,
    LayoutError,
    PlanError,
    RunsEagerly,
    StaleError,
    Unplanned,
    UnsupportedError,
    warn_caller,
)
from edbc.native.memory import MemoryErrors
from edbc.plan.plan import Plan, PlanCell
from edbc.run import company
from edbc.run.backend import Backend, Path, Segment, backend_of, wait_for
from edbc.run.execution import Execution, WithoutGradients, run_whole
from edbc.run.modelfile import exemplars_of
from edbc.run.passes.arenas import Shared
from edbc.run.passes.boundary import boundary_of
from edbc.run.passes.cut import Recompute, require_recompute
from edbc.run.passes.eagerparts import Splittable, Splitter
from edbc.run.passes.excerptrows import ExcerptKernel
from edbc.run.passes.minibatch import (
    MiniBatch,
    Observer,
    OnBatch,
    OnSegment,
    Pass,
    Passes,
    verify_captured,
    verify_executed,
    verify_parts,
    verify_placed,
    verify_scheduled,
    verify_shared,
)
from edbc.run.passes.placement import Longs, place
from edbc.run.passes.share import Luck, may_share, share
from edbc.run.segments import Segments
from edbc.run.stream import OnError, stream
from edbc.run.weights import touched
from edbc.run.workers import CapturedBatch, Skeleton, batch_capture
from edbc.schedule.policy import Policy, relative_costs
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import lower_bound, run, with_nodes
from edbc.schedule.waves.stages import Beside
from edbc.schedule.waves.wavetable import Waves
from edbc.train.trainer import Trainer


@dataclass
class Seconds:
    """Where the time of mini-batches went."""

    construction: float = 0.0
    scheduling: float = 0.0
    execution: float = 0.0
    issuing: float = 0.0
    """Of execution: what the host took to issue it. The rest is waiting for a device; on a CPU there is none."""

    @property
    def total(self) -> float:
        """Construction, scheduling and execution."""
        return self.construction + self.scheduling + self.execution


@dataclass
class Stats:
    """Counts summed over mini-batches."""

    instances: int = 0
    nodes: int = 0
    shared_nodes: int = 0
    """Of the nodes, those that did not run because they equal one that did."""
    shared_parts: int = 0
    """Of the nodes, those that read another one's eager part."""
    batches: int = 0
    lower_bound: int = 0
    steps: int = 0
    table_steps: int = 0
    unseen_states: int = 0
    mini_batches: int = 0
    by_rule: int = 0
    """Mini-batches that the rule beside the policy's table scheduled, its schedule being the cheaper."""
    unseen_types: set[str] = field(default_factory=set)
    """Types, by name, that the plan does not know: they ran generically."""
    operand_rows: int = 0
    gathered_rows: int = 0
    arena_bytes: int = 0
    """Of the largest mini-batch."""
    paths: dict[str, Path] = field(default_factory=dict)
    """What ran each type that was met."""
    segments: int = 0
    """Of mini-batches whose instances read values."""
    reads: dict[str, int] = field(default_factory=dict)
    """Values that instances read, by the user's line."""
    unseen_reads: set[str] = field(default_factory=set)
    """Of these lines, those that the plan has not seen reading."""
    device_steps: int = 0
    """In which a device ran batches."""
    launches: int = 0
    """Of these steps, by the host: a chain of steps counts one; torch's own kernels are not counted."""
    seconds: Seconds = field(default_factory=Seconds)


KNOWN = ("schedule", "placement", "demand", "boundary", "segment", "at_once")
"""What of a mini-batch is kept with a graph that may come again."""

T = TypeVar("T")
Rebind = bool | Literal["dtype"] | None
"""Whether a model is of other sizes than the plan's, or of the same in another dtype; None where its dtype tells."""


class Net:
    """A plan bound to a model. Calling it runs a mini-batch; several threads may.

    `device` and `dtype` are the model's own. With `rebind` they are, or its sizes are, not those that the plan was
    compiled for; with "dtype" the sizes are. Without `split` no cell runs in parts (`edbc.run.passes.eagerparts`),
    without `share` equal nodes run one by one (`edbc.run.passes.share`), and equal parts of nodes too. `recompute` says
    into how many segments training cuts a schedule (`edbc.run.passes.cut`). `autocast` is the state of torch.autocast
    (`edbc.capture.semantics.autocast`) in which its mini-batches are recorded. Raises what `bind` raises.
    """

    @on_host
    def __init__(self, plan: Plan, model: nn.Module, *, strict: bool = False, policy: str | None = None,
                 layout: str = "plan", backend: str | Backend | None = None, rebind: Rebind = None,
                 split: bool = True, share: bool = True, recompute: Recompute = None,
                 autocast: State = None, force: bool = False, max_reads: int = MAX_READS):  # fmt: skip
        self.plan = plan
        self.autocast = autocast
        self.model = model
        self.strict = strict
        self.layout = layout
        require_name("layout", layout, LAYOUTS)
        self.recompute = require_recompute(recompute)
        chosen = backend is not None and not isinstance(backend, str)  # a back end of the caller's may do without data
        self.view = ModelView(model, needs_data=not chosen, automatic=plan.automatic,
                              ragged=plan.ragged)  # fmt: skip
        first = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.device = first.device if first is not None else torch.device("cpu")
        self.dtype = dtype_of(model)
        if rebind is None:
            rebind = not any(f"{class_of(torch.empty(0, dtype=self.dtype)).dtype}[" in t.signature for t in plan.types)
        self.rebind = rebind
        types = [(t.name, t.signature) for t in plan.types]
        patterns = patterns_of(types, plan.fused) if autocast is None else ()  # types have other dtypes under autocast
        self.table = TypeTable(types, bool(rebind), autocast is not None, rebind == "dtype", patterns)
        self.policy = policy_of(plan, policy)
        self.waves: Waves | None = None
        self._beside: Beside | None = None
        if plan.costs and policy is None:
            self._beside = Beside({name: (float(c.fixed_us), float(c.row_us)) for name, c in plan.costs.items()})
        self.backend = backend_of(backend, self.device) if backend is None or isinstance(backend, str) else backend
        has_parts = any(cell.eager for cell in plan.cells.values())
        self.split = split and has_parts
        if policy is None and getattr(self.backend, "in_steps", False):
            names = [t.name for t in plan.types]
            self.waves = Waves() if plan.waves is None else Waves.from_text(plan.waves.table, names)
        self.share = share
        self._luck = Luck()
        may_be_eager = not force and self.device.type == "cpu"
        self._is_eager = plan.run is not None and may_be_eager
        self._is_eager_alone = plan.alone is not None and may_be_eager
        self._has_told_eager = False
        rates = ON_DEVICE if self.backend.issues else ON_CPU
        self._splitter = Splitter(self.table, self._splittable, self._weight_bytes, share, rates)
        self._segmented: tuple[tuple[NodeType, ...], bool] = ((), False)
        """What `_is_segmented` said last, and of which types."""
        self._stages: tuple[tuple[NodeType, ...], Longs] = ((), np.zeros(0, np.int64))
        """The same of `_stages_of`."""
        self._kernels: dict[int, Any] = {}
        self._has_warned = False
        self.max_reads = max_reads
        """Values that one instance may read in a mini-batch."""
        self._known: Kept[int, dict[str, Any]] = Kept(MOST)
        """Of graphs that may come again what passes make of them, by their addresses: segments hold the graphs."""
        self._by_template: Kept[int, tuple[Any, Schedule]] = Kept(MOST_TEMPLATES)
        """The schedules of templates, by their addresses."""
        self._idle: list[tuple[nn.Module, Recorder]] = []
        self._vertex_program: VertexProgram | None = None
        self.cache: StructureCache | None = None
        """Set it (`edbc.capture.captured.structurecache.structure_cache`) to capture repeated structures once; it
        serves all modes."""
        self.exemplars: Callable[[], Iterable[Any]] | None = None
        """Gives instances to record where a captured one has a type that has not been recorded here."""
        self.names_all = False
        """Set it to name all parameters to autograd, those that no node reads too (`edbc.train.autogradfunction`)."""
        self.skeleton = Skeleton(self)
        self.transfers: list[tuple[float, float]] = []
        """Seconds that the first mini-batches took to be captured by workers, and to be checked here."""
        self._num_changes = 0
        """Of buffers that recordings relied on."""
        self.lexicon = self._new_lexicon(training_of(model))
        self._lock = threading.RLock()
        self.passes = Passes(
            [
                Pass("capture", self._captured, verify_captured),
                Pass("share", self._shared, verify_shared),
                Pass("schedule", self._scheduled, verify_scheduled),
                Pass("parts", self._in_parts, verify_parts),
                Pass("place", self._placed, verify_placed),
                Pass("execute", self._executed, verify_executed),
            ]
        )
        """What a mini-batch goes through, from instances to results (`edbc.run.passes.minibatch`)."""
        self._preparing = self.passes.span("capture", "place")
        self._after_sharing = self.passes.span("schedule", "place")
        self._placing = self.passes.span("share", "place")
        self._executing = self.passes.span("execute", "execute")
        self.trainer = Trainer(self)
        self._options: dict[str, Any] = {
            "strict": strict,
            "policy": policy,
            "layout": layout,
            "rebind": rebind,
            "split": split,
            "share": share,
            "recompute": recompute,
            "force": force,
            "max_reads": max_reads,
        }
        self._modules = list(model.modules())
        """As `ModelView.require_unchanged` wants them to stay."""
        self._of_mode = {(self._training(), autocast): self}

    def __repr__(self) -> str:
        return f"<edbc net of {self.plan}>"

    def __call__(self, instances: Sequence[Any]) -> list[Any]:
        """What `model(instance)` returns for each instance, in order, as tensors that own their memory.

        As in eager PyTorch they are connected to autograd when gradients are enabled and anything requires one, and
        have the dtypes that torch.autocast gives them.
        """
        return self._untraced(instances) if torch.compiler.is_compiling() else self._call(instances)

    @torch._disable_dynamo  # loads torch's compiler, which takes seconds, so only where that runs already
    def _untraced(self, instances: Sequence[Any]) -> list[Any]:
        """A call in a compiled function: one graph break, as recording must not be traced."""
        return self._call(instances)

    @on_host
    def _call(self, instances: Sequence[Any]) -> list[Any]:
        if type(instances) is not list and type(instances) is not CapturedBatch:
            instances = _as_list(instances)
        is_alone = len(instances) == 1 and type(instances) is list and self.runs_eagerly_alone
        if (is_alone or self.runs_eagerly) and not any(type(x) in (VertexInstance, Captured) for x in instances):
            self._tell_eager()
            return self.run_eagerly(instances)
        _refuse_transforms()
        net = self.in_mode()
        run = net.trainer.run if torch.is_grad_enabled() else net._results
        with left(), NoGarbageCollection():
            return net.presuming(partial(run, instances))

    def presuming(self, run: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """`run()`; where a check does not hold that forward was recorded to pass, `again()`, with checks read where
        they stand from now on. Raises DoesNotHold for captured instances, which cannot be recorded anew."""
        try:
            return run()
        except DoesNotHold:
            with self._lock:
                self.view.presumes = False
                self._idle = []  # what is leased now is not given back to this list
                self.__dict__.pop("alike", None)
            return (again or run)()

    @property
    def runs_eagerly(self) -> bool:
        """Whether calls run one instance after the other: the plan says so, and this is what was measured for it."""
        return self._is_eager and not self.model.training

    @property
    def runs_eagerly_alone(self) -> bool:
        """The same of calls with one instance."""
        return self._is_eager_alone and not self.model.training

    @property
    def captures(self) -> bool:
        """Whether capturing instances once pays."""
        return not self.runs_eagerly or (self.plan.run is not None and self.plan.run.captured is not None)

    def _tell_eager(self) -> None:
        """Say once that nothing is batched."""
        if not self._has_told_eager and self.plan.run is not None:
            self._has_told_eager = True
            why = self.plan.run.eager
            warn_caller(f"the plan says run: eager, because {why}; bind with force=True to batch", RunsEagerly)

    def run_eagerly(self, instances: Sequence[Any]) -> list[Any]:
        """What a call returns, by the model itself."""
        return run_deep(lambda: [self.model(instance) for instance in instances])

    def __deepcopy__(self, memo: dict[int, Any]) -> Net:
        """The plan bound to a copy of the model."""
        net = Net(self.plan, copy.deepcopy(self.model, memo), backend=self.backend, **self._options)
        net.cache, net.exemplars = None if self.cache is None else self.cache.anew(), self.exemplars
        return net

    @property
    def binding(self) -> dict[str, Any]:
        """The options that it was bound with."""
        return dict(self._options)

    def __reduce__(self) -> Any:
        """For other processes: the plan, bound to the model anew there."""
        return _bound_anew, (self.plan, self.model, self.backend.name, self._options, self.cache is not None)

    def in_mode(self) -> Net:
        """This net, or its twin for the modules' present training flags and this thread's state of torch.autocast:
        which code runs, and in which dtypes, depends on them."""
        mode = self._training(), self._autocast_now()
        net = self._of_mode.get(mode)
        if net is None:
            with self._lock:
                net = self._of_mode.get(mode)
                if net is None:
                    net = self._of_mode[mode] = Net(
                        self.plan, self.model, backend=self.backend, autocast=mode[1], **self._options
                    )
        net.cache, net.exemplars, net.names_all = self.cache, self.exemplars, self.names_all
        return net

    def _training(self) -> tuple[bool, ...]:
        return tuple([module.training for module in self._modules])

    def _autocast_now(self) -> State:
        """The state of torch.autocast. Raises UnsupportedError for one that casts on another device than the CPU."""
        if self.device.type == "cpu":
            return state()
        if torch.is_autocast_enabled(self.device.type):
            raise UnsupportedError(
                f"a bound net was called under torch.autocast on {self.device}, which is supported on the CPU only: "
                "results would have another dtype than eager's; call it outside of the context, or convert the model "
                "(model.bfloat16())"
            )
        return None

    def stream(self, instances: Iterable[Any], batch_size: int = 32, ahead: int = 1,
               on_error: OnError = "fail") -> Iterator[Any]:  # fmt: skip
        """What `model(instance)` returns for each of any number of instances, in order, mini-batch by mini-batch; the
        next `ahead` mini-batches are prepared while one executes. With `on_error="record"` an instance on which forward
        raises yields the exception, and the others go on. See `edbc.run.stream`."""
        if self.runs_eagerly:  # vertices are no stream's instances
            self._tell_eager()
            return self._stream_eagerly(instances, on_error)
        return stream(self, instances, batch_size, ahead, on_error)

    def _stream_eagerly(self, instances: Iterable[Any], on_error: OnError) -> Iterator[Any]:
        for instance in instances:
            try:
                found = self([instance])
            except Exception as error:
                if on_error == "fail":
                    raise
                found = [error]
            yield from found

    @on_host
    def run(self, instances: Sequence[Any], stats: Stats | None = None, on_batch: OnBatch | None = None,
            observer: Observer | None = None,
            on_segment: OnSegment | None = None) -> tuple[list[Any], MiniBatch]:  # fmt: skip
        """Like a call; adds what happened to `stats` and also returns the mini-batch as it executed.

        `observer` is told between passes, `on_batch` after each batch; `on_segment` is that of `prepare`.
        """
        return self.presuming(partial(self._run, instances, stats, on_batch, observer, on_segment))

    def _run(self, instances: Sequence[Any], stats: Stats | None, on_batch: OnBatch | None,
             observer: Observer | None, on_segment: OnSegment | None) -> tuple[list[Any], MiniBatch]:  # fmt: skip
        with MemoryErrors(f"the graph of {len(instances):,} instances"):
            batch = self.prepare(instances, stats, on_segment=on_segment, observer=observer)
        started = time.perf_counter()
        with MemoryErrors(f"running {batch.capture.graph.num_nodes:,} nodes"), NoGarbageCollection():
            batch = self._executing(batch.changed(on_batch=on_batch), observer)
        if stats is not None:
            stats.seconds.issuing += time.perf_counter() - started
            wait_for(self.device)
            stats.seconds.execution += time.perf_counter() - started
        return batch.results, batch

    def _results(self, instances: Sequence[Any]) -> list[Any]:
        """What `run` returns first."""
        if self.passes.verifies:
            return self.run(instances)[0]
        with MemoryErrors(f"the graph of {len(instances):,} instances"):
            capture = self.mini_batch(instances, 0, Segments(self))
        with MemoryErrors(f"running {capture.graph.num_nodes:,} nodes"):
            to_run = self._of_equal(capture)
            known = self._known.get(id(to_run.graph))
            batch = MiniBatch(capture=to_run, **known or {})
            if known is None:
                batch = self._after_sharing(batch)
            self._luck.tell(to_run.has_shared, batch.at_once is not None)
            return run_whole(self.backend, batch, self.kernel, self.view, {})

    def _of_equal(self, capture: Capture) -> Capture:
        """With equal nodes as one, where they are looked for."""
        return self.shared(capture) if self._luck.looks() else capture

    def refresh(self) -> None:
        """Pack all weights anew for the next mini-batch. Needed only after writing to a few elements of a parameter
        through `.data`; every other change is noticed (`edbc.run.weights.packed`)."""
        touched.count()

    def capture(self, instance: Any) -> Captured:
        """The instance captured, for this net in its present mode: forward runs now, and for what this returns never
        again. See `edbc.capture.captured`.

        Raises UnsupportedError for an instance that cannot be captured: forward returns objects that are no plain
        data, or keeps such on the model, or reads a tensor of the instance that requires a gradient. The instance holds
        then what it held before.
        """
        return self.capture_all([instance])[0]

    @on_host
    def capture_all(self, instances: Sequence[Any]) -> list[Captured]:
        """Instances captured; see `capture`. Recording them together takes less time than one by one."""
        instances = _as_list(instances)
        for kind in (Captured, CapturedBatch):
            if kind in set(map(type, instances)):
                raise InputError(
                    f"capture: expected instances that forward takes, got a {kind.__name__}, which is captured already"
                )
        found = self.capture_each(instances)
        for number, captured in enumerate(found):
            if isinstance(captured, UnsupportedError):
                raise UnsupportedError(f"instance {number}: {captured}; run the instance as it is")
        return found  # type: ignore[return-value]

    @on_host
    def capture_each(self, instances: Sequence[Any]) -> list[Captured | UnsupportedError]:
        """Instances captured, with an error in the place of each that cannot be; see `capture`. What is captured
        already stays as it is."""
        kinds = set(map(type, instances))
        if Captured in kinds:
            plain = [item for item in instances if type(item) is not Captured]
            found = iter(self.capture_each(plain) if plain else ())
            return [item if type(item) is Captured else next(found) for item in instances]
        if VertexInstance in kinds:
            raise InputError(
                "capture: expected instances that forward takes, got a VertexInstance, which is arrays already and is "
                "joined as fast; run it as it is"
            )
        if self.plan.reads:
            return [UnsupportedError("forward reads values, so what it records is no function of the instance")] * len(
                instances
            )
        net = self.in_mode()
        net._follow_code()
        with entered(None), net._leased() as leased:
            return capture_each(*leased, net.lexicon, instances)

    def mini_batch(self, instances: Sequence[Any], first: int = 0, run_segment: RunSegment | None = None) -> Capture:
        """The graph of a mini-batch: of instances that `forward` takes and captured ones, or of VertexInstances; where
        instances read values, of what comes after `run_segment` has executed what is read. Messages count them from
        `first`."""
        self._follow_code()
        if type(instances) is CapturedBatch:
            self.view.require_unchanged()
            return batch_capture(self, instances)
        kinds = set(map(type, instances))
        if CapturedBatch in kinds:
            raise InputError("a mini-batch: expected instances, got a CapturedBatch among them; it is one by itself")
        if VertexInstance in kinds:
            if len(kinds) > 1:
                _refuse_company(instances, first)
            return fused(self.vertex_program().join(instances), self.table, self.table.fusions.matchers())
        if self.cache is None and Captured not in kinds:
            if self.alike is not None and self.alike.pays:
                self.view.require_unchanged()
                found = self.alike.capture(instances)
                if found is not None:
                    return found
            segments: Any = run_segment or Segments(self)
            with self._leased(first) as leased:
                leased[1].shares_equal = self.share and "share" not in getattr(segments, "without", ())
                captured = capture(*leased, instances, segments, self.max_reads)
            if self.strict and captured.reads is not None:
                self._require_planned(captured.reads)
            return captured
        self.view.require_unchanged()
        if kinds == {Captured}:
            return joined(self.lexicon, own_parts(self.lexicon, instances, first))
        return joined(self.lexicon, [self._part(item, number) for number, item in enumerate(instances, first)])

    def unplanned_reads(self, reads: Reads) -> dict[str, int]:
        """How many reads there were of each line that the plan has not seen reading."""
        return {site: count for site, count in reads.sites().items() if site not in self.plan.reads}

    def _require_planned(self, reads: Reads) -> None:
        for site in self.unplanned_reads(reads):
            raise StaleError(
                f"{site}: a value was read that the plan has seen nobody read; compile again on instances that do, or "
                "run without --strict"
            )

    def _part(self, instance: Any, number: int) -> Part:
        """An instance of a mini-batch that is joined."""
        if type(instance) is Captured:
            return own_part(self.lexicon, instance, number)
        with self._leased() as leased:
            record = partial(part_of, *leased, self.lexicon, instance, number, self.cache is not None)
            return record() if self.cache is None else self.cache.part(self.lexicon, instance, number, record)

    def calls_without_nodes(self) -> Counter[tuple[str, str]]:
        """Of the last mini-batch that each recorder has recorded: calls of automatic cells that are no nodes, by the
        cell's name and why."""
        return sum((recorder.no_nodes for _, recorder in list(self._idle)), Counter())

    def taken_whole(self) -> dict[str, set[str]]:
        """Functions that took ragged values whole so far, by a type per size, with lines that called them."""
        found: dict[str, set[str]] = {}
        for _, recorder in list(self._idle):
            for name, sites in recorder.stacked.items():
                found.setdefault(name, set()).update(sites)
        return found

    @contextmanager
    def _leased(self, first: int = 0) -> Iterator[tuple[nn.Module, Recorder]]:
        """A shadow and its recorder, for this thread alone; its messages count instances from `first`."""
        with self._lock:
            idle = self._idle
            leased = idle.pop() if idle else recording_shadow(self.view, self.table, self.autocast)
        leased[1].first_instance = first
        leased[1].reads = leased[1].reads or bool(self.plan.reads)
        try:
            yield leased
        finally:
            with self._lock:
                idle.append(leased)

    def _learn(self) -> None:
        """Record the exemplars, so that what they have is known."""
        if self.exemplars is not None:
            with self._leased() as leased:
                capture_each(*leased, self.lexicon, list(self.exemplars()))

    def _follow_code(self) -> None:
        """Record anew-made copies of the model's functions where a name in them means something else by now, and of
        the model where somebody has set what forward may find set."""
        with self._lock:
            is_set = self.view.follow_caches()
            if self.view.follow_code() or is_set:
                self._idle.clear()
                self._vertex_program = None
                self.__dict__.pop("alike", None)
                if self.view.changes.total() != self._num_changes:
                    self._num_changes = self.view.changes.total()
                    self.lexicon = self._new_lexicon(self.lexicon.home.training)

    def _new_lexicon(self, training: str) -> Lexicon:
        home: Callable[[], Home] = partial(home_of, self, training)
        if (self.view.ragged and triangular(self.model)) or flags_of(self.model):  # of buffers as they are now
            home = partial(lambda made: made, home())
        return Lexicon(self.table, self.view, home, self._learn)

    @cached_property
    def alike(self) -> Alike | None:
        """What of instances is not recorded again; None where forward may do other things with equal ones."""
        if self.view.ragged or self.plan.reads or not self.view.closed.is_forward_told:
            return None
        lease = partial(recording_shadow, self.view, self.table, self.autocast)
        return Alike(self.view, self.lexicon, lease, takes_new=not self.strict)

    def vertex_program(self) -> VertexProgram:
        """The model's vertex functions. Raises ModelError when it has none."""
        program = self._vertex_program
        if program is None:
            with self._lock:
                program = self._vertex_program
                if program is None:
                    shadow, recorder = recording_shadow(self.view, self.table, self.autocast)
                    program = self._vertex_program = VertexProgram(shadow, recorder)
        return program

    @on_host
    def prepare(self, instances: Sequence[Any], stats: Stats | None = None, without: Collection[str] = (),
                first: int = 0, on_segment: OnSegment | None = None,
                observer: Observer | None = None) -> MiniBatch:  # fmt: skip
        """A mini-batch of instances, after all passes but `execute`; those named in `without` are left out: "parts", so
        that no cell runs in parts, "share", so that equal nodes run one by one. See `mini_batch` for `first`. Where
        instances read values, all segments but the last are executed, after a call of `on_segment` for each, which may
        give what is told after each of its batches."""
        segments = Segments(self, stats, on_segment, without)
        counting = None if stats is None else _Counting(self, stats, segments, len(instances))
        batch = MiniBatch(instances=instances, first=first, segments=segments)
        return self._preparing(batch, _both(counting, observer), without)

    def prepare_captured(self, captured: Capture, without: Collection[str] = ()) -> MiniBatch:
        """The passes between `capture` and `execute`; see `prepare`."""
        return self._placing(MiniBatch(capture=captured), without=without)

    def _captured(self, batch: MiniBatch) -> MiniBatch:
        return MiniBatch(capture=self.mini_batch(batch.instances, batch.first, batch.segments))

    def _shared(self, batch: MiniBatch) -> MiniBatch:
        capture = self.shared(batch.capture)
        return batch if capture is batch.capture else batch.changed(capture=capture)

    def _scheduled(self, batch: MiniBatch) -> MiniBatch:
        """The policy's batches; of a graph that came before, all that was worked out for it then."""
        capture = batch.capture
        known = self._known.get(id(capture.graph)) if capture.is_known else None
        return batch.changed(schedule=self.schedule(capture)) if known is None else batch.changed(**known)

    def _in_parts(self, batch: MiniBatch) -> MiniBatch:
        if batch.has("placement") or not self.split or self._is_segmented(batch.capture.graph.types):
            return batch
        split = self._splitter.split(batch.capture, batch.schedule)
        return batch if split is None else batch.changed(capture=split.capture, schedule=split.schedule, split=split)

    def _placed(self, batch: MiniBatch) -> MiniBatch:
        if batch.has("placement"):
            return batch
        capture, schedule = batch.capture, batch.schedule
        placement = place(capture.graph, schedule, capture.result_node)
        demand = self.backend.demand(Segment(capture.graph, schedule, placement), self.kernel)
        boundary = boundary_of(capture, placement, self.backend.mixes)
        placed = batch.changed(placement=placement, demand=demand, boundary=boundary)
        make = getattr(self.backend, "at_once", None)
        placed = placed.changed(at_once=None if make is None else make(placed))
        if capture.is_known and not (self.split and self._splitter.has_hope(capture.graph, schedule)):
            self._known.add(id(capture.graph), {name: getattr(placed, name) for name in KNOWN})
        return placed

    def run_again(self, capture: Capture, shared: Shared) -> list[Any] | None:
        """The results of a mini-batch that is placed already; None where it is not, where equal nodes of it are to be
        one, or where passes are to be checked."""
        known = self._known.get(id(capture.graph))
        if known is None or self.passes.verifies:
            return None
        to_run = self._of_equal(capture)
        self._luck.tell(to_run.graph is not capture.graph, known["at_once"] is not None)
        if to_run.graph is not capture.graph:
            return None
        return run_whole(self.backend, MiniBatch(capture=to_run, **known), self.kernel, self.view, shared)

    def run_segment(self, segment: Cutout, shared: Shared) -> list[Any] | None:
        """The same of a segment that instances wait for, of which no Capture is made where nobody asks for one."""
        structure = segment.known.structure
        known = self._known.get(id(structure.graph))
        at_once = None if known is None or self.passes.verifies else known["at_once"]
        if at_once is None or not at_once.takes_segments or (self.share and may_share(structure)):
            return self.run_again(segment.capture(), shared)
        with WithoutGradients():
            found: list[Any] = at_once.run(segment, shared, self.view)
            return found

    def _executed(self, batch: MiniBatch) -> MiniBatch:
        told = batch.on_batch
        if told is None:
            return batch.changed(results=run_whole(self.backend, batch, self.kernel, self.view, batch.shared))
        with WithoutGradients(), self.executing(batch, shared=batch.shared) as execution:
            execution.run(on_batch=lambda number: told(batch, number))
            return batch.changed(results=execution.results())

    def shared(self, captured: Capture) -> Capture:
        """What was captured with equal nodes as one, where that pays."""
        return share(captured) if self.share else captured

    def schedule(self, captured: Capture) -> Schedule:
        """The policy's batches, those of a template where there is one; or stages where the plan's costs and threads
        are for it; or waves where steps count: the plan's, or by the rule."""
        graph = captured.graph
        if self.waves is not None:
            return self._in_waves(graph, self.waves)
        threads = getattr(self.backend, "threads", 1)
        if captured.of_steps is not None and (self._beside is None or threads == 1):
            template, step_ptr = captured.of_steps
            known = self._by_template.get(id(template))
            if known is None:
                known = self._by_template.add(id(template), (template, run(template.graph, self.policy)))
            return with_nodes(graph, known[1], template.step, step_ptr)
        found = run(graph, self.policy)
        return found if self._beside is None or threads == 1 else self._beside.chosen(graph, found, threads)

    def _in_waves(self, graph: Graph, waves: Waves) -> Schedule:
        """The schedule of a table of waves; by the rule alone with the first step of every batch."""
        from edbc.schedule.waves.waverun import run_due, run_waves

        if waves.table:
            return run_waves(graph, waves)[0]
        stages = self._stages_of(graph.types)
        due = run_due(graph, stages)
        if due is None:
            for kind in np.flatnonzero((graph.counts() > 0) & (stages == 0)).tolist():
                stages[kind] = self.backend.path(graph.types[kind], self.kernel(kind)).steps or 1
            due = run_due(graph, stages)
        assert due is not None
        return due

    def _stages_of(self, types: tuple[NodeType, ...]) -> Longs:
        """Steps of a batch of each type on the back end; 0 for those that had no nodes so far."""
        known = self._stages
        if known[0] is not types:
            known = self._stages = types, np.zeros(len(types), np.int64)
        return known[1]

    def _is_segmented(self, types: tuple[NodeType, ...]) -> bool:
        """Whether rows of any of these types are of segments."""
        known = self._segmented
        if known[0] is not types:
            known = self._segmented = types, any(t.segmented for t in types)
        return known[1]

    def kept_whole(self, prepared: MiniBatch) -> Iterator[str]:
        """Why types that the plan lets run in parts did not in this mini-batch, a line each."""
        if not self.split:
            yield from ["cells were not split: switched off"] * any(
                self._splittable(k) is not None for k in range(self.table.num_known)
            )
            return
        captured, schedule = prepared.whole
        yield from self._splitter.kept_whole(captured, schedule)

    def depends_on_company(self, prepared: MiniBatch) -> Iterator[str]:
        """What of a mini-batch has bits that depend on what else runs with it, a line each; see `edbc.run.company`."""
        why = company.of_backend(self.backend)
        if why is not None:
            yield why
            return
        graph, captured = prepared.capture.graph, prepared.whole[0].graph
        present = [kind for kind, count in enumerate(graph.counts().tolist()) if count]
        yield from company.in_torch(self.backend, [(graph.types[k], self.kernel(k)) for k in present])
        for kind in np.flatnonzero(captured.counts()).tolist() if self.split else ():
            planned = self._splittable(kind)
            if planned is not None and company.adds_in_another_order(planned, self.program(kind)):
                yield f"{captured.types[kind].name}: in parts its products add in another order than whole"

    def count(self, stats: Stats, prepared: MiniBatch) -> None:
        """Add what a prepared segment is to `stats`."""
        captured, schedule = prepared.whole
        graph = captured.graph
        stats.nodes += graph.num_nodes + prepared.shared_nodes
        stats.shared_nodes += prepared.shared_nodes
        stats.shared_parts += prepared.shared_parts
        stats.batches += len(schedule.batch_type)
        stats.lower_bound += lower_bound(graph)
        stats.steps += len(schedule.batch_type)
        stats.table_steps += schedule.table_steps
        stats.unseen_states += schedule.unseen_states
        stats.by_rule += schedule.by_rule
        counts = graph.counts()
        stats.unseen_types |= {t.name for i, t in enumerate(graph.types) if i >= self.table.num_known and counts[i]}
        stats.operand_rows += len(prepared.placement.rows)
        stats.gathered_rows += prepared.placement.gathered_rows
        stats.arena_bytes = max(stats.arena_bytes, prepared.demand.total)
        batches = np.bincount(prepared.schedule.batch_type)
        for kind in np.flatnonzero(batches).tolist():
            node_type = prepared.capture.graph.types[kind]
            path = self.backend.path(node_type, self.kernel(kind))
            stats.paths[node_type.name] = path
        stats.device_steps += prepared.demand.steps
        stats.launches += prepared.demand.launches

    @on_host
    def execute(self, batch: MiniBatch, on_batch: OnBatch | None = None,
                shared: Shared | None = None) -> list[Any]:  # fmt: skip
        """Run a prepared mini-batch and return its results. Segments of one mini-batch give what they have in
        common."""
        if on_batch is not None or shared is not None:
            batch = batch.changed(on_batch=on_batch, shared=shared)
        return self._executing(batch).results

    def executing(self, batch: MiniBatch, shared: Shared | None = None) -> Execution:
        """A prepared mini-batch to run in steps. See `edbc.run.execution`."""
        return Execution(self.backend, batch, self.kernel, self.view, shared)

    # --- kernels ---------------------------------------------------------------------------------------------------

    def kernel(self, kind: int) -> Any:
        """The kernel of a type, made when it is first needed."""
        kernel = self._kernels.get(kind)
        if kernel is None:
            with self._lock:
                kernel = self._kernels.setdefault(kind, self._new_kernel(kind))
        return kernel

    def _new_kernel(self, kind: int) -> Any:
        node_type = self.table.types[kind]
        assert node_type is not None
        part = self._splitter.programs.get(kind)
        if part is not None:
            return self.backend.program_kernel(part, self.view, self.dtype, self.device)
        if kind >= self.table.num_known:
            self._tell_unseen(kind, node_type)
        if node_type.is_excerpt:
            return ExcerptKernel()
        if node_type.is_run:
            return RunKernel(self.table.operation_of_type[kind].operation, node_type.segmented)
        if node_type.variadic:
            return ReductionKernel(node_type.op, len(node_type.outputs))
        program = self.program(kind)
        dtype = torch_dtype(program.dtype) if program.dtype else self.dtype
        return self.backend.program_kernel(program, self.view, dtype, self.device)

    def _tell_unseen(self, kind: int, node_type: NodeType) -> None:
        """A type that the plan does not know runs as defined, without an order of the plan; refused where `strict`.
        A warning names the first cell that somebody marked, unless it is a planned one in other dtypes: what no mark
        made a cell meets new lengths as operations do."""
        unseen = f"{node_type.source}: type {node_type.signature} is not in the plan"
        if self.strict:
            raise StaleError(f"{unseen}; compile again on instances that contain it, or run without --strict")
        is_marked = node_type.op.startswith("cell ") and node_type.op.removeprefix("cell ") not in self.view.automatic
        if is_marked and self.table.planned(kind) is None and not self._has_warned:
            self._has_warned = True
            warn_caller(f"{unseen} and runs generically; compile again on instances that contain it", Unplanned)

    def cell(self, entry: Entry) -> CellGraph:
        """The operation graph of a type, from the model's own code."""
        return cell_of(entry, self.view)

    def program(self, kind: int) -> Program:
        """The lowered program of a type, not split."""
        entry = self.table.operation_of_type[kind]
        cell = self.cell(entry)
        known = self.table.planned(kind)
        evaluated = None if known is None else self._evaluated(entry, cell, self.plan.types[known].signature)
        if known is None or evaluated is None or not evaluated.is_uniform():
            return lower(cell, [[op.name] for op in cell.ops], list(cell.classes()))
        name = self.plan.types[known].name
        planned = self.plan.cells[name]
        self._compare(name, evaluated, planned)
        batches: Sequence[Sequence[str]] = planned.batches
        order = self._order(evaluated, planned)
        try:
            if evaluated is not cell:
                check_order(evaluated, order, f"plan cell {name!r}")
                batches, order = carry_over(evaluated, cell, batches, order)
            return lower(cell, batches, order, f"plan cell {name!r}")
        except LayoutError as error:
            raise PlanError(str(error)) from None

    def _evaluated(self, entry: Entry, cell: CellGraph, planned: str) -> CellGraph | None:
        """The cell as the plan knows it: in evaluation, and without torch.autocast, whose dtype operands do not have.
        `cell` itself where that is the same; None where the plan's own signature is of torch.autocast or its dtype."""
        operation = entry.operation
        if operation.autocast is None and not operation.draws:
            is_training = self.view.is_training(operation)
            in_evaluation = cell_of(entry, self.view, evaluating=True) if is_training else cell
            return cell if in_evaluation.lines() == cell.lines() else in_evaluation
        cast = operation.autocast
        if without_state(planned) != planned or (cast is not None and f"{dtype_name(cast)}[" in planned):
            return None
        passed = tuple(self._plain(slot, operation.autocast) for slot in operation.passed)
        evaluated = replace(operation, slots=passed, draws=(), autocast=None)
        return cell_of(replace(entry, operation=evaluated), self.view, evaluating=True)

    def _plain(self, slot: Slot, cast: State) -> Slot:
        if cast is None or slot.base.dtype != dtype_name(cast):
            return slot
        return self.table.slot(replace(slot.base, dtype=dtype_name(self.dtype)), slot.views, slot.meta().to(self.dtype))

    def _order(self, cell: CellGraph, planned: PlanCell) -> Sequence[str]:
        return list(cell.classes()) if self.layout == "variable-order" else planned.layout

    def _splittable(self, kind: int) -> Splittable | None:
        """What the plan says of splitting a type."""
        node_type = self.table.types[kind]
        if kind >= self.table.num_known or node_type is None or not node_type.has_program:
            return None
        name = self.plan.types[kind].name
        planned = self.plan.cells[name]
        if not planned.eager:
            return None
        entry = self.table.operation_of_type[kind]
        cell = self.cell(entry)
        if not cell.is_uniform() or self._evaluated(entry, cell, self.plan.types[kind].signature) is not cell:
            return None
        self.program(kind)  # raises where the plan is stale
        return Splittable(cell, planned.batches, self._order(cell, planned), planned.eager, f"plan cell {name!r}")

    def _weight_bytes(self, kind: int) -> int:
        """Of the products of a type that the plan knows; 0 for any other, which never runs in parts."""
        node_type = self.table.types[kind]
        if kind >= self.table.num_known or node_type is None or not node_type.has_program:
            return 0
        return sum(packed.rows * packed.columns for packed in self.program(kind).weights) * self.dtype.itemsize

    def _compare(self, name: str, cell: CellGraph, planned: PlanCell) -> None:
        """The plan's operations must be the model's."""
        lines = cell.lines()
        for number in range(max(len(lines), len(planned.operations))):
            here = lines[number] if number < len(lines) else "nothing"
            there = planned.operations[number] if number < len(planned.operations) else "nothing"
            if here != there and not (self.rebind and without_numbers(here) == without_numbers(there)):
                raise StaleError(
                    f"plan cell {name!r}, operation {number}: expected {here!r} from the model, got {there!r}; run "
                    "'edbc compile' again"
                )


class _Counting:
    """An observer that adds to `stats` what passes took and made."""

    def __init__(self, net: Net, stats: Stats, segments: Segments, instances: int):
        self.net, self.stats, self.segments, self.instances = net, stats, segments, instances
        self.last = time.perf_counter()

    def __call__(self, name: str, batch: MiniBatch) -> None:
        now, seconds, segments = time.perf_counter(), self.stats.seconds, self.segments
        if name == "capture":
            seconds.construction += now - self.last - segments.scheduling - segments.execution
            seconds.scheduling += segments.scheduling
            seconds.execution += segments.execution
            seconds.issuing += segments.execution
        else:
            seconds.scheduling += now - self.last
        if name == "place":
            self._count(batch)
        self.last = time.perf_counter()

    def _count(self, batch: MiniBatch) -> None:
        stats, reads = self.stats, batch.capture.reads
        stats.instances += self.instances
        stats.mini_batches += 1
        before = [] if reads is None else self.segments.prepared[len(self.segments.prepared) - reads.segments :]
        for segment in (*before, batch):
            self.net.count(stats, segment)
        if reads is not None:
            stats.segments += 1 + reads.segments
            stats.unseen_reads |= set(self.net.unplanned_reads(reads))
            for site, count in reads.sites().items():
                stats.reads[site] = stats.reads.get(site, 0) + count


def _both(one: Observer | None, other: Observer | None) -> Observer | None:
    if one is None or other is None:
        return one or other

    def told(name: str, batch: MiniBatch) -> None:
        one(name, batch)
        other(name, batch)

    return told


def _bound_anew(plan: Plan, model: nn.Module, backend: str, options: dict[str, Any], has_cache: bool) -> Net:
    net = Net(plan, model, backend=backend, **options)
    module = sys.modules.get(type(model).__module__)
    net.cache, net.exemplars = structure_cache(module) if has_cache else None, exemplars_of(module, plan)
    return net


def _refuse_company(instances: Sequence[Any], first: int) -> NoReturn:
    other = next(number for number, x in enumerate(instances, first) if type(x) is not VertexInstance)
    raise InputError(
        f"instance {other}: expected a VertexInstance as others of its mini-batch are, got "
        f"{type(instances[other - first]).__name__}; run them apart, for what they return has another form"
    )


def _as_list(instances: Any) -> list[Any]:
    """A mini-batch in a list. Raises InputError for what has no order or no length, and for a text."""
    if isinstance(instances, str | bytes | Mapping | Set | Iterator) or not isinstance(instances, Iterable):
        raise InputError(
            f"a bound net: expected a list of instances, got {type(instances).__name__}; put them in a list, or read "
            "an iterator with net.stream"
        )
    return list(instances)


def _refuse_transforms() -> None:
    """Raise UnsupportedError where somebody looks at torch functions that a net does not call."""
    what = None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        what = "a transform of torch.func (grad, vmap, jvp, ...)"
    elif forward_ad._current_level >= 0:
        what = "forward-mode differentiation"
    elif torch._C._get_tracing_state() is not None:
        what = "torch.jit.trace"
    if what is not None:
        raise UnsupportedError(
            f"a bound net was called inside {what}, which would see none of its operations; call it outside, or run "
            "the model itself there"
        )


def cell_of(entry: Entry, view: ModelView, evaluating: bool = False) -> CellGraph:
    """The canonical operation graph of an entry's cell, module or function; that of eval mode where it is
    `evaluating`."""
    operation = entry.operation
    path = view.module_of(operation)[1] if operation.is_of_module else ""
    prefix = f"{path}." if path else ""
    return cell_graph(view.trace(operation, evaluating), view, prefix)


def policy_of(plan: Plan, kind: str | None = None) -> Policy:
    """The plan's policy, or the fixed rule `kind` in its place."""
    if kind is not None and kind != plan.policy.kind:
        if kind == "fsm":
            raise PlanError(f"the plan's policy is {plan.policy.kind!r} and has no table; compile with --policy fsm")
        return Policy(kind, cost=plan_costs(plan))
    policy = plan.policy
    if policy.kind != "fsm":
        return Policy(policy.kind, cost=plan_costs(plan))
    names = [t.name for t in plan.types]
    encoding = policy.encoding or ""
    return Policy.from_text(encoding, policy.fallback, policy.table, names, policy.beside, plan_costs(plan))


def plan_costs(plan: Plan) -> tuple[float, ...]:
    """The policy's costs in the order of the types; empty when every batch counts the same."""
    return relative_costs([plan.costs[t.name].fixed_us for t in plan.types] if plan.costs else [])


def check_requirements(requirements: Sequence[str]) -> None:
    """Raise StaleError when the environment does not offer what a plan requires, DeviceError for an unknown wish."""
    for requirement in requirements:
        match = re.fullmatch(r"torch>=(\d+)\.(\d+)", requirement)
        if match is None:
            raise DeviceError(f"plan requires {requirement!r}, which this edbc does not know; update edbc")
        have = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
        if have < (int(match.group(1)), int(match.group(2))):
            raise DeviceError(f"plan requires {requirement}, got torch {torch.__version__}; update torch")
