"""`edbc`: the group of commands. Each command's module is imported when the command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from edbc._version import __version__
from edbc.base.arguments import DEVICES, DTYPES, FRONT_ENDS, LAYOUTS, MOST, OBJECTIVES, POLICIES
from edbc.tools.console import one_line_errors, parse_gap, parse_segments, parse_settings, remember_verbose

FORMATS = ("text", "json")
Command = Callable[..., Any]


class _File(click.Path):
    """A name of a file: shells complete it. What is there is judged where it is read, in one line and with an exit
    code; but no name (of a variable that a script left unset) must not mean this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("expected a name, got an empty one", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(readable=False)


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    import torch

    from edbc.plan.plan import FORMAT_VERSION

    cuda = torch.version.cuda or "none"
    click.echo(f"edbc {__version__}, torch {torch.__version__}, CUDA {cuda}, plan format {FORMAT_VERSION}")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of edbc, torch, CUDA and the plan format.",
)
def main() -> None:
    """Ahead-of-time compiler for dynamic neural networks in PyTorch.

    Write the network for ONE instance (a tree, a lattice, a sentence); edbc runs mini-batches of differently shaped
    instances as few large kernels.
    """


_set = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_settings,
    help="A keyword argument of the model's build; repeatable.",
)
_input = click.option(
    "--input", "inputs", multiple=True, metavar="FILE", type=FILE, help="A data file for the model's load; repeatable."
)
_format = click.option(
    "--format",
    "output_format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How the result is printed on stdout.",
)


_weights = click.option(
    "--weights",
    default=None,
    metavar="F.safetensors|none",
    type=FILE,
    help="Weights of a file, or seeded ones (default: those that the plan records, if any).",
)


def _quiet(command: Command) -> Command:
    """`--quiet` and `--verbose`."""
    verbose = click.option(
        "--verbose",
        "-v",
        is_flag=True,
        expose_value=False,
        callback=remember_verbose,
        help="Every step of progress on its own line; tracebacks with errors.",
    )
    return click.option("--quiet", "-q", is_flag=True, help="No progress.")(verbose(command))


@main.command()
@_format
@one_line_errors
def doctor(**options: Any) -> None:
    """Say how well this machine is used: products beside the measured peak, kernels, caches, versions, GPU.

    What is not as good as it can be comes with what to do about it. Measures for some seconds, changes nothing.
    """
    from edbc.tools.cli.doctor import run_doctor

    run_doctor(**options)


@main.command()
@click.argument("model", metavar="MODEL.py", type=FILE)
@click.option("-o", "--output", required=True, metavar="PLAN.yaml", type=FILE, help="Where the plan is written.")
@click.option("--report", default=None, metavar="PAGE.html", type=FILE, help="Also write the page of 'edbc explain'.")
@_input
@_set
@click.option(
    "--seed",
    type=click.IntRange(0, MOST),
    default=0,
    show_default=True,
    help="Seed of the weights, of made-up instances and of training.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="fsm",
    show_default=True,
    help="Learn a finite state machine, or use a fixed rule.",
)
@click.option(
    "--encoding", default=None, metavar="NAME", help="Train this state encoding only; without it all are compared."
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="batches",
    show_default=True,
    help="steps: also learn waves, for devices whose steps hold batches of several types; fewest steps, then batches.",
)
@click.option(
    "--trials",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Q-learning trials per encoding and seed, at most.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Processor time for learning; tables that are not ready by then take no part.",
)
@click.option("--split/--no-split", default=True, help="Look for eager and lazy parts of cells, or do not.")
@click.option(
    "--mini-batches",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Mini-batches of 32 instances to train on.",
)
@click.option(
    "--measure-gain/--no-measure-gain",
    default=True,
    help="Measure batched against eager execution; where it loses the plan says 'run: eager'.",
)
@click.option(
    "--cells",
    type=click.Choice(("auto", "marked")),
    default="auto",
    show_default=True,
    help="Make cells of methods that are functions of their arguments, or of what edbc.cell marks alone.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Measure what batches cost, and choose the cheapest schedules; where all instances have one graph, measure "
    "operators side by side, and schedule them in stages.",
)
@click.option("--ios-r", type=click.IntRange(0, 63), default=3, show_default=True,
              help="Operators of a group in a stage, at most; 0 for no limit.")  # fmt: skip
@click.option("--ios-s", type=click.IntRange(0, 63), default=8, show_default=True,
              help="Groups of a stage, at most; 0 for no limit.")  # fmt: skip
@click.option("--gap", callback=parse_gap, default="1%", show_default=True, metavar="SHARE",
              help="Measure stages until the schedule is proven to be this near the cheapest.")  # fmt: skip
@click.option("--ios-batch", type=click.IntRange(1, MOST), default=1, show_default=True,
              help="Instances of a batch for which stages are measured.")  # fmt: skip
@click.option("--ios-threads", type=click.IntRange(1, 1024), default=None,
              help="Threads for stages (default: as many as the process may use).")  # fmt: skip
