"""`edbc new --from module:Class`: a model file around a model that exists.

`build` takes the arguments of the class's constructor that a plan can record (numbers, texts, true and false); others
are left for the author, each with a line that says so. `load` and `sample` are imported where the module has them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from edbc.errors import ModelError, described, printable

SCALARS = (int, float, str, bool)
NAMES = {kind.__name__: kind for kind in SCALARS}

HEAD = '''"""{name} of {module}{doc}

{commands}
"""

from __future__ import annotations

{imports}


# Keyword arguments are the config: `--set {set}=...`. {name}.forward takes one instance.
def build({parameters}) -> nn.Module:
    return {name}({arguments})
'''
SAMPLE = """

# Instances made up, for compiling with no data and for CI. Equal arguments must give equal instances.
def sample(count: int, seed: int) -> list[Any]:
    raise NotImplementedError("return a list of count instances, made up from the seed, as {name}.forward takes them")
"""
LOAD = """

# Instances from files: `--input FILE`.
def load(*paths: str) -> Iterator[Any]:
    raise NotImplementedError("yield the instances of these files, one after the other")
"""


def file_around(source: str, path: Path, commands: str) -> str:
    """The text of a model file at `path` for the class `module:Class`, with commands to run. Imports the module. Raises
    ModelError."""
    module_name, _, class_name = source.partition(":")
    module = _imported(module_name, path, source)
    kind = getattr(module, class_name, None)
    from torch import nn

    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        known = [name for name, item in vars(module).items() if isinstance(item, type) and issubclass(item, nn.Module)]
        raise ModelError(
            f"--from {source}: expected a class of {module_name} that is an nn.Module, got "
            f"{'nothing of that name' if kind is None else printable(repr(kind))}; it has: {', '.join(known) or 'none'}"
        )
    return _text(module, kind, commands)


def _imported(name: str, path: Path, source: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ModelError(f"--from {source}: expected MODULE:CLASS, as in 'my_models.trees:TreeNet'")
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ModelError(
            f"--from {source}: importing {name} raised {described(error)}; the module must stand in the folder of "
            f"{path.name}, or be installed"
        ) from error
    finally:
        sys.path.pop(0)


def _text(module: ModuleType, kind: type, commands: str) -> str:
    own = {name: callable(getattr(module, name, None)) for name in ("load", "sample")}
    parameters, arguments = _arguments(kind)
    taken = [kind.__name__, *(name for name, has in own.items() if has)]
    local = [f"from {module.__name__} import {', '.join(taken)}"]
    standard = [] if own["load"] else ["from collections.abc import Iterator"]
    standard += [] if all(own.values()) else ["from typing import Any"]
    parts = ["\n".join(part) for part in (standard, ["from torch import nn"], local) if part]
    doc = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0].replace('"""', "'''")
    first = parameters[0].partition(":")[0].partition(" ")[0] if parameters else "KEY"
    text = HEAD.format(
        name=kind.__name__, module=module.__name__, doc=f": {doc}" if doc else ".", commands=commands,
        imports="\n\n".join(parts), set=first,
        parameters=", ".join(parameters), arguments=_call(arguments),
    )  # fmt: skip
    sample = SAMPLE.replace("{name}", kind.__name__)
    return text + "".join(part for name, part in (("load", LOAD), ("sample", sample)) if not own[name])


def _call(arguments: list[str]) -> str:
    return ", ".join(arguments) if not any("#" in a for a in arguments) else "\n" + "".join(
        f"        {a}\n" if "#" in a else f"        {a},\n" for a in arguments
    ) + "    "  # fmt: skip


def _arguments(kind: type) -> tuple[list[str], list[str]]:
    """Parameters of `build`, and what the class is called with."""
    parameters: list[str] = []
    arguments: list[str] = []
    for p in _constructor(kind):
        scalar = NAMES.get(getattr(p.annotation, "__name__", p.annotation)) if p.annotation is not p.empty else None
        if isinstance(p.default, SCALARS):
            annotation = (scalar or type(p.default)).__name__
            default = json.dumps(p.default) if isinstance(p.default, str) else repr(p.default)
            parameters.append(f"{p.name}: {annotation} = {default}")
            arguments.append(f"{p.name}={p.name}")
        elif p.default is p.empty and scalar is not None:
            parameters.insert(_first_with_default(parameters), f"{p.name}: {scalar.__name__}")
            arguments.append(f"{p.name}={p.name}")
        elif p.default is p.empty:
            arguments.append(f"{p.name}=None,  # what {kind.__name__} takes here")
    return parameters, arguments


def _first_with_default(parameters: list[str]) -> int:
    return next((i for i, text in enumerate(parameters) if " = " in text), len(parameters))


def _constructor(kind: Any) -> Iterator[inspect.Parameter]:
    for p in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            yield p
