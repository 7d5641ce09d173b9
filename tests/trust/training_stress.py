"""Training under everything that a long run may meet, held against eager in every mini-batch.

    python tests/trust/training_stress.py [--minutes M] [--universes N] [--seed S]

A *universe* is a random model (`random_models`, `bound`) with a pool of instances, in training for a while. Between and
during its mini-batches, as chance has it: the model changes its dtype and back, and is bound anew or meets the net that
it was bound to; two forward passes come before one backward pass, in either order, or none; the graph is kept and runs
again; evaluation without gradients comes in between; criterion, forward or a hook raise; four threads train at once;
optimisers step, fused ones too; parameters are written to through `.data`; the number of threads changes; idle memory
is filled with not-a-number; garbage is collected at any allocation, and holds mini-batches in cycles.

Every gradient is compared with eager's: None in the same places; in float64 to 1e-10 of its scale, else its error at
most four times eager's own, plus SLACK. A mini-batch in which eager itself is unstable is counted and
not judged. Where a gradient is wrong, the mini-batch runs again, which tells a wrong rule from wrong memory.

Run as a script it starts itself again with MALLOC_PERTURB_, so that what is allocated or freed holds no zeros.
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import json
import math
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(TESTS), *(str(TESTS / part) for part in ("cells", "run", "train"))]

from bound import RandomTreeModel, poison, random_trees
from gradients import tensors
from helpers import bound
from random_models import CODE, RandomModel
from test_native_gradients import OPERATIONS, OneCell

from edbc.run.passes import share as rule
from edbc.run.session import Net

POOL = 12
SLACK = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 5e-2}
"""Of the scale. More than for outputs: eager may be lucky in a mini-batch of few instances, and the last places of a
tanh near 1, of which native code gets two or three wrong and torch one, are the first places of its slope."""
UNSTABLE = {torch.float64: math.inf, torch.float32: 1e-2, torch.bfloat16: 0.25}
THREADS = 4
Found = list[torch.Tensor | None]


class Criterion(Exception):
    """What a criterion, a model or a hook raises."""


def loss_of(results: Sequence[Any]) -> torch.Tensor:
    """Every element of every floating result with a weight of its own."""
    rows = torch.cat([torch.zeros(1), *(t.reshape(-1).double() for t in tensors(results))])
    return (rows * torch.cos(torch.arange(len(rows), dtype=torch.float64))).sum()


def gradients_of(model: nn.Module, loss: torch.Tensor, keep: bool = False) -> Found:
    """A gradient per parameter."""
    if not loss.requires_grad:
        return [None for _ in model.parameters()]
    return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=keep, allow_unused=True))


def relative_error(found: Found, exact: Found) -> float:
    """The largest error of any parameter, by its scale or by a tenth of the largest scale."""
    scales = [float(g.abs().max()) if g is not None and g.numel() else 0.0 for g in exact]
    largest = max(scales, default=0.0)
    errors = [
        float((g.double() - e).abs().max()) / max(scale, 0.1 * largest, 1e-300)
        for g, e, scale in zip(found, exact, scales, strict=True)
        if g is not None and e is not None and g.numel()
    ]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def in_other_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A random model whose values of a second dtype have this one from now on."""
    for module in model.modules():
        if hasattr(module, "other"):
            module.other = dtype
    return model


