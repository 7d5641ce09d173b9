"""`edbc train`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from edbc.tools.console import ProgressLine, fold, print_json, warn
from edbc.tools.report.figures import count, figure

if TYPE_CHECKING:
    from edbc.tools.training import Setting, Training
    from edbc.train.fit.loop import Alone, Epoch


def run_train(model: str, plan: str, output: str | None, output_format: str, quiet: bool, settings: dict[str, str],
              inputs: tuple[str, ...], dev: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Train, showing every epoch as it is done."""
    progress = ProgressLine(quiet or os.environ.get("RANK", "0") != "0")
    progress("import", 0, 1, {})
    from edbc.tools.training import Setting

    folder = f"{Path(plan).stem}.training" if output is None else output
    setting = Setting(folder, inputs, dev, config=settings, **options)
    with _ranks(plan, model, setting) as (ranks, setting):
        _run(plan, model, setting, ranks, progress, output_format)


@contextmanager
def _ranks(plan: str, model: str, setting: Setting) -> Iterator[tuple[Alone | None, Setting]]:
    """The ranks that torchrun started, if it did (`edbc.reach.ranks`); what they started anew resumes."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield None, setting
        return
    from edbc.reach.ranks import ranks, resumes

    setting = replace(setting, resume=setting.resume or resumes(setting.output))
    with ranks(plan, model, setting) as found:
        yield found, setting


def _run(plan: str, model: str, setting: Setting, ranks: Alone | None, progress: ProgressLine,
         output_format: str) -> None:  # fmt: skip
    from edbc.tools.training import Training

    training = Training(plan, model, setting, warn, ranks)
    is_text = output_format == "text" and training.ranks.rank == 0
    folder = setting.output
    if is_text:
        click.echo(fold(_heading(plan, training)))
    _train(training, progress, is_text)
    if is_text:
        click.echo(fold(f"{folder}: weights, checkpoint, curve.jsonl and curve.svg"))
    if output_format == "text" or training.ranks.rank:
        return
    print_json({"plan": plan, "output": str(folder), "instances": len(training.loop.data.train),
                "epochs": [epoch.as_json() for epoch in training.history]})  # fmt: skip


def _train(training: Training, progress: ProgressLine, is_text: bool) -> None:
    """Every step; Ctrl-C waits for the step that runs, writes the checkpoint and ends as Ctrl-C does."""
    from edbc.train.fit.loop import Epoch

    with interrupts() as is_interrupted:
        for event in training.run():
            if isinstance(event, Epoch):
                progress.finish()
                if is_text:
                    click.echo(fold(_line(event)))
                continue
            facts = {"unit": "mini-batches", "name": f"loss {figure(event.loss)}"}
            progress(f"{event.stage} {event.epoch + 1}", event.done, event.total, facts)
            if training.ranks.any(is_interrupted()):
                progress.finish()
                path = training.save()
                if training.ranks.rank == 0:
                    click.echo(f"{path}: written; go on with --resume", err=True)
                raise KeyboardInterrupt


def _heading(plan: str, training: Training) -> str:
    how, loop = training.setting, training.loop
    made_up = "" if how.inputs else "made-up "
    done = f"{count(loop.state.epoch, 'epoch')} and {count(loop.state.step, 'step')}"
    return (
        f"{plan}: {len(loop.data.train):,} {made_up}instances in mini-batches of {how.batch_size}, "
        f"{len(loop.data.dev):,} dev instances; {how.optimizer} lr {how.rate:g}, seed {how.seed}, {how.device}, "
        f"{how.dtype}{f', after {done}' * how.resume}"
    )


def _line(epoch: Epoch) -> str:
    parts = [f"  epoch {epoch.epoch:<3} train {_figures(epoch.train)}"]
    if epoch.dev is not None:
        parts.append(f"dev {_figures(epoch.dev)}")
    return "; ".join([*parts, f"{epoch.instances_per_second:,.0f} instances/s"])


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in figures.items())


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C is only remembered, for the function that is yielded; the second one interrupts.

    Outside of the main thread, where Python lets nobody handle signals, nothing is ever remembered.
    """
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        click.echo("\nfinishing this step; Ctrl-C again to lose what is since the last checkpoint", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, previous)
