"""Straight lines as cells: parts of a function's body that compute, outlined into functions of their own.

Inside recursion and loops people write the body of a cell inline: `h = torch.tanh(self.step(torch.cat([x, h])))` is
three recorded calls where one would do. So the copy of a method that recording runs calls a *region* in their place, a
method made of these lines; `code.automatic` decides, as for the user's own methods, which regions are cells. Lines and
columns stay: messages and tracebacks show what the user wrote.

Definitions.

(1) An *operation* is a call of a torch function, of a module of torch.nn or one whose code is closed (`code.closed`),
    of a closed method, or of a method that tensors have; or an operator. It only computes.
(2) A *leaf* is any other expression below an operation: a variable, a look-up (`self.words(...)`), an item of a list, a
    call of anything else. Leaves are the arguments of a region, evaluated in their order.
(3) A region is the operations of consecutive statements of one block, assignments to variables and at most one other
    statement behind them that uses the last result first (`return`, `states.append(...)`), or branches on it (`if total
    >= 1:`), which is read then. Its results are the variables that are read anywhere else, and what the last statement
    uses.
(4) A *helper* is a function outside of classes that methods, or other helpers, call by its name, and that is no
    operation there. Its regions are methods too: of the first module that it is given, `own`, or of the model where it
    is given none. What stands in their place asks for the method, as a function may be given anything, and runs the
    lines as they were where there is none.
(5) A region moves operations behind leaves that were evaluated after them. As operations only compute, nothing can
    tell, but for a leaf that changes what an operation read before it. So no operation that may have read a list moves
    behind a leaf that does more than compute, and where tensors change in place (`record.functionalise`), lines that
    move operations run as the user wrote them. In helpers nothing moves.

Time is that of the regions of a function times its names, once per function and choice of regions.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn

from edbc.base.notebook import shown_name
from edbc.capture.code.apart import CHANGED, changed, changes_apart
from edbc.capture.code.closed import Closed, definition_in_place, definition_of, methods_of, nodes_of
from edbc.capture.code.expressions import LEAST, ORDERED, Expressions
from edbc.capture.code.rebind import LOOK_UP, LOOK_UP_ONE, is_users, look_up, look_up_one, says
from edbc.capture.code.recompiled import SAYS, compiled_like, copied, function_of, note_speaking
from edbc.capture.ragged.symbols import COLUMN, COLUMNS, column, columns
from edbc.capture.semantics.gradmode import watcher_of_thread


class Region(NamedTuple):
    """Definition (3): its name as a method, `forward:1`; its code; the line where it begins; whether it moves
    operations, definition (5)."""

    name: str
    function: FunctionType
    location: str
    moves: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is not one of the two parts of another region."""
        return self.name[-1].isdigit()

    @property
    def lines(self) -> range:
        """Of its statements."""
        lines = [n.end_lineno for n in ast.walk(self.function.__dict__["_edbc_definition"]) if isinstance(n, ast.expr)]
        return range(self.function.__code__.co_firstlineno, 1 + max(line for line in lines if line is not None))


class Helper(NamedTuple):
    """Definition (4): a function, the module whose methods its regions are, and the parameter that is this module, or
    _OWNER."""

    function: Any
    module: nn.Module
    own: str


_OWNER = "edbc owner"
"""The first parameter of regions of helpers that are given no module; no name that a user's function could have."""


