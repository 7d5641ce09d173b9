"""Automatic cells: methods of the user's that are cells though nobody marked them.

A method whose code is closed (`code.closed`) computes its result from its arguments and from what stays, whatever
instance it is called for; so a call of it may be one node. Definitions.

(1) A *candidate* is a closed method of a module, `forward` or another, by the dotted names of both
    (`encoder.combine`); a module's `forward` goes by the module's name alone. The model's own `forward` reads instances
    and is none, nor is what belongs to a marked cell or to a module with hooks.
(2) A call is a node when its arguments are tensors, nests of tensors, and numbers, and when its trace shows two to
    MAX_OPERATIONS operations, changes no tensor in place and no nest that it was given, and hands back no argument as
    it came: `NotACell` says which of these fails. Such a call is recorded operation by operation, as without this file;
    so is every call of a candidate that was not chosen.
(3) All candidates that are called are cells at first, which makes the outermost of nested calls the node. What
    batching loses by that (a cell per length of a list, or of a whole loop; a product that waits for what it does not
    need) is asked of the graph: where recording the candidates of one class and method by their operations costs less,
    they are given up, and what they called is asked next. Those that no node is of (calls on rows) are asked together
    first.
(4) What a sample *costs* is NODE_US for each node, BATCH_US for each batch under a fixed rule, and what its products
    take: a batch reads the weights of its type once, at WEIGHTS_PER_US, and each node multiplies with them, at
    PRODUCTS_PER_US.

The choice is a function of the model and the sample, without a clock. It stands in the plan, and binding a plan takes
it from there: it proves anew that the methods are closed, and leaves out what is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from edbc.base.notebook import shown_name
from edbc.capture.code.closed import Closed, Obstacle, methods_of
from edbc.capture.code.hooks import num_hooks
from edbc.capture.code.mark import is_cell
from edbc.capture.code.regions import Regions
from edbc.capture.standins.standin import Symbol
from edbc.errors import UnsupportedError

MAX_OPERATIONS = 400
"""Of a cell: compiling a longer one takes longer than its batches save."""
MOST_TYPES = 64
"""Of one cell: what is called in more ways is recorded by its operations, which batch whatever the ways."""
NODE_US, JOIN_US, BATCH_US, PLACE_US = 0.5, 0.1, 4.0, 9.0
"""Microseconds: recording a node, and joining it alone; starting a batch, medians of the zoo and of ordinary programs;
and scheduling and placing one of few nodes (least squares over 115 ordinary programs with types per size: 13 with
starting it, 0.24 for each node, 280 for the mini-batch)."""
RUN_US, ROW_US, UNSEEN_US = 4.0, 0.06, 2_000.0
"""Microseconds: recording a call on rows (`capture.ragged`), and each node that it comes to; each operation of a type
that no plan has, which is traced and compiled: 8 milliseconds (graph convolutions and attention), 0.4 where its code
is on disk. Medians of the programs of `benchmarks/ragged.py`."""
READ_US, PYTHON_US, TENSOR_US = 12.0, 0.23, 1.0
"""Microseconds: telling an instance from others where its forward does not run; a call of a function, of Python's or
C's, with what it does itself (medians of `benchmarks/ordinary.py`: 0.15 to 0.35); more for one of torch's, of an
instance's own tensors."""
_NUMBERS = frozenset((int, float, bool, str, torch.Size, torch.dtype, torch.device))
"""What of the arguments is part of a cell's type."""
WEIGHTS_PER_US, PRODUCTS_PER_US = 5_000.0, 25_000.0
"""Definition (4): numbers of 4 bytes at 20 GB/s, and a thread's multiplications; of the machines that edbc meets the
order of magnitude, which is all that a choice needs."""
TORCH_US, CALL_US = 60.0, 10.0
"""Microseconds: a batch that torch runs, or a node of a function of a whole run (15 to 150 in twelve ordinary
programs); each operation more of such a batch (120 for 21, blocks of a transformer)."""
STEP_US = 20.0
"""Microseconds: a step of a recurrent layer that torch runs whole (`BiGRUMean` of the ordinary programs)."""
MOST_TRIED, MOST_ALONE = 16, 4
"""Recordings of the sample while choosing; of those of a level with one cell alone."""


