"""Which methods are functions of their arguments, as their code tells."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import math
import sys
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from edbc.capture.code.closed import Closed, methods_of

SIZE = 4
LIMITS = {"low": -1.0}
BY_NAME = {"tanh": torch.tanh, "relu": F.relu}
CALLS: list[int] = []


class Pair(NamedTuple):
    h: Tensor
    c: Tensor


class Config:
    def __init__(self, scale: float = 2.0) -> None:
        self.scale, self.changing = scale, 0


def helper(x: Tensor) -> Tensor:
    return torch.tanh(x) * SIZE


def twice(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * 2


with warnings.catch_warnings(action="ignore"):  # it is deprecated, and stands in many a model
    scripted = torch.jit.script(twice)

    @torch.jit.script
    def scripted_at_once(x: Tensor, dim: int = -1) -> Tensor:
        return torch.softmax(x, dim)


def counting(x: Tensor) -> Tensor:
    CALLS.append(1)
    return x


def scaled(by: float) -> Any:
    return lambda x: x * by


FUNCTIONS = {
    "tanh": torch.tanh,
    "helper": helper,
    "swish": lambda x: x * torch.sigmoid(x),
}  # fmt: skip
FUNCTIONS["shifted"] = lambda x: (
    helper(x) + LIMITS["low"]
)  # fmt: skip
COUNTING = {"tanh": torch.tanh, "counting": lambda x: counting(x)}
IN_A_LINE = {"twice": lambda x: x * 2, "thrice": lambda x: x * 3}
WITH_VARIABLES = {"scaled": scaled(2.0)}
WITH_A_LIST = {"scaled": scaled([2.0])}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x))

    def counted(self, x: Tensor) -> Tensor:
        self.calls = 1
        return x


class Counts(Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.calls = 1
        return x


class Unfit(Exception):
    """What the model's code raises."""


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Times(nn.Module):
    def __init__(self, by: float, *, shift: float = 0.0) -> None:
        super().__init__()
        self.by, self.shift = by, shift

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by + self.shift


class Grown(Twice):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)


class Remembers(Twice):
    def forward(self, x: Tensor) -> Tensor:
        self.calls = 1
        return x


