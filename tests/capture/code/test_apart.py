"""Changes of variables that nobody else has are new values, other ones are changes, and both give eager's results."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import bound, captured, counts, require_eager, same_graph, seeded
from torch import Tensor, nn
from torch.autograd import Variable

from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import recording_shadow
from edbc.capture.forward.build import capture
from edbc.run.session import Net

SIZE = 4


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.gate, self.kept = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Identity()


class In(Base):
    def forward(self, xs: list[Tensor]) -> Tensor:
        total, _ = Variable(torch.zeros(SIZE)), 0
        for x in xs:
            h = self.step(x)
            h += self.gate(x)  # apart
            h *= 2  # apart
            total += torch.tanh(h)  # apart
        return total


class Out(Base):
    def forward(self, xs: list[Tensor]) -> Tensor:
        total = Variable(torch.zeros(SIZE))
        for x in xs:
            h = self.step(x)
            h = h + self.gate(x)
            h = h * 2
            total = total + torch.tanh(h)
        return total


class Loops(Base):
    def forward(self, xs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        found: list[Tensor] = []
        last = self.step(xs[0])
        for x in xs:
            part = torch.zeros(SIZE)
            for y in xs:
                if y is not x:
                    part += self.step(y) * x  # apart
            found.append(part)
            last += part  # apart
        last -= found[0]  # apart
        return last, found


class Held(Base):
    """Others have the variable before it changes."""

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        total, found = torch.zeros(SIZE), []
        seen = torch.zeros(SIZE)
        for x in xs:
            seen += self.step(x)
            found.append(seen)
        h = self.step(xs[0])
        other = h
        h += xs[0]
        g = self.gate(xs[0])
        if len(xs) > 2:
            g = self.kept(h)
        g *= self.step(xs[0])
        k = self.step(xs[0])
        m = n = self.gate(k)
        m += k
        view = k[:2]
        k += xs[0]
        return [*found, other, h, g, total, view, n]


class Ways(Base):
    """Not every way to the change makes the variable anew."""

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        found: list[Tensor] = []
        for x in xs:
            if not found:
                h = self.step(x)
            h += self.gate(x)
            found = [*found, h]
        for x in xs:
            g = self.step(x)
            for _ in range(2):
                g += x
                found.append(g)
            g -= self.gate(x)
        return found


class Numbers(Base):
    """What has another shape or dtype is changed as torch does."""

    def forward(self, xs: list[Tensor]) -> Tensor:
        total = 0.0
        count = 0
        narrow = torch.zeros(1, SIZE).squeeze(0)
        for x in xs:
            total += self.step(x)  # apart
            count += len(xs)  # apart
            narrow += x.double()  # apart
        return total / count + narrow


def lines(build: Callable[[], nn.Module]) -> tuple[set[int], set[int]]:
    """Of the changes that are found, and of those that are marked in the code."""
    model = build()
    regions, function = Regions(model, Closed(model)), type(model).forward
    outliner = regions._outliner(type(model), function)
    assert outliner is not None
    walked = ast.walk(outliner._definition)
    found = {node.lineno for node in walked if isinstance(node, ast.stmt) and id(node) in outliner._apart}
    text, first = inspect.getsourcelines(function)
    return found, {first + i for i, line in enumerate(text) if "# apart" in line}


@pytest.mark.parametrize("build", [In, Loops, Held, Ways, Numbers])
def test_changes_that_nobody_can_see_are_new_values(build: Any) -> None:
    """Numbers cannot tell: a model that would go wrong, and one that would not, give eager's results."""
    found, marked = lines(build)
    assert found == marked
    model = seeded(build)
    instances = [[torch.randn(SIZE) for _ in range(2 + i % 3)] for i in range(6)]
    for cells in ("marked", "auto"):
        net = bound(model, instances, cells=cells)
        require_eager(net, instances)


def test_such_changes_are_recorded_as_assignments() -> None:
    instances = [[torch.randn(SIZE) for _ in range(2 + i % 3)] for i in range(6)]
    assert same_graph(captured(seeded(In), instances).graph, captured(seeded(Out), instances).graph)


def test_what_does_not_fit_is_refused_as_torch_does() -> None:
    class Wide(Base):
        def forward(self, xs: list[Tensor]) -> Tensor:
            total = torch.zeros(SIZE)
            for x in xs:
                total += self.step(x.view(1, SIZE).expand(2, SIZE))
            return total

    with pytest.raises(RuntimeError, match="shape"):
        captured(seeded(Wide), [[torch.randn(SIZE)]])


class Moves(Base):
    """Lines that move operations, lines that move none, and changes of what others have."""

    def other(self, x: Tensor, log: list[int]) -> Tensor:
        log.append(1)
        return x * 2

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        found = []
        total = torch.sigmoid(self.gate(xs[0])) * 2
        for x in xs:
            h = torch.tanh(self.step(x)) * 2 + self.other(x, [])
            found += [h, total[1:]]
            r = torch.relu(self.gate(h)) * total
            total += r
            h *= 2
        return [*found, total]


def test_lines_that_move_nothing_are_cells_where_tensors_change() -> None:
    model = seeded(Moves)
    instances = [[torch.randn(SIZE) for _ in range(2 + i % 3)] for i in range(6)]
    regions = Regions(model, Closed(model)).of_method(Moves, Moves.forward)
    assert [region.moves for region in regions.values()] == [False, True, False]
    plan = bound(model, instances).plan
    net = Net(replace(plan, automatic={name: region.location for name, region in regions.items()}), model)
    for batch in (instances, instances[::-1], instances[:1]):
        require_eager(net, batch)
    shadow, recorder = recording_shadow(net.view, net.table)
    graph = capture(shadow, recorder, instances).graph
    assert {name for name in counts(graph) if name.startswith("forward")} == {"forward_1", "forward_3"}
