"""Recording fragments: once each, with errors that name the vertex, and forgotten when there are too many."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from both_ways import BothWays, canonical
from torch import nn
from vertex_strategies import FEATURES, FOLD, WORD, everything, random_instance

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.record.table import TypeTable
from edbc.capture.vertex import vertexprogram as program_module
from edbc.capture.vertex.vertexprogram import VertexProgram
from edbc.errors import EdbcError, InputError, ModelError, UnsupportedError
from edbc.vertex import Vertex, VertexFunction, VertexInstance, run_eagerly


class One(nn.Module):
    """One vertex function that a test gives, and a leaf."""

    def __init__(self, function: Callable[[One, Vertex], None]):
        super().__init__()
        self.function = function
        self.table = nn.Parameter(torch.arange(8.0).reshape(4, 2))
        self.calls: list[int] = []

    def vertices(self) -> dict[str, VertexFunction]:
        return {"leaf": lambda v: v.scatter(v.pull("id", self.table)), "one": lambda v: self.function(self, v)}


def ways_of(function: Callable[[One, Vertex], None]) -> BothWays:
    return BothWays(One(function).eval())


def instance(*predecessors: int) -> VertexInstance:
    """A leaf, and one vertex of the type under test."""
    return VertexInstance.build([(0, []), (1, predecessors)], {"id": [1, 2]})


def test_a_vertex_function_runs_once_per_kind_of_vertex() -> None:
    """Functions run once per vertex type and predecessors' interfaces, however many vertices and mini-batches."""
    calls: list[int] = []
    ways = ways_of(lambda m, v: (calls.append(v.num_predecessors), v.push("x", sum(v.gather_all())))[0])
    batch = [instance(0), instance(0, 0), instance(0)]
    for _ in range(3):
        ways.by_joining(batch * 5)

    assert calls == [1, 2]
    assert ways.program.num_fragments == 3


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda m, v: v.gather(1), InputError, "gather(1): expected a predecessor 1, got 1 predecessors"),
        (lambda m, v: v.pull("no", m.table), InputError, "input 'no': expected an array, got none; the instance has"),
        (lambda m, v: v.pull("id", 3), ModelError, "pull('id'): expected a parameter or buffer of rows as table, got"),
        (lambda m, v: (v.scatter(), v.scatter()), ModelError, "scatter: expected one call in a vertex function, got"),
        (lambda m, v: v.push("x", 1.0), ModelError, "push and scatter: expected tensors, got float"),
        (lambda m, v: v.scatter([v.gather(0)]), ModelError, "push and scatter: expected tensors, got list"),
        (lambda m, v: torch.rand(2), UnsupportedError, "'rand' draws random numbers"),
        (lambda m, v: bool(v.gather(0)[0] > 0), UnsupportedError, "the value of a tensor was asked for"),
        (lambda m, v: [v.push("x", y) for y in (v.gather(0), v.gather(0)[:1])], ModelError, "push('x'): expected"),
    ],
)  # fmt: skip
def test_faults_name_the_vertex(function: Callable, error: type[EdbcError], message: str) -> None:
    """What a vertex function must not do, or an instance lacks, is told with vertex, instance and vertex type."""
    with pytest.raises(error) as raised:
        ways_of(function).by_joining([instance(0)])

    assert message in str(raised.value)
    assert str(raised.value).endswith("(while recording vertex 1 of instance 0, vertex type 'one')")