class Universe:
    """See the module's docstring."""

    def __init__(self, seed: int, report: collections.Counter[str]):
        self.rng = random.Random(seed)
        self.report = report
        self.other = torch.float64
        """A second dtype in which some values are."""
        self.model, self.pool = self._model(seed)
        self.model.double().train()
        self.nets: dict[torch.dtype, Net] = {}
        self.dtype = torch.float64
        rule.FEWEST, rule.WORTHWHILE = self.rng.choice([(1, 0), (rule.FEWEST, rule.WORTHWHILE)])

    def _model(self, seed: int) -> tuple[nn.Module, list[Any]]:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            name = rng.choice(list(OPERATIONS))
            sentences = [[rng.randrange(9) for _ in range(rng.randrange(1, 12))] for _ in range(POOL)]
            return OneCell(*OPERATIONS[name]), sentences  # type: ignore[arg-type]
        if kind == 1:
            size = rng.choice([1, 4, 16, 33])
            return RandomTreeModel(seed % 1000, size, rng.random() < 0.3), random_trees(seed, POOL)
        model = RandomModel(seed, torch.float32)  # without operations that rounding flips
        self.other = rng.choice([torch.float64, torch.float64, torch.bfloat16])
        return in_other_dtype(model, self.other), [rng.randbytes(CODE * rng.randrange(1, 14)) for _ in range(POOL)]

    def net(self) -> Net:
        """What the model is bound to in its dtype."""
        if self.dtype not in self.nets or self.rng.random() < 0.03:
            options = {"recompute": self.rng.choice([None, None, 3, "auto"])}
            backend = self.rng.choice(["cpu", "cpu", "cpu", "reference"])
            self.nets[self.dtype] = bound(self.model, self.pool, backend=backend, **options)
            self.model.train()
        return self.nets[self.dtype]

    def batch(self) -> list[Any]:
        """A mini-batch."""
        return self.rng.choices(self.pool, k=self.rng.randrange(1, 10))

    def eager(self, batches: Sequence[list[Any]]) -> tuple[Found, Found]:
        """Gradients of the model, one instance after the other, in its dtype and in float64."""
        found = [gradients_of(self.model, sum(loss_of([self.model(x) for x in batch]) for batch in batches))]  # type: ignore[arg-type]
        if self.dtype is self.other is torch.float64:
            return found[0], found[0]
        twin = in_other_dtype(copy.deepcopy(self.model).double(), torch.float64)
        return found[0], gradients_of(twin, sum(loss_of([twin(x) for x in batch]) for batch in batches))  # type: ignore[arg-type]

    def judge(self, ours: Found, eager: tuple[Found, Found], what: str) -> str:
        """Empty, or in which way gradients are wrong."""
        theirs, exact = eager
        self.report[f"gradients in {str(self.dtype).removeprefix('torch.')}"] += 1
        if [g is None for g in ours] != [g is None for g in theirs]:
            return f"{what}: None in other places than in eager"
        own = relative_error(theirs, exact)
        coarsest = torch.bfloat16 if self.other is torch.bfloat16 else self.dtype
        if own > UNSTABLE[coarsest] or any(e is not None and not e.isfinite().all() for e in exact):
            self.report["eager is unstable"] += 1
            return ""
        error, limit = relative_error(ours, exact), 4 * own + SLACK[coarsest]
        return "" if error <= limit else f"{what}: error {error:.3g} of the scale, eager's {own:.3g}"

    # --- what a mini-batch may meet -----------------------------------------------------------------------------------

    def step(self) -> list[str]:
        """One mini-batch or a few; what was wrong."""
        self.disturb()
        action = self.rng.choices(
            [self.plain, self.two_waiting, self.dropped, self.kept, self.raising, self.evaluated, self.threads],
            [6, 4, 1, 2, 2, 2, 1],
        )[0]
        self.report[action.__name__] += 1
        wrong = [fault for fault in action() if fault]
        if wrong and action.__name__ != "threads":
            wrong += [f"again, {fault}" for fault in self.plain() if fault]
        self.change_parameters()
        return wrong

    def step_or_error(self) -> list[str]:
        """A step; what nobody expected it to raise is wrong too."""
        try:
            return self.step()
        except Exception:
            return [traceback.format_exc()]

    def plain(self) -> list[str]:
        batch, net = self.batch(), self.net()
        ours = gradients_of(self.model, loss_of(net(batch)))
        return [self.judge(ours, self.eager([batch]), "one mini-batch")]

    def two_waiting(self) -> list[str]:
        batches, net = [self.batch(), self.batch()], self.net()
        losses = [loss_of(net(batch)) for batch in batches]
        if self.rng.random() < 0.5:
            return [self.judge(gradients_of(self.model, losses[0] + losses[1]), self.eager(batches), "two at once")]
        order = self.rng.choice([(0, 1), (1, 0)])
        found = {i: gradients_of(self.model, losses[i]) for i in order}
        return [self.judge(found[i], self.eager([batches[i]]), f"number {i} of two") for i in order]

    def dropped(self) -> list[str]:
        loss = loss_of(self.net()(self.batch()))
        cycle: list[Any] = [loss]
        cycle.append(cycle)
        return []

    def kept(self) -> list[str]:
        batch, net = self.batch(), self.net()
        loss, eager = loss_of(net(batch)), self.eager([batch])
        first = gradients_of(self.model, loss, keep=True)
        net(self.batch())
        second = gradients_of(self.model, loss)
        same = all(
            a is b is None or torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(first, second, strict=True)
        )  # type: ignore[arg-type]
        return [self.judge(first, eager, "a kept graph"), "" if same else "a kept graph: other bits the second time"]

    def raising(self) -> list[str]:
        """The criterion, the model or a hook raises in the middle; then training goes on."""
        net, batch = self.net(), self.batch()

        def hook(gradient: torch.Tensor) -> None:
            raise Criterion

        where = self.rng.randrange(3)
        try:
            if where == 0:
                net([*batch, object()])
            results = net(batch)
            if where == 1:
                raise Criterion
            first = next(p for p in self.model.parameters() if p.requires_grad)
            handle = first.register_hook(hook)
            try:
                gradients_of(self.model, loss_of(results))
            finally:
                handle.remove()
        except (Criterion, TypeError, AttributeError):
            pass
        return self.plain()

    def evaluated(self) -> list[str]:
        """Without gradients, in eval mode or not, and inside of another mini-batch's wait."""
        batch, net = self.batch(), self.net()
        loss, eager = loss_of(net(batch)), self.eager([batch])
        self.model.train(self.rng.random() < 0.5)
        with self.rng.choice([torch.no_grad, torch.inference_mode])():
            net(self.batch())
        self.model.train()
        return [self.judge(gradients_of(self.model, loss), eager, "evaluated in between")]

    def threads(self) -> list[str]:
        """Four at once over one net."""
        net = self.net()
        batches = [self.batch() for _ in range(THREADS)]
        eager = [self.eager([batch]) for batch in batches]
        found: dict[int, Found | Exception] = {}

        def work(number: int) -> None:
            try:
                for _ in range(2):
                    found[number] = gradients_of(self.model, loss_of(net(batches[number])))
            except Exception as error:
                found[number] = error

        workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return [
            f"thread {i}: {ours!r}" if isinstance(ours, Exception) else self.judge(ours, eager[i], f"thread {i}")
            for i, ours in sorted(found.items())
        ]

    # --- between mini-batches -----------------------------------------------------------------------------------------

    def disturb(self) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            self.dtype = rng.choice([torch.float64, torch.float32, torch.float32, torch.bfloat16])
            self.report[f"changes to {str(self.dtype).removeprefix('torch.')}"] += 1
            self.model.to(self.dtype)
        if rng.random() < 0.2:
            torch.set_num_threads(rng.choice([1, 2, 4]))
        if rng.random() < 0.2:
            gc.set_threshold(rng.choice([1, 7, 50, 700]))
        if rng.random() < 0.3 and self.dtype in self.nets:
            net = self.nets[self.dtype].in_mode()
            poison(net)
            for buffer in list(net.trainer.pool._idle):
                buffer.view(torch.float32).fill_(math.nan)
        self.ballast = [torch.empty(rng.randrange(1, 1 << 22)).fill_(math.nan) for _ in range(rng.randrange(3))]

    def change_parameters(self) -> None:
        rng, parameters = self.rng, list(self.model.parameters())
        how = rng.randrange(6)
        if how == 0:
            for parameter in parameters:
                parameter.data.mul_(rng.choice([0.99, 1.01]))
        elif how == 1:
            self.model.load_state_dict({k: v.clone() for k, v in self.model.state_dict().items()})
        elif how <= 3:
            options: dict[str, Any] = {"fused": True} if how == 2 else {}
            optimizer = torch.optim.SGD(parameters, lr=1e-4, **options)
            loss = loss_of(self.net()(self.batch()))
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def stress(seed: int, goes_on: Callable[[int], bool], steps: int = 25) -> tuple[collections.Counter[str], list[str]]:
    """Universes of `steps` mini-batches or pairs of them while `goes_on(number)`; counts, and what was wrong."""
    report: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    threads, thresholds, limits = torch.get_num_threads(), gc.get_threshold(), (rule.FEWEST, rule.WORTHWHILE)
    number = 0
    try:
        while goes_on(number):
            universe = Universe(seed + number, report)
            for turn in range(steps):
                wrong += [f"universe {seed + number}, step {turn}: {fault}" for fault in universe.step_or_error()]
            report["universes"] += 1
            rule.FEWEST, rule.WORTHWHILE = limits
            number += 1
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
        rule.FEWEST, rule.WORTHWHILE = limits
    return report, wrong


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--universes", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "MALLOC_PERTURB_" not in os.environ:
        environment = {**os.environ, "MALLOC_PERTURB_": str(1 + options.seed % 255)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    end = time.monotonic() + 60 * options.minutes
    report, wrong = stress(options.seed, lambda number: number < options.universes and time.monotonic() < end)
    print(json.dumps({"seed": options.seed, **report, "wrong": wrong}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