class NotACell(UnsupportedError):
    """A call that is recorded operation by operation, definition (2)."""


class SharesMemory(NotACell):
    """So is one of any cell or module whose results show each other's memory or an operand's, where names of memory
    are told apart (`record.functionalise`): as one node it would hide what they share."""

    def __init__(self) -> None:
        super().__init__("its results share memory, and forward changes tensors in place")


class Candidate(NamedTuple):
    """Definition (1)."""

    path: str
    method: str
    kind: type
    location: str

    @property
    def name(self) -> str:
        """As types and plans have it."""
        return ".".join(filter(None, (self.path, "" if self.method == "forward" else self.method)))


def candidates(
    model: nn.Module, closed: Closed, regions: Regions | None = None
) -> tuple[list[Candidate], dict[str, Obstacle]]:
    """The candidates of a model, and why its other methods are none, by name; with its regions where they are given."""
    found: list[Candidate] = []
    obstacles: dict[str, Obstacle] = {}
    cells: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{cell}.") for cell in cells):
            continue
        if is_cell(module):
            cells.append(path)
            continue
        for region in () if regions is None else regions.of_helpers(module):
            if closed.function_obstacle(region.function, module) is None:
                found.append(Candidate(path, region.name, type(module), region.location))
        for method, function in methods_of(module).items():
            for region in () if regions is None else regions.of_method(type(module), function).values():
                if closed.function_obstacle(region.function, module) is None:
                    found.append(Candidate(path, region.name, type(module), region.location))
            if not path and method == "forward":
                continue
            code = function.__code__
            candidate = Candidate(path, method, type(module), f"{shown_name(code.co_filename)}:{code.co_firstlineno}")
            obstacle = _is_more(candidate, module) or closed.obstacle(module, method)
            if obstacle is None:
                found.append(candidate)
            else:
                obstacles[candidate.name] = obstacle
    return found, obstacles


def _is_more(candidate: Candidate, module: nn.Module) -> Obstacle | None:
    if candidate.method != "forward":
        return None
    if type(module).__call__ is not nn.Module.__call__:
        return Obstacle(candidate.location, "its class has a __call__ of its own")
    hooked = any(map(num_hooks, module.modules()))
    return Obstacle(candidate.location, "it, or a module inside it, has hooks") if hooked else None


def located(model: nn.Module, name: str) -> tuple[str, str]:
    """Path and method that a name of a cell stands for: the longest path of modules, and what is left."""
    module, path = model, []
    parts = name.split(".")
    for part in parts:
        child = module._modules.get(part)
        if child is None:
            break
        module = child
        path.append(part)
    return ".".join(path), ".".join(parts[len(path) :]) or "forward"


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module with this dotted path, also where its class has something else by such a name, as a child `parameters`
    has: `nn.Module.get_submodule` finds that."""
    for name in path.split(".") if path else ():
        model = model._modules[name]  # type: ignore[assignment]
    return model


def is_cellable(args: Any, kwargs: Any) -> bool:
    """Whether arguments are what a cell takes: tensors, at least one, nests of them, numbers and texts. A nest with a
    number in it is an instance, or a part of one."""
    is_any = False
    for item in (*args, *kwargs.values()) if kwargs else args:
        if _is_number(item):
            continue
        is_any = True
        if not is_tensor(item) and not all(x is None or is_tensor(x) for x in leaves_of(item)):
            return False
    return is_any


def is_tensor(item: Any) -> bool:
    """True for tensors and stand-ins, which are not asked who asks for their class."""
    return issubclass(type(item), torch.Tensor | Symbol)


def shape_of(item: Any) -> Any:
    """A nest's containers and what they hold, by identity: equal before and after a call that leaves it alone."""
    if isinstance(item, list | tuple):
        return isinstance(item, list) and id(item), tuple(map(shape_of, item))
    if isinstance(item, dict):
        return id(item), tuple(item), tuple(map(shape_of, item.values()))
    return id(item)


