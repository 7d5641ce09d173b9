"""A stand-in is a tensor to whoever asks in Python, and to nobody who would read its memory."""

from __future__ import annotations

import sys
from functools import singledispatch
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh import run_script
from helpers import captured, require_parity, seeded
from torch import nn

from edbc.errors import UnsupportedError

DIED = """
torch.where(h > 0, h, 0.0)
torch.pow(h, 2)
torch.remainder(h, 0.7)
torch.float_power(h, 2)
torch.xlogy(h, 2.0)
torch.special.xlog1py(h, 2.0)
torch.special.zeta(h.abs() + 2, 2.0)
torch.bitwise_and((h > 0).int(), 1)
torch.bitwise_xor((h > 0).int(), 1)
torch.bitwise_left_shift((h > 0).int(), 1)
torch.isin((h > 0).int(), 1)
torch.tensor(h)
torch.as_tensor(h)
torch.tensor([h[0], h[1]])
h * float(torch.tensor(h[0]))
torch.nested.nested_tensor([h, h])
torch.func.jacrev(torch.sin)(h)
torch.vmap(torch.sin)(h)
torch.sparse_coo_tensor(torch.zeros(1, 3, dtype=torch.long), h, (3,))
torch.utils.checkpoint.checkpoint(torch.sin, h, use_reentrant=False)
scripted(h)
""".strip().splitlines()
"""Expressions of a recorded vector, each of which killed the process while `__class__` made its claim to everybody."""


class Model(nn.Module):
    """Computes what it is given of a recorded vector, between cells."""

    def __init__(self, compute: Any):
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.compute = compute

    def forward(self, word: int) -> Any:
        return self.compute(torch.tanh(self.table.weight[word]))


def model(compute: Any) -> nn.Module:
    return seeded(Model, compute)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


SURVIVES = """
import warnings; warnings.simplefilter("ignore")
import sys; sys.path[:0] = {paths!r}
import torch, torch.utils.checkpoint
from test_asker import model, plus_one
from helpers import bound
from edbc.errors import EdbcError
scripted = torch.jit.script(plus_one)
for line in {lines!r}:
    compute = eval(f"lambda h: {{line}}", globals())
    net = model(compute)
    expected = torch.as_tensor(net(1)).detach()
    try:
        got = bound(net, [1, 2])([1])[0]
    except EdbcError as error:
        print("refused", line, "|", error, flush=True)
        continue
    same = torch.allclose(torch.as_tensor(got), expected, equal_nan=True)
    print("equal" if same else "wrong", line, flush=True)
"""


@pytest.mark.long
def test_expressions_that_killed_the_process_are_right_or_refused_by_name(tmp_path: Path) -> None:
    """Every expression that once ended in signal 11 gives eager's result, or is refused with file and line."""
    code = SURVIVES.format(paths=[p for p in sys.path if p], lines=DIED)
    ended = run_script(code, tmp_path)

    outcomes = ended.printed.splitlines()
    assert ended.code == 0, ended.traceback
    assert [line.split()[0] for line in outcomes if line.split()[0] not in ("equal", "refused")] == []
    assert len(outcomes) == len(DIED)


def test_a_stand_in_is_a_tensor_to_python() -> None:
    """isinstance, is_tensor, class patterns, singledispatch and `__class__` see a tensor, however they are written."""

    @singledispatch
    def kind_of(x: Any) -> int:
        return 0

    @kind_of.register(torch.Tensor)
    def _(x: Any) -> int:
        return 1

    def ask(h: Any) -> Any:
        tensor, builtins = torch.Tensor, __import__("builtins")
        assert isinstance(h, torch.Tensor)
        assert isinstance(h, (int, tensor))
        assert isinstance(h if tensor else 3, tensor)
        by_attribute = builtins.isinstance(h, tensor)
        assert by_attribute
        assert not isinstance(h, (int, list))
        assert not isinstance(h, nn.Parameter)
        assert all(isinstance(x, tensor) for x in (h, h))
        assert h.__class__ is tensor
        assert torch.is_tensor(h)
        assert kind_of(h) == 1
        match h:
            case torch.Tensor():
                return h
        raise AssertionError

    require_parity(model(ask), [1, 2, 3])


def test_a_parameters_stand_in_is_a_parameter() -> None:
    """isinstance(self.weight, nn.Parameter) is true while recording, as in eager."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("scale", torch.full((3,), 2.0))

        def forward(self, number: float) -> Any:
            assert isinstance(self.weight, nn.Parameter)
            assert not isinstance(self.scale, nn.Parameter)
            assert not isinstance(self.weight * 2, nn.Parameter)
            return self.weight * self.scale * number

    require_parity(Asks(), [1.0, 2.0])


@pytest.mark.parametrize("classes", [torch.FloatTensor, (torch.LongTensor, int)], ids=["one", "tuple"])
def test_classes_from_before_dtypes_are_refused(classes: Any) -> None:
    """isinstance(h, torch.FloatTensor) is refused with the line: torch would read the stand-in's memory."""
    with pytest.raises(UnsupportedError, match=r"test_asker.py:\d+: .*torch.FloatTensor; ask for its dtype"):
        captured(model(lambda h: h if isinstance(h, classes) else -h), [1])


def test_what_is_recorded_is_not_sparse() -> None:
    """Asked by a sparse class, or several, it is none of them."""
    sparse = torch.sparse.FloatTensor, torch.sparse.LongTensor  # type: ignore[attr-defined]
    require_parity(model(lambda h: h.to_dense() if isinstance(h, torch.sparse.FloatTensor) else h * 2), [1, 2])
    require_parity(model(lambda h: h.to_dense() if isinstance(h, sparse) else h * 2), [1, 2])


def while_it_changes(h: Any) -> Any:
    for classes in (torch.Tensor, torch.FloatTensor):
        isinstance(h, classes)


def where_it_may_not_be_set(h: Any) -> Any:
    for classes in (torch.Tensor, torch.FloatTensor):  # noqa: B007
        pass
    return h if isinstance(h, classes) else -h


@pytest.mark.parametrize("ask", [while_it_changes, where_it_may_not_be_set])
def test_a_question_that_changes_its_classes_is_looked_at_anew(ask: Any) -> None:
    """What the second argument of isinstance holds is asked at every call where it is a local variable."""
    with pytest.raises(UnsupportedError, match=r"torch.FloatTensor"):
        captured(model(ask), [1])
