"""Models that are objects: compiling what a script or a notebook has in its hands.

    net = edbc.compile(model, instances)                     # an nn.Module; a list, data set or DataLoader
    net.plan.save("plan.yaml")
    net = edbc.compile(model, instances, plan="plan.yaml")   # later: checks the plan that stands there, and binds it

(1) A `ModelObject` offers the compiler what a `ModelFile` does: a model, instances, a name, a hash. It is compiled in
    evaluation mode, and gets its own flags back.
(2) Its hash is of code: of every class of the user's among its modules, the source of the functions in their bodies,
    and of the user's functions and plain values that these name, wherever they stand, notebooks too. Weights, the data
    and the rest of the script are not in it. Where source is not to be had, bytecode counts.
(3) A plan that stands is *checked*: it must be of this class and code (or, compiled from a model file, of the file that
    the class stands in), every cell must be what the model's code does now (`Net`), and batched outputs must equal
    eager ones on the given instances. Nothing is learned again, and a stale plan is never replaced in silence.
(4) Instances come in their order: of a DataLoader those of its data set, as its `collate_fn` makes mini-batches of
    them; no more than compiling uses are read.
(5) A convolutional network, whose instances all have one graph, is compiled in stages (`edbc.tools.staged.choosing`).
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import DataLoader

from edbc.base.files import found_at, require_target
from edbc.capture.code.closed import names_in
from edbc.capture.standins.source import is_library
from edbc.errors import InputError, ModelError, StaleError, printable
from edbc.plan.plan import Plan
from edbc.plan.static import StaticPlan, read_any_plan
from edbc.run.modelfile import Config, hash_model_file, is_installed, unknown_key
from edbc.run.session import Net, check_requirements
from edbc.stages import Stages
from edbc.tools.console import ProgressLine, is_live_terminal
from edbc.tools.report.figures import count

if TYPE_CHECKING:
    from edbc.tools.explain.explanation import Explanation
    from edbc.tools.staged.net import StaticNet

_SCALARS = (int, float, str, bool, type(None))


class ModelObject:
    """A model and instances in memory, definitions (1) and (4). Raises ModelError and InputError for what is none."""

    def __init__(self, model: nn.Module, instances: Any, instance: int | str | None = None):
        kind = type(_require_model(model))
        self.model = model
        self.name = kind.__name__
        self.sha256 = hash_code(model)
        self.module: ModuleType | None = sys.modules.get(kind.__module__)
        self._instance = instance
        self._given = iter(items_of(instances, instance))
        self._read: list[Any] = []

    def reference(self, _plan_folder: Path) -> str:
        """What a plan says of it in place of a model file's path."""
        return reference_of(type(self.model))

    def config(self, _settings: Any) -> Config:
        """None: an object is built."""
        return {}

    def build(self, _config: Config, _seed: int) -> nn.Module:
        """The object itself."""
        return self.model

    def sample(self, count: int, _seed: int, _config: Config) -> list[Any]:
        """The first `count` instances, or all there are."""
        return list(self.load((), {}, count))

    def load(self, _paths: Any, _config: Config, limit: int | None = None) -> Iterator[Any]:
        """The first `limit` instances, however often. Raises InputError where there are none."""
        needed = None if limit is None else max(0, limit - len(self._read))
        self._read += itertools.islice(self._given, needed)
        if not self._read:
            raise InputError(f"{self.name}: expected instances to compile on, got none; give a list with at least one")
        return iter(self._read if limit is None else self._read[:limit])


class CompiledNet(Net):
    """What `edbc.compile` gives for an object: a net, callable on lists of instances, that can explain itself."""

    def explain(self, instances: Sequence[Any] | None = None) -> Explanation:
        """What batches with what and why, on these instances or those that it was compiled on."""
        from edbc.tools.explain.explanation import explain_net

        given = list(self.exemplars() if instances is None and self.exemplars is not None else instances or ())
        with evaluating(self.model):
            which = "given" if instances is not None else "that it was compiled on"
            return explain_net(self.in_mode(), given, f"{count(len(given), 'instance')} {which}")


def compile_object(
    model: nn.Module,
    instances: Any,
    *,
    plan: str | Path | None = None,
    renew: bool = False,
    instance: int | str | None = None,
    force: bool = False,
    strict: bool = False,
    recompute: int | str | None = None,
    stages: bool | Stages | None = None,
    **options: Any,
) -> CompiledNet | StaticNet:
    """See `edbc.compile`."""
    from edbc.tools.staged.choosing import is_static_object

    _require_known(options)
    given = ModelObject(model, instances, instance)
    binding: dict[str, Any] = {"force": force, "strict": strict, "recompute": recompute}
    with evaluating(model):
        stands = plan is not None and found_at(plan) != "nothing"
        if plan is not None and stands and not renew:
            return _checked(given, Path(plan), binding)
        target = None if plan is None else Path(plan)
        with _watched(options) as told:
            if stages is not False and (stages is not None or is_static_object(given)):
                return _in_stages(given, target, stages if isinstance(stages, Stages) else Stages(), binding, told)
            return _bound(given, _compiled(given, target, told), binding)


