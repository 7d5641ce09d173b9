"""What every command shares: errors as one line and an exit code, progress on stderr, settings as KEY=VALUE."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import sys
import sysconfig
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from edbc.base.files import one_line
from edbc.errors import (
    DeviceError,
    EdbcError,
    InputError,
    ModelError,
    NotNative,
    RunsEagerly,
    Unplanned,
    described,
)

if TYPE_CHECKING:
    from edbc.tools.parity import Parity

F = TypeVar("F", bound=Callable[..., Any])
_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
OWN = (NotNative, RunsEagerly, Unplanned)
"""Warnings that are told in one line."""


def one_line_errors(command: F) -> F:
    """Errors meant for people: `Error: ...` on stderr and the exit code of `edbc.errors`; no traceback unless
    EDBC_DEBUG is set, or the user's own code raised it. Ctrl-C exits 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning(warnings.showwarning)
                with _own_stdout(kwargs.get("output_format", "text")):
                    return command(*args, **kwargs)
        except EdbcError as error:
            _show(error, kwargs.get("output_format", "text"))
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            _exit_interrupted()
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(141)
        except Exception as error:
            if _is_interrupt(error):
                _exit_interrupted()
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                _exit_disk_full(error)
            if getattr(error, "__notes__", None):
                error = _of_the_model(error)
            elif isinstance(error, OSError) and error.filename is not None:
                where, why = one_line(error.filename), (error.strerror or str(error)).lower()
                error = EdbcError(f"{where}: expected to read or write there, got: {why}; check the path")
            elif isinstance(error, MemoryError):
                error = DeviceError("out of memory: expected more, got none; use a smaller --batch-size or --limit")
            elif isinstance(error, OWN):
                error = EdbcError(str(error))
            else:
                raise
            _show(error, kwargs.get("output_format", "text"))
            sys.exit(error.exit_code)

    return wrapped  # type: ignore[return-value]


def begin_loops(quiet: bool, *rooms: str) -> None:
    """Compile graph loops beside the command (`edbc.native.ahead.begin`) where there are none yet, and say so."""
    from edbc.native import ahead, shipped

    if ahead.begin(*rooms) and not quiet:
        kept = shipped.count()
        why = f"none of the {kept} that come with edbc fits source, Python and numba" if kept else "none come with it"
        click.echo(fold(f"native loops are compiled, once, some 10 s ({why})"), err=True)


@contextmanager
def _own_stdout(output_format: str) -> Iterator[None]:
    """Where a program reads stdout, `emit` alone writes there: what a model file prints goes to stderr."""
    context = click.get_current_context(silent=True)
    if output_format == "text" or context is None:
        yield
        return
    context.meta[STDOUT] = sys.stdout
    with redirect_stdout(sys.stderr):
        yield


def emit(text: str, nl: bool = True) -> None:
    """Text for whoever reads stdout."""
    context = click.get_current_context(silent=True)
    click.echo(text, file=None if context is None else context.meta.get(STDOUT), nl=nl)


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Warnings that are edbc's own in one line, others as ever."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, OWN):
            warn(str(message))
        else:
            otherwise(message, category, *where, **more)

    return show


def _of_the_model(error: Exception) -> ModelError:
    """What the user's code raised while it was run: where, what, and for which instance."""
    frames = _users_frames(error)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    told = ModelError(f"{where}the model raised {described(error)} ({error.__notes__[0]})")
    told.__cause__ = error
    return told


def _told_traceback(error: BaseException) -> Iterator[str]:
    """A traceback of the user's code, without what edbc calls around it and inside; with what it was raised from.
    Nothing where none of it ran, as for a forward of other arguments."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    told = [] if before is None else list(_told_traceback(before))
    yield from told
    frames = _users_frames(error)
    if frames:
        yield "\nThen:\n\n" * bool(told) + "Traceback (most recent call last):\n"
        yield from traceback.format_list(frames)
        yield from traceback.format_exception_only(error)


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """From the first to the last frame that is neither edbc's nor a library's, without edbc's between them."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_OWN_CODE, "<"))]
    own = [number for number, frame in enumerate(frames) if not frame.filename.startswith(libraries)]
    return frames[own[0] : own[-1] + 1] if own else []


def _exit_interrupted() -> NoReturn:
    click.echo("interrupted", err=True)
    sys.exit(130)


def _is_interrupt(error: BaseException) -> bool:
    """True for Ctrl-C inside native code, which numba reports as a SystemError, or as the context of another error."""
    seen = (error.__cause__, error.__context__)
    return isinstance(error, SystemError) and any(isinstance(e, KeyboardInterrupt) for e in seen)


