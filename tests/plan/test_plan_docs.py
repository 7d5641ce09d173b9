"""Claims about docs/plan-format.md."""

from __future__ import annotations

import re
from pathlib import Path

from edbc.plan import parse_plan, plan_text
from edbc.plan.events import MAX_BYTES, MAX_NODES
from edbc.plan.schema import CELL, PLAN, POLICY, STATE, ListOf, MapOf
from edbc.plan.verify import MAX_OPERATION_TEXT


def test_example_is_a_plan_as_the_writer_would_write_it(repository: Path) -> None:
    """The page's example is valid and, comments and alignment aside, in the writer's own words."""
    page = (repository / "docs" / "plan-format.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    plan = parse_plan(example, "docs/plan-format.md")
    bare = [re.sub(r"\s+# .*", "", line) for line in example.splitlines()]
    assert [line for line in bare if line.strip()] == plan_text(plan).splitlines()


def test_limits_are_the_ones_in_force(repository: Path) -> None:
    """The page's table of limits follows the code."""
    page = (repository / "docs" / "plan-format.md").read_text()
    table, operations = POLICY.fields["table"], CELL.fields["operations"]
    cells, types = PLAN.fields["cells"], PLAN.fields["types"]
    assert isinstance(table, MapOf)
    assert isinstance(cells, MapOf)
    assert isinstance(types, ListOf)
    assert isinstance(operations, ListOf)
    assert cells.most == types.most
    for row in (
        f"| file | {MAX_BYTES >> 20} MiB |",
        f"| values in all | {MAX_NODES:,} |",
        f"| states | {table.most:,}, of {STATE.longest:,} characters each |",
        f"| types, cells | {cells.most:,} |",
        f"| operations | {operations.most:,} per cell, of {operations.item.longest:,} characters each; "
        f"{MAX_OPERATION_TEXT:,} characters in all |",
    ):
        assert row in page
