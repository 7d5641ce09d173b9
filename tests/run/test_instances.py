"""Data as it comes: every kind of it in another dtype, by itself, in eager's reference, and through commands."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from commands import command
from helpers import bound
from torch import nn

from edbc.capture.standins.objects import unchanged
from edbc.run.instances import Cast
from edbc.tools.parity import Eager

DOUBLE = Cast.between(torch.float32, torch.float64)


class Store:
    """What a graph keeps its tensors in."""

    def __init__(self, tensors: dict[str, Any]):
        self.mapping = tensors


class Graph:
    """Attributes that another object holds, as PyTorch Geometric's Data has them."""

    def __init__(self, **tensors: Any):
        self.__dict__["_store"] = Store(tensors)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_store"].mapping[name]


@dataclass
class Record:
    """A dataclass."""

    x: Any


@dataclass(frozen=True)
class Frozen:
    """One that refuses assignments."""

    x: Any


class Slotted:
    """Attributes without a dict."""

    __slots__ = ("unset", "x")

    def __init__(self, x: Any):
        self.x = x


class Named(NamedTuple):
    """A tuple with names."""

    label: int
    x: Any


def cycle(x: torch.Tensor) -> Any:
    """Two nodes that know each other."""
    child, parent = SimpleNamespace(x=x), SimpleNamespace()
    child.parent, parent.child = parent, child
    return parent


KINDS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]] = {
    "itself": (lambda x: x, lambda i: i),
    "list": (lambda x: [1, [x]], lambda i: i[1][0]),
    "dict": (lambda x: {"a": {"x": x}}, lambda i: i["a"]["x"]),
    "tuples": (lambda x: (1, (2, (x,), "b")), lambda i: i[1][1][0]),
    "list in a tuple": (lambda x: (1, [x]), lambda i: i[1][0]),
    "tuple in a list": (lambda x: [(x, 1)], lambda i: i[0][0]),
    "named tuple": (lambda x: Named(3, x), lambda i: i.x),
    "deque": (lambda x: deque([x]), lambda i: i[0]),
    "dataclass": (Record, lambda i: i.x),
    "frozen dataclass": (Frozen, lambda i: i.x),
    "dataclass of tuples": (lambda x: Frozen((x, Named(1, Record(x)))), lambda i: i.x[1].x.x),
    "slots": (Slotted, lambda i: i.x),
    "attributes of a store": (lambda x: Graph(x=x, edges=torch.tensor([[0, 1]])), lambda i: i.x),
    "cycle": (cycle, lambda i: i.child.parent.child.x),
    "numpy array": (lambda x: {"x": x.numpy()}, lambda i: torch.from_numpy(i["x"])),
    "numpy numbers": (lambda x: [np.float32(n) for n in x.tolist()], lambda i: torch.from_numpy(np.array(i))),
    "padded": (lambda x: nn.utils.rnn.pack_sequence([x[:, None]]), lambda i: i.data[:, 0]),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]:
    """How an instance is made of a tensor, and how forward gets the tensor again."""
    return KINDS[request.param]


def numbers(seed: int = 0) -> torch.Tensor:
    """Eight numbers in float32, which two thirds are not."""
    return torch.rand(8, generator=torch.Generator().manual_seed(seed)) / 3


def test_every_kind_of_data_is_converted_and_restored(kind) -> None:
    """In float64 while it is asked for; afterwards the very tensors that were there, and in float32."""
    make, get = kind
    instance = make(numbers())
    with unchanged([instance]):
        [converted] = DOUBLE([instance])
        assert get(converted).dtype is torch.float64
        assert get(converted).equal(numbers().double())
        assert type(converted) is type(instance)
    assert get(instance).dtype is torch.float32
    assert get(instance).equal(numbers())


class Reader(nn.Module):
    """A layer over what it gets of an instance, and a constant of forward's own."""

    def __init__(self, get: Callable[[Any], Any]):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.get = nn.Linear(8, 8), get

    def forward(self, instance: Any) -> torch.Tensor:
        return self.layer(self.get(instance) * torch.full((8,), 0.3)) + torch.zeros(8)


def test_the_reference_reads_every_kind_of_data_in_float64(kind) -> None:
    """Exactly what the model gives in float64, with forward's constants in float64 too; nobody asked for float32."""
    make, get = kind
    model = Reader(get).eval()
    eager = Eager(model)
    [exact] = eager.reference([make(numbers())])
    layer = nn.Linear(8, 8).double()
    layer.load_state_dict(model.layer.state_dict())

    assert exact.equal(layer(numbers().double() * 0.3).detach())
    assert not eager.pins


def test_objects_stay_who_they_are_and_what_is_shared_stays_shared() -> None:
    """A list met twice is one list; a tensor in two places becomes one tensor; what has no float32 is not touched."""
    x, plain = numbers(), (1, ("a", torch.tensor([True])))
    inner = [x, x]
    outer = {"a": inner, "b": (inner, x), "c": plain, "d": torch.tensor([1]), "e": x.half(), "f": 0.5}
    [converted] = DOUBLE([outer])

    assert converted is outer
    assert outer["a"] is inner is outer["b"][0]
    assert inner[0] is inner[1] is outer["b"][1]
    assert outer["c"] is plain
    assert [outer[key].dtype for key in "de"] == [torch.int64, torch.float16]


def test_tuples_may_be_deeper_than_python_recurses() -> None:
    """A chain of 5,000 pairs."""
    chain: Any = numbers()
    for _ in range(5000):
        chain = (1, chain)
    [converted] = DOUBLE([chain])
    while isinstance(converted, tuple):
        converted = converted[1]
    assert converted.dtype is torch.float64


