"""Model files: finding, hashing and importing the user's Python file, and calling its functions.

A model file (docs/model-files.md) defines `build(**config)`, `sample(count, seed)`, and `load(*paths, **config)` where
it reads files. Its hash covers the file and the modules that it imports from its own folder and from packages there,
found by reading import statements, not by executing them, with line ends normalised; so a plan can be checked against
it before anything of it runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import itertools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from edbc.base.files import one_line, require_file
from edbc.errors import EdbcError, InputError, ModelError, described, printable

if TYPE_CHECKING:
    from torch import nn

    from edbc.plan.plan import Plan

Config = dict[str, int | float | str | bool]


@dataclass(frozen=True, eq=False)
class ModelFile:
    """An imported model file."""

    path: Path
    sha256: str
    module: ModuleType

    @property
    def name(self) -> str:
        """What messages know it by."""
        return self.path.name

    def reference(self, plan_folder: Path) -> str:
        """Its path as a plan in that folder records it."""
        return os.path.relpath(self.path.resolve(), plan_folder.resolve()).replace(os.sep, "/")

    def config(self, settings: Mapping[str, str | int | float | bool]) -> Config:
        """`build`'s defaults overridden by settings; text is converted to the default's type.

        Keys that only `load`, `sample` or `vertex_instance` take (the length of a text, a lexicon) are in it when set.
        Raises ModelError for an unknown key, with the closest known one, and for text that does not convert.
        """
        own = _parameters(self.module.build)
        parameters = {**self._read_only(), **own}
        config: Config = {name: p.default for name, p in own.items() if p.default is not p.empty}
        for key, value in settings.items():
            if key not in parameters:
                raise ModelError(f"{self.path.name}: {unknown_key(key, parameters)}")
            config[key] = _convert(value, parameters[key], f"--set {key}") if isinstance(value, str) else value
        missing = [name for name, p in own.items() if p.default is p.empty and name not in config]
        if missing:
            raise ModelError(
                f"{self.path.name}: build expects a value for {missing[0]!r}; give one with --set {missing[0]}=VALUE"
            )
        return config

    def build(self, config: Config, seed: int) -> nn.Module:
        """The model with seeded weights, on the CPU, in eval mode."""
        import torch

        kwargs = _accepted(self.module.build, config)
        with _seeded(seed), torch.inference_mode(False), torch.device("cpu"):
            model = self._call(f"build{_listed(kwargs)}", lambda: self.module.build(**kwargs))
        if not isinstance(model, torch.nn.Module):
            raise ModelError(f"{self.path.name}: expected build to return an nn.Module, got {type(model).__name__}")
        return model.eval()

    def sample(self, count: int, seed: int, config: Config) -> list[Any]:
        """Made-up instances."""
        kwargs = _accepted(self.module.sample, config)
        with _seeded(seed):
            made: Any = self._call("sample", lambda: self.module.sample(count, seed, **kwargs))
            instances: list[Any] = self._call("sample", lambda: list(itertools.islice(made, count + 1)))
        if len(instances) != count:
            got = "more" if len(instances) > count else len(instances)
            raise ModelError(f"{self.path.name}: expected sample to make {count} instances, got {got}")
        return instances

    def load(self, paths: Sequence[str | Path], config: Config, limit: int | None = None) -> Iterator[Any]:
        """Instances of real files, streamed, the first `limit` of them. Raises InputError where the file defines no
        `load`."""
        if not callable(getattr(self.module, "load", None)):
            raise InputError(
                f"{self.path.name}: expected a function 'load' to read {', '.join(map(one_line, map(str, paths)))} "
                "with, got none; define load(*paths), or leave --input away and sample makes instances up"
            )
        require_inputs(paths)
        kwargs = _accepted(self.module.load, config)
        instances = self._call("load", lambda: iter(self.module.load(*map(str, paths), **kwargs)))
        if isinstance(instances, _OF_CHARACTERS):
            raise ModelError(
                f"{self.path.name}: load: expected instances, got the characters of a string; open the file that the "
                "path names, and yield one instance after the other"
            )
        names = ", ".join(one_line(Path(path).name) for path in paths)
        return itertools.islice(_guarded(instances, f"{self.path.name}: load", names), limit)

    def parse(self, config: Config) -> Callable[[Any], Any] | None:
        """The function that makes an instance of one line of an input file, where the file has one."""
        parse = getattr(self.module, "parse", None)
        if not callable(parse):
            return None
        kwargs = _accepted(parse, config)
        return lambda text: self._call("parse", lambda: parse(text, **kwargs))

    def vertex_instance(self, config: Config) -> Callable[[Any], Any]:
        """The function that turns an instance into arrays. Raises ModelError when the file offers none."""
        convert = getattr(self.module, "vertex_instance", None)
        if not callable(convert):
            raise ModelError(
                f"{self.path}: expected a function 'vertex_instance' for the vertex front end, got none; see "
                "docs/vertex-functions.md, or record forward instead"
            )
        kwargs = _accepted(convert, config)
        return lambda instance: self._call("vertex_instance", lambda: convert(instance, **kwargs))

    def _read_only(self) -> dict[str, inspect.Parameter]:
        """Parameters with a default of the functions that read or make instances."""
        functions = (getattr(self.module, name, None) for name in ("load", "sample", "parse", "vertex_instance"))
        found = [_parameters(function) for function in functions if callable(function)]
        return {name: p for some in found for name, p in some.items() if p.default is not p.empty}

    def guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the file; what it raises becomes a ModelError that names it."""
        return lambda *args: self._call(name, lambda: function(*args))

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        return _guard(f"{self.path.name}: {what}", function)


