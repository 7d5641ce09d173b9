"""The options of all commands, one table: `options` puts some of them on a command.

An entry says what an option takes, its default, and its help as most commands have it; where a command differs it says
in what. A tuple as `type` is a choice; a default is shown unless it is None or a switch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from edbc.base.arguments import DEVICES, DTYPES, FRONT_ENDS, LAYOUTS, MOST, OBJECTIVES, POLICIES
from edbc.tools.console import parse_gap, parse_segments, parse_settings, remember_verbose

Command = Callable[..., Any]


class _File(click.Path):
    """A name of a file: shells complete it. What is there is judged where it is read, in one line and with an exit
    code; but no name (of a variable that a script left unset) must not mean this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("expected a name, got an empty one", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(readable=False)
COUNT = click.IntRange(1, MOST)
POSITIVE = click.FloatRange(0, min_open=True)
Entry = tuple[tuple[str, ...], dict[str, Any]]


def _entry(*names: str, help: str, **settings: Any) -> Entry:
    return names, {**settings, "help": help}


def _file(*names: str, help: str, metavar: str = "FILE", **settings: Any) -> Entry:
    return names, {"type": FILE, "metavar": metavar, **settings, "help": help}


def _switch(*names: str, help: str, **settings: Any) -> Entry:
    return names, {"is_flag": True, "default": False, **settings, "help": help}


_ENTRIES: tuple[Entry, ...] = (
    # What is read and written.
    _file("--input", "inputs", multiple=True, help="A data file for the model's load; repeatable."),
    _entry("--set", "settings", multiple=True, metavar="KEY=VALUE", callback=parse_settings,
           help="A keyword argument of the model's build; repeatable."),
    _file("--model", metavar="MODEL.py", help="The model file, when it is not where the plan says."),
    _file("--weights", metavar="F.safetensors|none",
          help="Weights of a file, or seeded ones (default: those that the plan records, if any)."),
    _file("-o", "--output", required=True, metavar="PLAN.yaml", help="Where the plan is written."),
    _file("--report", metavar="PAGE.html", help="Also write the page of 'edbc explain'."),
    _file("--trace", metavar="OUT.json", help="Write a timeline that ui.perfetto.dev opens."),
    _file("--html", metavar="PAGE.html", help="Write one self-contained page."),
    _file("--dot", metavar="FOLDER", help="Write state machine, a graph and cells for Graphviz."),
    _file("--dev", multiple=True, help="Data to evaluate on after epochs; repeatable."),
    _entry("--from", "source", metavar="MODULE:CLASS", help="Write it around a model that exists; imports it."),
    _entry("--format", "output_format", type=("text", "json"), default="text",
           help="How the result is printed on stdout."),
    _switch("--quiet", "-q", help="No progress."),
    _switch("--verbose", "-v", expose_value=False, callback=remember_verbose,
            help="Every step of progress on its own line; tracebacks with errors."),
    # How a plan is compiled.
    _entry("--seed", type=click.IntRange(0, MOST), default=0,
           help="Seed of the weights, of made-up instances and of training."),
    _entry("--policy", type=POLICIES, default="fsm", help="Learn a finite state machine, or use a fixed rule."),
    _entry("--encoding", metavar="NAME", help="Train this state encoding only; without it all are compared."),
    _entry("--objective", type=OBJECTIVES, default="batches",
           help="steps: also learn waves, for devices whose steps hold batches of several types; fewest steps, then "
           "batches."),
    _entry("--trials", type=click.IntRange(1, 1_000_000), default=1000,
           help="Q-learning trials per encoding and seed, at most."),
    _entry("--time-limit", type=POSITIVE, default=30.0, metavar="SECONDS",
           help="Processor time for learning; tables that are not ready by then take no part."),
    _entry("--mini-batches", type=click.IntRange(1, 64), default=1, help="Mini-batches of 32 instances to train on."),
    _entry("--measure-gain/--no-measure-gain", default=True,
           help="Measure batched against eager execution; where it loses the plan says 'run: eager'."),
    _entry("--cells", type=("auto", "marked"), default="auto",
           help="Make cells of methods that are functions of their arguments, or of what edbc.cell marks alone."),
    _switch("--profile",
            help="Measure what batches cost, and choose the cheapest schedules; where all instances have one graph, "
            "measure operators side by side, and schedule them in stages."),
    _file("--costs", metavar="PLAN.yaml|TABLE.costs.yaml|none",
          help="Take what batches cost from a plan, or count batches (default: from the plan that is replaced). For "
          "stages: from a cost table (default: the one that stands beside the plan)."),
    _entry("--ios-r", type=click.IntRange(0, 63), default=3,
           help="Operators of a group in a stage, at most; 0 for no limit."),
    _entry("--ios-s", type=click.IntRange(0, 63), default=8, help="Groups of a stage, at most; 0 for no limit."),
    _entry("--gap", callback=parse_gap, default="1%", metavar="SHARE",
           help="Measure stages until the schedule is proven to be this near the cheapest."),
    _entry("--ios-batch", type=COUNT, default=1, help="Instances of a batch for which stages are measured."),
    _entry("--ios-threads", type=click.IntRange(1, 1024),
           help="Threads for stages, on a GPU streams (default: as many as the process may use, eight streams)."),
    # How a plan runs.
    _entry("--batch-size", type=COUNT, default=32, help="Instances per mini-batch."),
    _entry("--limit", type=click.IntRange(0, MOST), help="Run only the first N instances."),
    _entry("--device", type=DEVICES, default="cpu", help="Where to run."),
    _entry("--dtype", type=DTYPES, default="float32", help="Type of the weights."),
    _switch("--verify", help="Compare with eager PyTorch; exit 1 when the numbers differ."),
    _entry("--layout", type=LAYOUTS, default="plan",
           help="Memory order of cells: the plan's, or the order of definition."),
    _entry("--split/--no-split", default=True, help="Run eager parts of cells apart, or cells whole."),
    _entry("--share/--no-share", default=True, help="Run equal nodes once, or every node by itself."),
    _switch("--trust-changed-model", help="Run although the model file changed since compiling."),
    _switch("--force", help="Batch although the plan says 'run: eager'."),
    _switch("--strict", help="Refuse types that the plan does not know."),
    _entry("--backend", type=("reference", "cpu", "cuda"),
           help="What executes batches: torch call by call, native code, or Triton kernels (default: the device's "
           "own)."),
    _entry("--front-end", type=FRONT_ENDS, default="record",
           help="How graphs are made: by recording forward, or by joining instances as arrays (models with vertex "
           "functions)."),
    _entry("--epochs", type=COUNT, default=1,
           help="Run all instances so often; from the second time on they need no Python."),
    _switch("--recapture", help="Run forward in every epoch, in place of capturing each instance once."),
    _entry("--max-reads", type=COUNT, metavar="N",
           help="Values that forward may read of one instance before it is taken for an endless loop: 10,000."),
    _entry("--engine", type=("processes", "ray"),
           help="Run in several processes; --input may be a folder of files, --output is one of parts."),
    _entry("--workers", type=COUNT, metavar="N",
           help="With --engine: processes that run the plan (default: one per core; ray: one less)."),
    _entry("--address", metavar="A", help="With --engine ray: a cluster (default: start one here)."),
    _entry("--on-error", type=("fail", "skip", "record"), default="fail",
           help="With --engine: a broken row ends the job, is left out, or stands in index.json."),
    _switch("--keep-order", help="With --engine: parts one after the other are the input in order."),
    # How a model is trained.
    _entry("--optimizer", type=("adam", "adamw", "adagrad", "sgd"), default="adam", help="What changes the weights."),
    _entry("--lr", type=POSITIVE, metavar="RATE",
           help="Learning rate (default: 0.001 for adam and adamw, 0.05 for adagrad, 0.01 for sgd)."),
    _entry("--recompute", metavar="N|auto", callback=parse_segments,
           help="Take less memory and more time: compute again in the backward pass what only one of N segments of a "
           "mini-batch's schedule reads (auto: the square root of its number of batches)."),
    _switch("--resume", help="Go on from the checkpoint in the folder, as if never stopped."),
    # How plans are compared, and plans measured.
    _entry("--against", metavar="REV", help="Compare with the plans at this git commit too."),
    _switch("--update", help="Write what compiling again gives; refuses to worsen a guard."),
    _switch("--accept-regression", help="With --update: worsen guards. With --against: tell, not fail."),
    _switch("--exit-code", help="Exit 1 when a guarded metric is worse in NEW."),
    _switch("--static", help="Only what the plan holds: the model is not imported."),
    _entry("--rounds", type=COUNT, default=3, help="Passes over them."),
    _entry("--threads", type=COUNT, default=1, help="Threads of torch and its BLAS."),
)  # fmt: skip


def _long(names: tuple[str, ...]) -> str:
    """An option's name without dashes: that of its first long form."""
    return next(name for name in names if name.startswith("--")).partition("/")[0].removeprefix("--")


OPTIONS: dict[str, Entry] = {_long(names): (names, settings) for names, settings in _ENTRIES}


def options(names: str, **differing: dict[str, Any]) -> Callable[[Command], Command]:
    """Put the options of these names on a command, in this order; `differing` says, per option, what the command has
    otherwise than the table (`names` too)."""

    def decorate(command: Command) -> Command:
        for name in reversed(names.split()):
            flags, settings = OPTIONS[name]
            merged = {"names": flags, **settings, **differing.get(name.replace("-", "_"), {})}
            command = _option(**merged)(command)
        return command

    return decorate


def _option(names: tuple[str, ...], *, type: Any = None, default: Any = None,
            **settings: Any) -> Callable[[Command], Command]:  # fmt: skip
    shown = not isinstance(default, bool | None)
    kind = click.Choice(type) if isinstance(type, tuple | list) else type
    if default is not None:  # a required option whose default is None counts as given (click 8.5)
        settings["default"] = default
    return click.option(*names, type=kind, show_default=shown, **settings)