def test_nothing_to_convert_is_nothing_done() -> None:
    """The same dtype before and after; and numpy, which has no bfloat16."""
    same = Cast.between(torch.float32, torch.float32)
    assert same([numbers()])[0].dtype is torch.float32
    short = Cast.between(torch.float32, torch.bfloat16)
    array, tensor = short([[numbers().numpy(), numbers()]])[0]
    assert (array.dtype, tensor.dtype) == (np.float32, torch.bfloat16)


def test_the_default_dtype_is_set_and_set_back() -> None:
    """Where it is the model's own; one that the caller has set stays."""
    with DOUBLE.default():
        assert torch.zeros(1).dtype is torch.float64
    with pytest.raises(ZeroDivisionError), DOUBLE.default():
        1 / 0  # noqa: B018
    assert torch.get_default_dtype() is torch.float32
    with Cast.between(torch.float64, torch.bfloat16).default():
        assert torch.zeros(1).dtype is torch.float32


class Looks(nn.Module):
    """A forward that looks at dtypes, and convolves what it makes in float32."""

    def __init__(self, wants: torch.dtype | None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.wants = nn.Conv1d(1, 2, 3), wants

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wants is not None and x.dtype is not self.wants:
            raise TypeError("float32, please")
        return self.layer(x.float()[None])


@pytest.mark.parametrize("wants", [None, torch.float32])
def test_a_forward_that_asks_for_float32_has_a_reference(wants: torch.dtype | None) -> None:
    """A convolution, which compares dtypes before anything; and a forward that raises on float64 data."""
    model = Looks(wants).eval()
    [exact] = Eager(model).reference([numbers()])
    layer = nn.Conv1d(1, 2, 3).double()
    layer.load_state_dict(model.layer.state_dict())

    assert exact.equal(layer(numbers().double()[None]).detach())


MODEL = '''"""Graphs in objects, with numbers in float32."""

import torch
from torch import nn


class Data:
    def __init__(self, **tensors):
        self.__dict__.update(tensors)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, data):
        total = torch.zeros(4)
        for row in torch.tanh(self.layer(data.x)) * data.weight[0]:
            total = total + row
        return self.out(total + torch.tensor([0.1, 0.2, 0.3, 0.4]))


def build():
    return Model()


def load(*paths):
    for path in paths:
        with open(path) as file:
            for line in file:
                yield Data(x=torch.tensor([[float(line)] * 4]), weight=(torch.rand(1)[0] + 0.5,), y=torch.ones(1))


def sample(count, seed):
    random = torch.Generator().manual_seed(seed)
    return [Data(x=torch.randn(3, 4, generator=random), weight=(torch.rand(3, 1, generator=random),),
                 y=torch.ones(1)) for _ in range(count)]


def loss(output, data):
    return nn.functional.mse_loss(output, data.y * torch.tensor(0.3))
'''


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of MODEL."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "graphs.py").write_text(MODEL)
    result = command("compile", folder / "graphs.py", "-o", folder / "graphs.yaml", "--policy", "critical", "--quiet")
    assert result.exit_code == 0, result.output
    return folder / "graphs.yaml"


def run(*arguments: object) -> dict[str, Any]:
    """The JSON of a command that succeeds."""
    result = command(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("source", ["sample", "load"])
def test_a_plan_runs_in_another_dtype_on_the_data_that_there_is(plan: Path, dtype: str, source: str) -> None:
    """What instances bring in float32, and what forward makes, comes in the model's dtype; equal to eager."""
    lines = plan.with_name("lines.txt")
    lines.write_text("0.1\n0.7\n1.3\n")
    given = ["--input", lines] if source == "load" else ["--limit", 5]
    report = run("run", plan, "--dtype", dtype, "--verify", *given)

    assert not report["pins_float32"]
    assert report["max_error"] < (1e-12 if dtype == "float64" else 0.1)


@pytest.mark.long
def test_training_and_measuring_in_float64_take_the_same_data(plan: Path, tmp_path: Path) -> None:
    """The loss's own constants and the targets of instances come in float64 too."""
    assert run("bench", plan, "--dtype", "float64", "--limit", 4, "--rounds", 1)["rows"]
    arguments = ["train", plan.with_suffix(".py"), plan, "--output", tmp_path / "trained", "--limit", 8, "--epochs", 1]
    result = command(*arguments, "--dtype", "float64")
    assert result.exit_code == 0, result.output
    assert torch.get_default_dtype() is torch.float32


class FloatsAmongDoubles(nn.Module):
    """A float64 model whose first parameter is of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(0.5, dtype=torch.float32))
        self.layer, self.words = nn.Linear(4, 4).double(), nn.Embedding(20, 4).double()

    def forward(self, ids: list[int]) -> torch.Tensor:
        h = self.words(torch.tensor([0]))
        for word in ids:
            h = torch.tanh(self.layer(h + self.words(torch.tensor([word])))) + self.bias
        return nn.functional.cross_entropy(h.expand(len(ids), 4), torch.tensor(ids) % 4)


def test_the_dtype_of_a_model_is_that_of_most_of_its_numbers() -> None:
    """A scalar of another dtype that comes first tells neither eager's default dtype nor that types of the plan are
    those of another configuration, which new ones are refused for."""
    net = bound(FloatsAmongDoubles().eval(), [[1, 2, 3], [4, 5]])

    assert (net.dtype, net.rebind) == (torch.float64, False)
    torch.testing.assert_close(net([[1, 2, 3, 4]])[0], net.model([1, 2, 3, 4]))
    assert Eager(net.model).dtype is torch.float64
