"""Plans that tests start from."""

from __future__ import annotations

from edbc.plan import BatchCost, FileRef, Guard, ModelRef, Plan, PlanCell, PlanPolicy, PlanType, TrainedOn

LEAF = PlanCell(
    operations=(
        "x = input(index=0)",
        'v1 = affine(x, weight="W_i.weight", bias="W_i.bias")',
        'v2 = affine(x, weight="W_u.weight[1/4]", bias=("W_u.bias", "b"))',
        "i = sigmoid(v1)",
        "u = tanh(v2)",
        "c = mul(i, u, output=1)",
        'p1 = parameter(name="scale")',
        "n = sub(1.0, c)",
        "h = mul(n, p1, output=0)",
    ),
    batches=(("v1", "v2"), ("i",), ("u",), ("c",), ("n",), ("h",)),
    layout=("x", "v1", "v2", "i", "u", "c", "n", "h"),
    weights=("W_i.weight", "W_u.weight[1/4]"),
    copies=1,
    eager=("x",),
)

OUT = PlanCell(
    operations=("h = input(index=0)", 'y = linear(h, weight="weight", bias="bias", output=0)'),
    batches=(("y",),),
    layout=("h", "y"),
    weights=("weight",),
    copies=0,
)


def small_plan() -> Plan:
    """Two types, an fsm of three states, every kind of value once."""
    return Plan(
        edbc="0.1.0",
        model=ModelRef(
            path="../models/tree.py",
            sha256="ab" * 32,
            config={"hidden_size": 64, "rate": 0.5, "tied": True, "act": "no"},
            seed=0,
            weights=FileRef("tree.safetensors", "cd" * 32),
        ),
        trained_on=TrainedOn("file", (FileRef("trees.txt", "01" * 32),), 64, 3, 2396),
        requirements=("torch>=2.8",),
        types=(
            PlanType("leaf", "cell leaf(f32[8]) -> f32[8], f32[8]", "models/tree.py:12"),
            PlanType("out", "torch.nn.Linear(f32[8]) -> f32[5]", ""),
        ),
        policy=PlanPolicy(
            "fsm",
            "sort",
            "critical",
            {"out<leaf": "leaf", "out": "out", "leaf": "leaf"},
            {
                "trials": 1000,
                "lower_bound": 19,
                "rate": 1e-05,
                "seeds": [1, 2],
                "baselines": {"agenda": 28, "depth": 36},
            },
            beside="critical",
        ),
        costs={"leaf": BatchCost(16.2, 0.31), "out": BatchCost(3, 0)},
        cells={"leaf": LEAF, "out": OUT},
        guards={"batches": Guard(19), "lower_bound_ratio": Guard(1.05, 0.01, "lower"), "unseen_states": Guard(0)},
    )