class Regions:
    """The regions of one model's methods and helpers."""

    def __init__(self, model: nn.Module, closed: Closed):
        self.closed = closed
        self._modules: dict[type, list[nn.Module]] = {}
        for module in model.modules():
            self._modules.setdefault(type(module), []).append(module)
        self._known: dict[tuple[type, FunctionType], dict[str, Region]] = {}
        self._look_up: set[tuple[type, FunctionType]] = set()
        """Methods with look-ups by numbers, columns, changes that are apart, or branches that say something."""
        self._outlined: dict[tuple[type, FunctionType, frozenset[str]], FunctionType] = {}

    @functools.cached_property
    def helpers(self) -> dict[str, Helper]:
        """Definition (4), by name: of several of one name the first. Linear in the length of the code."""
        found: dict[str, Helper] = {}
        first = [modules[0] for modules in self._modules.values()]
        waiting = [Helper(f, module, "") for module in first for f in methods_of(module).values()]
        for helper in waiting:
            definition = definition_of(helper.function)
            if definition is None:
                continue
            own = helper.own or next(iter(_parameters(definition)), _OWNER)
            expressions = Expressions(self.closed, helper.module, helper.function, own, frozenset(_bound(definition)))
            for node in nodes_of(definition):
                called = self._called(expressions, node) if isinstance(node, ast.Call) else None
                if called is not None and called.function.__name__ not in found:
                    found[called.function.__name__] = called
                    waiting.append(called)
        return found

    def _called(self, expressions: Expressions, call: ast.Call) -> Helper | None:
        """The helper that is called; None where none is."""
        function = expressions.resolved(call.func)
        if type(function) is not FunctionType or "." in function.__qualname__ or expressions.callee(call) is not None:
            return None
        definition = definition_of(function) if is_users(function.__module__) else None
        if definition is None:
            return None
        given = [*zip(_parameters(definition), itertools.takewhile(_is_one, call.args), strict=False)]
        given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None]
        modules = ((name, expressions.module_of(value)) for name, value in given)
        own, module = next(((n, m) for n, m in modules if type(m) in self._modules), (_OWNER, self.closed.model))
        return None if module is None or hasattr(module, function.__name__) else Helper(function, module, own)

    def helper(self, function: FunctionType) -> Helper | None:
        """A function as a helper; None for any other one."""
        helper = self.helpers.get(function.__name__)
        return helper if helper is not None and helper.function is function else None

    def of_helpers(self, module: nn.Module) -> Iterator[Region]:
        """The regions of helpers that are methods of a module."""
        for helper in self.helpers.values():
            if type(module) is type(helper.module) and (helper.own != _OWNER or module is helper.module):
                yield from self.of_method(type(module), helper.function).values()

    def of_method(self, kind: type, function: FunctionType) -> dict[str, Region]:
        """The regions of a method of a class, by name."""
        key = kind, function
        if key not in self._known:
            self._known[key] = {}  # before its code is read: methods call themselves
            outliner = self._outliner(kind, function)
            if outliner is not None:
                outliner.find()
                self._look_up |= {key} if outliner.is_rewritten else set()
                regions = (r for r in outliner.regions if not (outliner.is_helper and r.moves))
                self._known[key] = {region.name: region for region in regions}
        return self._known[key]

    def find(self, kind: type, name: str) -> Region | None:
        """A class's region by its name."""
        name_of_function = name.rpartition(":")[0]
        helper = self.helpers.get(name_of_function)
        is_helper = helper is not None and type(helper.module) is kind
        function = helper.function if is_helper else getattr(kind, name_of_function, None)  # type: ignore[union-attr]
        return self.of_method(kind, function).get(name) if type(function) is FunctionType else None

    def outlined(self, kind: type, function: FunctionType, chosen: frozenset[str]) -> FunctionType | None:
        """The method with calls of the chosen regions in place of their lines, of LOOK_UP in place of look-ups by
        numbers, of COLUMN in place of columns, of CHANGED in place of changes, and of SAYS; None where it has none of
        these."""
        chosen = chosen.intersection(self.of_method(kind, function))
        if not chosen and (kind, function) not in self._look_up:
            return None
        key = kind, function, chosen
        if key not in self._outlined:
            outliner = self._outliner(kind, function)
            assert outliner is not None
            self._outlined[key] = outliner.outline(chosen)
        return self._outlined[key]

    def _outliner(self, kind: type, function: FunctionType) -> _Outliner | None:
        """None for what has no regions, as functions that are no attribute by their own name: several have one."""
        helper = self.helper(function)
        if helper is None and getattr(kind, _attribute(function), None) is not function:
            return None
        definition = definition_in_place(function, function.__code__)
        if definition is None or not _parameters(definition):
            return None
        return _Outliner(self.closed, self._modules[kind][0], function, copied(definition), helper and helper.own)


def _parameters(definition: ast.FunctionDef) -> list[str]:
    """Those that arguments are given by position."""
    return [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]


def _is_one(argument: ast.expr) -> bool:
    return not isinstance(argument, ast.Starred)