class Drawn(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.scale = float(torch.rand(()))


class Calls(Layer):
    def __call__(self, x: Tensor) -> Tensor:
        CALLS.append(2)
        return self.forward(x)


class Hooked(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(lambda *_: None)


class Net(nn.Module):
    limit = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.other, self.weight = Layer(), nn.Parameter(torch.ones(SIZE))
        self.counts, self.config, self.activation = Counts(), Config(), torch.tanh
        self.calls_itself, self.hooked = Calls(), Hooked()
        self.memory, self.parts = [torch.ones(SIZE)], {"low": torch.ones(SIZE)}
        self.sizes, self.tags = [1, SIZE], {"start": 0, "stop": 1}
        self.names, self.steps, self.last = ("a", "b"), 3, 0.0
        self.heads, self.strangers = [self.layers[0], self.other], [nn.Linear(SIZE, SIZE)]
        self.shift = lambda x: x + 1
        self.rules = nn.ParameterList(torch.ones(SIZE) for _ in range(2))
        self.named = nn.ParameterDict({"a": torch.ones(SIZE)})
        self.by_name, self.counting = nn.ModuleDict({"a": Layer(), "b": Layer()}), nn.ModuleDict({"a": Counts()})
        self.layer0, self.layer1 = Layer(), Layer()

    def touch(self) -> None:
        self.last = 1.0
        self.config.changing = 1

    # closed

    def of_arguments(self, x: Tensor, y: Tensor, *rest: Tensor, scale: float = 2.0) -> Any:
        gates = [torch.sigmoid(g) for g in torch.chunk(x + y, 2)]
        i, o = gates
        for z in rest:
            i = i + z[: SIZE // 2] * scale if len(rest) > 1 else i
        return {"i": i, "o": (o, f"{len(gates)}")}

    def of_parameters(self, x: Tensor) -> Tensor:
        return self.activation(x * self.weight + self.config.scale) * self.limit + self.steps

    def of_plain_nests(self, x: Tensor) -> Tensor:
        return x[self.tags["start"]] * self.tags.get("none", 2) + sum(self.sizes) * LIMITS["low"]

    def of_modules(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.other(x) + self.of_parameters(x) + helper(x) * math.sqrt(SIZE)

    def of_named_modules(self, x: Tensor) -> Tensor:
        x = sum([layer(x) * self.named["a"] for name, layer in self.by_name.items() if name in self.named])
        return x + sum(weight for weight in self.named.values())

    def of_classes(self, x: Tensor) -> Pair:
        with torch.no_grad():
            y = x * 2
        if isinstance(x, Tensor) and x.dim() == 1 and y is not None:
            return Pair(h=x, c=y)
        raise ValueError("one dimension wanted")

    def of_functions(self, xs: list[Tensor]) -> Tensor:
        return torch.stack(sorted(xs, key=lambda x: x.shape[0])).sum(0)

    def of_made_modules(self, x: Tensor) -> Tensor:
        halve = nn.Softmax(dim=0)
        return Times(self.steps)(nn.Sigmoid()(halve(x) + nn.LeakyReLU(0.1)(x)))

    def of_lists_of_modules(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads])

    def of_variables_named_as_a_file(self, x: Tensor) -> Tensor:
        heads = {math: math(x) for math in self.heads if math is not None}
        return torch.cat([*heads.values()]) + (lambda sys: sys(x))(self.linear)

    def of_attributes_by_name(self, x: Any) -> Tensor:
        if getattr(self, "norm", None) is not None or hasattr(self.other, "norm"):
            x = self.norm(x)
        return getattr(self.other, "linear")(x.value if hasattr(x, "value") else x)  # noqa: B009

    def of_parameters_in_modules(self, x: Tensor) -> Tensor:
        return x * self.rules[1] + sum(self.rules) + self.named["a"]

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        return x / (1 + x.norm())

    def of_static_methods(self, x: Tensor) -> Tensor:
        return self.squash(x) + Net.squash(x)

    def of_distributions(self, x: Tensor) -> Tensor:
        normal = torch.distributions.Normal(x, 1.0)
        return normal.log_prob(x) + Categorical(logits=x).entropy()

    def of_holders(self, x: Tensor) -> Tensor:
        waiting, found = deque([x]), OrderedDict()
        found["x"] = BY_NAME["tanh"](waiting.popleft())
        return found["x"]

    def of_functions_by_name(self, x: Tensor, name: str) -> Tensor:
        return FUNCTIONS[name](x) + self.shift(x)

    def of_scripted_functions(self, x: Tensor) -> Tensor:
        return scripted(x) + helper(x) + scripted_at_once(x)

    # open

    def calls_a_counter_by_name(self, x: Tensor, name: str) -> Tensor:
        return COUNTING[name](x)

    def calls_one_of_two_in_a_line(self, x: Tensor, name: str) -> Tensor:
        return IN_A_LINE[name](x)

    def calls_what_has_variables(self, x: Tensor, name: str) -> Tensor:
        return WITH_VARIABLES[name](x)

    def asks_for_a_type(self, x: Tensor) -> Tensor:
        return self.private(x) if type(x) == torch.Tensor else x * 2  # noqa: E721

    def asks_for_a_limit(self, x: Tensor) -> Tensor:
        return x.to(torch.device("cpu")).clamp(max=torch.finfo(x.dtype).max / torch.iinfo(torch.int8).max)

    def private(self, x: Tensor) -> Tensor:
        return self.__scaled(x, torch.Size((1, SIZE)))

    def __scaled(self, x: Tensor, shape: Any) -> Tensor:
        return x * x.new_ones(shape)

    def calls_what_has_a_list(self, x: Tensor, name: str) -> Tensor:
        return WITH_A_LIST[name](x)

    def makes_parameters(self, x: Tensor) -> Tensor:
        return nn.PReLU()(x)

    def makes_a_layer(self, x: Tensor) -> Tensor:
        return nn.Linear(SIZE, SIZE)(x)

    def reads_a_list(self, x: Tensor) -> Tensor:
        return x + self.memory[-1]

    def reads_a_dict(self, x: Tensor) -> Tensor:
        return x + self.parts["low"]

    def reads_what_is_assigned(self, x: Tensor) -> Tensor:
        return x + self.last

    def reads_a_changing_object(self, x: Tensor) -> Tensor:
        return x + self.config.changing

    def assigns(self, x: Tensor) -> Tensor:
        self.last = 2.0
        return x

    def passes_itself(self, x: Tensor) -> Tensor:
        return helper(self)  # type: ignore[arg-type]

    def calls_a_counter(self, x: Tensor) -> Tensor:
        return counting(x)

    def calls_a_module_that_counts(self, x: Tensor) -> Tensor:
        return self.counts(x)

    def calls_a_method_that_counts(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.counted(x)
        return x

    def compares_objects(self, x: Tensor, y: Tensor) -> Tensor:
        return x if x is y else x + y

    def asks_torch(self, x: Tensor) -> Tensor:
        return x * 2 if torch.is_grad_enabled() else x

    def names_a_variable_as_a_global(self, x: Tensor) -> Tensor:
        return x * sum(LIMITS for LIMITS in range(2)) + LIMITS["low"]

    def calls_what_has_a_call(self, x: Tensor) -> Tensor:
        return self.calls_itself(x)

    def calls_what_has_hooks(self, x: Tensor) -> Tensor:
        return self.hooked(x)

    def prints(self, x: Tensor) -> Tensor:
        print(x.shape)
        return x

    def gets(self, x: Tensor, name: str) -> Tensor:
        return getattr(self.other, name)(x)

    def gets_by_number(self, x: Tensor, count: int) -> Tensor:
        for i in range(count):
            x = getattr(self, f"layer{i}")(x) + getattr(self, "layer" + str(i))(x)
            x = getattr(self, "layer%d" % i)(x) + getattr(self, "layer{}".format(i)).linear.bias  # noqa: UP031, UP032
        return x

    def gets_by_the_end(self, x: Tensor, name: str) -> Tensor:
        return x * getattr(self, f"{name}ast")

    def gets_none(self, x: Tensor, count: int) -> Tensor:
        return getattr(self, f"stage{count}")(x)

    def calls_strangers(self, x: Tensor) -> Tensor:
        return sum(layer(x) for layer in self.strangers)

    def gets_what_is_assigned(self, x: Tensor) -> Tensor:
        return x * getattr(self, "last", 1.0)

    def recurses(self, x: Tensor, depth: int) -> Tensor:
        return x if depth == 0 else self.recurses(x, depth - 1)

    def recurses_by_way_of(self, x: Tensor) -> Tensor:
        return self.recurses(x, 2)

    def imports(self, x: Tensor) -> Tensor:
        import random

        return x * random.random()

    def generates(self, x: Tensor) -> Any:
        yield x

    @staticmethod
    def counts_itself(x: Tensor) -> Tensor:
        CALLS.append(3)
        return x

    def calls_a_static_method_that_counts(self, x: Tensor) -> Tensor:
        return self.counts_itself(x)

    def of_the_first_parameter(self, x: Tensor) -> Tensor:
        return x + next(self.parameters()).new_zeros(SIZE)

    def of_numbers_by_numpy(self, x: Tensor) -> Tensor:
        return x / np.sqrt(x.shape[-1]) + torch.from_numpy(np.triu(np.ones((SIZE, SIZE)))).float()[0]

    def of_numbers_of_a_class_of_numpys(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.eye(SIZE).astype(np.float32))[0] * np.float64(2)

    def makes_functions(self, x: Tensor) -> Tensor:
        return Twice()(nn.MaxPool1d(1)(x[None])[0])

    def makes_what_counts(self, x: Tensor) -> Tensor:
        return Remembers()(x)

    def makes_what_is_told_sizes(self, x: Tensor) -> Tensor:
        return Grown(SIZE)(x)

    def makes_what_draws(self, x: Tensor) -> Tensor:
        return Drawn()(x)

    def draws_by_numpy(self, x: Tensor) -> Tensor:
        return x * np.random.rand()

    def uses_super(self, x: Tensor) -> Any:
        return super().forward(x)

    def ends_the_program(self, x: Tensor) -> Tensor:
        if SIZE == 4:
            x = torch.tanh(x)
        else:
            print("unsupported:", SIZE)
            exit()
        return x

    def ends_the_program_after_a_change(self, x: Tensor) -> Tensor:
        if SIZE > 4:
            self.last = x
            exit()
        return x

    def exits(self, x: Tensor) -> Tensor:
        exit()
        return x

    def has_defaults(
        self,
        x: Tensor,
        dim: int = -1,
        sizes: tuple[int, ...] = (SIZE, 1),
        activation: Callable[..., Tensor] = torch.relu,
    ) -> Tensor:
        return activation(x).reshape(sizes)[..., Ellipsis].sum(dim)

    def has_a_list_as_default(self, x: Tensor, sizes: list[int] = [SIZE, 1]) -> Tensor:  # noqa: B006
        return x.reshape(sizes)

    def has_a_dict_as_default(self, x: Tensor, info: dict[str, float] = {}) -> Tensor:  # noqa: B006
        return x * info["scale"] if "scale" in info and self.is_short(info) else x

    def is_short(self, info: dict[str, float]) -> bool:
        return len(info) < SIZE

    def fills_its_default(self, x: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006
        seen.append(x)
        return x

    def gives_its_default(self, x: Tensor, seen: list[Tensor] = []) -> list[Tensor]:  # noqa: B006
        return seen

    def fills_its_default_by_way_of(self, x: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006
        return self.fills(x, seen)

    def fills(self, x: Tensor, seen: list[Tensor]) -> Tensor:
        seen.append(x)
        return x

    def expand(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0).expand(3, -1)

    def has_types_as_default(self, x: Tensor, states: Any = tuple[Tensor, Tensor]) -> Tensor:
        return x * 2 if isinstance(states, tuple) else x

    def raises_its_own(self, x: Tensor) -> Tensor:
        if x.ndim > 2:
            raise Unfit(f"{x.ndim} dimensions")
        return x * 2

    def takes_in_turn(self, x: Tensor) -> Tensor:
        parts = iter([x, x * 2])
        return next(parts) + next(parts, x)

    def narrow(self, x: Tensor) -> Tensor:
        y = self.narrows(x)
        CALLS.append(1)
        return y

    def narrows(self, x: Tensor) -> Tensor:
        return x.narrow(0, 0, 1)

    @torch.no_grad()
    def decorated(self, x: Tensor) -> Tensor:
        return x

    def of_modules_that_count(self, x: Tensor) -> Tensor:
        return sum(layer(x) for layer in self.counting.values())


MODEL = Net()
CLOSED = ["of_arguments", "of_parameters", "of_modules", "of_classes", "of_functions", "of_made_modules", "of_holders",
          "of_parameters_in_modules", "of_attributes_by_name", "gets_by_number", "of_lists_of_modules",
          "of_variables_named_as_a_file", "of_named_modules",
          "of_static_methods", "of_distributions", "of_functions_by_name", "calls_what_has_variables",
          "of_scripted_functions", "ends_the_program",
          "of_the_first_parameter", "of_numbers_by_numpy",
          "of_numbers_of_a_class_of_numpys", "makes_functions",
          "asks_for_a_type", "asks_for_a_limit", "private", "has_defaults", "has_a_dict_as_default",
          "expand", "has_types_as_default", "raises_its_own", "takes_in_turn"]  # fmt: skip
OPEN = {
    "of_modules_that_count": "self.calls is assigned",
    "makes_parameters": "makes objects of a class",
    "makes_a_layer": "makes objects of a class",
    "reads_a_list": "'list' objects may change unseen",
    "reads_a_dict": "'dict' objects may change unseen",
    "reads_what_is_assigned": "'last' is assigned in code that forward may reach",
    "reads_a_changing_object": "'changing' is assigned in code that forward may reach",
    "assigns": "self.last is assigned",
    "passes_itself": "x itself is passed on",
    "calls_a_counter": "'list' objects may change unseen",
    "calls_a_counter_by_name": "'list' objects may change unseen",
    "calls_one_of_two_in_a_line": "the source of <lambda> is not to be had",
    "calls_what_has_a_list": "reads variables of a function around it",
    "calls_a_module_that_counts": "self.calls is assigned",
    "calls_a_method_that_counts": "self.calls is assigned",
    "calls_a_static_method_that_counts": "'list' objects may change unseen",
    "compares_objects": "which objects arguments are",
    "asks_torch": "objects may change unseen",
    "prints": "print does more than compute",
    "exits": "exit does more than compute",
    "ends_the_program_after_a_change": "self.last is assigned",
    "gets": "getattr does more than compute",
    "gets_by_the_end": "'last' is assigned in code that forward may reach",
    "gets_none": "no attribute has such a name",
    "recurses": "recurses calls itself",
    "recurses_by_way_of": "recurses calls itself",
    "imports": "Import is more than a function of arguments needs",
    "generates": "Yield is more",
    "calls_strangers": "self.strangers holds a module that is none of the model's",
    "gets_what_is_assigned": "'last' is assigned in code that forward may reach",
    "makes_what_counts": "self.calls is assigned",
    "makes_what_draws": "makes objects of a class",
    "makes_what_is_told_sizes": "makes objects of a class",
    "draws_by_numpy": "objects may change unseen",
    "uses_super": "super().forward is not known to compute",
    "has_a_list_as_default": "an argument's default is a list, which may change",
    "fills_its_default": "an argument's default is a list, which may change",
    "gives_its_default": "an argument's default is a list, which may change",
    "fills_its_default_by_way_of": "an argument's default is a list, which may change",
}


@pytest.mark.parametrize("name", CLOSED)
def test_functions_of_their_arguments_are_closed(name: str) -> None:
    """Arguments, parameters, modules, plain attributes, functions of torch and of the user's that are closed."""
    assert Closed(MODEL).obstacle(MODEL, name) is None


def test_what_was_taken_for_closed_may_turn_out_open() -> None:
    """A method whose name is called of something unknown may be that, and what calls it is read while it is."""
    closed = Closed(MODEL)
    assert all(closed.obstacle(MODEL, name) is not None for name in ("narrow", "narrows"))


class OfItsMode(nn.Module):
    """Does more than compute where it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            CALLS.append(2)
        x = counting(x) if self.training and len(x) else x * 2
        if not self.training or len(x) > 2:
            return torch.tanh(x)
        return counting(x)

    def of_more(self, x: Tensor) -> Tensor:
        if not self.training and len(x) > 2:
            x = counting(x)
        return x


def test_what_runs_in_the_other_mode_is_not_read() -> None:
    """Code that a module's mode keeps from running leaves it closed: each mode has a net of its own."""
    net = OfItsMode().eval()
    closed = Closed(net)
    assert closed.is_forward_closed
    assert closed.obstacle(net, "of_more") is not None
    net.train()
    assert not Closed(net).is_forward_closed


class OfItsValues(nn.Module):
    """Does more than compute where it has somebody to tell."""

    def __init__(self, writer: Any = None, verbose: bool = False) -> None:
        super().__init__()
        self.writer, self.verbose, self.last = writer, verbose, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.writer is not None:
            self.writer.append(x)
            self.noted = 1
        return counting(x) if self.verbose and self.writer is None else x * 2

    def of_what_changes(self, x: Tensor) -> Tensor:
        if self.last:
            CALLS.append(2)
        return x

    def touch(self) -> None:
        self.last = 1


def test_what_plain_values_keep_from_running_is_not_read() -> None:
    """They stay as they are while the model is bound, but for those that code assigns which forward may reach."""
    net = OfItsValues()
    assert Closed(net).is_forward_closed
    assert Closed(net).obstacle(net, "of_what_changes") is not None
    assert not Closed(OfItsValues(verbose=True)).is_forward_closed
    assert not Closed(OfItsValues(writer=[])).is_forward_closed


@pytest.mark.parametrize("name", OPEN)
def test_what_else_is_read_or_changed_makes_a_method_open(name: str) -> None:
    """With the line where it stands."""
    obstacle = Closed(MODEL).obstacle(MODEL, name)

    assert obstacle is not None
    assert OPEN[name] in obstacle.reason
    assert obstacle.location.startswith("test_closed.py:")


@pytest.mark.parametrize("name", ["calls_what_has_a_call", "calls_what_has_hooks"])
def test_calls_of_modules_that_do_more_than_forward_make_a_method_open(name: str) -> None:
    """A hook, or a `__call__` of the user's."""
    obstacle = Closed(MODEL).obstacle(MODEL, name)

    assert obstacle is not None
    assert "has hooks, or a __call__ of its own" in obstacle.reason


def test_layers_of_einops_are_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their code looks up: the pattern that they are made with is written."""
    model = nn.Sequential(Counts())
    assert not Closed(model).module_only_computes(model)
    monkeypatch.setattr(Counts, "__module__", "einops.layers.torch")
    assert Closed(model).module_only_computes(model)


ASSIGNS = """
from torch import nn

class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.mode = nn.Linear(2, 2), 1

    def combine(self, x):
        return self.linear(x) * self.mode

    def layer(self, x):
        return self.linear(x).tanh()

    def forward(self, x):
        {}
        return self.combine(x)
"""


@pytest.mark.parametrize(
    "line", ["setattr(self, 'mode', x)", "setattr(self, x.name, 2)", "vars(self)['mode'] = 2",
             "self.__dict__['mode'] = 2", "object.__setattr__(self, 'mode', 2)", "self.mode = 2", "del self.mode",
             "exec('self.mode = 2')", "import builtins; builtins.exec(x.code)"]
)  # fmt: skip
def test_what_may_be_assigned_is_not_read(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name: a method that reads one is open, one that does not stays closed."""
    (tmp_path / "made_here.py").write_text(ASSIGNS.format(line))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    made = importlib.import_module("made_here").Made()

    assert Closed(made).obstacle(made, "combine") is not None
    assert Closed(made).obstacle(made, "layer") is None


@pytest.mark.parametrize("line", ["self.eval()", "self.train().eval()", "x.vars()", "x.exec('mode = 2')"])
def test_methods_are_not_the_functions_of_their_names(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`model.eval()` assigns nothing by a name that is made."""
    (tmp_path / "evaluates.py").write_text(ASSIGNS.format(line))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evaluates", raising=False)
    made = importlib.import_module("evaluates").Made()

    assert Closed(made).obstacle(made, "combine") is None


def test_files_that_a_model_imports_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they assign may be the model's."""
    (tmp_path / "changes_it.py").write_text("def change(model):\n    model.mode = 2\n")
    text = "from changes_it import change\n" + ASSIGNS.format("change(self)")
    (tmp_path / "made_of_two.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("changes_it", "made_of_two"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module("made_of_two").Made()

    assert Closed(made).obstacle(made, "combine") is not None


OTHERS = """
from torch import nn

class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        self.layer = x.tanh()
        return x + self.layer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), Keeps()

    def forward(self, x):
        return self.layer(self.inner(x))

    def only_this(self, x):
        return self.layer(x)

    {}
"""


@pytest.mark.parametrize(
    ("line", "is_closed"),
    [
        ("pass", True),
        ("def change(self, x):\n        self.layer = x\n\n    def __call__(self, x):\n        self.change(x)", False),
        ("def __call__(self, x):\n        self.inner.layer = x", False),
        ("pass\n\nclass Both(Keeps):\n    def __call__(self, net):\n        self.layer = net.layer = None", False),
        ("pass\n\nclass Gives(Keeps):\n    def __call__(self, net):\n        self = net; self.layer = None", False),
    ],
)
def test_an_attribute_that_another_class_assigns_of_its_own_stays(
    line: str, is_closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the module's own methods assign one by the name, or code does of anything."""
    (tmp_path / "keeps_one.py").write_text(OTHERS.format(line))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keeps_one", raising=False)
    net = importlib.import_module("keeps_one").Net()

    assert (Closed(net).obstacle(net, "only_this") is None) == is_closed
    assert (Closed(net).left_by_forward == {"layer"}) == is_closed


def test_decorated_methods_are_open() -> None:
    """What runs is somebody else's code."""
    obstacle = Closed(MODEL).obstacle(MODEL, "decorated")

    assert obstacle is not None


def test_code_without_source_is_open() -> None:
    """Nothing is said of what cannot be read."""
    scope: dict[str, Any] = {"nn": nn}
    exec("class Made(nn.Module):\n    def combine(self, x):\n        return x * 2\n", scope)
    made = scope["Made"]()
    assert Closed(made).function_obstacle(eval("lambda x: x * 2"), None) is not None

    obstacle = Closed(made).obstacle(made, "combine")

    assert obstacle is not None
    assert "is not to be had" in obstacle.reason


def test_names_are_looked_up_again() -> None:
    """What was read of globals and of objects is a look-up, which fails once it finds something else."""
    model = Net()
    closed = Closed(model)
    assert closed.obstacle(model, "of_parameters") is None
    assert closed.look_ups.still_hold()

    model.config.__init__(3.0)  # type: ignore[misc]  # any other assignment in this file would tell

    assert closed.look_ups.first_broken() == "scale"


def test_functions_in_dicts_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another function by the name, and what a function in the dict reads itself."""
    closed = Closed(MODEL)
    assert closed.obstacle(MODEL, "of_functions_by_name") is None
    assert closed.look_ups.still_hold()

    with monkeypatch.context() as patched:
        patched.setitem(FUNCTIONS, "swish", torch.relu)
    assert closed.look_ups.still_hold()
    monkeypatch.setitem(LIMITS, "low", 3.0)


def test_what_stands_in_a_default_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict that is an argument's default may be changed by whoever reaches it."""
    model = Net()
    closed = Closed(model)
    assert closed.obstacle(model, "has_a_dict_as_default") is None
    assert closed.look_ups.still_hold()

    monkeypatch.setitem(Net.has_a_dict_as_default.__defaults__[0], "scale", 2.0)  # type: ignore[index]

    assert not closed.look_ups.still_hold()


@pytest.mark.parametrize("of", ["net", "other"])
def test_attributes_that_were_absent_are_looked_for_again(of: str) -> None:
    """What `getattr` and `hasattr` did not find may come."""
    model = Net()
    closed = Closed(model)
    assert closed.obstacle(model, "of_attributes_by_name") is None
    assert closed.look_ups.still_hold()

    (model if of == "net" else model.other).add_module("norm", nn.LayerNorm(SIZE))

    assert closed.look_ups.first_broken() == "norm"


class Above(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class AboveTorch(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class AboveAll(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class AboveCounts(Counts):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class AboveByName(AboveTorch):
    def forward(self, x: Tensor) -> Tensor:
        return super(AboveTorch, self).forward(x)


class AboveAStranger(AboveTorch):
    def forward(self, x: Tensor) -> Tensor:
        return super(Above, self).forward(x)


def test_what_super_finds_is_read() -> None:
    """A method of the user's further up, and a layer of torch's with what is in it."""
    for model in (Above(), AboveTorch(SIZE, SIZE), AboveByName(SIZE, SIZE), AboveAll(Layer(), nn.Tanh())):
        assert Closed(model).obstacle(model, "forward") is None
    for model in (AboveCounts(), AboveAll(Layer(), Counts())):
        obstacle = Closed(model).obstacle(model, "forward")
        assert obstacle is not None
        assert "self.calls is assigned" in obstacle.reason


def test_super_in_a_method_of_another_class_is_not_known() -> None:
    """A function that was given to a class, and a class that is none of the module's bases."""
    model = type("Given", (Layer,), {"forward": Above.forward})()
    obstacle = Closed(model).obstacle(model, "forward")
    assert obstacle is not None
    assert "super().forward is not known" in obstacle.reason
    stranger = AboveAStranger(SIZE, SIZE)
    obstacle = Closed(stranger).obstacle(stranger, "forward")
    assert obstacle is not None
    assert "super(Above, self) is not known" in obstacle.reason


def test_a_base_that_is_named_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`super(Base, self)` finds another method once the name is another class."""
    model = AboveByName(SIZE, SIZE)
    closed = Closed(model)
    assert closed.obstacle(model, "forward") is None
    assert closed.look_ups.still_hold()
    monkeypatch.setitem(globals(), "AboveTorch", nn.Linear)
    assert closed.look_ups.first_broken() == "AboveTorch"


def test_methods_are_the_users() -> None:
    """Those of torch and special ones are none; what a class overrides is found as it is called."""
    assert set(methods_of(Counts())) == {"forward", "counted"}
    assert methods_of(Counts())["forward"] is Counts.forward
    assert methods_of(nn.Linear(2, 2)) == {}


class OfStatic(nn.Module):
    def forward(self, x):
        return x + nn.Transformer.generate_square_subsequent_mask(3)[0]


def test_static_methods_stay_what_they_are() -> None:
    """What a class holds by the name is another object than what asking for it gives, and no change."""
    model = OfStatic()
    closed = Closed(model)

    assert closed.obstacle(model, "forward") is None
    assert closed.look_ups.still_hold()


# --- closed for instances ------------------------------------------------------------------------------------------


class Leaf:
    def __init__(self, word: int) -> None:
        self.word, self.kids, self.changing = word, [], 0


def grown(words: list[int]) -> Leaf:
    leaf = Leaf(words[0])
    leaf.kids = [grown(words[i:]) for i in range(1, len(words))]
    leaf.mass = 1  # type: ignore[attr-defined]
    return leaf


class Heavy(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mass = 2.0


class Trees(nn.Module):
    """What `forward` does is what the test makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.join, self.config = nn.Embedding(9, SIZE), Layer(), Config()
        self.mass, self.calls, self.parts = 1.0, [], nn.ModuleList([Heavy()])

    def encode(self, tree: Any) -> Tensor:
        return self.join(self.words.weight[tree.word] + sum(self.encode(kid) for kid in tree.kids))

    def one(self, tree: Any) -> Tensor:
        return self.other(tree) + self.size(tree)

    def other(self, tree: Any) -> Tensor:
        return sum((self.one(kid) for kid in tree.kids), self.words.weight[tree.word])

    def counts(self, tree: Any) -> Tensor:
        CALLS.append(1)
        return self.one(tree)

    def size(self, tree: Any) -> int:
        return sum(map(self.size, tree.kids), 1)

    def read(self, tree: Any) -> Tensor:
        return self.encode(tree) * self.config.changing

    def take(self, tree: Any) -> Tensor:
        config = self.config
        return self.encode(tree) * config.changing

    def of_a_module(self, tree: Any) -> Tensor:
        return self.encode(tree) * sum(part.mass for part in self.parts)

    def states(self, tree: Any) -> Any:
        yield self.words.weight[tree.word]
        for kid in tree.kids:
            yield from self.states(kid)

    def generated(self, tree: Any) -> Tensor:
        return sum(itertools.islice(self.states(tree), 3))  # type: ignore[return-value]

    def of_a_variable(self, tree: Any) -> Tensor:
        total = self.words.weight[0]

        def add(part: Any) -> None:
            nonlocal total
            total = total + self.words.weight[part.word]

        functools.reduce(lambda _, kid: add(kid), tree.kids, None)
        return total

    def given(self, tree: Any) -> Tensor:
        return encoded(self, tree)

    def called(self, tree: Any) -> Tensor:
        return self.words.weight[tree.word] + sum(self(kid) for kid in tree.kids)

    def given_to_what_keeps(self, tree: Any) -> Tensor:
        return keeps(self, tree)

    def of_a_variable_around(self, tree: Any) -> Tensor:
        return self.words.weight[0] * counted()

    def assigning(self, tree: Any) -> Tensor:
        tree.kids = []
        return self.encode(tree)

    def through(self, tree: Any) -> Tensor:
        return self.back(tree) if tree.kids else self.words.weight[0]

    def back(self, tree: Any) -> Tensor:
        return self.through(tree.kids[0]) * self.config.changing


def of_trees(name: str) -> Trees:
    class Made(Trees):
        forward = getattr(Trees, name)

    return Made()


def encoded(net: Any, tree: Any, depth: int = 0) -> Tensor:
    return net.join(net.words.weight[tree.word] + depth + sum(encoded(net, kid, depth + 1) for kid in tree.kids))


def keeps(net: Any, tree: Any) -> Tensor:
    net.calls.append(tree)
    return net.words.weight[tree.word]


def counter() -> Callable[[], int]:
    count = 0

    def counts() -> int:
        nonlocal count
        count += 1
        return count

    return counts


counted = counter()


def test_a_function_that_a_module_is_given_to_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Closed(of_trees("given"), for_instances=True)
    assert closed.obstacle(closed.model, "forward") is None
    assert closed.look_ups.still_hold()
    monkeypatch.setattr(sys.modules[__name__], "encoded", keeps)

    assert not closed.look_ups.still_hold()


@pytest.mark.parametrize("name", ["generated", "of_a_variable"])
def test_generators_and_variables_of_inner_functions_are_forwards_own(name: str) -> None:
    model = of_trees(name)

    assert Closed(model).is_forward_told
    assert Closed(model).obstacle(model, "states") is not None  # no cell


@pytest.mark.parametrize("name", ["encode", "one", "other", "given", "called"])
def test_forwards_that_call_themselves_are_closed_for_instances(name: str) -> None:
    """Of what elsewhere makes trees too; no cell is made of such methods."""
    model = of_trees(name)
    closed = Closed(model)

    assert not closed.is_forward_closed
    assert closed.is_forward_told
    assert closed.obstacle(model, name) is not None
    assert closed.fields(Leaf) is not None
    assert {"word", "kids"} <= closed.fields(Leaf)
    assert closed.look_ups.still_hold()


@pytest.mark.parametrize(
    "name",
    [
        "counts",
        "read",
        "take",
        "of_a_module",
        "of_a_variable_around",
        "assigning",
        "through",
        "given_to_what_keeps",
    ],
)
def test_other_obstacles_stay(name: str) -> None:
    """What changes, what an object of the model has, what modules have, and what was assumed to be closed and is
    not."""
    closed = Closed(of_trees(name))

    assert not closed.is_forward_told
    assert not any("kids" in look_up[1] for look_up in closed.look_ups._known)


def test_what_is_assumed_of_functions_that_call_each_other_is_forgotten() -> None:
    """The second is closed only if the first is."""
    model = of_trees("through")
    closed = Closed(model, for_instances=True)

    assert closed.obstacle(model, "through") is not None
    assert closed.obstacle(model, "back") is not None


def test_a_module_that_gets_an_attribute_of_instances_is_told() -> None:
    """It may be what the name means by then."""
    model = of_trees("encode")
    closed = Closed(model)
    assert closed.is_forward_told
    model.join.kids = 3

    assert not Closed(model).is_forward_told


class WithHooks(nn.Module):
    def __init__(self, *hooks: Any, of: str = "forward_hook") -> None:
        super().__init__()
        self.inner = Layer()
        for hook in hooks:
            getattr(self.inner, f"register_{of}")(hook)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


def doubling(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def keeping(module: nn.Module, args: Any, output: Tensor) -> None:
    CALLS.append(1)


def test_hooks_that_are_closed_functions_are_closed_for_instances() -> None:
    """Of a module's forward; another hook in the place of one is told."""
    model = WithHooks(doubling, doubling)
    closed = Closed(model)
    assert not closed.is_forward_closed
    assert closed.is_forward_told
    assert closed.look_ups.still_hold()

    hooks = model.inner._forward_hooks
    hooks[next(iter(hooks))] = keeping


@pytest.mark.parametrize(
    ("hooks", "of"),
    [((keeping,), "forward_hook"), ((doubling, keeping), "forward_hook"), ((Pair,), "forward_hook"),
     ((doubling,), "full_backward_hook")],
)  # fmt: skip
def test_other_hooks_stay_open(hooks: Any, of: str) -> None:
    """What keeps something, a class, and what a backward pass calls."""
    assert not Closed(WithHooks(*hooks, of=of)).is_forward_told


def test_variables_around_a_function_are_looked_up_again() -> None:
    """They may be assigned by others of that function."""

    def made(factor: Any) -> tuple[Any, Any]:
        def assign(value: Any) -> None:
            nonlocal factor
            factor = value

        return lambda x: x * factor, assign

    function, assign = made(2.0)
    closed = Closed(MODEL)
    assert closed.function_obstacle(function, None) is None
    assert closed.look_ups.still_hold()

    assign(3.0)


class Sphere:
    """An object of the user's with methods, as geometries are."""

    def __init__(self) -> None:
        self.least, self.by_dtype, self.calls = 1e-6, {torch.float32: 1e-3}, 0

    @property
    def twice(self) -> float:
        return self.least * 2

    def norm(self, x: Tensor) -> Tensor:
        return x.norm(dim=-1, keepdim=True).clamp_min(self.twice)

    def project(self, x: Tensor) -> Tensor:
        return Doubled.apply(x) / self.norm(x) - self.by_dtype[x.dtype]

    def counted(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x

    def open(self, x: Tensor) -> Tensor:
        return x if CALLS else x * 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
        return d * 2


class OnASphere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.space = nn.Linear(SIZE, SIZE), Sphere()

    def forward(self, x: Tensor) -> Tensor:
        return self.space.project(self.up(x))

    def counting(self, x: Tensor) -> Tensor:
        return self.space.counted(x)

    def of_global(self, x: Tensor) -> Tensor:
        return self.space.open(x)


@pytest.mark.parametrize("name", ["forward", "counting", "of_global"])
def test_methods_of_objects_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an object of a plain class does, copied or not, is told by its methods, and by attributes that stay."""
    model = copy.deepcopy(OnASphere())  # which leaves `__slotnames__` on the class
    closed = Closed(model)

    assert (closed.obstacle(model, name) is None) == (name == "forward")
    if name == "forward":
        assert closed.look_ups.still_hold()
        monkeypatch.setattr(Sphere, "norm", lambda self, x: x)


def test_attributes_of_objects_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnASphere()
    closed = Closed(model)
    assert closed.obstacle(model, "forward") is None
    monkeypatch.setattr(model.space, "least", 1.0)