_MODULES = "edbc_model_"
"""What the names of imported model files begin with; their hashes end them."""
_SIBLINGS: dict[str, dict[str, ModuleType]] = {}
"""By such a name the modules beside the file, by theirs, that it has imported: files elsewhere have others."""
_OF_CHARACTERS = (type(iter("")), type(iter("\u00e9")))
"""Iterators of strings: what `load = iter` makes of a path."""


def require_inputs(paths: Sequence[str | Path]) -> None:
    """Raise InputError unless all are files that may be read."""
    if isinstance(paths, str | bytes):
        raise InputError(f"inputs: expected a list of files, got {printable(repr(paths))}; put it in a list")
    for path in paths:
        require_file(path, "an input file", InputError, "check --input")


def import_model_file(path: str | Path) -> ModelFile:
    """Import a model file; this executes it, once as long as nothing in it changes: so its classes are the same for
    all who import it, and pickle finds them. Raises ModelError when it is not one."""
    path = Path(path)
    sha256 = hash_model_file(path)
    module = _import(path.resolve(), sha256)
    for name in ("build", "sample"):
        if not callable(getattr(module, name, None)):
            raise ModelError(
                f"{path}: expected a function {name!r}, got none; a model file defines build and sample, and load to "
                "read files"
            )
    return ModelFile(path, sha256, module)


def files_of(model: nn.Module) -> list[str]:
    """The model files that were imported here and define classes of a model. Another process imports them before it
    reads a pickle of the model."""
    names = {type(module).__module__ for module in model.modules()}
    return sorted(str(sys.modules[name].__file__) for name in names if name.startswith(_MODULES))


