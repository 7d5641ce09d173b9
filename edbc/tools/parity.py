"""Parity with eager: the rule by which batched outputs count as the same numbers.

Per output, with `scale` the largest magnitude of the float64 reference and errors the largest absolute differences
from it over all instances:

(1) in float64, the error is at most 1e-12 x scale;
(2) in any other dtype, it is at most 4 x the error of eager in that dtype, plus 1e-6 x scale (float32) or 1e-2 x scale
    (bfloat16, float16). A float64 output that eager itself misses was computed in another dtype; it goes by float32's.
(3) Where eager gives not-a-number or an infinity, so must batched execution, of the same sign.

Eager is the unmodified model, one instance after the other, without gradients. The reference is eager with the model,
the default dtype, and what instances bring in the model's own dtype or in float32, in float64 (`edbc.run.instances`).
What forward asks for in float32 itself (`.float()`, `dtype=torch.float32`) stays rounded, but every operation of the
reference takes its float32 operands in float64, as eager refuses to mix the two; the first instance of each mini-batch
tells whether there are any, and so does what refuses. So a model in float64 whose forward does that goes by float32's
rule, where that shows in an output; whoever reports says that forward *pins* float32. A forward that raises on float64
data (it looks at dtypes) gets its instances as they are.

(4) Eager is *unstable* in an output when (2) allows so much that it says nothing: its own error is beyond 1e-2 x scale
    in float32 (beyond 1/4 in the short floats), or it or the reference is not finite where the other is. A chaotic or
    overflowing model does that. The rule may hold then, but it has shown little, and whoever reports it says so.

(5) An output is *small* when it has fewer than 256 numbers in all instances together: then eager's own error is luck
    (a dict by node id has outputs of a few numbers each). Small outputs of one floating dtype share it: in (2) each
    gets the largest share of its scale that eager misses in any of them, those that are unstable left out.

(6) On a GPU torch may multiply float32 in *tf32* (`edbc.run.precision`), which rounds operands to as many bits as
    float16 has. Which of a library's algorithms do, it chooses by sizes and layouts: eager's own error is that of one
    choice and bounds no other. So numbers are then compared twice: as torch is set, where (2) gives float32 the slack
    of float16; and again in IEEE float32, by (2) as it stands. Both must hold.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from edbc.capture.code.shadow import dtype_of
from edbc.capture.forward.deep import run_deep
from edbc.capture.forward.fibers import Reads
from edbc.capture.forward.states import Memo, attributes_unchanged
from edbc.capture.semantics.modes import DispatchMode
from edbc.capture.standins.objects import unchanged
from edbc.errors import CheckFailed
from edbc.run.instances import Cast
from edbc.run.outputs import by_name
from edbc.run.precision import in_ieee, multiplies_in_tf32
from edbc.tools.replay import Decisions, Replay, floating

if TYPE_CHECKING:
    from edbc.run.session import Net

_SLACK = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}
_UNSTABLE = {torch.float64: 1e-2, torch.float32: 1e-2, torch.bfloat16: 0.25, torch.float16: 0.25}
"""Definition (4): eager errors beyond this share of the scale."""
Modes = Sequence[Replay] | None
Replays = list[tuple[Replay, Replay]]
NOTHING = "nothing was compared: no result holds a finite number in a tensor"
SMALL = 256
"""Definition (5)."""


@dataclass
class OutputParity:
    """Errors of one output so far."""

    dtype: torch.dtype
    scale: float = 0.0
    max_error: float = 0.0
    eager_error: float = 0.0
    numbers: int = 0
    """How many were compared."""
    has_finite: bool = False
    """Whether any of them is finite."""
    shared_error: float = 0.0
    """Definition (5): eager's error in small outputs as a share of their scale."""
    broken: str = ""
    """Why no comparison of numbers was possible, if so."""
    unjudged: str = ""
    """Where eager and its reference are not comparable with each other, if so."""
    is_tf32: bool = False
    """Whether float32 may have been multiplied in tf32, definition (6)."""

    @property
    def limit(self) -> float:
        """The largest error that the rule allows."""
        in_double = self.dtype is torch.float64 and self.eager_error <= _SLACK[torch.float64] * self.scale
        dtype = torch.float32 if self.dtype is torch.float64 and not in_double else self.dtype
        slack = _SLACK.get(torch.float16 if self.is_tf32 and dtype is torch.float32 else dtype, 0.0) * self.scale
        return slack if in_double else 4 * max(self.eager_error, self.shared_error * self.scale) + slack

    @property
    def shares(self) -> bool:
        """True for outputs of definition (5)."""
        return self.dtype.is_floating_point and 0 < self.numbers < SMALL and self.scale > 0 and not self.unstable

    @property
    def holds(self) -> bool:
        """True when the rule is met."""
        return not self.broken and self.max_error <= self.limit

    @property
    def unstable(self) -> str:
        """Definition (4) in words; empty where eager is stable."""
        if self.unjudged:
            return self.unjudged
        if self.eager_error <= _UNSTABLE.get(self.dtype, 0.0) * self.scale:
            return ""
        return f"its error against float64 is {self.eager_error:.3g} at scale {self.scale:.3g}"


