"""Shadows: copies of the user's model whose parameters are stand-ins and whose cells record.

Recording must not change the user's model, and several threads may record at once, so each recorder has a shadow of
its own: a deep copy in which every parameter, buffer and plain tensor attribute is one `Shared`, and the class of every
cell and of every leaf module of torch.nn is replaced by a subclass whose call records a node.

A cell itself is traced on a second shadow, of that module alone, in which calls run through: its operations come out
as a recording of torch functions (`CellTrace`), with its operands as externals in order.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edbc.errors import ModelError, UnsupportedError
from edbc.graph import ValueClass
from edbc.trace.mark import is_cell
from edbc.trace.recorder import CellTracer, Recorder, Recording, call_user_code, split_outputs
from edbc.trace.table import Operation, SharedRef, TypeTable, fill
from edbc.trace.values import Rows, Shared, Value, class_of

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_PASS_IN_EVAL = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, eq=False)
class CellTrace:
    """What one cell, module or function computes: a recording whose externals are its operands, then its constants."""

    recording: Recording
    operand_names: tuple[str, ...]
    outputs: tuple[Value, ...]
    template: Any
    """Template of what the call returns."""


def shared_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers and plain tensor attributes of a model with their dotted names, each tensor once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        own = {**module._parameters, **module._buffers}
        own |= {k: v for k, v in module.__dict__.items() if isinstance(v, torch.Tensor)}
        for name, tensor in own.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}" if prefix else name, tensor


def is_leaf(module: nn.Module) -> bool:
    """True for modules that torch.nn itself defines, containers apart."""
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)


class ModelView(CellTracer):
    """Names of modules and tensors of one model, and the traces of its cells."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.name_of_tensor = {id(tensor): name for name, tensor in shared_tensors(model)}
        self._traces: dict[Operation, CellTrace] = {}

    def tensor(self, name: str) -> torch.Tensor:
        """The parameter, buffer or attribute with a dotted name, as it is now."""
        owner, _, last = name.rpartition(".")
        return getattr(self.model.get_submodule(owner), last)

    def shared(self, ref: SharedRef) -> torch.Tensor:
        """See CellTracer."""
        tensor = self.tensor(ref.name)
        for view in ref.views:
            tensor = view.apply(tensor)
        return tensor

    def shadow(self, module: nn.Module, recorder: Recorder) -> nn.Module:
        """A copy of `module` with stand-ins for all tensors of the model. Raises ModelError when it cannot be copied."""
        memo: dict[int, Any] = {
            id(tensor): Shared(recorder, name, tensor.detach()) for name, tensor in shared_tensors(self.model)
        }
        try:
            return copy.deepcopy(module, memo)
        except Exception as error:
            raise ModelError(
                f"{type(module).__name__}: expected a model that copy.deepcopy can copy, got {type(error).__name__}: "
                f"{error}; keep locks, files and generators out of its attributes"
            ) from error

    def output_classes(self, operation: Operation) -> tuple[Any, tuple[ValueClass, ...]]:
        """See CellTracer."""
        trace = self.trace(operation)
        return trace.template, tuple(class_of(value._meta()) for value in trace.outputs)

    def trace(self, operation: Operation) -> CellTrace:
        """The operations of a cell, module or function for operands of the given slots."""
        known = self._traces.get(operation)
        if known is None:
            known = self._traces[operation] = self._trace(operation)
        return known

    def _trace(self, operation: Operation) -> CellTrace:
        recorder = Recorder(TypeTable(), name_values=True)
        recorder._tracer = self
        table = recorder.table
        operands = []
        for index, slot in enumerate(operation.slots):
            plain = table.slot(slot.base)
            operand = recorder.external(-1, index, plain)
            operands.append(operand if not slot.views else Value(recorder, operand.ref, table.slot(
                slot.base, slot.views, slot.meta())))  # fmt: skip
        if operation.call is not None:
            function, names = operation.call, [f"x{i}" for i in range(len(operands))]
            args, kwargs = fill(operation.template, operands, lambda ref: self._stand_in(recorder, ref))
        else:
            module = self.model.get_submodule(operation.name)
            function = self.shadow(module, recorder)
            names = _operand_names(module, operation.template, len(operands))
            args, kwargs = fill(operation.template, operands)
        result = call_user_code(f"{operation.kind} {operation.name}", lambda: function(*args, **kwargs))
        template, outputs = split_outputs(result, operation.name)
        values = tuple(self._as_value(recorder, output) for output in outputs)
        return CellTrace(recorder.finish([result]), tuple(names), values, template)

    def _stand_in(self, recorder: Recorder, ref: SharedRef) -> Shared:
        return Shared(recorder, ref.name, self.shared(ref).detach(), ref.views)

    def _as_value(self, recorder: Recorder, output: Any) -> Value:
        if type(output) is Value:
            return output
        if type(output) is Shared:
            return recorder.whole(output)
        if type(output) is Rows:
            return output.materialise()
        return recorder.constant(output)


