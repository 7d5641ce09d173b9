"""A job: every row of many files through a plan, on an engine of several processes; `edbc run --engine`.

(1) A *row* is a line of a file that is not blank, where the model file has a `parse`; its place is file and line. Else
    workers read whole files with `load`, and the place of an instance is file and number: then what is behind a broken
    instance of a file cannot be read.
(2) Workers write results themselves, a *part* per batch of rows: a safetensors file with the outputs (as `edbc run
    --output` writes them, `NAME` and `NAME.offsets`), the rows' places in `source.file` and `source.line`, and in its
    header the files that these numbers mean. A part is named after its first row and replaced whole, so a batch that
    runs twice, because a worker died, leaves one part.
(3) The process that started the job gets of every part its name and counts, and in the end writes `index.json`: by it
    every row is in one part or among the errors. Parts that are not in it, of attempts that nobody heard of, are
    removed. Its parts are in the order of their first rows; with `keep_order` so are the rows in them, and parts one
    after the other are the input in order.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from edbc.base.arguments import require_count
from edbc.base.files import found_at, one_line, replace_file, write_tensors
from edbc.errors import EdbcError, InputError
from edbc.plan.reader import read_plan
from edbc.reach.outcomes import Failure
from edbc.reach.predictor import Columns, Facts, Predictor
from edbc.run.modelfile import import_model_file, require_inputs
from edbc.run.outputs import OutputFile
from edbc.tools.checking import model_path
from edbc.tools.running import require_model

INDEX = "index.json"
Written = dict[str, Any]
Parts = Generator[Written, None, None]
"""Of a part: `part`, its name, `rows` and `broken`, their numbers, `file` and `line` of its first row, and `errors`,
JSON, which rows were broken, where that is to be recorded."""


@dataclass(frozen=True)
class Job:
    """What to run; checked before an engine starts."""

    plan: str
    inputs: Sequence[str]
    output: str
    batch_size: int = 256
    weights: str | None = None
    on_error: str = "fail"
    keep_order: bool = False
    binding: Mapping[str, Any] = field(default_factory=dict)
    facts: Facts | None = None
    files: tuple[str, ...] = ()
    by_line: bool = True
    """Whether rows are lines; definition (1)."""

    @property
    def predictor(self) -> dict[str, Any]:
        """Arguments of `Writer`, for another process."""
        facts = None if self.facts is None else tuple(self.facts)
        return {"plan": self.plan, "weights": self.weights, "facts": facts, "on_error": self.on_error,
                "output": self.output, "files": self.files, "size": self.batch_size, **self.binding}  # fmt: skip


def prepared(job: Job, warn: Callable[[str], None]) -> Job:
    """The job with its files and facts. Raises what is wrong with plan, model file, inputs or output folder, and
    StaleError for a changed model file; makes the folder."""
    require_count("batch_size", job.batch_size)
    model = job.binding.get("model")
    loaded = read_plan(job.plan)
    own = model_path(Path(job.plan), loaded, model)
    require_model(loaded, own, bool(job.binding.get("trust_changed_model")), warn)
    has_parse = import_model_file(own).parse({}) is not None
    files = tuple(map(os.path.abspath, expanded(job.inputs)))  # workers may run elsewhere
    _require_folder(Path(job.output))
    facts = Facts.here(job.plan, model, job.weights)
    weights = job.weights if facts.weights is None else os.path.abspath(str(job.weights))
    binding = {**job.binding, "model": os.path.abspath(own)}
    return replace(job, plan=os.path.abspath(job.plan), output=os.path.abspath(job.output), weights=weights,
                   binding=binding, files=files, facts=facts, by_line=has_parse)  # fmt: skip


def expanded(inputs: Sequence[str]) -> list[str]:
    """Files in the order given, those of folders by name; hidden ones are left out."""
    found: list[str] = []
    for name in inputs:
        if found_at(name) != "a folder":
            require_inputs([name])
            found.append(str(name))
            continue
        inside = (path for path in sorted(Path(name).rglob("*")) if path.is_file())
        found += [str(p) for p in inside if not any(part.startswith(".") for part in p.relative_to(name).parts)]
    if not found:
        raise InputError(
            f"{', '.join(map(one_line, inputs))}: expected files to read, got none; name others by --input"
        )
    return found


def _require_folder(folder: Path) -> None:
    found = found_at(folder)
    if found not in ("a folder", "nothing") or (found == "a folder" and any(folder.iterdir())):
        got = "one with files in it" if found == "a folder" else found
        raise EdbcError(
            f"{one_line(folder)}: expected an empty folder to write parts to, got {got}; name another --output"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdbcError(f"{folder}: expected to write there, got {error.strerror}; name another --output") from None


def rows_of(path: str, number: int, by_line: bool, most: int = 4096) -> Iterator[dict[str, list[Any]]]:
    """Columns `file`, `line` and `text` of some rows at a time; of one row where the file is read as a whole."""
    if not by_line:
        yield {"file": [number], "line": [0], "text": [b""]}
        return
    with open(path, "rb") as file:
        lines = ((number, line, text.rstrip(b"\r\n")) for line, text in enumerate(file, 1) if text.strip())
        while some := list(itertools.islice(lines, most)):
            yield {
                name: list(column)
                for name, column in zip(("file", "line", "text"), zip(*some, strict=True), strict=True)
            }


class Writer(Predictor):
    """A predictor that writes what it computes, definition (2), and returns a row per part that it has written."""

    def __init__(self, *, output: str, files: Sequence[str], size: int, **options: Any):
        super().__init__(**options)
        self.output, self.files, self.size = Path(output), files, size

    def __call__(self, batch: Columns) -> dict[str, Any]:
        numbers, lines = ([int(x) for x in batch[name]] for name in ("file", "line"))
        if self.parse is None:
            written = [part for number in numbers for part in self._whole(number)]
        else:
            places = [f"{self.files[file]}:{line}" for file, line in zip(numbers, lines, strict=True)]
            written = [self._write(self.outcomes(batch[self.column], places), numbers, lines)]
        return {name: [part[name] for part in written] for name in written[0]}

    def _whole(self, number: int) -> Iterator[Written]:
        """The parts of a file that is read with `load`."""
        first = 1
        instances = self.bound.file.load([self.files[number]], self.bound.config)
        is_open = True
        while is_open:
            some: list[Any] = []
            try:
                some += itertools.islice(instances, self.size)
                is_open = len(some) == self.size
            except EdbcError as error:
                some.append(Failure(error))
                is_open = False
            if some or first == 1:
                lines = list(range(first, first + len(some)))
                places = [f"{self.files[number]}, instance {line - 1}" for line in lines]
                yield self._write(self.results(some, places), [number] * len(some), lines)
            first += len(some)

    def _write(self, found: Sequence[Any], numbers: Sequence[int], lines: Sequence[int]) -> Written:
        good = [i for i, x in enumerate(found) if not isinstance(x, Failure)]
        bad = [[self.files[numbers[i]], lines[i], str(x.error)] for i, x in enumerate(found) if isinstance(x, Failure)]
        named = bad if self.on_error == "record" else []
        part: Written = {"part": "", "rows": len(good), "broken": len(bad), "errors": json.dumps(named),
                         "file": numbers[0] if numbers else 0, "line": lines[0] if lines else 0}  # fmt: skip
        if good:
            part["part"] = f"{part['file']:06d}-{part['line']:09d}.safetensors"
            tensors = OutputFile()
            for i in good:
                tensors.add(found[i])
            sources = {"source.file": torch.tensor([numbers[i] for i in good], dtype=torch.int32),
                       "source.line": torch.tensor([lines[i] for i in good], dtype=torch.int64)}  # fmt: skip
            names = {str(n): self.files[n] for n in sorted({numbers[i] for i in good})}
            metadata = {"edbc_files": json.dumps(names)}
            write_tensors({**tensors.tensors(), **sources}, self.output / part["part"], "outputs",
                          "free space or name another --output", metadata)  # fmt: skip
        return part


def each_part(columns: Mapping[str, Sequence[Any]]) -> Iterator[Written]:
    """What a `Writer` has returned, part by part."""
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


@dataclass
class Summary:
    """What a job did."""

    rows: int = 0
    broken: int = 0
    parts: list[Written] = field(default_factory=list)
    errors: list[list[Any]] = field(default_factory=list)

    def add(self, written: Iterable[Written]) -> None:
        """Count parts in as they come."""
        for part in written:
            self.rows += int(part["rows"])
            self.broken += int(part["broken"])
            self.errors += json.loads(part["errors"])
            if part["part"]:
                self.parts.append({"part": str(part["part"]), **{n: int(part[n]) for n in ("rows", "file", "line")}})

    def finish(self, job: Job) -> None:
        """Definition (3)."""
        self.parts.sort(key=lambda part: (part["file"], part["line"]))
        self.errors.sort(key=lambda error: (str(error[0]), error[1]))
        folder, known = Path(job.output), {part["part"] for part in self.parts}
        for path in folder.glob("*.safetensors"):
            if path.name not in known:
                path.unlink()
        assert job.facts is not None
        content = {
            "schema": 1, "facts": job.facts._asdict(), "ordered": job.keep_order, "rows": self.rows,
            "broken": self.broken,
            "files": job.files, "parts": self.parts,
            "errors": [dict(zip(("file", "line", "message"), error, strict=True)) for error in self.errors],
        }  # fmt: skip
        replace_file(folder / INDEX, lambda path: path.write_text(json.dumps(content, indent=1) + "\n"))


def require_workers(workers: int, left: float, what: str) -> None:
    """Raise EdbcError for more workers than there is room for; `what` says how the room was counted."""
    require_count("workers", workers)
    if workers > left:
        raise EdbcError(f"workers: expected at most {int(left)}, got {workers}: {what}; give fewer --workers")