def _calling_region(region: Region, own: str) -> Callable[..., Any]:
    """What a helper calls for a region, definition (4): with the module first, or of the model that is recorded."""
    name, written = region.name, region.function

    def of_module(module: Any, *leaves: Any) -> Any:
        method = getattr(type(module), name, None)
        return written(module, *leaves) if method is None else method(module, *leaves)

    def of_model(*leaves: Any) -> Any:
        watcher = watcher_of_thread()
        return of_module(None if watcher is None else watcher.root, *leaves)

    return of_model if own == _OWNER else of_module


def _attribute(function: FunctionType) -> str:
    """The name of a method as its class has it: the compiler puts the class's name in front of private ones."""
    name, owner = function.__name__, function.__qualname__.split(".")[-2:-1]
    is_private = owner and name.startswith("__") and not name.endswith("__")
    return f"_{owner[0].lstrip('_')}{name}" if is_private else name


class _Conflict(Exception):
    """Statements that are no region together."""


class _Unit(NamedTuple):
    """A statement that a region may have: its own expressions that compute, and how to write what is left of it."""

    statement: ast.stmt
    parts: list[ast.expr]
    names: list[str]
    """Variables that it assigns; of an assignment the only part is its value."""
    is_last: bool


_OPERANDS = frozenset("left right operand comparators elts value".split())
"""Fields of operators, nests and views; an index stays as it is."""