def recording_shadow(view: ModelView, table: TypeTable) -> tuple[nn.Module, Recorder]:
    """A shadow of the whole model on which running `forward` records, and its recorder."""
    recorder = Recorder(table)
    recorder._tracer = view
    shadow = view.shadow(view.model, recorder)
    for path, module in list(shadow.named_modules()):
        if path and (is_cell(module) or is_leaf(module)):
            _record_calls(recorder, path, module)
    for module in shadow.modules():
        # nn.Module finds children and parameters in __getattr__, after everything else failed; a plain attribute of
        # the same name is found at once (measured: half of the time of a recorded call).
        module.__dict__.update({k: v for k, v in {**module._modules, **module._parameters, **module._buffers}.items()
                                if v is not None and k.isidentifier()})  # fmt: skip
    return shadow, recorder


def _record_calls(recorder: Recorder, path: str, module: nn.Module) -> None:
    if isinstance(module, nn.Embedding) and not is_cell(module):
        call = _embedding_call(recorder, module)
    elif isinstance(module, _PASS_IN_EVAL) and not is_cell(module):
        call = _identity_call(path)
    else:
        call = _node_call(recorder, path, "cell" if is_cell(module) else "module")
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _node_call(recorder: Recorder, path: str, kind: str) -> Callable[..., Any]:
    from edbc.trace.table import Hole

    entry_of_slots: dict[Any, Any] = {}

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                key = tuple([a.slot for a in args])
            except AttributeError:
                key = None
            if key is not None:
                entry = entry_of_slots.get(key)
                if entry is not None:
                    recorder.entries.append(entry.index)
                    recorder.refs.extend([a.ref for a in args])
                    first = recorder.num_values
                    slots = entry.output_slots
                    recorder.num_values = first + len(slots)
                    if entry.outputs.__class__ is Hole:
                        return Value(recorder, first, slots[0])
                    values = [Value(recorder, first + i, slot) for i, slot in enumerate(slots)]
                    return tuple(values) if entry.flat else fill(entry.outputs, values)
                result = recorder.call(path, kind, self, args, kwargs)
                entry_of_slots[key] = recorder.table.entries[recorder.entries[-1]]
                return result
        return recorder.call(path, kind, self, args, kwargs)

    return call


def _embedding_call(recorder: Recorder, module: nn.Embedding) -> Callable[..., Any]:
    if module.max_norm is not None:
        raise UnsupportedError("nn.Embedding(max_norm=...) changes its weights when it is used; normalise the table once")

    def call(self: Any, indices: Any) -> Any:
        if type(indices) is torch.Tensor and indices.ndim <= 1:
            return self.weight[indices]
        return torch.nn.functional.embedding(indices, self.weight)

    return call


def _identity_call(path: str) -> Callable[..., Any]:
    def call(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and getattr(self, "p", 0):
            raise UnsupportedError(f"{path}: dropout draws random numbers while the model is in training mode; call "
                                   "model.eval() before binding")
        return value

    return call


def _operand_names(module: nn.Module, template: Any, count: int) -> list[str]:
    """The names of forward's parameters where each is one tensor, else x0, x1, ..."""
    args, kwargs = template
    fallback = [f"x{i}" for i in range(count)]
    if kwargs or len(args) != count:
        return fallback
    try:
        names = [p.name for p in inspect.signature(module.forward).parameters.values()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]  # fmt: skip
    except (TypeError, ValueError):
        return fallback
    return names[:count] if len(names) >= count else fallback
