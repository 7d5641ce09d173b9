"""Shadows: copies of the user's model whose parameters are stand-ins and whose cells record.

Recording must not change the user's model, and several threads may record at once, so each recorder has a shadow of
its own: a deep copy in which every parameter, buffer and plain tensor attribute is one `Shared`, and the class of every
cell and of every leaf module of torch.nn is replaced by a subclass whose call records a node.

A cell itself is traced on a second shadow, of that module alone, in which calls run through: its operations come out
as a recording of torch functions (`CellTrace`), with its operands as externals in order.

Shadows are copies, so what changes in the model afterwards must be noticed: tensors are looked up by name whenever they
are used, and everything else is compared before each mini-batch (`require_unchanged`). A forward that would change the
model itself (assigning to a buffer) is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from edbc.base.graph import ValueClass
from edbc.base.pattern import OPERAND
from edbc.capture.code.assigned import ANY, ITEMS
from edbc.capture.code.automatic import MAX_OPERATIONS, NotACell, candidates, located, module_at, require_cell, shape_of
from edbc.capture.code.closed import MOST_ITEMS, Closed, methods_of, names_of_cells
from edbc.capture.code.hooks import computes_weight, hooks_of, num_hooks, refuse_hooks, refuse_hooks_of_all
from edbc.capture.code.mark import is_cell, is_closed
from edbc.capture.code.rebind import Copies
from edbc.capture.code.regions import Regions
from edbc.capture.code.rewrite import LookUp
from edbc.capture.forward.states import LEFT, Memo, memories_of, memory_of
from edbc.capture.patterns.fusions import Fused
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.rows import version_of
from edbc.capture.ragged.symbols import Index, Mask
from edbc.capture.ragged.value import Ragged, changed_rows
from edbc.capture.ragged.whole.recipes import are_equal
from edbc.capture.ragged.whole.runs import Pairs
from edbc.capture.ragged.whole.worked import Worked
from edbc.capture.record.calls import recorded_call
from edbc.capture.record.draws import differs_in_training
from edbc.capture.record.functionalise import KeepsBooks, MustKeepBooks, changed_alone, is_alone, is_apart
from edbc.capture.record.functionalise import changing as changing_name
from edbc.capture.record.lookup import looked_up, looks_up_numbers
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.recording import Recording
from edbc.capture.record.signature import written
from edbc.capture.record.special import embedded, is_at_once
from edbc.capture.record.table import Draw, Operation, SharedRef, TypeTable, fill, shared_refs, through
from edbc.capture.semantics.autocast import State, entered
from edbc.capture.semantics.gradmode import watched_by
from edbc.capture.semantics.randomness import NoRandomNumbers
from edbc.capture.semantics.shapes import split_outputs
from edbc.capture.semantics.stateless import derived_class, user_class
from edbc.capture.standins.nests import is_plain
from edbc.capture.standins.standin import (
    Lazy,
    Shared,
    Slot,
    Symbol,
    Value,
    class_of,
    refuse,
    require_none_caught,
    value_of,
)
from edbc.errors import EdbcError, ModelError, StaleError, UnsupportedError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
               nn.AdaptiveLogSoftmaxWithLoss)  # fmt: skip
"""Modules of torch's whose code runs as the user's does; the last looks at targets, which often are the instance's."""
_PASS_IN_EVAL = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True, eq=False)
class CellTrace:
    """What one cell, module or function computes: a recording whose externals are its operands, then its constants."""

    recording: Recording
    operand_names: tuple[str, ...]
    outputs: tuple[Value, ...]
    template: Any
    """Template of what the call returns."""
    draws: tuple[tuple[Draw, ValueClass], ...] = ()
    """What it draws, in order."""
    demands: tuple[frozenset[int], ...] = ()
    """See `Entry.demands`."""


