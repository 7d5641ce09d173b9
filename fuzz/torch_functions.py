"""Every function and method that torch lets others override, called with stand-ins at every position.

    python fuzz/torch_functions.py [--draws 2] [--every 1] [--only NAME] [--all]

Claim: recording such a call never ends the process, a call that is recorded computes what eager PyTorch does, of the
same type, and what is not recorded is refused with the user's line.

A *case* is an expression, such as `torch.where(b, v, 0.5)`, made of one function, a stand-in at one position, and
numbers, tensors, stand-ins or None at the others. Cases are drawn with a seed, so a run can be repeated. Each runs in
a model of its own that is compiled and compared with eager, between cells and, where eager computes anything, inside
one too. They run in child processes that say which case they begin: one that dies, or takes a minute, names its case.

Outcomes: `died`, `wrong`, `error` (neither edbc's own error with a line nor one that eager raises too), `refused`,
`equal`, and `raises` where eager execution raises as well.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import random
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
OUTCOMES = ("died", "wrong", "error", "refused", "equal", "raises")
WORDS = [1, 2, 3]
"""Instances of a mini-batch: batched forms of functions run from two rows on."""
SECONDS = 60
"""For one case, before it counts as one that died."""
STAND_INS = ("v", "m", "s", "i", "b", "p", "rows")
"""A recorded vector, matrix, scalar, vectors of integers and of truth values, a parameter, and rows of a table."""
OTHERS = tuple("1 0 -1 0.5 2 None t tm ti tb (0,) (3,) [v,v] True 'sum' torch.float64".split())
MANY = re.compile(r"tensors|operands|input_list|arrays")
FILLS = {
    "dim": ("0", "-1", "1", "(0,)", "None"), "dim0": ("0",), "dim1": ("-1",), "axis": ("0", "-1"),
    "size": ("(3,)", "(1, 3)"), "shape": ("(3,)", "(1, 3)"), "dtype": ("torch.float64", "torch.int32", "None"),
    "index": ("ti", "i", "0"), "n": ("1", "2"), "k": ("1", "2"), "p": ("2", "1", "0.5"), "training": ("False",),
    "tensors": ("[v, v]", "[v, t]", "(m, m)"), "weight": ("p", "tm", "m"), "target": ("t", "v", "ti", "i"),
}  # fmt: skip
"""What goes to parameters by their names, half of the time."""
CANDIDATES = 12
"""Draws of which the first that eager execution can compute is run, besides the very first."""
UNFINISHED = re.compile(r"empty|resize|\bnew\(|data_ptr|pack_gemm")
"""Functions whose results hold whatever memory held: only their shape and dtype are compared."""
UNREBASED = re.compile(r"\blogical_\w+_\(")
"""Changes in place that have no derivative, and that torch's autograd passes by as if nothing had been changed."""


class Outcome(NamedTuple):
    """What became of a case."""

    case: str
    where: str
    outcome: str
    message: str


LEFT_OUT = ("torch.Tensor.__repr__", "torch.Tensor.__format__")
"""Functions that say that a tensor is recorded, for people."""


def functions() -> list[tuple[str, list[str]]]:
    """Names of the functions, sorted, and of their parameters."""
    import torch
    from torch.overrides import get_overridable_functions, get_testing_overrides, resolve_name

    signatures = get_testing_overrides()
    found = {}
    for function in itertools.chain.from_iterable(get_overridable_functions().values()):
        name = resolve_name(function)
        if name is not None and name not in LEFT_OUT and function in signatures:
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
            parameters = inspect.signature(signatures[function]).parameters.values()
            found[name] = [x.name for x in parameters if x.kind in kinds and x.name != "out"] or ["input"]
    assert torch.Tensor
    return sorted(found.items())


