"""Parity does not depend on the policy: every model of the zoo under every rule and under tables of every encoding."""

from __future__ import annotations

import random

import pytest
from zoo_models import ZOO, zoo_model
from zoo_names import RAGGED

from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net
from edbc.schedule.learn.train import cover
from edbc.schedule.policy import ENCODINGS, FALLBACK, KINDS, Policy, ready_types

SOME = [(name, ENCODINGS[number % 3 :: 3]) for number, name in enumerate(ZOO)]
"""Every encoding over a third of the models."""


def policies(net: Net, instances: list, seed: int, encodings: tuple[str, ...]) -> list[Policy]:
    """Every rule, and over every one of the encodings a table that acts at random in half of the states and is blind
    in others."""
    rng = random.Random(seed)
    graph = net.mini_batch(instances).graph
    found = [Policy(kind) for kind in KINDS if kind != "fsm"]
    for encoding in encodings:
        blank = Policy("fsm", encoding, FALLBACK.get(encoding, "chains"))
        table = {s: rng.choice(ready_types(encoding, s)) for s in cover(blank, [graph]).table if rng.random() < 0.5}
        found.append(Policy("fsm", encoding, blank.fallback, table))
    return found


@pytest.mark.parametrize(
    ("name", "encodings"),
    [*SOME, *(pytest.param(name, ENCODINGS, marks=pytest.mark.slow) for name in ZOO)],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_every_policy_gives_eager_s_outputs(name: str, encodings: tuple[str, ...]) -> None:
    """BUGS 19: a new scheduler changes the batches and nothing else."""
    zoo = zoo_model(name)
    net = zoo.bind()
    seen = set()
    for policy in policies(net, zoo.instances, 0, encodings):
        net.policy = policy
        segments: list[MiniBatch] = []
        last = net.prepare(zoo.instances, on_segment=segments.append)
        zoo.require_parity(net.execute(last))
        seen.add(b"|".join(prepared.schedule.batch_type.tobytes() for prepared in [*segments, last]))
    if last.capture.graph.num_types > 2 and not segments and name not in RAGGED:  # those may have one order only
        assert len(seen) > 1
