"""The commands that look at plans and models: explain, diff, new, models."""

from __future__ import annotations

from typing import Any

import click

from edbc.tools.cli.main import FILE, _format, _input, _set, main
from edbc.tools.console import one_line_errors


@main.command()
@click.argument("plan", metavar="PLAN.yaml|MODEL.py|CODE", type=FILE)
@_input
@_set
@click.option(
    "--model", default=None, metavar="MODEL.py", type=FILE, help="The model file, when it is not where the plan says."
)
@click.option("--static", is_flag=True, help="Only what the plan holds: the model is not imported.")
@click.option("--html", default=None, metavar="PAGE.html", type=FILE, help="Write one self-contained page.")
@click.option(
    "--dot", default=None, metavar="FOLDER", type=FILE, help="Write state machine, a graph and cells for Graphviz."
)
@_format
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
@click.option("--exit-code", is_flag=True, help="Exit 1 when a guarded metric is worse in NEW.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Markdown is fit for a review comment.",
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
@click.option(
    "--from", "source", default=None, metavar="MODULE:CLASS", help="Write it around a model that exists; imports it."
)
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
@_format
@one_line_errors
def models(**options: Any) -> None:
    """List the model files of FOLDER, by default the zoo. Executes nothing."""
    from edbc.tools.cli.models import run_models

    run_models(**options)
