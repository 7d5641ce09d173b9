"""`edbc`: the group of commands. Each command's module is imported when the command runs."""

from __future__ import annotations

from typing import Any

import click

from edbc._version import __version__
from edbc.tools.cli.options import COUNT, FILE, options
from edbc.tools.console import begin_loops, one_line_errors


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


@main.command()
@options("format")
@one_line_errors
def doctor(**options: Any) -> None:
    """Say how well this machine is used: products beside the measured peak, kernels, caches, versions, GPU.

    What is not as good as it can be comes with what to do about it. Measures for some seconds, changes nothing.
    """
    from edbc.tools.cli.doctor import run_doctor

    run_doctor(**options)


@main.command()
@click.argument("model", metavar="MODEL.py", type=FILE)
@options(
    "output report input set seed policy encoding objective trials time-limit split mini-batches measure-gain cells "
    "profile ios-r ios-s gap ios-batch ios-threads device costs weights format quiet verbose",
    device={"help": "Where stages of static models are measured."},
    split={"help": "Look for eager parts of cells, or do not."},
    weights={
        "help": "Weights beside the plan, which records their name and sha256, or seeded ones (default: what the plan "
        "that is replaced records)."
    },
)
@one_line_errors
def compile(ios_r: int, ios_s: int, gap: float, ios_batch: int, ios_threads: int | None, device: str,
            **options: Any) -> None:  # fmt: skip
    """Compile MODEL.py to a plan. This executes the model file.

    Traces the model on 32 instances (from --input, or made up by its `sample`), learns a batching policy, lays out
    every cell's memory, checks that batched outputs equal eager ones, and writes the plan.
    """
    begin_loops(options["quiet"], "schedule.learn")
    from edbc.stages import Stages
    from edbc.tools.cli.compile import run_compile

    run_compile(stages=Stages(ios_r, ios_s, gap, ios_batch, ios_threads, device), **options)


@main.command()
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@options(
    "input set batch-size limit device dtype weights output verify trace policy layout split share model "
    "trust-changed-model force strict backend front-end epochs recapture max-reads engine workers address on-error "
    "keep-order format quiet verbose",
    output={"names": ("--output",), "required": False, "metavar": "OUT.safetensors",
            "help": "Write all outputs, in input order."},
    policy={"default": None, "help": "Schedule by this policy instead of the plan's."},
)  # fmt: skip
@one_line_errors
def run(**options: Any) -> None:
    """Execute PLAN.yaml on mini-batches of instances.

    Instances come from --input, or are made up by the model's `sample`. Prints throughput, batches and where the time
    went.
    """
    begin_loops(options["quiet"])
    from edbc.tools.cli.run import run_run

    run_run(**options)


@main.command()
@click.argument("model", metavar="MODEL.py", type=FILE)
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@options(
    "input dev set epochs batch-size optimizer lr seed limit device dtype weights front-end output recompute recapture "
    "resume trust-changed-model format quiet verbose",
    epochs={"default": 10, "help": "Passes over the data, in all."},
    seed={"help": "Seed of the weights and of the order of instances."},
    limit={"type": COUNT, "help": "Train on the first N instances."},
    dtype={"type": ("float32", "float64"), "help": "Weights."},
    front_end={"help": "How graphs are made, see 'edbc run'."},
    output={"required": False, "metavar": "FOLDER", "help": "Where files go (default: PLAN's name + .training)."},
    trust_changed_model={"help": "Train although the model file changed since compiling."},
)
@one_line_errors
def train(**options: Any) -> None:
    """Train the model of PLAN.yaml, batched by the plan. MODEL.py must define a `loss`.

    Prints loss and metrics of every epoch. Writes checkpoints, weights for 'edbc run --weights' and curves. Ctrl-C
    leaves a checkpoint; --resume then gives what an uninterrupted training would have given.
    """
    begin_loops(options["quiet"], "train")
    from edbc.tools.cli.train import run_train

    run_train(**options)


