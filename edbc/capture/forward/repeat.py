"""Does forward make the same graph of an instance whenever it runs? Asked once, when compiling.

A plan is run on mini-batches of any size in any order, and forward runs on copies of the model (`code.shadow`), so a
forward that counts its calls (`self.k += 1`), appends to a list of the model that nobody clears, or changes a global
variable has no meaning that batched execution could keep: outputs would depend on how instances were grouped. It shows
in what forward records. Some instances are recorded again, each alone: twice, in two orders, on the copy that has
recorded mini-batches, and on a fresh one; the graphs are compared.

What leaves no trace in the graphs is allowed: attributes that are assigned before they are read (a list that forward
fills for one instance), memos that hold no recorded tensor, counters that nobody reads. It happens to the copy: the
user's model keeps its attributes as they are.

What forward may read before it assigns it (`code.assigned`, definition (5)) each instance finds as the model was bound,
whatever ran before. That does as a cache, for which eager execution is asked: it gives the same for an instance
whichever ran before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import nn

from edbc.base.garbage import NoGarbageCollection
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.forward.cutting import RunSegment
from edbc.capture.forward.returned import Result, Run
from edbc.capture.forward.states import Memo, attributes_unchanged
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import TypeTable
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.objects import unchanged
from edbc.capture.standins.source import location_of_function
from edbc.errors import UnsupportedError

ASKED = 4
"""Instances that are recorded again."""
_OWN = frozenset(vars(nn.Module()))
_PLAIN = (int, float, str, bool, bytes, type(None))


def require_repeatable(
    view: ModelView, table: TypeTable, used: tuple[nn.Module, Recorder], instances: Sequence[Any],
    run_segment: RunSegment | None = None,
) -> None:  # fmt: skip
    """Raise UnsupportedError where recording an instance on the `used` shadow gives another graph than on a fresh one.

    The message has the user's line of the first difference and the attributes of the model that forward has changed.
    """
    asked = sorted({round(i * (len(instances) - 1) / (ASKED - 1)) for i in range(ASKED)}) if instances else []
    has_caches = any(name in view.closed.caches for _, name in view.written)
    if has_caches and view.needs_data and _are_caches(view.model, instances, asked):
        return
    shadows = [used, used]
    if True not in used[1].numbers.values():  # how a call's numbers are recorded hangs on those met before
        shadows.append(_fresh(view, table, used[1], instances, run_segment))
    for _, recorder in shadows:
        recorder.remembers, recorder.lets_wait = True, False  # what waits depends on what was read before
    try:
        if has_caches:  # others are to find what all have left
            with unchanged(instances):
                capture(*used, instances, run_segment)
        with NoGarbageCollection():
            passes = [
                _parts(shadow, instances, asked if i else asked[::-1], run_segment) for i, shadow in enumerate(shadows)
            ]
    finally:
        for _, recorder in shadows:
            recorder.remembers, recorder.lets_wait = False, True
    for number in asked:
        for again in passes[1:]:
            line = _first_difference(passes[0][number], again[number])
            if line is not None:
                raise UnsupportedError(
                    f"{line}: expected the same graph whenever forward runs on an instance, got another one for "
                    f"instance {number} when it ran again: {_because(view, used[0])}; let forward depend on the "
                    "instance and the weights alone"
                )
    if has_caches and view.needs_data:
        raise UnsupportedError(
            f"{location_of_function(type(view.model).forward)}: expected the same graph whenever forward runs on an "
            f"instance, got other results after other instances: {_because(view, used[0])}; let forward depend on the "
            "instance and the weights alone"
        )


def _are_caches(model: nn.Module, instances: Sequence[Any], asked: Sequence[int]) -> bool:
    """Whether a copy gives the same for the instances that are asked as it was, and after all, in two orders."""
    copied = copy.deepcopy(model, Memo(model))

    def ran(instance: Any) -> list[Any]:
        with unchanged([instance]), torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            return flat(copied(instance))

    alone = []
    for number in asked:
        with attributes_unchanged(copied):
            alone.append(ran(instances[number]))
    for instance in instances:
        ran(instance)
    after = [ran(instances[number]) for number in asked[::-1]][::-1], [ran(instances[number]) for number in asked]
    return all(len(a) == len(b) and all(map(_is_close, a, b)) for of in after for a, b in zip(alone, of, strict=True))


def _is_close(one: Any, other: Any) -> bool:
    """True where two results are equal but for rounding; what is no tensor and no plain value is the user's affair."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        are_floats = one.shape == other.shape and one.dtype == other.dtype and one.is_floating_point()
        return torch.allclose(one, other, 1e-4, 1e-5, equal_nan=True) if are_floats else _is_same(one, other)
    return type(one) is type(other) and (not isinstance(one, _PLAIN) or one == other or one != one)