@click.option(
    "--costs",
    default=None,
    metavar="PLAN.yaml|TABLE.costs.yaml|none",
    type=FILE,
    help="Take what batches cost from a plan, or count batches (default: from the plan that is replaced). For stages: "
    "from a cost table (default: the one that stands beside the plan).",
)
@click.option(
    "--weights",
    default=None,
    metavar="F.safetensors|none",
    type=FILE,
    help="Weights beside the plan, which records their name and sha256, or seeded ones (default: what the plan that is "
    "replaced records).",
)
@_format
@_quiet
@one_line_errors
def compile(ios_r: int, ios_s: int, gap: float, ios_batch: int, ios_threads: int | None, **options: Any) -> None:
    """Compile MODEL.py to a plan. This executes the model file.

    Traces the model on 32 instances (from --input, or made up by its `sample`), learns a batching policy, lays out
    every cell's memory, checks that batched outputs equal eager ones, and writes the plan.
    """
    from edbc.tools.cli.compile import run_compile
    from edbc.tools.staged.command import Stages

    run_compile(ios=Stages(ios_r, ios_s, gap, ios_batch, ios_threads), **options)


@main.command()
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@_input
@_set
@click.option(
    "--batch-size", type=click.IntRange(1, MOST), default=32, show_default=True, help="Instances per mini-batch."
)
@click.option("--limit", type=click.IntRange(0, MOST), default=None, help="Run only the first N instances.")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="float32",
    show_default=True,
    help="Type of the weights.",
)
@_weights
@click.option("--output", default=None, metavar="OUT.safetensors", type=FILE, help="Write all outputs, in input order.")
@click.option("--verify", is_flag=True, help="Compare with eager PyTorch; exit 1 when the numbers differ.")
@click.option(
    "--trace", default=None, metavar="OUT.json", type=FILE, help="Write a timeline that ui.perfetto.dev opens."
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=None,
    help="Schedule by this policy instead of the plan's.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="plan",
    show_default=True,
    help="Memory order of cells: the plan's, or the order of definition.",
)
@click.option("--split/--no-split", default=True, help="Run eager and lazy parts of cells apart, or cells whole.")
@click.option("--share/--no-share", default=True, help="Run equal nodes once, or every node by itself.")
@click.option(
    "--model", default=None, metavar="MODEL.py", type=FILE, help="The model file, when it is not where the plan says."
)
@click.option("--trust-changed-model", is_flag=True, help="Run although the model file changed since compiling.")
@click.option("--force", is_flag=True, help="Batch although the plan says 'run: eager'.")
@click.option("--strict", is_flag=True, help="Refuse types that the plan does not know.")
@click.option(
    "--backend",
    type=click.Choice(["reference", "cpu", "cuda"]),
    default=None,
    help="What executes batches: torch call by call, native code, or Triton kernels (default: the device's own).",
)
@click.option(
    "--front-end",
    type=click.Choice(FRONT_ENDS),
    default="record",
    show_default=True,
    help="How graphs are made: by recording forward, or by joining instances as arrays (models with vertex functions).",
)
@click.option("--epochs", type=click.IntRange(1, MOST), default=1, show_default=True,
              help="Run all instances so often; from the second time on they need no Python.")  # fmt: skip
@click.option("--recapture", is_flag=True, help="Run forward in every epoch, in place of capturing each instance once.")
@click.option(
    "--max-reads",
    type=click.IntRange(1, MOST),
    default=None,
    metavar="N",
    help="Values that forward may read of one instance before it is taken for an endless loop: 10,000.",
)
@click.option("--engine", type=click.Choice(("processes", "ray")), default=None,
              help="Run in several processes; --input may be a folder of files, --output is one of parts.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, MOST), default=None, metavar="N",
              help="With --engine: processes that run the plan (default: one per core; ray: one less).")  # fmt: skip
@click.option("--address", default=None, metavar="A", help="With --engine ray: a cluster (default: start one here).")
@click.option("--on-error", type=click.Choice(("fail", "skip", "record")), default="fail", show_default=True,
              help="With --engine: a broken row ends the job, is left out, or stands in index.json.")  # fmt: skip
@click.option("--keep-order", is_flag=True, help="With --engine: parts one after the other are the input in order.")
@_format
@_quiet
@one_line_errors
def run(**options: Any) -> None:
    """Execute PLAN.yaml on mini-batches of instances.

    Instances come from --input, or are made up by the model's `sample`. Prints throughput, batches and where the time
    went.
    """
    from edbc.tools.cli.run import run_run

    run_run(**options)