def cases(draws: int, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """Per function, position of the stand-in, and so many stand-ins, at the first position a vector and a matrix too:
    candidates with other draws of the rest."""
    for name, parameters in functions():
        generator = random.Random(f"{name} {seed}")
        for position in range(min(len(parameters), 4)):
            always = () if position else STAND_INS[:2]
            for stand_in in dict.fromkeys((*always, *generator.sample(STAND_INS, draws))):
                drawn = [_drawn(generator, name, parameters, position, stand_in, i > 0) for i in range(CANDIDATES)]
                yield tuple(dict.fromkeys(drawn))


def _drawn(
    generator: random.Random, name: str, parameters: list[str], position: int, stand_in: str, has_more: bool
) -> str:
    """A call; nothing after the stand-in unless it `has_more`."""
    most = min(len(parameters), 5, position + 3) if has_more and len(parameters) > position else position + 1
    count = generator.randint(position + 1, most)
    arguments = [_argument(generator, parameters[i]) for i in range(count)]
    arguments[position] = f"[{stand_in}, {stand_in}]" if MANY.search(parameters[position]) else stand_in
    return _expression(name, arguments)


def _argument(generator: random.Random, parameter: str) -> str:
    if parameter in FILLS and generator.random() < 0.5:
        return generator.choice(FILLS[parameter])
    if parameter in ("input", "self", "other", "tensor", "mat2", "x", "y") and generator.random() < 0.7:
        return generator.choice(("t", "tm", *STAND_INS))
    return generator.choice((*OTHERS, *STAND_INS))


def _expression(name: str, arguments: list[str]) -> str:
    owner, _, last = name.rpartition(".")
    if not name.startswith("torch.Tensor."):
        return f"{name}({', '.join(arguments)})"
    if last == "__get__":
        return f"{arguments[0]}.{owner.rpartition('.')[2]}"
    first = f"({arguments[0]})" if arguments[0][0] in "-0123456789" else arguments[0]
    return f"{first}.{last}({', '.join(arguments[1:])})"


def run(case: str, in_cell: bool) -> Outcome | None:
    """One case, compared with eager. None for one that shows nothing more: inside a cell, where eager raises."""
    import torch
    from helpers import bound

    where = "in a cell" if in_cell else "between cells"
    try:
        model = _model(case, in_cell)
        torch.manual_seed(0)
        expected, again = ([model(word) for word in WORDS] for _ in range(2))
        gradients = _gradients(model, expected)
    except Exception as error:
        return None if in_cell else _where_eager_raises(case, where, error)
    try:
        got = bound(model, WORDS)(WORDS)
        got_gradients = _gradients(model, got)
    except Exception as error:
        return Outcome(case, where, *_refusal(error))
    difference = _difference(expected, again, case) and "draws random numbers"
    difference = difference or _difference(expected, got, case)
    if not difference and not UNFINISHED.search(case) and not UNREBASED.search(case):
        difference = _difference(gradients, got_gradients, case) and f"gradients {gradients}, got {got_gradients}"
    return Outcome(case, where, "wrong" if difference else "equal", difference)


def _gradients(model: Any, results: Any) -> list[Any]:
    """Of the sum of the squares of all that is returned, and is a function of parameters; zeros where there is none."""
    import torch
    from torch.utils._pytree import tree_leaves

    model.zero_grad()
    leaves = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.stack([x.to_dense().abs().square().sum().double() for x in leaves]).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in model.parameters()]


def _where_eager_raises(case: str, where: str, error: Exception) -> Outcome:
    from helpers import captured

    try:
        captured(_model(case, False), WORDS)
    except Exception:
        return Outcome(case, where, "raises", repr(error)[:200])
    return Outcome(case, where, "equal", "recorded, and raises when it runs, as eager does")


def _refusal(error: Exception) -> tuple[str, str]:
    from edbc.errors import EdbcError

    text = f"{type(error).__name__}: {error}"
    has_line = re.search(r"case\.py:1\b", text)
    return ("refused" if isinstance(error, EdbcError) and has_line else "error"), text


def _model(case: str, in_cell: bool) -> Any:
    import torch
    from torch import nn

    import edbc

    code = compile(f"lambda v, m, s, i, b, p, rows, t, tm, ti, tb: {case}", "case.py", "eval")
    compute = eval(code, {"torch": torch})

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.1, 0.9, 9).reshape(3, 3) + torch.eye(3))

        def forward(self, v: Any) -> Any:
            m = v.unsqueeze(1) * self.weight
            t, ti = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([2, 0, 1])
            found = compute(v, m, v.sum(), (v * 5).long(), v > 0, self.weight, m, t, self.tensor(), ti, t > 0)
            return found, v

        def tensor(self) -> Any:
            return torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 1.5], [0.3, 0.2, 0.1]])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)
            self.inside = edbc.cell(Inside)() if in_cell else Inside()

        def forward(self, word: int) -> Any:
            return self.inside(torch.tanh(self.table.weight[word]))

    class Between(Model):
        def forward(self, word: int) -> Any:
            v, p = torch.tanh(self.table.weight[word]), self.inside.weight
            t, ti, tm = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([2, 0, 1]), self.inside.tensor()
            rows = self.table.weight[[1, 2, 0]]
            found = compute(v, v.unsqueeze(1) * p, v.sum(), (v * 5).long(), v > 0, p, rows, t, tm, ti, t > 0)
            return found, v

    torch.manual_seed(0)
    return (Model if in_cell else Between)().eval()


