"""A plan with one change is refused, or gives eager's outputs: from bytes to numbers, over the committed plans.

Mutations are of bytes (delete, insert, replace), of lines (swap, repeat, drop) and of words (one word of the plan in
the place of another, a number one higher), which is where plausible but wrong plans come from.
"""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from zoo_models import HEAVY, PLANS, ZOO, ZooModel, zoo_model
from zoo_names import RAGGED

from edbc.errors import EdbcError, PlanError, StaleError
from edbc.plan import parse_plan

LIGHT = [name for name in ZOO if name not in HEAVY]
WORD = re.compile(r"[\w.]+")


def mutated(text: str, rng: random.Random) -> str:
    """The text with one change."""
    kind = rng.choice(["byte", "line", "word", "word", "number"])
    if kind == "byte":
        at = rng.randrange(len(text))
        return (
            text[:at] + rng.choice(["", rng.choice(text), chr(rng.randrange(32, 127))]) + text[at + rng.randrange(2) :]
        )
    if kind == "line":
        return _with_other_lines(text.splitlines(keepends=True), rng)
    numbers = kind == "number"
    words = [m for m in WORD.finditer(text) if not numbers or m.group().isdigit()]
    word = rng.choice(words)
    new = str(int(word.group()) + rng.choice([-1, 1])) if numbers else rng.choice(words).group()
    return text[: word.start()] + new + text[word.end() :]


def _with_other_lines(lines: list[str], rng: random.Random) -> str:
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(3)
    if change == 0:
        lines[i], lines[j] = lines[j], lines[i]
    elif change == 1:
        lines.insert(j, lines[i])
    else:
        del lines[i]
    return "".join(lines)


def fate(text: str, zoo: ZooModel) -> str:
    """What becomes of a plan: refused while reading or binding, without effect, or executed with eager's outputs."""
    try:
        plan = parse_plan(text.encode("utf-8", "surrogatepass"), "x.yaml")
    except (PlanError, StaleError):
        return "refused when read"
    if plan == zoo.plan:
        return "the same plan"
    try:
        results = zoo.bind(plan)(zoo.instances)
    except EdbcError:
        return "refused when bound"
    zoo.require_parity(results)
    return "eager's outputs"


def fates(names: list[str], seed: int, count: int) -> Counter[str]:
    """The fates of `count` mutations, plan after plan."""
    rng, seen = random.Random(seed), Counter()
    texts = {name: (PLANS / f"{name}.yaml").read_text() for name in names}
    for number in range(count):
        name = names[number % len(names)]
        seen[fate(mutated(texts[name], rng), zoo_model(name))] += 1
    return seen


@pytest.mark.filterwarnings("ignore::edbc.errors.Unplanned")
@pytest.mark.long
def test_plans_with_one_change_are_refused_or_right() -> None:
    """40 mutations: each is refused with an edbc error, or its outputs are eager's; every fate occurs."""
    seen = fates([*LIGHT[:7], RAGGED[0]], 0, 40)
    assert set(seen) >= {"refused when read", "refused when bound", "eager's outputs"}


@pytest.mark.filterwarnings("ignore::edbc.errors.Unplanned")
@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ('"f32[n,256]"', "eager's outputs"),
        ('"f32[n,1,256]", "f32[n,256]", "f32[n,512]", "i64[n]"', "eager's outputs"),
        ('"f64[n,255]", "f32[n]"', "eager's outputs"),
        ('"f32[m,256]"', "refused when read"),
        ('"f32[n,n]"', "refused when read"),
        ('"f32[n,-1]"', "refused when read"),
        ('"f32[n,99999999999999999999]"', "refused when read"),
        ('"n"', "refused when read"),
    ],
)
def test_other_ragged_classes_are_refused_or_right(classes: str, expected: str) -> None:
    """Fewer classes, more, wrong ones, and what is none: types may be others than the plan's, numbers never."""
    text, zoo = (PLANS / f"{RAGGED[0]}.yaml").read_text(), zoo_model(RAGGED[0])
    changed = re.sub(r"^ragged: .*$", f"ragged: [{classes}]", text, flags=re.MULTILINE)
    assert changed != text
    assert fate(changed, zoo) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::edbc.errors.Unplanned")
@pytest.mark.parametrize("part", range(10))
def test_many_plans_with_one_change_are_refused_or_right(part: int) -> None:
    """The same for 20,000 mutations over all committed plans; `pytest -s` shows how many met which fate."""
    print(dict(fates(ZOO, 1 + part, 2000)))