@dataclass
class Parity:
    """The comparison of many mini-batches."""

    outputs: dict[str, OutputParity] = field(default_factory=dict)
    pins: bool = False
    """Whether forward asked for float32 where it would have been float64."""
    decisions: Decisions = field(default_factory=Decisions)
    """Of models that read values."""
    in_ieee: Parity | None = None
    """The same in IEEE float32 where torch may multiply in tf32, definition (6)."""

    @property
    def remark(self) -> str:
        """What a report adds to the errors, if anything."""
        told = "; forward itself asks for float32, so that much is compared in float32" if self.pins else ""
        if self.in_ieee is not None:
            told += f"; torch multiplies in tf32 here, in IEEE float32 {self.in_ieee.errors}"
        return told

    @property
    def errors(self) -> str:
        """Those of all outputs, for a report."""
        if self.says_nothing:
            return NOTHING
        return f"max error {self.max_error:.2e} (eager's own {self.eager_error:.2e})"

    @property
    def says_nothing(self) -> bool:
        """Whether there was nothing to differ in: forward returned no tensors, or none with a finite number."""
        return self.holds and not any(output.has_finite for output in self.outputs.values())

    def as_json(self) -> dict[str, Any]:
        """As JSON's types."""
        return {"max_error": self.max_error, "eager_error": self.eager_error, "compared": not self.says_nothing,
                "unstable": sorted(self.unstable), "pins_float32": self.pins,
                "decisions": self.decisions.as_json()}  # fmt: skip

    @property
    def holds(self) -> bool:
        """True when the rule is met by every output."""
        alone = not self.decisions.fault and all(output.holds for output in self.outputs.values())
        return alone and (self.in_ieee is None or self.in_ieee.holds)

    @property
    def max_error(self) -> float:
        """Largest error of a batched output."""
        return max((o.max_error for o in self.outputs.values()), default=0.0)

    @property
    def eager_error(self) -> float:
        """Largest error of eager execution in the same dtype."""
        return max((o.eager_error for o in self.outputs.values()), default=0.0)

    @property
    def unstable(self) -> dict[str, str]:
        """Outputs in which eager itself is unstable, and how."""
        return {name: output.unstable for name, output in self.outputs.items() if output.unstable}

    def add(self, batched: Any, eager: Any, reference: Any) -> None:
        """Take in one instance's three results."""
        ours, theirs, exact = by_name(batched), by_name(eager), by_name(reference)
        ours = {name: _one_by_one(tensors, theirs.get(name, [])) for name, tensors in ours.items()}
        for name in {**theirs, **ours}:
            some = (theirs.get(name) or ours.get(name) or [torch.empty(0)])[0]
            dtype = some.dtype.to_real() if some.is_complex() else some.dtype
            output = self.outputs.setdefault(name, OutputParity(dtype, is_tf32=self.in_ieee is not None))
            if [t.shape for t in ours.get(name, [])] != [t.shape for t in theirs.get(name, [])]:
                output.broken = f"shapes differ: {_shapes(ours.get(name))} batched, {_shapes(theirs.get(name))} eager"
                continue
            if [t.shape for t in exact.get(name, [])] != [t.shape for t in theirs[name]]:
                output.unjudged = f"in float64 it gives {_shapes(exact.get(name))}, not {_shapes(theirs[name])}"
                continue
            for a, b, c in zip(ours[name], theirs[name], exact[name], strict=True):
                _compare(output, a, b, c)
        self._share()

    def add_all(self, results: Sequence[Any], reads: Reads | None, eager: Eager, instances: Sequence[Any]) -> None:
        """Compare what a mini-batch of instances gave with eager; where it read values, with eager's replay
        (`edbc.tools.replay`)."""
        if reads is None:
            for each in zip(results, *self._eager(eager, instances), strict=True):
                self.add(*each)
        else:
            replayed = self._replayed(reads, eager, instances)
            for each in zip(results, *replayed[:2], strict=True):
                self.add(*each)
            for known, (mine, double) in zip(reads.of_instance, replayed[2], strict=True):
                numbers = floating(known, mine, double)
                if numbers:
                    self.add(*({"numbers read": list(tensors)} for tensors in numbers))
        self.pins = eager.pins

    def _replayed(self, reads: Reads, eager: Eager, instances: Sequence[Any]) -> tuple[list[Any], list[Any], Replays]:
        """Eager's results and float64's, and the replays. Where a read is of what nothing of the model went into and
        was edbc's all the same (of a cell's result), counts differ, and reads of any tensor are paired."""
        found = []
        for models in ((eager.model, eager.twin), (None, None)):
            replays = [(Replay(each, models[0]), Replay(each, models[1])) for each in reads.of_instance]
            theirs, exact = self._eager(eager, instances, replays)
            decisions = replace(self.decisions)
            for known, (mine, double) in zip(reads.of_instance, replays, strict=True):
                decisions.add(known, mine, double, _SLACK.get(eager.dtype, 0.0))
            found.append((decisions, (theirs, exact, replays)))
            if not decisions.fault:
                break
        self.decisions, result = min(found, key=lambda each: bool(each[0].fault))
        return result

    @staticmethod
    def _eager(eager: Eager, instances: Sequence[Any], replays: Replays | None = None) -> tuple[list[Any], list[Any]]:
        with unchanged(instances):
            theirs = eager.run(instances, None if replays is None else [mine for mine, _ in replays])
        return theirs, eager.reference(instances, None if replays is None else [double for _, double in replays])

    def _share(self) -> None:
        """Definition (5)."""
        shares: dict[torch.dtype, float] = {}
        for output in filter(lambda output: output.shares, self.outputs.values()):
            share = output.eager_error / output.scale
            shares[output.dtype] = max(share, shares.get(output.dtype, 0.0))
        for output in self.outputs.values():
            output.shared_error = shares.get(output.dtype, 0.0) if output.shares else 0.0

    def require(self) -> None:
        """Raise CheckFailed with the first output that breaks the rule, or decision that is not eager's."""
        if self.decisions.fault:
            raise CheckFailed(f"batched execution decides otherwise than eager: {self.decisions.fault}")
        for name, output in self.outputs.items():
            if not output.holds:
                fault = output.broken or (
                    f"error {output.max_error:.3g}, at most {output.limit:.3g} allowed (eager's own error "
                    f"{output.eager_error:.3g}, scale {output.scale:.3g})"
                )
                raise CheckFailed(f"output {name!r}: batched execution differs from eager: {fault}")
        if self.in_ieee is not None:
            self.in_ieee.require()