def test_exceptions_of_the_user_pass_with_a_note() -> None:
    """An exception of the user's own keeps its class and says which vertex was recorded."""
    with pytest.raises(ZeroDivisionError) as raised:
        ways_of(lambda m, v: 1 // 0).by_joining([instance(0), instance()])

    assert raised.value.__notes__ == ["while recording vertex 1 of instance 0, vertex type 'one'"]


def test_an_exit_in_a_vertex_function_ends_no_process() -> None:
    """As in forward: a script that runs the model must not end, with exit code 0 at worst."""
    with pytest.raises(ModelError, match=r"^a vertex function raised SystemExit: 0 \(while recording vertex 1 of"):
        ways_of(lambda m, v: sys.exit(0)).by_joining([instance(0)])


def test_nothing_scattered_cannot_be_gathered() -> None:
    """Gathering from a vertex that scatters nothing is an error, recorded or run eagerly."""
    chain = VertexInstance.build([(1, []), (1, [0])])
    ways = ways_of(lambda m, v: v.gather_all() and None)
    for run in (lambda: ways.by_joining([chain]), lambda: run_eagerly(ways.model, chain)):
        with pytest.raises(ModelError, match=r"gather\(0\): expected values, got a predecessor that scatters none"):
            run()


def test_unknown_vertex_types_are_refused() -> None:
    """A vertex type beyond the model's raises InputError that names instance and vertex."""
    ways = ways_of(lambda m, v: None)
    bad = VertexInstance.build([(0, []), (7, [])], {"id": [0, 0]})

    with pytest.raises(InputError, match=r"instance 1, vertex 1: expected a vertex type in 0\.\.1, got 7"):
        ways.by_joining([instance(0), bad])
    with pytest.raises(InputError, match=r"vertex 1: expected a vertex type in 0\.\.1, got 7"):
        run_eagerly(ways.model, bad)


def test_a_model_without_vertex_functions_is_refused() -> None:
    """A model needs a method `vertices` that returns a dict."""
    with pytest.raises(ModelError, match=r"Linear: expected a method vertices\(\) .* got none; see docs/"):
        VertexProgram(*recording_shadow(ModelView(nn.Linear(2, 2)), TypeTable()))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "instance 1: input 'id': expected an array, got none; the instance has no inputs"),
        ({"id": [0.5, 1.0]}, "instance 1: input 'id': expected rows int64[] as in instance 0, got float64[]"),
        ({"id": [[1], [2]]}, "instance 1: input 'id': expected rows int64[] as in instance 0, got int64[1]"),
    ],
)
def test_all_instances_need_the_inputs(inputs: dict, message: str) -> None:
    """An instance whose inputs differ from those of the first is named."""
    ways = ways_of(lambda m, v: None)
    other = VertexInstance.build([(0, []), (0, [])], inputs)
    ways.by_joining([instance(0)])

    with pytest.raises(InputError) as raised:
        ways.by_joining([instance(0), other])

    assert str(raised.value) == message


def test_look_ups_need_integers() -> None:
    """A float input cannot be looked up."""
    ways = ways_of(lambda m, v: None)

    with pytest.raises(InputError, match=r"input 'id': expected one integer per vertex to look up, got f32\[\]"):
        ways.by_joining([VertexInstance.build([(0, [])], {"id": [0.5]})])


def test_rows_of_inputs_take_the_dtype_of_the_model() -> None:
    """A float64 input of a float32 model, and a float32 input of a float64 model, are converted."""
    rows = np.ones((1, 3))
    for dtype, given in ((torch.float32, rows), (torch.float64, rows.astype(np.float32))):
        ways = BothWays(everything().to(dtype))
        captured = ways.by_joining([VertexInstance.build([(FEATURES, [])], {"row": given})])
        pools = [
            captured.constants[s] for s in captured.external_source.tolist() if captured.sources[s].kind == "constant"
        ]

        assert [pool.dtype for pool in pools] == [dtype]


def test_fragments_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit recording starts afresh and joining still gives the right graph."""
    monkeypatch.setattr(program_module, "MAX_REFERENCES", 12)
    ways = BothWays(everything())
    sizes = []
    for seed in range(30):
        batch = [random_instance(seed, 5)]

        assert canonical(ways.by_joining(batch)) == canonical(ways.by_vertices_one_by_one(batch))
        sizes.append(ways.program.num_fragments)

    assert any(after < before for before, after in zip(sizes, sizes[1:], strict=False))


def test_every_number_of_predecessors_is_a_kind() -> None:
    """Vertices that fold 0 to 40 predecessors have a fragment each."""
    ways = BothWays(everything())
    words = [(WORD, [])] * 40
    folds = [(FOLD, list(range(count))) for count in range(41)]
    batch = [VertexInstance.build(words + folds, {"id": [1] * 81, "row": np.zeros((81, 3), np.float32)})]

    assert canonical(ways.by_joining(batch)) == canonical(ways.by_vertices_one_by_one(batch))
    assert ways.program.num_fragments == 42


def test_threads_may_join_at_once() -> None:
    """Eight threads that join other mini-batches by one program, from the first fragment on, get the right graphs."""
    from concurrent.futures import ThreadPoolExecutor

    ways = BothWays(everything())
    batches = [[random_instance(seed, 12)] * 3 for seed in range(24)]
    with ThreadPoolExecutor(8) as pool:
        captured = list(pool.map(ways.by_joining, batches))

    assert [canonical(c) for c in captured] == [canonical(ways.by_vertices_one_by_one(b)) for b in batches]