def require_cell(args: Any, before: Any, num_operations: int, template: Any, passed_through: bool) -> None:
    """Raise NotACell for a trace that shows more or less than a cell, definition (2)."""
    if shape_of(args) != before:
        raise NotACell("it changes a list that it is given")
    if not 2 <= num_operations <= MAX_OPERATIONS:
        raise NotACell(f"it has {num_operations} operations, and a cell 2 to {MAX_OPERATIONS}")
    if passed_through:
        raise NotACell("it hands back an argument as it came")
    if not all(map(_is_returnable, leaves_of(template))):
        raise NotACell("it returns more than tensors and numbers")


def _is_number(item: Any) -> bool:
    return item is None or type(item) in _NUMBERS


def _is_returnable(item: Any) -> bool:
    return _is_number(item) or type(item).__name__ == "Hole"


def leaves_of(nest: Any) -> Iterator[Any]:
    """What is in a nest of lists, tuples and dicts, in the order in which calls have their operands."""
    kind = type(nest)  # stand-ins are not asked who asks for their class
    if issubclass(kind, dict):
        nest = nest.values()
    elif not issubclass(kind, list | tuple) or kind.__name__ == "Hole":
        yield nest
        return
    for item in nest:
        yield from leaves_of(item)


class Work(NamedTuple):
    """What a call multiplies with: numbers in matrices of parameters, and multiplications by them; and how many steps
    torch takes for a batch, one after the other."""

    weights: int
    products: int
    steps: int = 0


def cost_of(work: Work, num_nodes: int, num_batches: int) -> float:
    """Microseconds, definition (4), but for recording."""
    of_node = work.products / PRODUCTS_PER_US
    of_batch = BATCH_US + work.weights / WEIGHTS_PER_US + STEP_US * work.steps
    return num_nodes * of_node + num_batches * of_batch


class Trial(NamedTuple):
    """What a sample costs with some names as cells."""

    names: frozenset[str]
    cost: float
    used: dict[str, int]
    """Types of each cell that has nodes."""


def choose(
    found: Sequence[Candidate], attempt: Callable[[frozenset[str]], Trial], enough: float = math.inf
) -> tuple[list[Candidate], Trial]:
    """Definition (3): the candidates that are cells, in their order, and what the sample costs with them. `attempt`
    records the sample. Where it costs more than is `enough`, the first that saves less than a tenth is the last.

    A cell of several types is one for each size, and hides what is in it, rows or the steps of its loops, and cells
    around it hid it, so that without one of them alone there are as many: all such go first, level by level, if it
    costs less without any. Of those that went together, each may stay alone."""
    by_name = {candidate.name: candidate for candidate in found}
    best = trial = attempt(frozenset(by_name))
    while hiding := {name for name, types in trial.used.items() if types > 1}:
        trial = attempt(trial.names - hiding)
        best = min(best, trial, key=lambda of: of.cost)
        for name in sorted(hiding - best.names)[:MOST_ALONE] if len(hiding) > 1 else ():
            best = min(best, attempt(best.names | {name}), key=lambda of: of.cost)
    kept: set[tuple[type, str]] = set()
    is_told = False  # that some of those without nodes cost something
    for _ in range(MOST_TRIED):
        groups: dict[tuple[type, str], int] = {}
        for name, types in best.used.items():
            group = by_name[name].kind, by_name[name].method
            groups[group] = groups.get(group, 0) + types
        doubtful = sorted((g for g in groups if g not in kept), key=lambda g: (-groups[g], g[0].__name__, g[1]))
        if not doubtful:
            break
        asked = {doubtful[0]} if groups[doubtful[0]] or is_told else {*doubtful}
        without = frozenset(n for n in best.names if (by_name[n].kind, by_name[n].method) not in asked)
        trial = attempt(without)
        is_last = best.cost > enough and trial.cost > 0.9 * best.cost
        if trial.cost >= best.cost:
            kept |= asked
        elif len(asked) > 1:
            is_told = True
        else:
            best = trial
        if is_last:
            break
    return [candidate for candidate in found if candidate.name in best.used], best
