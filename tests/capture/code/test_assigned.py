"""Which names code that forward may reach assigns: what is reached, and by what."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import bound, seeded
from torch import nn

from edbc.capture.code.assigned import ANY, GLOBAL, ITEMS, assigned_in

FILE = """
import torch
from torch import nn


def register(function):
    return function


class Config:
    def merge(self, other):
        self.__dict__.update(other)

    def __str__(self):
        return ", ".join(f"{{k}}={{v}}" for k, v in self.__dict__.items())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.config.merge({{"size": 3}})
        {making}

    @staticmethod
    def default():
        config = Config()
        config.size = 4
        return config

    def move(self, x):
        self.mode = 1
        return x

    def other(self, x):
        return self.move(x)

    @register
    def registered(self, x):
        {registered}
        return x

    {method}

    def forward(self, x):
        {forward}
        return x


if __name__ == "__main__":
    model = Model()
    model.move(2)
"""


def assigned(folder: Path, monkeypatch: pytest.MonkeyPatch, *, making: str = "pass", registered: str = "pass",
             method: str = "", forward: str = "pass") -> frozenset[str]:  # fmt: skip
    """What is told of a file with these lines."""
    text = FILE.format(making=making, registered=registered, method=method or "pass", forward=forward)
    name = f"told_of_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    module: ModuleType = importlib.import_module(name)
    return assigned_in([module])


@pytest.mark.parametrize("making", ["pass", "self.move(1)", "self.config = Model.default()", "getattr(nn, 'GRU')",
                                    "hasattr(self, 'move')"])  # fmt: skip
def test_what_only_makes_the_model_is_not_reached(making: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `__init__` assigns and calls, what nobody calls, and what a script does."""
    assert assigned(tmp_path, monkeypatch, making=making) == frozenset()