def shared_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers and plain tensor attributes of a model with their dotted names, each tensor once."""
    seen: set[int] = set()
    for name, tensor in _named_tensors(model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _refuse_compiled(model: nn.Module) -> None:
    """Raise UnsupportedError for modules whose Python does not run."""
    for path, module in model.named_modules():
        is_compiled = type(module).__module__.startswith("torch._dynamo")
        is_script = isinstance(module, torch.jit.ScriptModule) and isinstance(getattr(module, "_c", None), _SCRIPT)
        if is_compiled or is_script:
            raise UnsupportedError(
                f"{path or 'the model'} is a {type(module).__name__}: expected one whose forward runs as Python, got "
                f"one of {'torch.compile' if is_compiled else 'TorchScript'}; give the module that it was made of"
                f"{', or set PYTORCH_JIT=0, with which its class is Python' if is_script else ''}"
            )


_SCRIPT = torch._C.ScriptModule
"""What a module of TorchScript has, which one of such a class has not where PYTORCH_JIT is 0."""


def _require_real_numbers(model: nn.Module, needs_data: bool) -> None:
    for name, tensor in _named_tensors(model):
        if tensor.is_meta and needs_data:
            raise ModelError(
                f"{name} of the model: expected numbers, got a tensor on the meta device; give it memory with "
                "model.to_empty(device='cpu') and load weights"
            )
        if tensor.is_inference() and not tensor.is_meta:
            raise ModelError(
                f"{name} of the model: expected a parameter whose changes can be noticed, got one made under "
                "torch.inference_mode, where nothing counts them; build the model outside, call the net inside"
            )
        if tensor.is_complex():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedError(
                f"{name} of the model is {kind}: complex weights are not supported, and .to(float32) would drop their "
                "imaginary parts; keep real and imaginary parts as two tensors"
            )


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        own = {**module._parameters, **module._buffers}
        own |= {k: v for k, v in module.__dict__.items() if isinstance(v, torch.Tensor)}
        for name, tensor in own.items():
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor


def _tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Names of one tensor each, of the tensors that have several."""
    names: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(model):
        names.setdefault(id(tensor), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


def is_leaf(module: nn.Module) -> bool:
    """True for modules that torch.nn defines, but those of _CONTAINERS and those whose weight a hook computes."""
    is_torchs = type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
    return is_torchs and not computes_weight(module)


SharedTraces = dict[Any, CellTrace | Exception]
"""Of operations as they are written, and why there is none."""


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of most numbers of a model's floating-point parameters; float32 where it has none."""
    numbers = Counter[torch.dtype]()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            numbers[parameter.dtype] += parameter.numel()
    return max(numbers, key=numbers.__getitem__, default=torch.float32)


class ModelView:
    """Names of modules and tensors of one model, and the traces of its cells. Raises ModelError for a tensor without
    data (on the meta device) where it `needs_data`, UnsupportedError for a complex one."""

    def __init__(self, model: nn.Module, needs_data: bool = True, automatic: Iterable[str] = (),
                 ragged: Iterable[str] = (), code: Regions | None = None):  # fmt: skip
        if not isinstance(model, nn.Module):
            what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            raise ModelError(f"bind: expected a model, an nn.Module, got {what}; build it first")
        _refuse_compiled(model)
        _require_real_numbers(model, needs_data)
        self.model = model
        self.needs_data = needs_data
        self.is_everywhere: bool | None = None
        """Whether makers are watched in code that is no copy (`code.rebind.Everywhere`): once that was needed, and
        until forward has raised for it."""
        self.leaves_own = False
        """Whether calls of the instance's own tensors alone stay with Python, which may read what they compute, where
        rows are: once something was read."""
        self.presumes = True
        """Whether forward goes on as if what it checks held (`standins.unread`)."""
        self._traces: dict[tuple[Operation, bool], CellTrace] = {}
        self._shared_traces: SharedTraces | None = None
        self._spare: dict[tuple[int, bool, bool], _Spare] = {}
        """Shadows of modules whose methods are closed, so that no trace leaves anything on them."""
        self._modules = list(model.named_modules())
        self._paths = {id(module): path for path, module in self._modules}
        self.regions = Regions(model, Closed(model)) if code is None else code
        """What is known of the code, which another view of the same model may have read."""
        self._changing = self._names_that_change()
        spaces = ((path, vars(module)) for path, module in self._modules)
        self._caches = {path: {name: of[name] for name in self.steady_caches & of.keys()} for path, of in spaces}
        """What instances find of caches (`code.assigned`), by the path of a module and name."""
        self._state = [_state(module, self._changing) for _, module in self._modules]
        self._glance = _Glance([module for _, module in self._modules], self._changing)
        self._named: tuple[_Glance | None, dict[int, tuple[str, torch.Tensor]]] = None, {}
        self._tied = _tied_names(model)
        self._has_recorded = False
        self._sets_modes = False
        """Whether a shadow is being put into evaluation mode, and not by forward."""
        self._assigned: set[tuple[str, str]] = set()
        self.written: set[tuple[str, str]] = set()
        """Paths of modules, and names of all their attributes that forward has assigned to on shadows."""
        self.changing: set[SharedRef] = set()
        """Functions of parameters whose results code changes in place."""
        self._promised = names_of_cells(model)
        self.given_up: dict[str, str] = {}
        """Of automatic cells that are none any more, what has come to mean something else."""
        self._proofs: dict[str, tuple[FunctionType, nn.Module]] = {}
        self.automatic = self._proven(automatic)
        """Names of the methods that are cells though nobody marked them (`code.automatic`), with path and method."""
        self.ragged = frozenset(ragged)
        """Classes whose leading size is a symbol (`capture.ragged`)."""
        self.copies = self._copies(self._chosen_of)
        """Of the functions that recordings run."""
        self._as_written: Copies | None = None
        self._relied: dict[str, _Contents] = {}
        self.changes: Counter[str] = Counter()
        """How often buffers that were relied on have changed."""
        self._chosen: dict[type, frozenset[str]] = {}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        """Modules of a bound model stay; what they hold may change."""

    @functools.cached_property
    def steady_caches(self) -> frozenset[str]:
        """Names of caches whose items nobody changes."""
        return frozenset(name for name in self.closed.caches if ITEMS + name not in self.closed.assigned)

    def _names_that_change(self) -> frozenset[str]:
        """Of attributes in whose lists and dicts tensors stand, those that code which forward may reach changes, or
        that it never mentions."""
        pairs = ((name, value) for _, module in self._modules for name, value in module.__dict__.items())
        holders = {name for name, value in pairs if name[:1] != "_" and _tensors_in(name, value, ())}
        if not holders or ANY in self.closed.assigned:
            return frozenset(holders)
        changing = {name for name in holders if not self.closed.assigned.isdisjoint((name, ITEMS + name))}
        return frozenset(changing | (holders - self.closed.mentioned))

    @property
    def closed(self) -> Closed:
        """What is known of the code alone."""
        return self.regions.closed

    @property
    def boundary(self) -> CodeType:
        """The function that runs cells when they are traced."""
        return ModelView._trace.__code__

    def _proven(self, names: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Those of the names that are closed methods of this model."""
        names = frozenset(names)
        found = candidates(self.model, self.closed, self.regions)[0] if names else []
        chosen = {c.name: c for c in found if c.name in names}
        self._proofs = {name: self._proof(c.path, c.method) for name, c in chosen.items()}
        return {name: (c.path, c.method) for name, c in chosen.items()}

    def _proof(self, path: str, method: str) -> tuple[FunctionType, nn.Module]:
        """The function that a method is, which is what is proven, and its module."""
        module = module_at(self.model, path)
        region = self.regions.find(type(module), method) if ":" in method else None
        function: Any = methods_of(module)[method] if region is None else region.function
        return function, module

    def _chosen_of(self, kind: type) -> frozenset[str]:
        """The regions that are cells, of a class."""
        if kind not in self._chosen:
            of_kind = [name for path, name in self.automatic.values() if type(module_at(self.model, path)) is kind]
            self._chosen[kind] = frozenset(name for name in of_kind if ":" in name)
        return self._chosen[kind]

    def _unmoved_of(self, kind: type) -> frozenset[str]:
        """Those of them that move no operations."""
        found = {name: self.regions.find(kind, name) for name in self._chosen_of(kind)}
        return frozenset(name for name, region in found.items() if region is not None and not region.moves)

    def _copies(self, chosen_of: Callable[[type], frozenset[str]]) -> Copies:
        """Of the functions that recordings run, with calls of some regions."""

        def outlined(kind: type | None, function: FunctionType) -> FunctionType:
            """A method of a class, or a helper, with calls of these; any other function as it is."""
            helper = self.regions.helper(function) if kind is None else None
            kind = kind if helper is None else type(helper.module)
            made = None if kind is None else self.regions.outlined(kind, function, chosen_of(kind))
            return function if made is None else made

        def regions_of(kind: type) -> dict[str, Any]:
            """What these call, by name."""
            regions = {name: self.regions.find(kind, name) for name in chosen_of(kind)}
            return {name: region.function for name, region in regions.items() if region is not None}

        return Copies(outlined, regions_of, bool(self.ragged))

    def moving(self, kind: type) -> Iterator[str]:
        """Names of a class's methods in which regions move operations."""
        for chosen in self._chosen_of(kind) - self._unmoved_of(kind):
            yield chosen.rpartition(":")[0]

    @property
    def copies_as_written(self) -> Copies:
        """Copies in which nothing moves, for recorders that keep books (`code.regions`, definition (5))."""
        if self._as_written is None:
            self._as_written = self._copies(self._unmoved_of)
        return self._as_written

    def follow_code(self) -> bool:
        """Make copies of functions anew where a name in them means something else by now; False where none does.
        Automatic cells that were proven by it are recorded by their operations from then on."""
        if self.copies.look_ups.still_hold() and self.closed.look_ups.still_hold():
            return False
        before, closed = self._proofs, self.closed
        broken = {name: closed.first_broken(*proof) for name, proof in before.items()}
        self.regions = Regions(self.model, Closed(self.model))
        self.automatic = self._proven(name for name, what in broken.items() if what is None)
        for name in before:
            if name not in self._proofs or not _is_same(self._proofs[name][0], before[name][0]):
                self.automatic.pop(name, None)
                self.given_up[name] = broken[name] or f"the code of {name.partition(':')[0]}"
        self._chosen, self._spare, self._as_written = {}, {}, None
        self.copies = self._copies(self._chosen_of)
        return True

    def follow_caches(self) -> bool:
        """Let instances find in caches what the model has now, where somebody else has set any of them since: a number,
        text, None or tensor other than what mini-batches have left there (`LEFT`). False where nobody has."""
        found = False
        for module, held, seen in self._modules_with_caches:
            left = LEFT.pop(module, {})
            for name, before in seen.items():
                seen[name] = now = vars(module).get(name, before)
                is_other = now is not before and now is not left.get(name, seen) and _is_plain_state(now)
                found |= is_other and not are_equal(now, held[name])
        for _, held, seen in self._modules_with_caches if found else ():
            held.update({name: now for name, now in seen.items() if _is_plain_state(now)})
        return found

    @functools.cached_property
    def _modules_with_caches(self) -> list[tuple[nn.Module, dict[str, Any], dict[str, Any]]]:
        """With what instances find, and what the modules had when that was last asked; those all of whose caches are
        found as they were: one that stays as an instance left it says nothing of the others."""
        found = [(module, self._caches[path]) for path, module in self._modules if self._caches[path]]
        return [(module, of, {**of}) for module, of in found if self.closed.caches & vars(module).keys() == of.keys()]

    def module_of(self, operation: Operation) -> tuple[nn.Module, str, str]:
        """The module whose method a cell or module is, its path, and the method's name."""
        path, method = self.automatic.get(operation.name) or located(self.model, operation.name)
        return module_at(self.model, path), path, method

    def require_unchanged(self) -> None:
        """Raise StaleError when modules, shapes of tensors, or attributes have changed since the view was made.

        Values of parameters may change, and tensors be replaced by others of their class, tied ones at all places;
        attributes that forward itself assigns may (eager execution does so on the model). What happens inside an
        attribute is seen of tensors in a list, tuple or dict that no code which forward may reach changes: the shadow
        has copies. Names that marked cells read are what they were too.
        """
        refuse_hooks_of_all()
        if not self._promised.still_hold():
            raise StaleError(
                f"{self._promised.first_broken()}, which a marked cell reads, means something else than when the model "
                "was bound, and a cell is traced once; bind the model again"
            )
        for first, *others in self._tied:
            for other in others:
                if self.tensor(first) is not self.tensor(other):
                    raise StaleError(
                        f"{first} and {other} of the model were one tensor when it was bound and are two now; tie them "
                        "again, or bind the model again"
                    )
        if self._glance.still_holds():
            return
        for (path, module), before in zip(self._modules, self._state, strict=True):
            now = _state(module, self._changing)
            for changed in before:
                if now.get(changed) == before[changed]:
                    continue
                if (path, changed) in self._assigned or (path, changed) in self.written:
                    continue
                if changed in self._caches.get(path, ()) or (path, changed) in self.closed.states_of_forward:
                    continue
                raise StaleError(
                    f"attribute {f'{path}.{changed}' if path else changed!r} of the model changed after it was bound; "
                    "bind the model again"
                )
        self._glance = _Glance([module for _, module in self._modules], self._changing)

    @property
    def assigned(self) -> list[str]:
        """Dotted names of the attributes that forward has assigned to on shadows."""
        return sorted(f"{path}.{name}" if path else name for path, name in self._assigned)

    def has_assigned(self, path: str, name: str) -> bool:
        """Whether that was noted."""
        return (path, name) in self._assigned

    def note_assigned(self, path: str, name: str) -> None:
        """Forward changes an attribute of the module at a path."""
        self._assigned.add((path, name))

    def tensor(self, name: str) -> torch.Tensor:
        """The parameter, buffer or attribute with a dotted name, as it is now."""
        home = self._owners.get(name)
        if home is None:
            owner, _, last = name.rpartition(".")
            home = self._owners[name] = module_at(self.model, owner), last
        return getattr(*home)

    def shared(self, ref: SharedRef) -> torch.Tensor:
        """The model's parameter or buffer behind a reference, with its views taken."""
        return through(ref.views, self.tensor(ref.name), self.shared)

    def relied_on(self, ref: SharedRef) -> torch.Tensor | None:
        """What stands behind a reference to buffers, as it is now: where one of them changes, all is recorded anew.
        None of parameters, and where that has happened before, of flags more than MOST_FLIPS times."""
        names = _names_behind(ref)
        tensors = {name: self.tensor(name) for name in names}
        may_train = any(isinstance(t, nn.Parameter) for name, t in tensors.items() if name not in self._flags)
        is_unsteady = any(self.changes[name] > (MOST_FLIPS if name in self._flags else 0) for name in names)
        if is_unsteady or may_train or any(t.requires_grad for t in tensors.values()):
            return None
        for name, tensor in tensors.items():
            if name not in self._relied or not self._relied[name].get(name):
                self._relied[name] = _Contents(self, tensor)
            self.copies.look_ups.add(LookUp(self._relied[name], name, True))  # type: ignore[arg-type]
        return self.shared(ref)

    def flag(self, ref: SharedRef) -> torch.Tensor | None:
        """What stands behind a reference to flags alone, in the same way."""
        return self.relied_on(ref) if _names_behind(ref) <= self._flags else None

    @functools.cached_property
    def _flags(self) -> frozenset[str]:
        return frozenset(flags_of(self.model))

    def shadow(self, module: nn.Module, recorder: Recorder) -> nn.Module:
        """A copy of `module` with stand-ins for all tensors of the model. Raises ModelError when copying fails."""
        return self._copied(module, recorder).shadow

    def take_what_was_left(self) -> None:
        """For the first shadow of the whole model, let attributes that forward may assign be what eager execution has
        left there since the view was made: no other shadow has others, and code that was proven closed reads none of
        them. What was promised may."""
        promised = any(is_cell(module) or is_closed(module) for _, module in self._modules)
        if not (self._has_recorded or promised or self._glance.still_holds()):
            for (_, module), before in zip(self._modules, self._state, strict=True):
                now = _state(module, self._changing)
                names = before.keys() & now.keys() & vars(module).keys()
                before.update({name: now[name] for name in names if self.closed.may_assign(module, name)})
        self._has_recorded = True

    def _copied(self, module: nn.Module, recorder: Recorder) -> _Spare:
        memo = _StandIns(module, recorder, self._tensors_by_id(module))
        try:
            shadow = copy.deepcopy(module, memo)
        except Exception as error:
            raise ModelError(
                f"{type(module).__name__}: expected a model that copy.deepcopy can copy, got {type(error).__name__}: "
                f"{error}; keep locks, files and generators out of its attributes"
            ) from error
        own_path = self._paths[id(module)]
        for path, part in shadow.named_modules():
            path = ".".join(filter(None, (own_path, path)))
            for name in self.steady_caches & vars(part).keys() if path in self._caches else ():
                del vars(part)[name]
            vars(part).update(copy.deepcopy(self._caches.get(path, {}), memo))
            copies = (self.copies_as_written if recorder.keeps_books else self.copies).methods(type(part))
            _watch_assignments(path, part, self, copies, recorder)
        return _Spare(shadow, memo.made)

    @contextmanager
    def _lent(self, module: nn.Module, recorder: Recorder, evaluating: bool) -> Iterator[nn.Module]:
        """A shadow for one trace of a closed method: that of an earlier trace, if nobody else has it. A region is a
        method of the module that its lines stand in, often the whole model, and is traced once per signature."""
        key, spares = (id(module), evaluating, recorder.keeps_books), self._spare
        spare = spares.pop(key, None)
        if spare is None:
            spare = self._copied(module, recorder)
        else:
            for stand_in in spare.stand_ins:
                stand_in.__init__(recorder, stand_in.ref, stand_in.tensor)  # type: ignore[misc]
        yield spare.shadow
        spares[key] = spare

    def _tensors_by_id(self, module: nn.Module) -> dict[int, tuple[str, torch.Tensor]]:
        """The model's tensors with their names. They are looked up anew only after `require_unchanged` has seen others,
        or where this module has one by now: there are models of a thousand modules, and every cell has a shadow."""
        glance, known = self._named
        if glance is not self._glance or any(id(tensor) not in known for _, tensor in shared_tensors(module)):
            known = {id(tensor): (name, tensor) for name, tensor in shared_tensors(self.model)}
            own = memories_of(self.model)
            for path, held in self._caches.items():
                for name, item in held.items():
                    is_left = known.get(id(item), ("",))[0] == (f"{path}.{name}" if path else name)
                    if is_left and memory_of(item) not in own:
                        del known[id(item)]  # no tensor of the model's, but what an instance has left
            self._named = self._glance, known
        return known

    def output_classes(self, operation: Operation) -> tuple[Any, tuple[ValueClass, ...]]:
        """Template of the outputs of a cell or module and the class of each."""
        trace = self.trace(operation)
        return trace.template, tuple(class_of(value._meta()) for value in trace.outputs)

    def demands(self, operation: Operation) -> tuple[frozenset[int], ...]:
        """What calls of an automatic cell must give, see `Entry.demands`."""
        return self.trace(operation).demands

    def makes_memory(self, operation: Operation) -> bool:
        """Whether each output of a cell or module is memory of its own, which no operand and no other output shows."""
        trace = self.trace(operation)
        recording, refs = trace.recording, {output.ref for output in trace.outputs}
        value = recording.first_value
        for index in recording.entries:
            entry = recording.table.entries[index]
            end = value + len(entry.output_slots)
            if any(value <= ref < end for ref in refs) and not is_apart(entry.operation, self):
                return False
            value = end
        return min(refs, default=-1) >= 0 and (len(refs) == len(trace.outputs) or self._are_parts(trace.outputs))

    def _are_parts(self, outputs: Sequence[Value]) -> bool:
        """Whether outputs that show the same values (`gates.chunk(4)`) show other elements of them each."""
        shown = []
        for output in outputs:
            shape = output.slot.base.shape
            places = torch.arange(math.prod(shape)).view(shape)
            shown += [
                (output.ref, place) for place in through(output.slot.views, places, self.shared).flatten().tolist()
            ]
        return len({*shown}) == len(shown)

    @property
    def may_draw(self) -> bool:
        """True when random operations are recorded: in training."""
        return self.model.training

    def draws(self, operation: Operation) -> Sequence[tuple[Draw, ValueClass]]:
        """What a cell draws, in order."""
        return self.trace(operation).draws

    def share_traces(self, traces: SharedTraces) -> None:
        """Take traces that other views have made, and leave those of this one, while nothing of the model changes. They
        compute the same; where other regions are cells (`_outlined`), their operations may stand in another order, so
        nothing is to run by them."""
        self._shared_traces = traces

    def trace(self, operation: Operation, evaluating: bool = False) -> CellTrace:
        """The operations of a cell, module or function for operands of the given slots; in eval mode where it is
        `evaluating`, whatever the model's mode is."""
        known = self._traces.get((operation, evaluating))
        if known is None:
            known = self._traces[operation, evaluating] = self._found_or_made(operation, evaluating)
        return known

    def _found_or_made(self, operation: Operation, evaluating: bool) -> CellTrace:
        traces = self._shared_traces
        if traces is None or operation.members:
            with ExitStack() as lent:
                return self._trace(operation, evaluating, lent)
        key = self.ragged, evaluating, written(operation)
        if key not in traces:
            try:
                with ExitStack() as lent:
                    traces[key] = self._trace(operation, evaluating, lent)
            except EdbcError as error:
                traces[key] = type(error)(*error.args)  # without its frames
        found = traces[key]
        if isinstance(found, CellTrace):
            return found
        raise type(found)(*found.args)  # what is kept is to keep no frames

    def _trace(self, operation: Operation, evaluating: bool, lent: ExitStack, keeps_books: bool = False) -> CellTrace:
        recorder = Recorder(TypeTable(), in_cell=True, home=operation.autocast)
        recorder.tracer = self
        is_automatic = operation.is_of_module and operation.name in self.automatic
        if is_automatic:
            recorder.most_entries = MAX_OPERATIONS
        if keeps_books:
            recorder.keep_books()
        function: Callable[..., Any]
        operands = [self._operand(recorder, index, slot) for index, slot in enumerate(operation.slots)]
        num_passed = len(operation.passed)
        recorder.drawn_operands = operands[num_passed:]
        function = self._function(operation, recorder, evaluating, lent)
        args, kwargs = fill(operation.template, operands, lambda ref: self._stand_in(recorder, ref))
        if operation.is_of_module:
            module, _, method = self.module_of(operation)
            names = _operand_names(getattr(module, method, function), operation.template, num_passed)
            names += [f"drawn{number}" for number in range(len(operation.draws))]
        else:
            names = [f"x{i}" for i in range(len(operands))]
        if recorder.books is not None:
            recorder.books.hold(operands)
        before = shape_of((args, kwargs))
        try:
            with NoRandomNumbers(), KeepsBooks(recorder), entered(operation.autocast), watched_by(recorder):
                result = function(*args, **kwargs)
                require_none_caught(recorder.refused)
        except MustKeepBooks:
            if any(member is not None and self._is_region(member) for member, *_ in operation.members or ()):
                raise NotACell(
                    "members change tensors, and lines that others are run as they are written then"
                ) from None
            return self._trace(operation, evaluating, lent, keeps_books=True)
        except EdbcError as error:
            raise type(error)(f"{error} (in {operation.kind} {operation.name})") from error
        template, outputs = split_outputs(result, operation.name)
        values = tuple(self._as_value(recorder, output) for output in outputs)
        classes = [*(operand.slot.base for operand in recorder.drawn_operands), *recorder.drawn_classes]
        draws = tuple(zip(recorder.draws, classes, strict=False))
        made_of = _made_of(recorder, [operand.ref for operand in operands], values)
        if is_automatic:
            given = {operand.ref for operand in operands}
            is_passed = any(value.ref in given for value in values)
            require_cell((args, kwargs), before, len(recorder.entries), template, is_passed)
            if not any(made_of):  # eager code has them at once, and may look at them without waiting
                raise NotACell("it gives constants")
        demands = tuple({frozenset(x for x in found if x is not None) for found in made_of if None not in found})
        return CellTrace(recorder.finish([list(values)]), tuple(names), values, template, draws, demands)

    def _function(self, operation: Operation, recorder: Recorder, evaluating: bool,
                  lent: ExitStack) -> Callable[..., Any]:  # fmt: skip
        """What an operation runs on stand-ins, as long as shadows are `lent`."""
        if operation.members:
            return functools.partial(self._run_members, operation.members, recorder, evaluating, lent)
        if operation.call is not None:
            return functools.partial(_as_function, recorder, operation)
        module, _, method = self.module_of(operation)
        if operation.name in self.automatic:
            shadow = lent.enter_context(self._lent(module, recorder, evaluating))
        else:
            shadow = self.shadow(module, recorder)
        if evaluating:
            self._sets_modes = True
            try:
                shadow.eval()
            finally:
                self._sets_modes = False
        if is_leaf(module) and getattr(module, "inplace", False):
            shadow.inplace = False  # type: ignore[assignment]  # who calls it knows (`_changing`)
        return shadow if method == "forward" else getattr(shadow, method)

    def _is_region(self, operation: Operation) -> bool:
        return operation.is_of_module and ":" in self.module_of(operation)[2]

    def _run_members(self, members: Sequence[Fused], recorder: Recorder, evaluating: bool, lent: ExitStack,
                     *given: Any) -> tuple[Any, ...]:  # fmt: skip
        """The outputs of a pattern's exit."""
        made: list[Sequence[Any]] = []
        stand_in = functools.partial(self._stand_in, recorder)
        for operation, reads, shapes in members:
            operands = [given[number] if which == OPERAND else made[which][number] for which, number in reads]
            operands = [x if x.shape == shape else x.view(shape) for x, shape in zip(operands, shapes, strict=True)]
            if operation is None:
                made.append([functools.reduce(operator.add, operands)])
                continue
            for place, slot in enumerate(operation.slots):
                operands[place] = through(slot.views, operands[place], stand_in, recorder.function)
            args, kwargs = fill(operation.template, operands, stand_in)
            with entered(operation.autocast):
                result = self._function(operation, recorder, evaluating, lent)(*args, **kwargs)
            made.append(split_outputs(result, operation.name)[1])
        return tuple(made[-1])

    def is_training(self, operation: Operation) -> bool:
        """Whether it calls a module that is in training mode."""
        if operation.members:
            return any(self.is_training(member) for member, *_ in operation.members if member is not None)
        return operation.is_of_module and self.module_of(operation)[0].training

    def _operand(self, recorder: Recorder, index: int, slot: Slot) -> Value:
        table = recorder.table
        operand = recorder.external(table.given_source("operand", slot.base), index, table.slot(slot.base))
        if not slot.views:
            return operand
        return value_of(recorder, operand.ref, table.slot(slot.base, slot.views, slot.meta()))

    def _stand_in(self, recorder: Recorder, ref: SharedRef) -> Shared:
        return Shared(recorder, ref, self.shared(ref).detach())

    def _as_value(self, recorder: Recorder, output: Any) -> Value:
        if type(output) is Value:
            return output
        if type(output) is Shared:
            return recorder.whole(output)
        if isinstance(output, Lazy):
            return output.materialise()
        return recorder.constant(output)


def _made_of(recorder: Recorder, operands: Sequence[int], outputs: Sequence[Value]) -> list[frozenset[int | None]]:
    """What each result of a cell that has been recorded is made of: operands, or (None) parameters.
    O(operations * operands)."""
    made_of: dict[int, frozenset[int | None]] = {ref: frozenset([i]) for i, ref in enumerate(operands)}
    made_of |= {value.ref: frozenset([None]) for value in recorder._whole.values()}
    at, number = 0, recorder.first_value
    for index in recorder.entries:
        entry = recorder.table.entries[index]
        read = recorder.refs[at : at + entry.num_operands]
        found = frozenset[int | None]().union(*(made_of.get(ref, frozenset()) for ref in read))
        found |= {None} if shared_refs(entry.operation.template) else frozenset()
        made_of |= {number + i: found for i in range(len(entry.output_slots))}
        at, number = at + entry.num_operands, number + len(entry.output_slots)
    return [made_of.get(value.ref, frozenset()) for value in outputs]


def _names_behind(ref: SharedRef) -> set[str]:
    """Of all tensors of the model that a reference reads."""
    return {ref.name}.union(*(_names_behind(other) for view in ref.views for other in shared_refs(view.template)))


MOST_FLIPS = 16
"""How often a flag that is looked at without waiting may change: each time all is recorded anew."""


def flags_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that say yes or no (`self.initialized`), at which forward may look without waiting."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: t for name, t in tensors if t.dtype in (torch.bool, torch.uint8) and t.numel() == 1}


class _Contents:
    """A buffer as a namespace: what its name finds is True as long as nobody has changed it. One number is looked at:
    versions tell nothing of what is done to `.data`."""

    def __init__(self, view: ModelView, tensor: torch.Tensor):
        self._view, self._tensor, self._version = view, tensor, tensor._version
        self._number = tensor.item() if tensor.numel() == 1 else None
        self._has_changed = False

    def get(self, name: str, _missing: Any = None) -> bool:
        """Whether it is what it was."""
        now = self._view.tensor(name)
        is_same = now is self._tensor and now._version == self._version
        if self._number is not None and now.numel() == 1:
            is_same = now.item() == self._number
        if not is_same and not self._has_changed:
            self._has_changed = True
            self._view.changes[name] += 1
        return is_same


def _is_same(one: FunctionType, other: FunctionType) -> bool:
    """Whether functions are one, or regions that were made twice of the same lines."""
    are_made = "_edbc_definition" in one.__dict__ and "_edbc_definition" in other.__dict__
    return one is other or (are_made and one.__code__ == other.__code__ and one.__globals__ is other.__globals__)


def _as_function(recorder: Recorder, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    assert operation.call is not None
    return recorder.function(operation.call, args, kwargs, operation.name)


class _StandIns(Memo):
    """Of a tensor of the model the stand-in, made when a copy first meets the tensor."""

    def __init__(self, module: nn.Module, recorder: Recorder, tensors: dict[int, tuple[str, torch.Tensor]]):
        super().__init__(module)
        for key in self.keys() & tensors.keys():
            del self[key]
        self._recorder, self._tensors = recorder, tensors
        self.made: list[Shared] = []

    def get(self, key: int, default: Any = None) -> Any:
        """The copy of the object with an identity."""
        if key not in self and key in self._tensors:
            name, tensor = self._tensors[key]
            self[key] = Shared(self._recorder, SharedRef(name), tensor.detach())
            self.made.append(self[key])
        return super().get(key, default)


class _Spare(NamedTuple):
    """A shadow, and its stand-ins, which other recorders may take over."""

    shadow: nn.Module
    stand_ins: list[Shared]


_PLAIN = (int, float, str, bool, type(None))


def _state(module: nn.Module, changing: Collection[str]) -> dict[str, Any]:
    """What must stay as it is for a shadow to stand for a module; inside attributes of the names that are `changing`
    tensors may be others."""
    state: dict[str, Any] = {"__class__": type(module), "(number of hooks)": num_hooks(module)}
    for name, value in module.__dict__.items():
        if isinstance(value, torch.Tensor):
            state[name] = (value.shape, value.dtype)
        elif not name.startswith("_"):
            held = [(id(x), version_of(x)) for x in _tensors_in(name, value, changing)]
            state[name] = value if isinstance(value, _PLAIN) else (id(value), *held)
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        state[name] = None if tensor is None else (tensor.shape, tensor.dtype)
    for name, child in module._modules.items():
        state[name] = id(child)
    return state


def _tensors_in(name: str, value: Any, changing: Collection[str]) -> list[torch.Tensor]:
    """The tensors that stand in a list, tuple or dict, unless code changes what is in it."""
    if type(value) not in (dict, list, tuple) or not 0 < len(value) <= MOST_ITEMS or name in changing:
        return []
    return [x for x in (value.values() if type(value) is dict else value) if isinstance(x, torch.Tensor)]


class _Glance:
    """What modules refer to: whether all of it is still there is told in a fraction of the time of `_state`, which then
    need not be asked. Holds what it compares, so that nothing new can stand at an old address. No Python runs per
    module."""

    def __init__(self, modules: Sequence[nn.Module], changing: Collection[str]):
        self._modules, self._changing = modules, changing
        self._kinds = list(map(type, modules))
        referred = [d.values() for m in modules for d in (m.__dict__, m._parameters, m._buffers, m._modules)]
        self._referred = list(filter(len, referred))
        """None that are empty: what becomes an attribute later is no part of the `_state` that was."""
        self._lengths = list(map(len, self._referred))
        self._objects = list(itertools.chain.from_iterable(self._referred))
        self._tensors = [t for t in self._objects if isinstance(t, torch.Tensor)]
        self._shapes, self._dtypes = list(map(_SHAPE, self._tensors)), list(map(_DTYPE, self._tensors))
        self._hooks = [hooks for module in modules for hooks in hooks_of(module)]
        self._hook_counts = list(map(len, self._hooks))
        self._has_hooks = any(self._hooks)
        named = [(name, value) for module in modules for name, value in module.__dict__.items()]
        self._holders = [
            (name, value) for name, value in named if name[:1] != "_" and _tensors_in(name, value, changing)
        ]
        self._held = self._in_holders()
        self._versions = list(map(version_of, self._held))

    def _in_holders(self) -> list[torch.Tensor]:
        return [x for name, value in self._holders for x in _tensors_in(name, value, self._changing)]

    def _holds_same(self) -> bool:
        """True when lists and dicts hold the very same tensors, none of which has changed in place."""
        now = self._in_holders()
        is_same = len(now) == len(self._held) and all(map(operator.is_, now, self._held))
        return is_same and list(map(version_of, now)) == self._versions

    def still_holds(self) -> bool:
        """True when the modules refer to the very same objects; then their `_state` is what it was."""
        return (
            list(map(type, self._modules)) == self._kinds
            and list(map(len, self._referred)) == self._lengths
            and all(map(operator.is_, itertools.chain.from_iterable(self._referred), self._objects))
            and list(map(_SHAPE, self._tensors)) == self._shapes
            and list(map(_DTYPE, self._tensors)) == self._dtypes
            and (list(map(len, self._hooks)) == self._hook_counts if self._has_hooks else not any(self._hooks))
            and (not self._holders or self._holds_same())
        )


def _is_plain_state(item: Any) -> bool:
    return type(item) is torch.Tensor or is_plain(item)


_SHAPE, _DTYPE = operator.attrgetter("shape"), operator.attrgetter("dtype")


def _watch_assignments(path: str, module: nn.Module, view: ModelView, copies: dict[str, Any],
                       recorder: Recorder) -> None:  # fmt: skip
    """Make a shadow run copies of its methods, refuse to give a parameter or buffer another tensor than it is, and note
    what else forward assigns, and what caches were."""
    kind, assigned, written, caches = type(module), view._assigned, view.written, view.steady_caches
    tensors = frozenset((*module._parameters, *module._buffers))
    is_torchs = kind.__setattr__ is nn.Module.__setattr__

    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        if name in tensors and value is getattr(self, name):  # `self.mask = self.mask.to(x.device)`
            return
        if name in tensors:
            refuse(
                f"forward assigned to {name!r}, a parameter or buffer of the model",
                "keep state that changes in the instance, or return it",
            )
        if name == "training" and not view._sets_modes:
            _require_mode(path, view, value)
        if not name.startswith("__"):
            written.add((path, name))
        if not name.startswith("_"):
            assigned.add((path, name))
        if name in caches:
            recorder.caches.setdefault((self, name), {name: vars(self)[name]} if name in vars(self) else {})
        if is_torchs and issubclass(type(value), Symbol) and name not in self._modules:
            object.__setattr__(self, name, value)  # what torch's does, which asks four times what the value is
        else:
            kind.__setattr__(self, name, value)

    def get_attribute(self: nn.Module, name: str) -> Any:
        if (path, name) in recorder.gone:  # which the instance has not assigned yet
            raise CannotKeep
        return kind.__getattr__(self, name)

    def deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:  # as eager's: none of the model's, so no node
        copied = memo[id(self)] = kind.__new__(kind)
        copied.__class__ = derived_class(kind, copies)
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    own: dict[str, Any] = {} if hasattr(kind, "__deepcopy__") else {"__deepcopy__": deep_copy}
    own |= {"__setattr__": set_attribute, "__getattr__": get_attribute}
    module.__class__ = derived_class(kind, own | copies)


def _require_mode(path: str, view: ModelView, mode: bool) -> None:
    """Raise UnsupportedError where forward puts a module into a mode in which it computes otherwise: cells are traced
    in the mode that the user's module has."""
    module = module_at(view.model, path)
    if mode != module.training and differs_in_training(module):
        name = f"{path!r}, {type(module).__name__}," if path else type(module).__name__
        refuse(
            f"forward puts {name} into {'training' if mode else 'evaluation'} mode, in which it computes otherwise",
            "call train() or eval() before forward, or let the model's own train() keep it in its mode",
        )


def recording_shadow(view: ModelView, table: TypeTable, home: State = None) -> tuple[nn.Module, Recorder]:
    """A shadow of the whole model on which running `forward` records, and its recorder."""
    refuse_hooks(view.model, lambda module: is_cell(module) or is_leaf(module))
    recorder = Recorder(table, home=home)
    recorder.tracer = view
    recorder.ragged = view.ragged
    view.take_what_was_left()
    shadow = recorder.root = view.shadow(view.model, recorder)
    for path, module in list(shadow.named_modules()):
        if path and (is_cell(module) or is_leaf(module)):
            _record_calls(recorder, path, module)
    for name, (path, method) in view.automatic.items():
        _record_automatic(recorder, name, module_at(shadow, path), method)
    if any(":" in method for _, method in view.automatic.values()):
        recorder.before_books = functools.partial(_run_as_written, view, shadow)
    for module in shadow.modules():
        # nn.Module finds children and parameters in __getattr__, after everything else failed; a plain attribute of
        # the same name is found at once (measured: half of the time of a recorded call).
        module.__dict__.update(
            {
                k: v
                for k, v in {**module._modules, **module._parameters, **module._buffers}.items()
                if v is not None and k.isidentifier() and not hasattr(type(module), k)
            }
        )
    return shadow, recorder


def _record_calls(recorder: Recorder, path: str, module: nn.Module) -> None:
    changes = is_leaf(module) and getattr(module, "inplace", False)

    def become(call: Callable[..., Any]) -> None:
        call = _changing(recorder, call) if changes else call
        type(module).__call__ = call  # type: ignore[method-assign]

    if isinstance(module, nn.Embedding) and not is_cell(module):
        call = _embedding_call(recorder, module)
        looks_up_numbers(recorder, module)
    elif isinstance(module, _PASS_IN_EVAL) and not is_cell(module):
        call = _pass_call(type(module).forward)
    elif isinstance(module, nn.EmbeddingBag) and not is_cell(module) and _is_plain_bag(module):
        call = _bag_call(recorder, module, path)
    else:
        kind, inside = "cell" if is_cell(module) else "module", type(module).__call__
        inside = _out_of_place(inside) if changes else inside
        call = recorded_call(recorder, path, kind, become, inside=inside)
        call = _changing(recorder, call) if changes else call
    module.__class__ = derived_class(type(module), {"__call__": call})


def _record_automatic(recorder: Recorder, name: str, module: nn.Module, method: str) -> None:
    """Make calls of an automatic cell record a node, where they are cells (`code.automatic`)."""
    attribute = "__call__" if method == "forward" else method
    written = getattr(type(module), attribute)

    def become(call: Callable[..., Any]) -> None:
        call.__dict__["__wrapped__"] = written  # where `inspect.signature` finds its arguments
        setattr(type(module), attribute, call)

    module.__class__ = derived_class(type(module), {})
    become(recorded_call(recorder, name, "cell", become, written))


def _run_as_written(view: ModelView, shadow: nn.Module) -> None:
    """Let a shadow run the methods that move operations as the user wrote them."""
    for module in shadow.modules():
        kind = user_class(module)
        for name in view.moving(kind):
            setattr(type(module), name, view.copies_as_written.methods(kind).get(name, getattr(kind, name)))


def _changing(recorder: Recorder, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a module with `inplace=True`, whose argument shows the result from then on."""

    def changing(self: nn.Module, x: Any) -> Any:
        if not isinstance(x, Symbol) and type(x) is not torch.Tensor:
            return call(self, x)
        if isinstance(x, Ragged | Pairs):
            return changed_rows(x, lambda: call(self, x))
        if recorder.books is None and is_alone(recorder, x):
            return changed_alone(recorder, x, call(self, x))
        with changing_name(recorder, x) as target:
            return recorder.change(target, call(self, target))

    return changing


def _out_of_place(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of an in-place module that leaves its argument alone."""

    def apart(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        module.inplace = False  # type: ignore[assignment]
        try:
            return call(module, *args, **kwargs)
        finally:
            module.inplace = True  # type: ignore[assignment]

    return apart


def _embedding_call(recorder: Recorder, module: nn.Embedding | nn.EmbeddingBag) -> Callable[..., Any]:
    if module.max_norm is not None:
        raise UnsupportedError(
            "nn.Embedding(max_norm=...) changes its weights when it is used; normalise the table once"
        )
    if module.scale_grad_by_freq and module.training:
        raise UnsupportedError(
            "nn.Embedding(scale_grad_by_freq=True): gradients that count the indices of one call are not supported; "
            "leave the option out"
        )

    def call(self: Any, indices: Any) -> Any:
        table: Any = looked_up(self.weight, self.padding_idx, self.sparse)
        if (is_at_once(indices) and indices.ndim <= 1) or isinstance(indices, Index | Mask | Worked):
            return embedded(recorder, table, indices)
        may_be_rows = not recorder.in_cell and (recorder.ragged or recorder.sizes is not None)
        if type(indices) is torch.Tensor and indices.ndim == 2 and 1 in indices.shape and may_be_rows:
            at = indices.shape.index(1)
            rows = embedded(recorder, table, indices.select(at, 0))
            if type(rows) is Ragged:
                rows = rows.unsqueeze(at)
                rows.is_own = True
                return rows
        if isinstance(indices, Lazy) and type(indices) is not Ragged:
            indices = indices.materialise()
        options = {} if self.padding_idx is None else {"padding_idx": self.padding_idx}
        return recorder.function(torch.nn.functional.embedding, (indices, table), options, "embedding")

    return call


def _is_plain_bag(module: nn.EmbeddingBag) -> bool:
    options = module.scale_grad_by_freq, module.sparse, module.include_last_offset
    return module.max_norm is None and module.padding_idx is None and not any(options)


def _bag_call(recorder: Recorder, module: nn.EmbeddingBag, path: str) -> Callable[..., Any]:
    """Of one bag, the rows of a look-up and what becomes of them, which is native and takes rows as externals."""
    rows_of = _embedding_call(recorder, module)
    others: list[Callable[..., Any]] = []
    others.append(
        recorded_call(recorder, path, "module", functools.partial(others.__setitem__, 0), inside=type(module).__call__)
    )
    reduce: Callable[..., Any] = {"sum": torch.sum, "mean": torch.mean}.get(module.mode, _largest)

    def call(self: Any, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        if per_sample_weights is None and (is_at_once(input) or isinstance(input, Index)) and not recorder.in_cell:
            is_line = input.ndim == 2 and offsets is None and input.shape[0] == 1
            is_one = input.ndim == 1 and is_at_once(offsets) and offsets.shape == (1,) and not int(offsets[0])
            one = input[0] if is_line else input if is_one else None
            if one is not None and one.shape[0]:
                return reduce(rows_of(self, one), 0, True)
        return others[0](self, input, offsets, per_sample_weights)

    return call


def _largest(rows: Any, dim: int, keepdim: bool) -> Any:
    return torch.max(rows, dim, keepdim).values


def _pass_call(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, value) if self.training and getattr(self, "p", 0) else value

    return call


def _operand_names(method: Callable[..., Any], template: Any, count: int) -> list[str]:
    """The names of a method's parameters where each is one tensor and a plan may hold them, else x0, x1, ..."""
    args, kwargs = template
    fallback = [f"x{i}" for i in range(count)]
    if kwargs or len(args) != count:
        return fallback
    try:
        names = [
            p.name
            for p in inspect.signature(method).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return fallback
    return names[:count] if len(names) >= count and all(map(str.isascii, names)) else fallback