@main.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN|FOLDER...", type=FILE)
@options(
    "strict update accept-regression against format quiet verbose",
    strict={"help": "Fail on improvements too."},
    format={"type": ("text", "json", "junit", "github")},
)
@one_line_errors
def check(**options: Any) -> None:
    """Check plans: compile again what they record, compare, and enforce their guards.

    Exit 0 when nothing regressed, 1 when something did, 3 for a broken plan, 4 for a stale one.
    """
    from edbc.tools.cli.check import run_check

    run_check(**options)


@main.command()
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@options(
    "input set batch-size against limit rounds threads device dtype front-end backend weights model "
    "trust-changed-model format",
    batch_size={"names": ("--batch-size", "batch_sizes"), "type": None, "default": "32", "metavar": "N,.."},
    against={
        "default": "eager",
        "metavar": "NAME,..",
        "help": "Also measure: eager (unmodified PyTorch), depth, agenda, sufficient, critical (other policies, same "
        "plan), no-split (the plan's policy, no cell run in parts), no-share (no node run once for its "
        "equals).",
    },
    limit={"type": COUNT, "default": 256, "help": "Instances to measure on."},
    dtype={"help": "Weights."},
    front_end={"type": ("captured",), "default": None, "help": "Measure captured instances too."},
    backend={"help": "See 'edbc run'."},
    trust_changed_model={"help": "Measure although the model file changed since compiling."},
)
@one_line_errors
def bench(**options: Any) -> None:
    """Measure PLAN.yaml: throughput, where the time goes, and how far from bare matrix products.

    Everything that is compared takes turns in one process; figures are medians. `--set hidden_size=128,512` binds the
    plan to each of these sizes.
    """
    from edbc.tools.cli.bench import run_bench

    run_bench(**options)


@main.command()
@click.argument("plan", metavar="PLAN.yaml|MODEL.py|CODE", type=FILE)
@options("input set model static html dot format")
@one_line_errors
def explain(**options: Any) -> None:
    """Say what batches with what, what does not and why, and what that is worth.

    Runs the plan's model on one mini-batch (from --input, or made up by its `sample`) if its file is the one that the
    plan was compiled from; otherwise shows what the plan holds. Files of --input must be readable either way. A
    MODEL.py is compiled in memory, which executes it. A CODE is that of an error, E0401: what it means, an example, and
    what to do.
    """
    from edbc.tools.cli.explain import run_explain

    run_explain(**options)


@main.command()
@click.argument("old", metavar="OLD", type=FILE)
@click.argument("new", metavar="NEW", type=FILE)
@options(
    "exit-code format", format={"type": ("text", "markdown", "json"), "help": "Markdown is fit for a review comment."}
)
@one_line_errors
def diff(**options: Any) -> None:
    """Compare two plans: metrics and their direction, actions, types, layouts.

    OLD and NEW are plan files, or REV:PATH for the file at another git commit.
    """
    from edbc.tools.cli.diff import run_diff

    run_diff(**options)


@main.command()
@click.argument("name", metavar="NAME", type=FILE)
@options("from")
@one_line_errors
def new(name: str, source: str | None) -> None:
    """Write NAME.py, a commented model file that compiles and runs as it is.

    With --from the file imports your class, and builds it with the arguments of its constructor. The module must stand
    beside the file or be installed. What makes instances up is yours to write, unless the module has a 'sample'.
    """
    from edbc.tools.cli.new import run_new

    run_new(name, source)


@main.command()
@click.argument("folder", metavar="FOLDER", type=FILE)
@one_line_errors
def schema(folder: str) -> None:
    """Write the plan's JSON Schema into FOLDER, for editors that speak YAML.

    Plans that are written beside it from then on begin with a line that names it, and so do those that are there.
    """
    from edbc.tools.schema import run_schema

    run_schema(folder)


@main.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=FILE)
@options("format")
@one_line_errors
def models(**options: Any) -> None:
    """List the model files of FOLDER, by default the zoo. Executes nothing."""
    from edbc.tools.cli.models import run_models

    run_models(**options)