class _Form:
    """A region as it is put together."""

    def __init__(self, outliner: _Outliner):
        self.outliner = outliner
        self.leaves: list[tuple[str, ast.expr]] = []
        self.body: list[ast.stmt] = []
        self.results: list[ast.expr] = []
        self.assigned: list[str] = []
        self.operations = self.sure = 0
        self.only_call: ast.expr | None = None
        self.moves = self._has_begun = self._read_a_list = False
        self.fixed: set[str] = set()
        """Variables among the leaves, each one once."""
        self._divisors: list[ast.expr] = []
        self._beside: set[str] = set()
        """Leaves that are read as something else than divisors."""

    def takes(self, unit: _Unit) -> bool:
        """Add a statement; False where it cannot be added, which is the end of this."""
        try:
            self._add(unit)
        except _Conflict:
            return False
        return True

    def _add(self, unit: _Unit) -> None:
        if isinstance(unit.statement, ast.If):
            self.results = [self._condition(unit.statement.test)]
            return
        if unit.is_last:
            self.results = [self.inside(part) for part in unit.parts]
            return
        made = copy.copy(unit.statement)
        made.value = self.inside(unit.parts[0])  # type: ignore[attr-defined]
        self.body.append(made)
        self.assigned += [name for name in unit.names if name not in self.assigned]

    def _condition(self, test: ast.expr) -> ast.expr:
        """A comparison of what the region has computed, as a number, of which native code makes a result."""
        made, sure = copy.copy(test), self.sure
        assert isinstance(made, ast.Compare)
        is_own = isinstance(made.left, ast.Name) and made.left.id in self.assigned
        made.left, made.comparators = self.inside(made.left), [*map(self.inside, made.comparators)]
        if not is_own and self.sure == sure:
            raise _Conflict
        self.operations += 1
        return ast.copy_location(ast.BinOp(made, ast.Mult(), ast.copy_location(ast.Constant(1.0), test)), test)

    def inside(self, node: ast.expr) -> ast.expr:
        """An expression as the region has it: leaves become parameters."""
        if self.outliner.stays(node):
            return node
        if not self.outliner.is_operation(node) and not isinstance(node, ast.Tuple | ast.List | ast.Starred):
            return self._leaf(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        made = copy.copy(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            self._divisors.append(node.right)
        for field, value in ast.iter_fields(node):
            if field in _OPERANDS:
                setattr(made, field, [*map(self.inside, value)] if isinstance(value, list) else self.inside(value))
        if isinstance(node, ast.Tuple | ast.List | ast.Attribute | ast.Starred | ast.Subscript):
            return made
        self._has_begun = True
        self.operations += 1
        self.only_call = None if self.operations > 1 else node
        if isinstance(node, ast.BinOp) and not any(map(self.outliner.is_operation, (node.left, node.right))):
            self._read_a_list = True
        return made

    def _call(self, node: ast.Call) -> ast.expr:
        made = copy.copy(node)
        callee = self.outliner.callee(node)
        assert callee is not None
        if callee.is_of_tensor:
            assert isinstance(node.func, ast.Attribute)
            made.func = copy.copy(node.func)
            made.func.value = self.inside(node.func.value)
        made.args = [self.inside(x) for x in node.args]
        made.keywords = [ast.keyword(k.arg, self.inside(k.value)) for k in node.keywords]
        for old, new in zip(node.keywords, made.keywords, strict=True):
            ast.copy_location(new, old)
        rest = node.args if callee.reads_nests else node.args[1:] if not callee.is_of_tensor else node.args
        if callee.reads_nests or any(not self.outliner.stays(x) for x in (*rest, *(k.value for k in node.keywords))):
            self._read_a_list = True
        self._has_begun = True
        self.operations += callee.operations
        self.sure += callee.is_sure
        self.only_call = node if self.operations == callee.operations else None
        return made

    def _leaf(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            if node.id in self.assigned:
                return node
            self._note_leaf(node)
            if node.id in self.outliner.fixed:
                if node.id not in self.fixed:
                    self.fixed.add(node.id)
                    self.leaves.append((node.id, node))
                if not self._divides(node):
                    self._beside.add(node.id)
                return node
        elif any(isinstance(n, ast.Name) and n.id in self.assigned for n in ast.walk(node)):
            raise _Conflict
        else:
            self._note_leaf(node)
        name = f"x{len(self.leaves)}"
        while name in self.outliner.names:
            name += "_"
        self.leaves.append((name, node))
        if not self._divides(node):
            self._beside.add(name)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _divides(self, node: ast.expr) -> bool:
        return any(node is divisor for divisor in self._divisors)

    def given(self, within: dict[int, ast.expr]) -> Iterator[ast.expr]:
        """What a call of the region is given: its leaves, or what stands for them by identity."""
        for name, leaf in self.leaves:
            value = within.get(id(leaf), leaf)
            yield value if name in self._beside else ast.Call(ast.Name(DIVISOR, ast.Load()), [value], [])

    def _note_leaf(self, node: ast.expr) -> None:
        """A leaf is evaluated in front of what the region has done so far, definition (5)."""
        if not self._has_begun or self.outliner.only_computes(node):
            return
        if self._read_a_list or any(name in self.outliner.seen_inside for name in self.assigned):
            raise _Conflict
        self.moves = True


class _Draft(NamedTuple):
    """A region, or statements that are none, before they are put in their place."""

    name: str | None
    units: list[_Unit]
    form: _Form | None
    """None of a condition alone, whose variables another region has computed."""
    results: list[ast.expr]


class _Outliner(Expressions):
    """One method's regions, found in its code."""

    def __init__(self, closed: Closed, module: nn.Module, function: FunctionType, definition: ast.FunctionDef,
                 own_of_helper: str | None):  # fmt: skip
        bound = [*_bound(definition)]
        own = own_of_helper or _parameters(definition)[0]
        super().__init__(closed, module, function, own, frozenset(bound))
        self._definition = definition
        self.is_helper = own_of_helper is not None
        self._is_self_kept = bound.count(own) <= 1
        self.regions: list[Region] = []
        walked = list(ast.walk(definition))
        names = [n for n in walked if isinstance(n, ast.Name)]
        changed = {id(n.target) for n in walked if isinstance(n, ast.AugAssign)}
        self._loads = [n for n in names if not isinstance(n.ctx, ast.Store) or id(n) in changed]
        self._elsewhere = {name for n in walked if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
        self.names = {n.id for n in names} | self.local
        self.seen_inside = frozenset(function.__code__.co_cellvars)
        assigned_within = {n.target.id for n in walked if isinstance(n, ast.NamedExpr)}
        self.fixed = self.local - self.seen_inside - self._elsewhere - assigned_within
        """Variables that an expression does not change before it ends."""
        self._apart = changes_apart(definition, self.fixed, self.is_new)
        self.is_rewritten = note_speaking(definition)
        """Whether there are look-ups by numbers, columns, changes that are apart, or branches that say something."""
        self._in_try = self._in_loop = 0
        self._num = 0
        self._chosen: Container[str] = ()

    def find(self) -> None:
        """Find all regions, and put calls in the place of the chosen ones."""
        asks = {"locals", "vars", "eval", "exec", "super"}
        if self._is_self_kept and not asks.intersection(n.id for n in self._loads if n.id not in self.local):
            self._definition.body = self._block(self._definition.body)

    def outline(self, chosen: Container[str]) -> FunctionType:
        """The function with calls of the chosen regions; finds all regions on the way."""
        self._chosen = chosen
        self.find()
        given: dict[str, Any] = {LOOK_UP: look_up, LOOK_UP_ONE: look_up_one, COLUMN: column, COLUMNS: columns,
                                 CHANGED: changed, DIVISOR: divisor, SAYS: says}  # fmt: skip
        if self.is_helper:
            given |= {region.name: _calling_region(region, self._self) for region in self.regions}
        code = compiled_like(self._function, self._definition, given)
        assert code is not None
        return function_of(self._function, code, given)

    # --- statements ------------------------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """A block with its regions outlined."""
        made: list[ast.stmt] = []
        run: list[_Unit] = []
        form = _Form(self)
        for statement in statements:
            unit = self._unit(statement)
            if unit is None or not (run and form.takes(unit)):
                made += self._flush(run)
                run, form = [], _Form(self)
                if unit is None or not form.takes(unit):
                    made.append(self._without_region(statement))
                    continue
            run.append(unit)
            if unit.is_last or self._in_try:
                made += self._flush(run)
                run = []
                if isinstance(made[-1], ast.If):
                    self._without_region(made[-1])
        return made + self._flush(run)

    def _unit(self, statement: ast.stmt) -> _Unit | None:
        """A statement as one that a region may have; None for others."""
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [name for target in targets for name in _names_of(target)]
            value = statement.value
            if not self._has_operation(value):
                return None
            are_variables = None not in names and not self._elsewhere.intersection(map(str, names))
            if are_variables and (self.is_operation(value) or isinstance(value, ast.Tuple)):
                return _Unit(statement, [value], list(map(str, names)), False)
            return _Unit(statement, [value], [], True) if self.is_operation(value) else None
        if isinstance(statement, ast.If):
            return _Unit(statement, [statement.test], [], True) if self._is_condition(statement.test) else None
        if isinstance(statement, ast.Return) and statement.value is not None:
            return self._last(statement, statement.value)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield) and statement.value.value:
            return self._last(statement, statement.value.value)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            is_plain = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
            if is_plain and not call.keywords and self.callee(call) is None:
                return self._last_of(statement, call.args)
        return None

    def _last(self, statement: ast.stmt, value: ast.expr) -> _Unit | None:
        items = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        return self._last_of(statement, items)

    def _last_of(self, statement: ast.stmt, items: Sequence[ast.expr]) -> _Unit | None:
        """What uses operations, and beside them nothing but variables and constants."""
        parts = [item for item in items if self.is_operation(item)]
        rest = [item for item in items if not self.is_operation(item)]
        if not parts or not all(isinstance(item, ast.Name | ast.Constant) for item in rest):
            return None
        return _Unit(statement, parts, [], True)

    def _is_condition(self, test: ast.expr) -> bool:
        """Whether something is compared with what stays, for which a region gets no number from outside."""
        if not isinstance(test, ast.Compare) or not all(isinstance(op, ORDERED) for op in test.ops):
            return False
        return all(map(self._stays, test.comparators))

    def _stays(self, node: ast.expr) -> bool:
        return self.stays(node) or (isinstance(node, ast.BinOp) and self._stays(node.left) and self._stays(node.right))

    def _has_operation(self, node: ast.expr) -> bool:
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(map(self.is_operation, items))

    def _formed(self, units: Sequence[_Unit]) -> _Form | None:
        form = _Form(self)
        return form if all(map(form.takes, units)) else None

    def _flush(self, units: list[_Unit]) -> list[ast.stmt]:
        """The statements of a region; those of one that is none as they were, but for what is inside its leaves. A
        region whose last statement may do better alone has two parts, regions in its place."""
        if not units:
            return []
        whole = self._formed(units)
        assert whole is not None
        within = {id(leaf): self._within(copied(leaf)) for _, leaf in whole.leaves}
        name = self._named() if self._is_worth(whole) else None
        variants = [[(name, units)]]
        if name is not None and len(units) > 1 and units[-1].is_last:
            variants.append([(f"{name}a", units[:-1]), (f"{name}b", units[-1:])])
        drafts = [[self._draft(*part) for part in variant] for variant in variants]
        is_taken = drafts[0][0].name is not None and drafts[0][0].name in self._chosen
        drafted = drafts[0] if is_taken else drafts[-1]
        return [statement for draft in drafted for statement in self._emitted(draft, within)]

    def _draft(self, name: str | None, units: list[_Unit]) -> _Draft:
        """What is noted of a region before anything is put in its place; without a name where it is none."""
        form = self._formed(units)
        results = [] if form is None else self._results(units, form)
        if name is None or form is None or not results or not self._is_worth(form):
            return _Draft(None, units, form, results)
        self._note(name, form, results, units)
        return _Draft(name, units, form, results)

    def _emitted(self, draft: _Draft, within: dict[int, ast.expr]) -> list[ast.stmt]:
        if draft.form is None or draft.name is None or draft.name not in self._chosen:
            return [_Replaced(within).visit(unit.statement) for unit in draft.units]
        own = ast.Name(self._self, ast.Load())
        method = ast.Name(draft.name, ast.Load()) if self.is_helper else ast.Attribute(own, draft.name, ast.Load())
        given = [own] if self.is_helper and self._self != _OWNER else []
        return self._calling(
            ast.Call(method, [*given, *draft.form.given(within)], []), draft.results, draft.units, draft.form
        )

    def _is_worth(self, form: _Form) -> bool:
        if form.operations < LEAST or not form.sure:
            return False
        return form.only_call is None or not self._is_candidate(form.only_call)

    def _is_candidate(self, node: ast.expr) -> bool:
        """Whether a region of one call alone is what that calls, a cell or a candidate itself."""
        found = self.resolved(node.func) if isinstance(node, ast.Call) else None
        return isinstance(found, nn.Module) and not type(found).__module__.startswith("torch.nn.")

    def _named(self) -> str:
        self._num += 1
        return f"{_attribute(self._function)}:{self._num}"

    def _results(self, units: list[_Unit], form: _Form) -> list[ast.expr]:
        """The variables that are read afterwards, or anywhere where a loop comes back, then what the last statement
        uses."""
        within = {id(n) for unit in units for part in unit.parts for n in ast.walk(part)}
        first = _position(units[0].statement)
        outside = {n.id for n in self._loads if id(n) not in within and (
            self._in_loop or n.id in self.seen_inside or _position(n) >= first)}  # fmt: skip
        if self._in_loop:  # leaves are of the round before
            outside |= {n.id for _, leaf in form.leaves for n in ast.walk(leaf) if isinstance(n, ast.Name)}
        kept = [name for name in form.assigned if name in outside]
        return [*(ast.Name(name, ast.Load()) for name in kept), *form.results]

    def _note(self, name: str, form: _Form, results: list[ast.expr], units: list[_Unit]) -> None:
        value = results[0] if len(results) == 1 else ast.Tuple(results, ast.Load())
        first = units[0].statement
        end = ast.copy_location(ast.Return(value), units[-1].statement)
        arguments = [ast.arg(self._self), *(ast.arg(leaf) for leaf, _ in form.leaves)]
        definition = ast.FunctionDef(
            name.replace(":", "_"), ast.arguments([], arguments, None, [], [], None, []),
            [*copied(form.body), copied(end)], [],
        )  # fmt: skip
        ast.copy_location(definition, first)
        for inner in ast.walk(definition):
            if isinstance(inner, ast.arg):
                ast.copy_location(inner, first)
        ast.fix_missing_locations(definition)
        code = compiled_like(self._function, definition)
        if code is None:
            return
        function = FunctionType(code.replace(co_name=name), self._function.__globals__, name)
        function.__module__ = self._function.__module__
        function.__dict__["_edbc_definition"] = definition
        file = shown_name(code.co_filename)
        self.regions.append(Region(name, function, f"{file}:{first.lineno}", form.moves))

    def _calling(self, call: ast.expr, results: list[ast.expr], units: list[_Unit], form: _Form) -> list[ast.stmt]:
        """The call in place of the statements, and what is left of the last one."""
        last = units[-1]
        kept = results[: len(results) - len(form.results)]
        values = [f"{_VALUE}{i}" for i in range(len(form.results))]
        ast.copy_location(call, units[0].statement)
        if last.is_last and not kept and len(values) == 1:
            return [_located(_Replaced({id(last.parts[0]): call}).visit(last.statement))]
        names: list[ast.expr] = [ast.Name(n.id, ast.Store()) for n in kept if isinstance(n, ast.Name)]
        names += [ast.Name(name, ast.Store()) for name in values]
        target = names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())
        made: list[ast.stmt] = [_located(ast.copy_location(ast.Assign([target], call), units[0].statement))]
        if last.is_last:
            replaced: dict[int, ast.expr] = {
                id(part): ast.Name(name, ast.Load()) for part, name in zip(last.parts, values, strict=True)
            }
            made.append(_located(_Replaced(replaced).visit(last.statement)))
        return made

    def _without_region(self, statement: ast.stmt) -> ast.stmt:
        """A statement that is in no region, with regions in its expressions and blocks."""
        if isinstance(statement, ast.ClassDef | ast.AsyncFunctionDef | ast.Match | ast.Delete | ast.Import):
            return statement
        is_try = isinstance(statement, ast.Try | ast.TryStar)
        is_loop = isinstance(statement, ast.For | ast.While)
        if id(statement) in self._apart:
            self.is_rewritten = True
            return self._changed(statement)
        self._in_try += is_try
        self._in_loop += is_loop
        for field, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(statement, field, self._block(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.ExceptHandler):
                for handler in value:
                    handler.body = self._block(handler.body)
            elif isinstance(value, ast.expr) and field not in ("target", "test", "annotation", "returns"):
                setattr(statement, field, self._within(value))
        self._in_try -= is_try
        self._in_loop -= is_loop
        return statement

    def _changed(self, statement: Any) -> Any:
        """An assignment in place of a change that is apart."""
        target, operation = statement.target, ast.Constant(type(statement.op).__name__)
        given = [operation, ast.Name(target.id, ast.Load()), self._within(statement.value)]
        call = ast.Call(ast.Name(CHANGED, ast.Load()), given, [])
        return _located(ast.copy_location(ast.Assign([target], call), statement))

    def _within(self, node: ast.expr) -> ast.expr:
        """An expression with its largest regions outlined, with look-ups by numbers (`record.lookup`), and with columns
        of lists of tuples (`ragged.symbols.column`)."""
        found = self.numbers_looked_up(node)
        if found is not None:
            assert isinstance(node, ast.Call)
            numbers, make = found
            self.is_rewritten = True
            one = numbers.elts if isinstance(numbers, ast.List) and len(numbers.elts) == 1 else []
            is_one = bool(one) and not isinstance(one[0], ast.Starred)
            numbers = one[0] if is_one else numbers
            function = ast.Name(LOOK_UP_ONE if is_one else LOOK_UP, ast.Load())
            given = [node.func, self._within(numbers)]
            if make is not None:  # called, as recording rebinds calls
                given.append(_calling_with(make, is_one))
            return _located(ast.copy_location(ast.Call(function, given, []), node))
        column = self._column(node)
        if column is not None:
            self.is_rewritten = True
            return column
        if self.is_operation(node):
            unit = _Unit(ast.copy_location(ast.Expr(node), node), [node], [], True)
            if self._formed([unit]) is not None:
                made = self._flush([unit])
                [only] = made
                assert isinstance(only, ast.Expr)
                return only.value
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and field not in ("test", "target") and not _is_kept(node, field):
                setattr(node, field, self._within(value))
            elif isinstance(value, list) and not isinstance(node, ast.Compare | ast.BoolOp | ast.JoinedStr):
                setattr(node, field, [self._within(x) if isinstance(x, ast.expr) else self._inner(x) for x in value])
        return node

    def _column(self, node: ast.expr) -> ast.expr | None:
        """A call of COLUMN, or of COLUMNS, in place of a column of a list of tuples, or of all; None for others."""
        element, every = _element_of(node), ast.Name(_ITEMS, ast.Load())
        if element is not None:
            assert isinstance(node, ast.ListComp)
            items, node.generators[0].iter = node.generators[0].iter, every
            name, functions = COLUMN, [_function_of(_ITEM, element)]
        elif (isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Starred)
              and all(k.arg == "strict" for k in node.keywords) and self.resolved(node.func) is zip):  # fmt: skip
            items, node.args[0].value = node.args[0].value, every
            name, functions = COLUMNS, []
        else:
            return None
        given = [self._within(items), *functions, _function_of(_ITEMS, node)]
        call: ast.expr = _located(ast.copy_location(ast.Call(ast.Name(name, ast.Load()), given, []), node))
        return call

    def _inner(self, node: Any) -> Any:
        if isinstance(node, ast.keyword):
            node.value = self._within(node.value)
        elif isinstance(node, ast.comprehension):
            node.iter = self._within(node.iter)
        return node


DIVISOR = "divisor of"


def divisor(number: Any) -> Any:
    """A whole number as the float by which torch divides: floats that differ from call to call are operands of one type
    (`record.numbers`); whole numbers are of a type each, as they may be sizes."""
    return float(number) if type(number) is int else number


_VALUE = "_edbc_value_"
_ITEM, _ITEMS = "one item", "all items"
"""Parameters; no names that a user's function could have."""


def _element_of(node: ast.expr) -> ast.expr | None:
    """What a list has of each item, where that is one element of it: `x[i]` of `[x[i] for x in items]`, or of
    `[b for a, b in items]`; None for others."""
    if not isinstance(node, ast.ListComp) or len(node.generators) > 1:
        return None
    [of], element = node.generators, node.elt
    if of.ifs or of.is_async:
        return None
    if isinstance(of.target, ast.Tuple) and isinstance(element, ast.Name):
        names = [name.id if isinstance(name, ast.Name) else "" for name in of.target.elts]
        if names.count(element.id) != 1 or "" in names:
            return None
        index: ast.expr = ast.Tuple([ast.Constant(len(names)), ast.Constant(names.index(element.id))], ast.Load())
    elif isinstance(element, ast.Subscript) and isinstance(of.target, ast.Name):
        index = element.slice
        is_of_item = isinstance(element.value, ast.Name) and element.value.id == of.target.id
        number = index.operand if isinstance(index, ast.UnaryOp) else index
        is_other = isinstance(number, ast.Constant) or (isinstance(number, ast.Name) and number.id != of.target.id)
        if not is_of_item or not is_other:
            return None
    else:
        return None
    return ast.copy_location(ast.Subscript(ast.Name(_ITEM, ast.Load()), copied(index), ast.Load()), element)


def _function_of(name: str, body: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Lambda(ast.arguments([], [ast.arg(name)], None, [], [], None, []), body), body)


def _is_kept(node: ast.expr, field: str) -> bool:
    """True for parts of an expression that stay: conditions, callees and indices."""
    return (isinstance(node, ast.Call) and field == "func") or (isinstance(node, ast.Subscript) and field == "slice")


def _bound(definition: ast.FunctionDef) -> Iterator[str]:
    """The names that a definition binds inside, each as often as it does."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not definition:
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


class _Replaced(ast.NodeTransformer):
    """Other expressions in place of some, by identity."""

    def __init__(self, replaced: dict[int, ast.expr]):
        self._replaced = replaced

    def visit(self, node: ast.AST) -> Any:
        new = self._replaced.get(id(node))
        return self.generic_visit(node) if new is None else ast.copy_location(new, node)


def _calling_with(function: ast.expr, in_a_list: bool) -> ast.expr:
    """What calls a function with what it is given, or with that in a list."""
    given: ast.expr = ast.Name(_GIVEN, ast.Load())
    given = ast.List([given], ast.Load()) if in_a_list else given
    return ast.Lambda(ast.arguments([], [ast.arg(_GIVEN)], None, [], [], None, []), ast.Call(function, [given], []))


_GIVEN = "edbc given"
"""No name that a user's function could have."""


def _position(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _located(node: Any) -> Any:
    return ast.fix_missing_locations(node)


def _names_of(target: ast.expr) -> Iterator[str | None]:
    """The variables that a target assigns; None for anything else."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple):
        for item in target.elts:
            yield from _names_of(item)
    else:
        yield None