def _fresh(view: ModelView, table: TypeTable, used: Recorder, instances: Sequence[Any],
           run_segment: RunSegment | None) -> tuple[nn.Module, Recorder]:  # fmt: skip
    """A new copy whose recorder knows what the `used` one had to learn: what it began to record before stays in the
    first instance, and is no difference. Nor is which instance a kept forward, or a call on rows, was recorded of; they
    are of closed code, so that the copy is as new afterwards."""
    shadow, recorder = recording_shadow(view, table)
    if used.before_books is None and recorder.before_books is not None:
        recorder.keep_books()  # which runs code as written, first
    if used.keeps_books:
        recorder.keep_books()
    if used.kept_forwards or view.ragged:
        with unchanged(instances):
            capture(shadow, recorder, instances, run_segment)
    recorder.needs_deep_stack, recorder.reads = used.needs_deep_stack, used.reads
    recorder.reading_at_once = used.places_read_at_once()
    recorder.read_forwards, recorder.found_forwards = used.read_forwards, used.found_forwards
    recorder.kept_forwards = used.kept_forwards
    recorder.learn_of_calls(used)
    return shadow, recorder


def _parts(
    shadow: tuple[nn.Module, Recorder], instances: Sequence[Any], asked: Sequence[int], run_segment: RunSegment | None
) -> dict[int, Capture]:
    parts = {}
    for number in asked:
        shadow[1].first_instance = number
        with unchanged([instances[number]]):
            parts[number] = capture(*shadow, [instances[number]], run_segment)
    return parts


def _first_difference(one: Capture, other: Capture) -> str | None:
    """The user's line of the first node in which two captures differ; None for equal ones."""
    mine, theirs = one.graph, other.graph
    for node in range(min(mine.num_nodes, theirs.num_nodes)):
        kind = mine.node_type[node]
        reads = mine.operands_of(node), theirs.operands_of(node)
        if kind != theirs.node_type[node] or not _same_reads(one, reads[0], other, reads[1]):
            return max(mine.types[kind].source, theirs.types[theirs.node_type[node]].source, key=len)  # all lines
    if mine.num_nodes != theirs.num_nodes:
        longer, at = max((mine, theirs), key=lambda graph: graph.num_nodes), min(mine.num_nodes, theirs.num_nodes)
        return longer.types[longer.node_type[at]].source
    ours, others = (
        list(zip(part.result_node.tolist(), part.result_output.tolist(), strict=True)) for part in (one, other)
    )
    same = _same_nest(one.results, other.results) and _same_reads(one, ours, other, others)
    return None if same else "what forward returns"


def _same_reads(one: Capture, mine: list[tuple[int, int]], other: Capture, theirs: list[tuple[int, int]]) -> bool:
    return len(mine) == len(theirs) and all(
        _is_same(_read(one, *a), _read(other, *b)) for a, b in zip(mine, theirs, strict=True)
    )


def _read(part: Capture, node: int, output: int) -> Any:
    """A value as it is numbered; an external by its source, and the row of it or the constant."""
    if node >= 0:
        return node, output
    source, index = int(part.external_source[-1 - node]), int(part.external_index[-1 - node])
    pool = part.constants.get(source)
    return source, (index if pool is None else pool[index])


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    return bool(one == other)


def _same_nest(one: Any, other: Any) -> bool:
    """True when two results have their tensors at the same places, and equal plain values; other objects are the
    user's affair. A list of values is a run, or its items one by one: how it was recorded is no difference."""
    one, other = _one_by_one(one), _one_by_one(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same_nest, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same_nest, one.values(), other.values()))
    if isinstance(one, torch.Tensor):
        return _is_same(one, other)
    return one == other or one != one if isinstance(one, (*_PLAIN, Result, Run)) else True


def _one_by_one(nest: Any) -> Any:
    is_told = type(nest) is Run and nest.stop is not None
    return list(map(Result, range(nest.start, nest.stop))) if is_told else nest


def _because(view: ModelView, shadow: nn.Module) -> str:
    changed = list(_changed(view.model, shadow)) or view.assigned
    if not changed:
        return (
            "forward reads what changes outside of the model (a global variable, a class attribute, random numbers), "
            "or changes a tensor of the instance's in place (copy it: x = x.clone())"
        )
    names = ", ".join(map(repr, changed[:3]))
    return f"forward changes {'attribute' if len(changed) == 1 else 'attributes'} {names} of the model"


def _changed(model: nn.Module, shadow: nn.Module) -> Iterator[str]:
    """Dotted names of the attributes in which a shadow has come to differ from its model."""
    copies = dict(shadow.named_modules())
    for path, module in model.named_modules():
        copy = copies.get(path)
        if copy is None:
            continue
        own = {**module._parameters, **module._buffers, **module._modules}
        for name, now in vars(copy).items():
            is_recorders = not name.isidentifier()  # see `capture.record.lookup`
            if name in _OWN or name in own or is_recorders or isinstance(now, torch.Tensor | nn.Module):
                continue
            if name not in vars(module) or _differs(vars(module)[name], now):
                yield f"{path}.{name}" if path else name


def _differs(before: Any, now: Any) -> bool:
    if type(before) is not type(now):
        return not isinstance(before, torch.Tensor)
    if isinstance(now, _PLAIN):
        return bool(before != now)
    if isinstance(now, torch.Tensor) or not isinstance(now, Sized):
        return False
    return len(before) != len(now) or (isinstance(now, list | tuple) and any(map(_differs, before, now)))