def _exit_disk_full(error: OSError) -> NoReturn:
    """No space for the report: say so, and keep the interpreter from writing the rest of it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    where = error.filename or "standard output"
    click.echo(f"Error: {where}: expected to write there, got: {error.strerror}; free space on that disk", err=True)
    sys.exit(DeviceError.exit_code)


def _wants_traceback() -> bool:
    return bool(os.environ.get("EDBC_DEBUG")) or is_verbose()


def _show(error: EdbcError, output_format: str) -> None:
    cause = error.__cause__
    if _wants_traceback():
        traceback.print_exception(error)
    elif cause is not None and not isinstance(cause, EdbcError) and not isinstance(error, InputError):
        click.echo("".join(_told_traceback(cause)), nl=False, err=True)
    if output_format == "json":
        told = {"kind": error.kind, "exit_code": error.exit_code, "code": error.code, "message": str(error)}
        print_json({"error": told})
    click.echo(f"Error: {error} [{error.code}]", err=True)


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    emit(json.dumps({"schema": 1, **content}))


def paint(text: str, colour: str) -> str:
    """Coloured text; plain when NO_COLOR is set (https://no-color.org). click drops colours off terminals."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def fold(line: str) -> str:
    """A line broken to the terminal's width, continued two columns further in; as it is where nobody looks."""
    if not sys.stdout.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    width = max(20, shutil.get_terminal_size().columns)
    return textwrap.fill(line.strip(), width, initial_indent=indent, subsequent_indent=indent + "  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def warn(text: str) -> None:
    """A warning on stderr."""
    click.echo(f"Warning: {text}", err=True)


def warn_unstable(parity: Parity) -> None:
    """Say on stderr where eager itself is so inexact that equality with it shows little (`edbc.tools.parity`, 4)."""
    for name, how in parity.unstable.items():
        click.echo(
            f"Warning: output {name!r}: eager itself is unstable here: {how}; that batched execution agrees with it "
            "shows little; compare with 'edbc run --verify --dtype float64', or keep the model's values bounded",
            err=True,
        )


def parse_settings(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`--set KEY=VALUE`, repeatable, each key once."""
    settings: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise click.BadParameter(f"expected KEY=VALUE, got {text!r}")
        if key in settings:
            raise click.BadParameter(f"expected each key once, got {key}={settings[key]} and {text.strip()}")
        settings[key] = value
    return settings


def parse_gap(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """`1%` or `0.01` as a share."""
    try:
        share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise click.BadParameter(f"expected a share such as 1% or 0.01, got {value!r}")
    return share


def parse_segments(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | str | None:
    """`--recompute N` or `--recompute auto`."""
    if value is None or value == "auto":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"expected a number of segments from 1 on, or auto, got {value!r}")
    return int(value)


LONG = 5.0
"""Seconds from which on it is said where they went."""
SHORTEST_BAR, LONGEST_BAR = 8, 24
"""Characters of a progress bar; a terminal without room for the shortest has none."""
STDOUT = "edbc.stdout"
"""Key of click's context under which the stdout of a machine format is kept."""
VERBOSE = "edbc.verbose"
"""Key of click's context under which `--verbose` is remembered."""


def remember_verbose(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Callback of `--verbose`."""
    context.meta[VERBOSE] = value


def is_verbose() -> bool:
    """True when the running command was given `--verbose`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(VERBOSE))


def is_live_terminal() -> bool:
    """True when stderr is a terminal that somebody watches: continuous integration and dumb terminals get lines."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


class ProgressLine:
    """Progress on stderr: one changing line on a terminal, one line per ten per cent elsewhere, nothing when quiet.

    When verbose, every step has a line of its own.
    """

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.is_verbose = is_verbose()
        self.is_live = is_live_terminal() and not self.is_verbose
        self.stage = ""
        self.last_tenth = -1
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        """Of every stage so far."""

    def __call__(self, stage: str, done: int, total: int, facts: dict[str, Any]) -> None:
        """Report that `done` of `total` steps of a stage are done."""
        if self.quiet:
            return
        if stage != self.stage:
            self.finish()
            self.stage, self.last_tenth, self.started = stage, -1, time.monotonic()
        tenth = 10 * done // max(total, 1)
        if not self.is_live and not self.is_verbose and tenth == self.last_tenth:
            return
        self.last_tenth = tenth
        if self.is_live:
            width = max(20, shutil.get_terminal_size().columns - 1)
            click.echo("\r" + self._text(done, total, facts, width)[:width].ljust(width), nl=False, err=True)
        else:
            click.echo(self._text(done, total, facts, 0), err=True)

    def _text(self, done: int, total: int, facts: dict[str, Any], width: int) -> str:
        """Stage and share first, so that a narrow terminal cuts off what matters least."""
        elapsed = time.monotonic() - self.started
        parts = [f"{self.stage:8} {100 * done // max(total, 1):3d} %"]
        if facts.get("batches") is not None:
            parts.append(f"{facts['batches']} batches (lower bound {facts.get('lower_bound', '?')})")
        if facts.get("name"):
            parts.append(str(facts["name"]))
        if 0 < done < total and elapsed > 1:
            parts.append(f"{elapsed * (total - done) / done:.0f} s left")
        if total > 20:
            parts.append(f"{done}/{total} {facts.get('unit', 'trials')}")
        bar = min(LONGEST_BAR, width - len("  ".join(parts)) - len("  []"))
        if bar >= SHORTEST_BAR:
            filled = bar * done // max(total, 1)
            parts.insert(1, "[" + "#" * filled + "." * (bar - filled) + "]")
        return "  ".join(parts)

    def finish(self) -> None:
        """End the changing line."""
        if not self.stage:
            return
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + time.monotonic() - self.started
        if self.is_live and not self.quiet:
            click.echo("", err=True)
        self.stage = ""

    def tell_seconds(self) -> None:
        """Where the time went, if it was LONG: the slowest stage first."""
        self.finish()
        total = sum(self.seconds.values())
        if total >= LONG:
            parts = sorted(self.seconds.items(), key=lambda part: -part[1])
            named = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in parts if seconds >= total / 20)
            click.echo(f"took {total:.0f} s: {named}", err=True)