@main.command()
@click.argument("model", metavar="MODEL.py", type=FILE)
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@_input
@click.option("--dev", multiple=True, metavar="FILE", type=FILE, help="Data to evaluate on after epochs; repeatable.")
@_set
@click.option(
    "--epochs", type=click.IntRange(1, MOST), default=10, show_default=True, help="Passes over the data, in all."
)
@click.option(
    "--batch-size", type=click.IntRange(1, MOST), default=32, show_default=True, help="Instances per mini-batch."
)
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "adamw", "adagrad", "sgd"]),
    default="adam",
    show_default=True,
    help="What changes the weights.",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, min_open=True),
    default=None,
    metavar="RATE",
    help="Learning rate (default: 0.001 for adam and adamw, 0.05 for adagrad, 0.01 for sgd).",
)
@click.option(
    "--seed",
    type=click.IntRange(0, MOST),
    default=0,
    show_default=True,
    help="Seed of the weights and of the order of instances.",
)
@click.option("--limit", type=click.IntRange(1, MOST), default=None, help="Train on the first N instances.")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True, help="Weights."
)
@_weights
@click.option(
    "--front-end",
    type=click.Choice(FRONT_ENDS),
    default="record",
    show_default=True,
    help="How graphs are made, see 'edbc run'.",
)
@click.option(
    "-o",
    "--output",
    default=None,
    metavar="FOLDER",
    type=FILE,
    help="Where files go (default: PLAN's name + .training).",
)
@click.option(
    "--recompute",
    default=None,
    metavar="N|auto",
    callback=parse_segments,
    help="Take less memory and more time: compute again in the backward pass what only one of N segments of a "
    "mini-batch's schedule reads (auto: the square root of its number of batches).",
)
@click.option("--recapture", is_flag=True, help="Run forward in every epoch, in place of capturing each instance once.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the folder, as if never stopped.")
@click.option("--trust-changed-model", is_flag=True, help="Train although the model file changed since compiling.")
@_format
@_quiet
@one_line_errors
def train(**options: Any) -> None:
    """Train the model of PLAN.yaml, batched by the plan. MODEL.py must define a `loss`.

    Prints loss and metrics of every epoch. Writes checkpoints, weights for 'edbc run --weights' and curves. Ctrl-C
    leaves a checkpoint; --resume then gives what an uninterrupted training would have given.
    """
    from edbc.tools.cli.train import run_train

    run_train(**options)


@main.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN|FOLDER...", type=FILE)
@click.option("--strict", is_flag=True, help="Fail on improvements too.")
@click.option("--update", is_flag=True, help="Write what compiling again gives; refuses to worsen a guard.")
@click.option("--accept-regression", is_flag=True, help="With --update: worsen guards. With --against: tell, not fail.")
@click.option("--against", default=None, metavar="REV", help="Compare with the plans at this git commit too.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "junit", "github"]),
    default="text",
    show_default=True,
    help="How the result is printed on stdout.",
)
@_quiet
@one_line_errors
def check(**options: Any) -> None:
    """Check plans: compile again what they record, compare, and enforce their guards.

    Exit 0 when nothing regressed, 1 when something did, 3 for a broken plan, 4 for a stale one.
    """
    from edbc.tools.cli.check import run_check

    run_check(**options)


@main.command()
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@_input
@_set
@click.option(
    "--batch-size", "batch_sizes", default="32", show_default=True, metavar="N,..", help="Instances per mini-batch."
)
@click.option(
    "--against",
    default="eager",
    show_default=True,
    metavar="NAME,..",
    help="Also measure: eager (unmodified PyTorch), depth, agenda, sufficient, critical (other policies, same plan), "
    "no-split (the plan's policy, no cell run in eager and lazy parts), no-share (no node run once for its equals).",
)
@click.option("--limit", type=click.IntRange(1, MOST), default=256, show_default=True, help="Instances to measure on.")
@click.option("--rounds", type=click.IntRange(1, MOST), default=3, show_default=True, help="Passes over them.")
@click.option(
    "--threads", type=click.IntRange(1, MOST), default=1, show_default=True, help="Threads of torch and its BLAS."
)
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="float32",
    show_default=True,
    help="Weights.",
)
@click.option("--front-end", type=click.Choice(["captured"]), default=None, help="Measure captured instances too.")
@click.option("--backend", type=click.Choice(["reference", "cpu", "cuda"]), default=None, help="See 'edbc run'.")
@click.option(
    "--products",
    type=click.Choice(["own", "library"]),
    default=None,
    help="What multiplies on the CPU: a kernel of edbc's own (where there is one), or the library inside torch.",
)
@_weights
@click.option(
    "--model", default=None, metavar="MODEL.py", type=FILE, help="The model file, when it is not where the plan says."
)
@click.option("--trust-changed-model", is_flag=True, help="Measure although the model file changed since compiling.")
@_format
@one_line_errors
def bench(**options: Any) -> None:
    """Measure PLAN.yaml: throughput, where the time goes, and how far from bare matrix products.

    Everything that is compared takes turns in one process; figures are medians. `--set hidden_size=128,512` binds the
    plan to each of these sizes.
    """
    from edbc.tools.cli.bench import run_bench

    run_bench(**options)