def _difference(expected: Any, got: Any, case: str) -> str:
    """What tells two results apart, or nothing."""
    import torch

    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return f"expected {expected.dtype} {tuple(expected.shape)}, got {got.dtype} {tuple(got.shape)}"
        if UNFINISHED.search(case) or expected.layout != torch.strided or expected.numel() == 0:
            return ""
        expected, got = expected.detach(), got.detach()
        same = torch.allclose(expected, got, rtol=1e-3, atol=1e-4, equal_nan=True)
        return "" if same else f"expected {expected.tolist()}, got {got.tolist()}"
    if type(expected) is not type(got):
        return f"expected {type(expected)}, got {type(got)}"
    if isinstance(expected, dict):
        expected, got = list(expected.items()), list(got.items())
    if isinstance(expected, tuple | list):
        if len(expected) != len(got):
            return f"expected {len(expected)} items, got {len(got)}"
        return next(filter(None, (_difference(a, b, case) for a, b in zip(expected, got, strict=True))), "")
    if isinstance(expected, bool | int | float | str | torch.dtype | torch.device | None):
        return "" if expected == got or (expected != expected and got != got) else f"expected {expected}, got {got}"
    return ""


def child(chosen: Sequence[tuple[str, ...]]) -> None:
    """Run cases; say which begins and what became of it."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for candidates in chosen:
        print("begin", candidates[0], sep="\t", file=sys.__stdout__, flush=True)
        signal.alarm(SECONDS)
        computed = next(filter(_runs, candidates), candidates[0])
        for case in dict.fromkeys((computed, candidates[0])):
            print("case", case, sep="\t", file=sys.__stdout__, flush=True)
            for result in filter(None, (run(case, in_cell) for in_cell in (False, True))):
                line = [" ".join(str(field).split()) for field in result]
                print("end", *line, sep="\t", file=sys.__stdout__, flush=True)
    signal.alarm(0)


def _runs(case: str) -> bool:
    try:
        _model(case, False)(1)
    except Exception:
        return False
    return True


def outcomes(chosen: Sequence[tuple[str, ...]]) -> Iterator[Outcome]:
    """What becomes of cases, in child processes: a new one after each that dies."""
    waiting = list(chosen)
    while waiting:
        begun, last, noise = 0, "", ""
        command = [sys.executable, __file__, "--child"]
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n".join(map("\t".join, waiting)))
            process.stdin.close()
            for line in process.stdout:
                kind, *fields = line.rstrip("\n").split("\t")
                begun += kind == "begin"
                if kind in ("begin", "case"):
                    last = fields[0]
                elif kind == "end":
                    yield Outcome(*fields)
                else:
                    noise = line
        if process.returncode:
            yield Outcome(last, "", "died", f"exit {process.returncode}: {noise.strip()}")
        waiting = waiting[max(begun, 1) :]


def sample(count: int, seed: int) -> list[tuple[str, ...]]:
    """So many cases of a seed, drawn from all functions."""
    return random.Random(seed).sample(list(cases(1, seed)), count)


def table(results: Sequence[Outcome]) -> str:
    """Outcomes by kind of function."""
    counts = Counter((_kind(r.case), r.outcome) for r in results)
    lines = ["| functions | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|"]
    for kind in (*sorted({kind for kind, _ in counts}), "all"):
        of_kind = [sum(counts[k, o] for k, o in counts if o == outcome and kind in (k, "all")) for outcome in OUTCOMES]
        lines.append(f"| {kind} | " + " | ".join(f"{number:,}" for number in of_kind) + " |")
    return "\n".join(lines)


def _kind(case: str) -> str:
    match = re.match(r"torch\.((nn\.functional|_\w+|\w+)\.)?", case)
    return match.group().rstrip(".") if match else "Tensor"


def main() -> int:
    """Run, print every outcome that is a fault and then the table. Returns 1 when there is any fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--only", default="", help="functions whose names contain this")
    parser.add_argument("--draws", type=int, default=1, help="cases per function, position and stand-in")
    parser.add_argument("--every", type=int, default=1, help="of all cases, run every so many-th")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        child([tuple(line.split("\t")) for line in sys.stdin.read().splitlines() if line])
        return 0
    chosen = [case for case in cases(options.draws) if options.only in case[0]][options.first :: options.every]
    results = []
    for result in outcomes(chosen):
        results.append(result)
        if options.all or result.outcome in OUTCOMES[:3]:
            print(*result, sep="\t", flush=True)
    print(table(results))
    return int(any(r.outcome in OUTCOMES[:3] for r in results))


if __name__ == "__main__":
    sys.exit(main())
