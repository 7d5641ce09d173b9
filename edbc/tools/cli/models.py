"""`edbc models`: the model files of a folder, read but not executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from edbc.base.files import found_at, one_line
from edbc.errors import ModelError
from edbc.tools.console import fold, print_json

FUNCTIONS = {"build", "sample"}


@dataclass(frozen=True)
class Listed:
    """A model file as its source tells it."""

    path: str
    summary: str
    config: dict[str, str]
    """Keyword arguments of `build`, then of `load` and `sample`, and the text of their defaults."""


def run_models(folder: str | None, output_format: str) -> None:
    """List the zoo, or the model files of a folder."""
    where = Path(folder) if folder is not None else zoo()
    models = list(listed(where))
    if output_format == "json":
        print_json({"models": [{"path": m.path, "summary": m.summary, "config": m.config} for m in models]})
        return
    for model in models:
        click.echo(model.path)
        click.echo(fold(f"  {model.summary}"))
        if model.config:
            click.echo(fold("  --set " + " ".join(f"{key}={value}" for key, value in model.config.items())))
    if not models:
        raise ModelError(f"{where}: expected model files, got none; start one with 'edbc new NAME'")


def zoo() -> Path:
    """`models` here, or beside the package in a checkout of edbc."""
    here = Path("models")
    if here.is_dir():
        return here
    import edbc

    beside = Path(edbc.__file__).resolve().parents[2] / "models"
    if not beside.is_dir():
        raise ModelError("models: expected a folder of that name here, got none; name one: edbc models FOLDER")
    return beside


def listed(folder: Path) -> Iterator[Listed]:
    """Model files of a folder by name: Python files that define build and sample. Executes nothing."""
    found = found_at(folder)
    if found != "a folder":
        raise ModelError(f"{one_line(folder)}: expected a folder of model files, got {found}; name a folder")
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError):
            continue
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if functions.keys() >= FUNCTIONS:
            summary = (ast.get_docstring(tree) or "(no docstring)").splitlines()[0]
            yield Listed(str(path), summary, _config(functions))


def _config(functions: dict[str, ast.FunctionDef]) -> dict[str, str]:
    every = [_defaults(functions[name]) for name in ("build", "load", "sample") if name in functions]
    return every[0] | {key: text for defaults in every[1:] for key, text in defaults.items() if key not in every[0]}


def _defaults(function: ast.FunctionDef) -> dict[str, str]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    pairs = [*zip(with_default, arguments.defaults, strict=True), *by_name]
    return {argument.arg: ast.unparse(default) for argument, default in pairs if default is not None}
