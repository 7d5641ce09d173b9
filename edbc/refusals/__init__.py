"""Every refusal's code: what it means, an example, and what to do. One table; pages and `edbc explain E0123` read it.

(1) A refusal is known by the class of its exception and by words of its message: `says`, any of which is in it. The
    first entry of the table that fits gives the code; an entry without words fits every message of its class, and is
    the last of it.
(2) Codes are stable: a number is never given to another meaning. E01 model, E02 input, E03 plan, E04 stale, E05 not
    supported, E06 environment, E07 check, E08 options and files, E09 certificates of edbc's own stages.
(3) An example is a `forward` that is refused (it begins with `def`), or commands (`$ edbc ...`); tests run both, and
    the code must come out. Entries that nobody can be made to see at will have none.
(4) A test reads every raise site of the package: words must fit an entry of its class, and no entry may fit none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from edbc.errors import EdbcError


@dataclass(frozen=True)
class Refusal:
    """One entry, definition (1)."""

    code: str
    kind: str
    """Name of the exception's class."""
    title: str
    why: str
    remedy: str
    example: str = ""
    """Definition (3)."""
    says: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal."""
        shown = "".join(f"    {line}\n" for line in self.example.splitlines())
        example = f"\nFor example:\n\n{shown}" if shown else ""
        return f"{self.code}: {self.title}\n\n{self.why}\n{example}\nWhat to do: {self.remedy}\n"

    def markdown(self) -> str:
        """A section of a page."""
        language = "py" if self.example.startswith("def") else "text"
        example = f"\n```{language}\n{self.example}\n```\n" if self.example else ""
        return f"## {self.code}: {self.title}\n\n{self.why}\n{example}\n**What to do:** {self.remedy}\n"


def refusal_of(error: EdbcError) -> Refusal:
    """The entry of an error, definition (1). Linear in the table."""
    kind, text = type(error).__name__, str(error)
    return next(entry for entry in _of_kind(kind) if not entry.says or any(words in text for words in entry.says))


def find_refusal(code: str) -> Refusal | None:
    """The entry of a code, in whatever case it is written."""
    return next((entry for entry in table() if entry.code == code.upper()), None)


@cache
def _of_kind(kind: str) -> tuple[Refusal, ...]:
    """Entries of a class, and the last resort of the base class."""
    return tuple(entry for entry in table() if entry.kind == kind) + (_OTHER,)


@cache
def table() -> tuple[Refusal, ...]:
    """All entries, by code."""
    from edbc.refusals.engines import ENGINES
    from edbc.refusals.models import MODELS
    from edbc.refusals.plans import PLANS

    return tuple(sorted((*MODELS, *PLANS, *ENGINES, _OTHER), key=lambda entry: entry.code))


_OTHER = Refusal(
    "E0899",
    "EdbcError",
    "A wish that cannot be fulfilled",
    "An argument, an option or a file is not what it must be; the message says which, what was "
    "expected, and what came.",
    "Do what stands behind the message's last semicolon.",
)