def hash_model_file(path: str | Path) -> str:
    """sha256 of the model file and the local modules that it imports, directly or not. Executes nothing."""
    require_file(path, "a model file", ModelError, "check the path")
    digest = hashlib.sha256()
    for name, part in hashed_files(path).items():
        data = part.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}:{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def hashed_files(path: str | Path) -> dict[str, Path]:
    """What `hash_model_file` covers, by what it is called in the file's folder: the file, then the others."""
    file = Path(path).resolve()
    named = {part.relative_to(file.parent).as_posix(): part for part in _local_files(file)}
    return dict(sorted(named.items(), key=lambda item: (item[1] != file, item[0])))


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unknown_key(key: str, known: Iterable[str], noun: str = "config key") -> str:
    """`unknown config key 'hiden_size'; did you mean 'hidden_size'?`"""
    known = list(known)
    close = get_close_matches(key, known, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"known {noun.split()[-1]}s: {', '.join(known) or 'none'}"
    return f"unknown {noun} {key!r}; {remedy}"


def _local_files(path: Path) -> set[Path]:
    """The file and all modules of its own folder, and of packages there, that it imports."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for level, name in _imported_names(file, file.read_bytes()):
            folder = file.parents[level - 1] if level else path.parent
            if folder.is_relative_to(path.parent):
                waiting += _files_named(folder, name)
    return found


def _files_named(folder: Path, name: str) -> Iterator[Path]:
    """The files that importing `package.module.name` from a folder runs; a name that is no module has none."""
    for part in name.split("."):
        ways = folder / part / "__init__.py", folder / f"{part}.py"  # the order in which Python looks
        yield from [way for way in ways if way.is_file()][:1]
        folder /= part


@lru_cache(maxsize=256)  # models of a folder share files, and a run hashes its model more than once
def _imported_names(file: Path, source: bytes) -> Set[tuple[int, str]]:
    """What its import statements name, `from` what they name and from how many folders up, 0 from the outermost."""
    try:
        tree = ast.parse(source, filename=str(file))
    except (MemoryError, RecursionError):  # the parser's own limits
        raise ModelError(f"{file.name}: expected Python, got expressions nested too deep; write it simpler") from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ModelError(
            f"{file.name}{f':{line}' if line else ''}: expected Python, got a syntax error: {error}"
        ) from None
    names: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names}
    return frozenset(names)


class _FromText(SourceFileLoader):
    """Compiles what the file says now, which is what was hashed. Python takes byte code that it kept for a file of the
    same length that was written in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import(path: Path, sha256: str) -> ModuleType:
    """The module, with its folder on sys.path for its own imports, and no sibling of the same name from elsewhere."""
    folder = str(path.parent)
    for name in [name for name in _siblings(path.parent) if _is_elsewhere(path.parent, name)]:
        del sys.modules[name]
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    name = f"{_MODULES}{path.stem}_{sha256[:8]}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        sys.modules.update(_SIBLINGS[name])
        return loaded
    if path.suffix != ".py":
        raise ModelError(f"{path}: expected a Python file, got a name without .py; rename it")
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromText(name, str(path)))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        _guard(f"{path.name}: importing it", lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[name]
        raise
    _SIBLINGS[name] = {each: found for each, found in _siblings(path.parent).items() if _is_beside(path.parent, each)}
    return module


def _siblings(folder: Path) -> dict[str, ModuleType]:
    """Loaded modules that are called as what stands in the folder is, those of packages among them."""
    own = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/*.py")}
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in own}


def _is_beside(folder: Path, name: str) -> bool:
    """Whether a loaded module, or the package that it is in, stands in the folder."""
    outer = name.partition(".")[0]
    return _place(outer) in [str(folder / place) for place in (f"{outer}.py", f"{outer}/__init__.py", outer)]


def _is_elsewhere(folder: Path, name: str) -> bool:
    place = _place(name.partition(".")[0])
    return place is not None and not _is_beside(folder, name) and not is_installed(place)


def _place(name: str) -> str | None:
    """The file of a loaded module, the folder of a package without one."""
    module = sys.modules.get(name)
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


def is_installed(file: str) -> bool:
    """True for files of Python itself, of installed packages and of edbc: a model's sibling of the same name must not
    take them away from those who use them."""
    folders = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(Path(file).is_relative_to(folder) for folder in (*folders, str(Path(__file__).parents[1])))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """torch's generator of the CPU starts from a seed inside; whoever called goes on with the one that was."""
    import torch

    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield


def _guard(what: str, function: Callable[[], Any], where: str = "") -> Any:
    """Run the user's code; what it raises, sys.exit too, becomes a ModelError that keeps the traceback as its cause."""
    try:
        return function()
    except (EdbcError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what} raised {described(error)}{where}") from error


def _guarded(instances: Iterator[Any], what: str, names: str) -> Iterator[Any]:
    for number in itertools.count():
        instance = _guard(what, lambda: next(instances, _END), f" (instance {number} of {names})")
        if instance is _END:
            return
        yield instance


_END = object()


def _listed(config: Config) -> str:
    text = ", ".join(f"{key}={printable(repr(value))}" for key, value in config.items())
    return f"({text})" if text else ""


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature; of a built-in one that has none (`load = iter`), one without parameters."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.Signature()


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: p
        for name, p in _signature(function).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def exemplars_of(module: ModuleType | None, plan: Plan) -> Callable[[], Iterable[Any]] | None:
    """What makes up the instances that a plan was compiled from, if the module of a model can."""
    sample, known = getattr(module, "sample", None), plan.trained_on
    if not callable(sample):
        return None
    return lambda: sample(known.instances, known.seed, **_accepted(sample, plan.model.config))


def _accepted(function: Callable[..., Any], config: Config) -> Config:
    """The part of the config that a function takes."""
    parameters = _signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(config)
    return {key: value for key, value in config.items() if key in parameters}


_KINDS: dict[Any, type] = {name: kind for kind in (int, float, bool) for name in (kind, kind.__name__)}


def _kind_of(parameter: inspect.Parameter) -> type:
    """Of the default; without one what the annotation says."""
    if parameter.default is not parameter.empty:
        return type(parameter.default)
    return _KINDS.get(parameter.annotation, str)


def _convert(text: str, parameter: inspect.Parameter, where: str) -> int | float | str | bool:
    kind = _kind_of(parameter)
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return kind(text) if kind in (int, float, str) else text
    except (KeyError, ValueError):
        raise ModelError(f"{where}: expected {kind.__name__}, got {printable(repr(text))}") from None
