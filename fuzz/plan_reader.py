"""Coverage-guided fuzzing of the plan reader with atheris (libFuzzer).

    pip install atheris
    python fuzz/plan_reader.py -max_total_time=300 [CORPUS_FOLDER]

Claim: any bytes give a plan or one PlanError or StaleError, on one printable line and in bounded time; a plan that was
read can be written and reads back equal. libFuzzer stops with the input when anything else happens, or when one input
takes longer than its `-timeout`. Seeds are the committed plans and the hostile ones of tests/plan.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "plan")]
LARGEST = 8_000
"""Bytes of an input: the small plan, several times."""


def seeds() -> list[bytes]:
    """Where mutation starts from."""
    from hostile_plans import SMALL, VALID

    plans = [path.read_bytes() for path in sorted((ROOT / "plans").glob("*.yaml"))]
    return [VALID.encode(), *(data for data in plans if len(data) <= LARGEST), *(data for data, _ in SMALL.values())]


def check(data: bytes) -> None:
    """The claim for one input."""
    from edbc.errors import PlanError, StaleError
    from edbc.plan import parse_plan, plan_text

    try:
        plan = parse_plan(data, "x.yaml")
    except (PlanError, StaleError) as error:
        message = str(error)
        if not message.isprintable() or len(message) > 1_000:
            raise AssertionError(f"expected one printable line, got {message!r}") from error
        return
    if parse_plan(plan_text(plan), "x.yaml") != plan:
        raise AssertionError("expected a plan that reads back equal")


def main() -> None:
    """Hand `check` to libFuzzer, with the seeds and what a named folder holds; what it finds goes to that folder."""
    import atheris

    with atheris.instrument_imports(include=["edbc", "yaml"]):
        import edbc.plan  # noqa: F401
    folder = Path(tempfile.mkdtemp(prefix="edbc-fuzz-"))
    for number, data in enumerate(seeds()):
        (folder / f"seed{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], f"-max_len={LARGEST}", *sys.argv[1:], str(folder)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