def _one_by_one(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The rows of one tensor, which the vertex front end gives, where eager has a list of them."""
    is_stacked = len(ours) == 1 and len(theirs) > 0 and ours[0].shape == (len(theirs), *theirs[0].shape)
    return list(ours[0]) if is_stacked else ours


def _shapes(tensors: list[torch.Tensor] | None) -> str:
    return ", ".join(str(tuple(t.shape)) for t in (tensors or [])[:3]) or "nothing"


def _compare(output: OutputParity, batched: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> None:
    if batched.dtype != eager.dtype:
        output.broken = f"dtypes differ: {batched.dtype} batched, {eager.dtype} eager"
        return
    if not batched.numel():
        return
    a, b, c = (_real(t.detach().cpu()).to(torch.float64) for t in (batched, eager, reference))
    output.numbers += batched.numel()
    finite = torch.isfinite(a) & torch.isfinite(b) & torch.isfinite(c)
    if not finite.all():
        _compare_not_finite(output, a, b, c)
    if finite.any():
        output.has_finite = True
        output.scale = max(output.scale, float(c[finite].abs().max()))
        output.max_error = max(output.max_error, _error(a[finite], c[finite]))
        output.eager_error = max(output.eager_error, _error(b[finite], c[finite]))


def _real(values: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs: both parts count."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _compare_not_finite(output: OutputParity, batched: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    if not torch.equal(_class(batched), _class(eager)):
        output.broken = "not-a-number or infinity in one of them only"
    if not torch.equal(_class(eager), _class(exact)):
        output.unjudged = "it is finite where the float64 reference is not, or the reverse"


def _class(values: torch.Tensor) -> torch.Tensor:
    """0 for finite numbers, 1 and -1 for the infinities, 2 for not-a-number."""
    return values.isposinf().to(torch.int8) - values.isneginf().to(torch.int8) + 2 * values.isnan().to(torch.int8)


def _error(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).abs().max())


class Eager:
    """The model as its author wrote it, one instance after the other, and its float64 twin."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.dtype = dtype_of(model)
        self.twin = model if self.dtype is torch.float64 else copy.deepcopy(model, Memo(model)).double()
        for module in self.twin.modules() if self.twin is not model else ():
            if isinstance(module, nn.RNNBase):
                module.register_forward_pre_hook(lambda _, inputs: tree_map(_doubled, inputs))
        self._cast = Cast(frozenset({self.dtype, torch.float32}) - {torch.float64}, torch.float64)
        self._mixes_dtypes = False
        self._takes_double = True
        """Whether forward takes converted instances, as far as is known."""
        self.pins = False
        """Whether forward has asked for float32 so far."""
        self._threads: int | None = None

    @contextmanager
    def at_its_best(self, instances: Sequence[Any]) -> Iterator[None]:
        """As many of torch's threads as run the model sooner, all or one, told once from the first instances: for
        batches of few rows, too.

        Small operations gain nothing from several; and where other programs keep a core busy, torch's threads wait for
        each other at every operation (on two cores of which one was busy: 3 instances/s instead of 340).
        """
        most = torch.get_num_threads()
        try:
            if self._threads is None and instances and most > 1:
                with unchanged(instances[:8]):
                    self._threads = min((most, 1), key=lambda threads: self.seconds(instances[:8], threads))
            torch.set_num_threads(self._threads or most)
            yield
        finally:
            torch.set_num_threads(most)

    def seconds(self, instances: Sequence[Any], threads: int) -> float:
        """What an instance takes with so many threads, which stay set; of those that fit in half a second."""
        torch.set_num_threads(threads)
        self.run(instances[:1])
        started, done, elapsed = time.perf_counter(), 0, 0.0
        while done < len(instances) and elapsed < 0.5:
            self.run(instances[done : done + 1])
            done, elapsed = done + 1, time.perf_counter() - started
        return elapsed / done

    def run(self, instances: Sequence[Any], modes: Modes = None) -> list[Any]:
        """What the model returns for each instance, each in a mode of its own. It keeps no attributes of them."""
        with attributes_unchanged(self.model):
            return _run(self.model, self.dtype, instances, modes)

    def reference(self, instances: Sequence[Any], modes: Modes = None) -> list[Any]:
        """The same in float64. Instances keep nothing of it."""
        if not self._mixes_dtypes:
            self._mixes_dtypes = self._in_double(instances[:1], None if modes is None else modes[:1])[1].was_needed
        if not self._mixes_dtypes:
            with suppress(RuntimeError):  # perhaps forward makes float32 of one of the others
                return self._in_float64(instances, modes)
        return self._in_double(instances, modes)[0]

    def _in_double(self, instances: Sequence[Any], modes: Modes) -> tuple[list[Any], _InDouble]:
        try:
            with _InDouble() as mode, _ConvolutionsInDouble():
                results = self._in_float64(instances, modes)
        except Exception:
            if not self._takes_double:
                raise
            self._takes_double = False
            return self._in_double(instances, modes)
        self.pins = self.pins or mode.pins
        return results, mode

    def _in_float64(self, instances: Sequence[Any], modes: Modes = None) -> list[Any]:
        with unchanged(instances), attributes_unchanged(self.twin):  # which may be the user's model itself
            converted = self._cast(instances) if self._takes_double else instances
            return _run(self.twin, torch.float64, converted, modes)


class _InDouble(DispatchMode):
    """Operations on float32 operands in float64; what changes a tensor in place keeps that tensor's dtype."""

    was_needed = False
    """Whether there was a float32 operand."""
    pins = False
    """Whether there was a float32 result of none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            if isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                args, kwargs = tree_map(partial(_in_dtype, args[0].dtype), (args, kwargs))
            return func(*args, **kwargs)
        if _has_single(args) or _has_single(kwargs.values()):
            self.was_needed = True
            if _is_view(func):  # of what may be changed by it
                return func(*args, **kwargs)
            in_double, named = tree_map(_doubled, (args, kwargs))
            with suppress(RuntimeError):  # of a tensor of a class for float32 (`torch.sparse.FloatTensor`), say
                return func(*in_double, **named)
        result = func(*args, **kwargs)
        self.pins |= _is_single(result)
        return result


class _ConvolutionsInDouble(TorchFunctionMode):
    """Convolutions on float32 operands in float64: they compare dtypes before they dispatch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").startswith("conv"):
            args, kwargs = tree_map(_doubled, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_view(func: Any) -> bool:
    """Whether what an operation gives shows its operand's memory."""
    return any(result.alias_info is not None for result in func._schema.returns)


def _is_single(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.float32


def _has_single(items: Iterable[Any]) -> bool:
    """Whether an operation's operands, which may be lists of tensors, have one. Every operation of eager is asked."""
    return any(_has_single(item) if isinstance(item, tuple | list) else _is_single(item) for item in items)


def _doubled(item: Any) -> Any:
    return item.double() if _is_single(item) else item


def _in_dtype(dtype: torch.dtype, item: Any) -> Any:
    is_other = isinstance(item, torch.Tensor) and item.is_floating_point() and item.dtype is not dtype
    return item.to(dtype) if is_other else item


def _run(model: nn.Module, dtype: torch.dtype, instances: Sequence[Any], modes: Modes = None) -> list[Any]:
    def each() -> list[Any]:
        results = []
        for number, instance in enumerate(instances):
            try:
                with nullcontext() if modes is None else modes[number].anew():
                    results.append(model(instance))
            except Exception as error:
                error.add_note(f"while eager PyTorch runs instance {number}")
                raise
        return results

    with torch.no_grad(), _default_dtype(dtype):
        return run_deep(each)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def parity_on(device: torch.device) -> Parity:
    """A comparison of what is computed on a device, as torch is set now, definition (6)."""
    return Parity(in_ieee=Parity() if multiplies_in_tf32(device) else None)


def compared(parity: Parity, add: Callable[[Parity], None]) -> None:
    """Add to a comparison, and to the one in IEEE float32 if there is one, as `add` does to what it is given."""
    add(parity)
    if parity.in_ieee is not None:
        with in_ieee():
            add(parity.in_ieee)


def parity_of(net: Net, batches: Sequence[Sequence[Any]], eager: Eager) -> Parity:
    """Batched against eager outputs, on mini-batches of instances, which are left as they are."""
    parity = Parity()
    for batch in batches:
        with eager.at_its_best(batch):
            with unchanged(batch):
                results, prepared = net.run(batch)
            parity.add_all(results, prepared.capture.reads, eager, batch)
    return parity
