"""Plans: the only contract between compiling and running. Importing this package imports neither torch nor numpy."""

from edbc.plan.plan import (
    FORMAT_VERSION,
    BatchCost,
    FileRef,
    Guard,
    ModelRef,
    Plan,
    PlanCell,
    PlanPolicy,
    PlanType,
    PlanWaves,
    RunAs,
    TrainedOn,
)
from edbc.plan.reader import parse_plan, read_plan
from edbc.plan.verify import verify_cell, verify_plan
from edbc.plan.writer import plan_text, write_plan

__all__ = [
    "FORMAT_VERSION",
    "BatchCost",
    "FileRef",
    "Guard",
    "ModelRef",
    "Plan",
    "PlanCell",
    "PlanPolicy",
    "PlanType",
    "PlanWaves",
    "RunAs",
    "TrainedOn",
    "parse_plan",
    "plan_text",
    "read_plan",
    "verify_cell",
    "verify_plan",
    "write_plan",
]
