"""Every exception that edbc raises on purpose, each with the exit code that the command line gives it.

Wording: `<where>: expected <X>, got <Y>; <what to do>`. The codes are the command line's contract:

====  =======================================================================
code  meaning
====  =======================================================================
1     check failed: a regression, or outputs differ from the reference
2     usage (click's own)
3     plan, model file or input invalid
4     plan stale, or environment incompatible with it
5     model not supported, with file and line
====  =======================================================================
"""

from __future__ import annotations

import os
import sys
import warnings

LONGEST = 1_000
"""Characters of somebody's text in a message."""


def printable(text: str) -> str:
    """Somebody's text on one line, control characters escaped, the middle left out where it is longer than LONGEST."""
    return _escaped(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 4 :]}")


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def described(error: BaseException) -> str:
    """An exception of somebody's code as one printable line."""
    try:
        text = printable(" ".join(str(error).split()))
    except Exception:
        text = "(its text raises too)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class EdbcError(Exception):
    """Base class; `exit_code` is what the command line exits with, `kind` the same as a word for JSON output.

    `str()` is one printable line, whatever file names and lines of input stand in it."""

    exit_code = 3
    kind = "invalid"

    @property
    def code(self) -> str:
        """`E0401`: its entry in the catalogue, which `edbc explain E0401` shows."""
        from edbc.refusals import refusal_of

        return refusal_of(self).code

    def __str__(self) -> str:
        return _escaped(super().__str__())


class CheckFailed(EdbcError):
    """A guarded metric regressed, or batched outputs differ from eager ones."""

    exit_code = 1
    kind = "check-failed"


class ModelError(EdbcError):
    """The model file cannot be used as one: missing functions, wrong config, an exception while it is built."""


class InputError(EdbcError):
    """An input file or an instance is broken; the message names file and line."""


class GraphError(EdbcError):
    """A dataflow graph breaks one of its invariants (see `Graph.lint`)."""


class ScheduleError(EdbcError):
    """A schedule does not cover its graph, breaks its order or mixes types."""


class LayoutError(EdbcError):
    """A layout is illegal: a variable missing, repeated, overlapping or outside its arena."""


class PlanError(EdbcError):
    """A plan file is not a plan, or contradicts itself; the message names file and line."""


class StaleError(EdbcError):
    """The plan was compiled from something else than what is here now: model, config, weights."""

    exit_code = 4
    kind = "stale"


class DeviceError(EdbcError):
    """The environment lacks what was asked for: no GPU, not enough memory."""

    exit_code = 4
    kind = "environment"


class NotNative(UserWarning):
    """Native code cannot run on this CPU, and no back end was asked for: batches run call by call. Or it runs, but
    cannot be kept for the next start."""


class Unplanned(UserWarning):
    """A cell runs generically, because the plan does not know its type."""


class RunsEagerly(UserWarning):
    """Instances run one after the other, because the plan says that batching does not pay."""


class SlowTransfer(UserWarning):
    """Receiving mini-batches from workers takes longer than capturing them here would."""


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called edbc."""
    own, level, frame = os.path.dirname(os.path.abspath(__file__)) + os.sep, 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, level)


class UnsupportedError(EdbcError):
    """The model does something that batching cannot reproduce; the message names the user's file and line."""

    exit_code = 5
    kind = "unsupported"