OPTIONS = (
    "seed", "policy", "encoding", "objective", "trials", "time_limit", "split", "mini_batches", "costs", "profile",
    "measure_gain", "cells", "progress",
)  # fmt: skip
"""What compiling an object takes beside what `compile_object` names."""


def _require_known(options: dict[str, Any]) -> None:
    """Raise TypeError, as calls do, for an option that there is not, with the one that was meant."""
    for name in options:
        if name not in OPTIONS:
            named = [p for p, of in inspect.signature(compile_object).parameters.items() if of.kind is of.KEYWORD_ONLY]
            raise TypeError(f"edbc.compile: {unknown_key(name, [*OPTIONS, *named], 'option')}")


@contextmanager
def _watched(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options, with a bar where somebody watches a terminal and no `progress` was given."""
    if options.get("progress") is not None or not is_live_terminal():
        yield options
        return
    line = ProgressLine()
    try:
        yield {**options, "progress": line}
    finally:
        line.finish()


def _in_stages(given: ModelObject, target: Path | None, stages: Stages, binding: dict[str, Any],
               options: dict[str, Any]) -> StaticNet:  # fmt: skip
    """Compile in stages, and write plan and cost table where they shall stand."""
    from edbc.api import what_stands
    from edbc.tools.staged.choosing import compile_object_in_stages
    from edbc.tools.staged.net import MeasuredPlan, StaticNet

    _require_of_stages({**binding, **options})
    profile, report = options.get("profile", False), options.get("progress") or (lambda *_: None)
    found = compile_object_in_stages(given, target, stages, profile=profile, guards=what_stands(target)[0],
                                     progress=report, seed=options.get("seed", 0))  # fmt: skip
    net = StaticNet(MeasuredPlan.of(found.plan, found.table), given.model, given.sample(1, 0, {})[0])
    if target is not None:
        net.plan.save(target)
    return net


OF_STAGES = ("profile", "progress", "seed")
"""Options of batches that stages have too."""


def _require_of_stages(options: dict[str, Any]) -> None:
    wrong = next((name for name, value in options.items() if value and name not in OF_STAGES), None)
    if wrong is not None:
        raise InputError(
            f"{wrong}: expected an option of stages, as all instances of this network have one graph, got one of "
            "batches; leave it away, or compile in batches with stages=False (docs/stages.md)"
        )


def _compiled(given: ModelObject, target: Path | None, options: dict[str, Any]) -> Plan:
    """Compile, and write the plan where it shall stand."""
    from edbc.api import what_stands
    from edbc.tools.compile.compiler import compile_model

    if target is not None:
        require_target(target, "the plan", "name another plan", [])
        guards, stood = what_stands(target)
        options = {"guards": guards, "stood": stood, **options}
    found = compile_model(given, **options).plan
    if target is not None:
        found.save(target)
    return found


def _bound(given: ModelObject, plan: Plan, binding: dict[str, Any]) -> CompiledNet:
    from edbc.capture.captured.structurecache import structure_cache

    net = CompiledNet(plan, given.model, **binding)
    net.cache = structure_cache(given.module)
    net.exemplars = lambda: list(given.load((), {}, plan.trained_on.instances))
    return net


def _checked(given: ModelObject, path: Path, binding: dict[str, Any]) -> CompiledNet | StaticNet:
    """Definition (3). Raises StaleError, CheckFailed, and PlanError for what is no plan."""
    from edbc.tools.compile.compiler import BATCH
    from edbc.tools.parity import Eager, parity_of

    plan = read_any_plan(path)
    check_requirements(plan.requirements)
    require_same_code(plan, path, given)
    if isinstance(plan, StaticPlan):
        from edbc.tools.staged.net import checked_net

        _require_of_stages(binding)
        return checked_net(plan, path, given)
    net = _bound(given, plan, binding)
    parity_of(net, [list(given.load((), {}, BATCH))], Eager(given.model)).require()
    return net


def require_same_code(plan: Plan | StaticPlan, path: Path, given: ModelObject) -> None:
    """Raise StaleError unless the plan is of the object's class and code."""
    remedy = "pass renew=True to compile it anew, or name another plan"
    expected, got = plan.model.path, reference_of(type(given.model))
    if plan.is_of_object:
        have, what = given.sha256, "the code of its classes changed"
        if expected.rpartition(":")[2] != type(given.model).__name__:
            raise StaleError(f"{path}: expected a model of the plan's class {expected}, got one of {got}; {remedy}")
    else:
        have, what = _file_hash(given), f"the model file {expected} changed, or the class stands in another file"
    if have != plan.model.sha256:
        raise StaleError(
            f"{path}: expected the model that the plan was compiled from (sha256 {plan.model.sha256[:16]}...), got "
            f"{have[:16]}...: {what}; {remedy}"
        )


def _file_hash(given: ModelObject) -> str:
    file = getattr(given.module, "__file__", None)
    return hash_model_file(file) if file is not None else given.sha256


def reference_of(kind: type) -> str:
    """`module:Class`, with what no plan can hold replaced."""
    module = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "_" for c in kind.__module__)
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in kind.__name__)
    return f"{module[:500]}:{name[:200]}"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """All modules in evaluation mode; afterwards each as it was."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _require_model(model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    what = f"the class {model.__name__}" if isinstance(model, type) else printable(repr(model))
    raise ModelError(
        f"compile: expected a model file's name or a model, an nn.Module, got {what}; build the model, or name its file"
    )


# --- instances -----------------------------------------------------------------------------------------------------


def items_of(data: Any, instance: int | str | None = None) -> Iterator[Any]:
    """Instances of a list, a data set or a DataLoader, definition (4); of items that hold more those at `instance`.

    Raises InputError for what holds no instances."""
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, str | bytes | dict) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise InputError(
            f"compile: expected a list of instances, a data set or a DataLoader, got {type(source).__name__}; put "
            "instances in a list"
        )
    return (item if instance is None else _part(item, instance) for item in _each(source))


def _each(source: Any) -> Iterable[Any]:
    """Items in their order. Map-style data sets may go on raising nothing beyond their end: their length counts."""
    is_mapped = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return (source[i] for i in range(len(source))) if is_mapped else source


def _part(item: Any, instance: int | str) -> Any:
    try:
        return item[instance]
    except (KeyError, IndexError, TypeError):
        raise InputError(
            f"compile: expected items with an instance at {instance!r}, got {type(item).__name__}; say where it is "
            "with instance="
        ) from None


# --- code ----------------------------------------------------------------------------------------------------------


def hash_code(model: nn.Module) -> str:
    """sha256 of definition (2). Linear in the length of the code."""
    digest = hashlib.sha256()
    for text in _texts(model):
        digest.update(f"{len(text)}:".encode())
        digest.update(text.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _texts(model: nn.Module) -> Iterator[str]:
    waiting: list[Any] = list(dict.fromkeys(kind for m in model.modules() for kind in type(m).__mro__))
    seen = set(map(id, waiting))
    while waiting:
        item = waiting.pop(0)
        named: list[Any] = []
        if isinstance(item, type):
            if not _is_users_class(item):
                continue
            yield f"class {item.__qualname__}"
            named = [function for member in vars(item).values() for function in _functions(member)]
        elif isinstance(item, FunctionType) and _is_users_code(item.__code__):
            yield _source(item)
            for name in names_in(item.__code__):
                value = item.__globals__.get(name)
                if isinstance(value, _SCALARS) and name in item.__globals__:
                    yield f"{name} = {value!r}"
                named.append(value)
        waiting += [new for new in named if isinstance(new, type | FunctionType) and id(new) not in seen]
        seen |= set(map(id, named))


def _is_users_class(kind: type) -> bool:
    functions = (function for member in vars(kind).values() for function in _functions(member))
    return any(_is_users_code(function.__code__) for function in functions)


def _is_users_code(code: CodeType) -> bool:
    """Written by the user: no code of torch, of Python or of an installed package, whose versions are no model's."""
    return not is_library(code.co_filename) and not is_installed(code.co_filename)


def _functions(member: Any) -> Iterator[FunctionType]:
    """Functions in a class's body, inside of what decorators make of them."""
    for found in (member, *(getattr(member, name, None) for name in ("__func__", "fget", "func"))):
        if isinstance(found, FunctionType):
            yield inspect.unwrap(found) if isinstance(inspect.unwrap(found), FunctionType) else found


def _source(function: FunctionType) -> str:
    try:
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        return "\n".join(line.rstrip() for line in lines)
    except (OSError, TypeError):
        return _bytecode(function.__code__)


def _bytecode(code: CodeType) -> str:
    inner = [_bytecode(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {inner}"