@pytest.mark.parametrize(("forward", "is_reached"), [
    ("move = x * 2; x = move", False), ("move, y = x, x; x = move + y", False), ("[move(x) for move in [abs]]", True),
    ("x = [move for move in [x]]; move(x)", True), ("global move; move = abs; x = move(x)", True),
    ("class A: move = 1\n        move(x)", True), ("f = lambda: [move := 1]; move(x)", True), ("x = move(x)", True),
    ("move = x\n        def f(): return move", False), ("def f(): move = 1\n        move(x)", True),
    ("x = x.move", True), ("move = x; x = self.move(move)", True), ("getattr(self, 'move')(x)", True),
])  # fmt: skip
def test_variables_of_the_name_of_a_method_reach_none(
    forward: str, is_reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What functions, classes and comprehensions inside assign is no variable of the function."""
    found = assigned(tmp_path, monkeypatch, forward=forward)
    assert ("mode" in found) == is_reached


@pytest.mark.parametrize(("lines", "found"), [
    ("vars(settings).update(size=3)\nsettings.rate = 1", set()), ("later = lambda m: setattr(m, 'mode', 1)", {"mode"}),
    ("later = (setattr(Net, 'mode', i) for i in range(3))", {"mode"}),
])  # fmt: skip
def test_what_a_file_does_stands_before_anything_is_recorded(
    lines: str, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own statements have run when it is imported; lambdas and generators among them may run later."""
    head = "from types import SimpleNamespace\nsettings = SimpleNamespace()\n"
    (tmp_path / "file_of.py").write_text(f"{head}class Net:\n    def forward(self): pass\n{lines}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "file_of", raising=False)
    assert assigned_in([importlib.import_module("file_of")]) == found


@pytest.mark.parametrize("line", [
    "self.__dict__ == other.__dict__", "repr(self.__dict__)", "'{a}'.format(**self.__dict__)", "self.__dict__['a']",
    "{**self.__dict__}.a",
])  # fmt: skip
def test_attributes_that_are_only_looked_at_are_not_assigned(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what Python calls of its own; what may change them assigns any."""
    found = assigned(tmp_path, monkeypatch, method=f"def __eq__(self, other): return {line}")
    assert found == (frozenset() if "{**" not in line else {ANY})


def test_bases_in_files_that_are_read_call_what_they_mention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of another file has a method of the same name that nobody calls."""
    (tmp_path / "base_of.py").write_text("from torch import nn\nclass Base(nn.Module):\n    def prune(self): pass\n")
    text = (
        "from base_of import Base\nclass Net(Base):\n    def prune(self): self.mode = 1\n    def forward(self): pass\n"
    )
    (tmp_path / "net_of.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    files = [importlib.import_module(name) for name in ("base_of", "net_of")]
    assert assigned_in(files) == frozenset()
    assert assigned_in(files[1:]) == {"mode"}


@pytest.mark.parametrize("lines", [
    {"forward": "self.move(x)"}, {"forward": "self.other(x)"}, {"forward": "f = self.other"},
    {"forward": "getattr(self, 'other')(x)"}, {"making": "self.table = {'move': self.move}"},
    {"making": "self.apply(self.move)"}, {"making": "self.kept = lambda x: self.other(x)"},
    {"method": "def __len__(self): self.mode = 1"}, {"method": "def train(self, mode=True): self.mode = mode"},
    {"registered": "self.mode = x"}, {"forward": "x = [self.other(y) for y in x]"},
    {"forward": "delattr(self, 'mode')"},
])  # fmt: skip
def test_what_forward_may_call_is_reached(
    lines: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name anywhere in what is reached, kept by what makes the model, called by Python, torch or a decorator."""
    assert assigned(tmp_path, monkeypatch, **lines) == {"mode"}


@pytest.mark.parametrize(("forward", "changed"), [
    ("self.kept.append(x)", ITEMS + "kept"), ("self.kept[x] = 1", ITEMS + "kept"), ("del self.a.b[x]", ITEMS + "b"),
    ("kept = self.kept; kept.clear()", ITEMS + "kept"), ("(m := self.kept).update(x); m[x] = 1", ITEMS + "kept"),
    ("KEPT.append(x)", ITEMS + "KEPT"), ("self.kept += x", ITEMS + "kept"), ("global C; C = 1", GLOBAL + "C"),
    ("kept = []; kept.append(x)", None), ("x.append(1)", None), ("y = self.kept[x]", None),
])  # fmt: skip
def test_lists_and_dicts_that_change(
    forward: str, changed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an attribute, a variable that has it, or a variable that is not forward's own; and global names."""
    found = assigned(tmp_path, monkeypatch, forward=forward)
    assert {name for name in found if " " in name} == ({changed} if changed else set())


COUNT, STACK = 0, list[int]()


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.held, self.table = list[int](), {"depth": 0}

    def scaled(self, x: torch.Tensor, by: int) -> torch.Tensor:
        return torch.tanh(self.up(x) * by) + torch.sigmoid(x) * by


class ByGlobal(Base):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x, COUNT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT = 0
        for _ in range(3):
            COUNT += 1
            x = self.scale(x)
        return x


class ByGlobalList(Base):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x, len(STACK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        STACK.clear()
        for i in range(3):
            STACK.append(i)
            x = self.scale(x)
        return x


class ByList(Base):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x, len(self.held))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.clear()
        for i in range(3):
            self.held.append(i)
            x = self.scale(x)
        return x


class ByListOfItsOwn(ByList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.held
        held.clear()
        for i in range(3):
            held.append(i)
            x = self.scale(x)
        return x


class ByDict(Base):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x, self.table["depth"] + self.table.get("depth", 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for depth in range(3):
            self.table["depth"] = depth
            x = self.scale(x)
        return x


@pytest.mark.parametrize("kind", [ByGlobal, ByGlobalList, ByList, ByListOfItsOwn, ByDict])
def test_what_changes_while_forward_runs_is_no_part_of_a_cell(kind: type[Base]) -> None:
    """A method that reads it is as many as it has values, and forward that changes it is recorded for each instance."""
    instances = list(torch.randn(6, 4))
    model = seeded(kind)
    net = bound(model, instances, "auto")
    for of in (instances, instances[:1], instances[::-1]):
        for found, x in zip(net(of), of, strict=True):
            torch.testing.assert_close(found, model(x))
    for found, x in zip(net(net.capture_all(instances)), instances, strict=True):
        torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize(
    "forward", ["getattr(self, x)(x)", "globals()[x](x)", "eval(x)", "operator.methodcaller(x)(self)"]
)
def test_names_that_are_made_reach_everything(forward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what they find."""
    assert assigned(tmp_path, monkeypatch, forward=forward) >= {"mode", "size", ANY}


@pytest.mark.parametrize(
    "name", ["'mo' + str(x)", "f'{x}ve'", "'mo%s' % x", "'mo{}e'.format(x)", "'mo%(x)s' % x", "f'{x}'"]
)
def test_names_that_are_made_in_part_reach_what_has_such_names(name: str, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """And nothing else; where it is not known how a name is made, everything."""
    found = assigned(tmp_path, monkeypatch, forward=f"getattr(self, {name})(x)")
    assert found >= {"mode", ANY} if name in ("'mo%(x)s' % x", "f'{x}'") else found == {"mode"}
    other = "getattr(self, 'layer%d' % x)(getattr(self, f'gate_{x}'))"
    assert assigned(tmp_path, monkeypatch, forward=other) == frozenset()


@pytest.mark.parametrize("forward", ["self.config.merge(x)", "x.__dict__['mode'] = 1", "setattr(self, x, 1)"])
def test_names_that_are_made_assign_anything(forward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading `__dict__` assigns nothing."""
    assert assigned(tmp_path, monkeypatch, forward=forward) == {ANY}
    assert assigned(tmp_path, monkeypatch, forward="x = list(self.__dict__.values())") == frozenset()
