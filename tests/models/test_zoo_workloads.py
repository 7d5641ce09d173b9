"""Eager results of the further workloads against their equations, written out again on numpy arrays in float64."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from _circuits import KINDS, Circuit
from _molecules import JunctionTree
from _plans import WIDTHS, Operator
from _programs import Module, Question
from _transitions import SHIFT
from _treebank import Node
from _trees import Tree
from torch import nn
from transition_parser import Sentence
from zoo import count_calls, model, run, small

Array = np.ndarray


def arrays(network: nn.Module) -> dict[str, Array]:
    """Every parameter by its name; biases are made random first, so that a missing one shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}


def sigma(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def assert_close(actual: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)


class Linear:
    """`linear("leaf.i", x)`: product with a weight, plus its bias where it has one."""

    def __init__(self, w: dict[str, Array]):
        self.w = w

    def __call__(self, name: str, x: Array) -> Array:
        return self.w[f"{name}.weight"] @ x + self.w.get(f"{name}.bias", 0.0)


def lstm(linear: Linear, cell: str, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    i, f, o = (sigma(linear(f"{cell}.{gate}_x", x) + linear(f"{cell}.{gate}_h", h)) for gate in "ifo")
    c = f * c + i * np.tanh(linear(f"{cell}.g_x", x) + linear(f"{cell}.g_h", h))
    return o * np.tanh(c), c


def test_ratings_and_the_loss_of_a_tree() -> None:
    """tanh of one projection per node; the loss adds up squared distances to labels that stand for -1 to 1."""
    network = small("tree_lstm_regression")
    w = arrays(network)
    states: list[Array] = []
    network.rating.register_forward_pre_hook(lambda _, operands: states.append(operands[0].numpy()))
    result = run(network, Tree(4, 0, 0, Tree(0, 0, 4), Tree(3, 0, 7)))
    ratings = [np.tanh(Linear(w)("rating.out", h)) for h in states]

    for actual, rating in zip(result["ratings"], ratings, strict=True):
        assert_close(actual, rating)
    (loss,) = result["loss"]
    assert_close(loss, (ratings[0] + 1) ** 2 + (ratings[1] - 0.5) ** 2 + (ratings[2] - 1) ** 2)


def test_child_sum_adds_over_children() -> None:
    """A phrase of three words: a forget gate per child, sums of states, and a class for every node."""
    network = small("child_sum_tree_lstm")
    w = arrays(network)
    linear = Linear(w)
    tree = Node("NP", 0, [Node("A", 3), Node("B", 5), Node("C", 3)])
    states = []
    for child in tree.children:
        x = w["embedding.weight"][child.word]
        c = sigma(linear("leaf.i", x)) * np.tanh(linear("leaf.u", x))
        states.append((sigma(linear("leaf.o", x)) * np.tanh(c), c))
    total = sum(h for h, _ in states)
    kept = sum(sigma(linear("keep.f", h)) * c for h, c in states)
    c = sigma(linear("internal.i", total)) * np.tanh(linear("internal.u", total)) + kept
    h = sigma(linear("internal.o", total)) * np.tanh(c)

    logits = run(network, tree)["logits"]
    for actual, (state, _) in zip(logits, [*states, (h, c)], strict=True):
        assert_close(actual, linear("out", state))


def test_child_sum_nodes_of_the_first_mini_batch(data_dir) -> None:
    """The first 32 trees of GUM: a leaf per word, one gate per child, one projection per bracket."""
    trees = list(
        islice(
            model("child_sum_tree_lstm").load(str(data_dir / "gum_const_trees" / "gum-const-train.txt"), vocab_size=50),
            32,
        )
    )
    nodes = [node for tree in trees for node in tree]
    calls = count_calls(small("child_sum_tree_lstm"), trees)

    assert calls["leaf"] + calls["internal"] == calls["out"] == len(nodes)
    assert calls["keep"] == sum(len(node.children) for node in nodes) == len(nodes) - 32


def test_circuit_hears_operands_then_users() -> None:
    """nand(a, not a): the forward pass sums operands, the backward pass users, with the cell of each gate's kind."""
    network = small("dag_gru")
    w = arrays(network)
    linear = Linear(w)
    kinds = [KINDS.index(kind) for kind in ("input", "not", "nand")]

    def gru(cell: str, message: Array, h: Array) -> Array:
        r, z = (sigma(linear(f"{cell}.{gate}_m", message) + linear(f"{cell}.{gate}_h", h)) for gate in "rz")
        return z * h + (1 - z) * np.tanh(linear(f"{cell}.c_m", message) + linear(f"{cell}.c_h", r * h))

    start = w["start.weight"]
    a = start[kinds[0]]
    b = gru("along.not", a, start[kinds[1]])
    out = gru("along.nand", a + b, start[kinds[2]])
    out = gru("against.nand", w["asked"], out)
    b = gru("against.not", out, b)
    a = gru("against.input", b + out, a)

    for actual, state in zip(run(network, Circuit(kinds, [[], [0], [0, 1]]))["logits"], (a, b, out), strict=True):
        assert_close(actual, linear("out", state))


def convolve(image: Array, kernel: Array, bias: Array) -> Array:
    """A convolution with the same size of result, by its definition."""
    _, height, width = image.shape
    margin = kernel.shape[-1] // 2
    padded = np.pad(image, ((0, 0), (margin, margin), (margin, margin)))
    result = np.empty((len(kernel), height, width))
    for y in range(height):
        for x in range(width):
            window = padded[:, y : y + kernel.shape[2], x : x + kernel.shape[3]]
            result[:, y, x] = np.einsum("ochw,chw->o", kernel, window) + bias
    return result


def test_modules_answer_a_question() -> None:
    """Every module once: (describe w (or (and find find) (relocate w (filter w find))))."""
    network = small("neural_module_network", side=3, num_pictures=2)
    w = arrays(network)
    linear = Linear(w)
    picture = w["pictures"][1]

    def scored(cell: str, kernel: str, image: Array, word: int) -> Array:
        features = np.maximum(convolve(image, w[f"{cell}.{kernel}.weight"], w[f"{cell}.{kernel}.bias"]), 0)
        matched = features * linear(f"{cell}.word", w["words.weight"][word])[:, None, None]
        return sigma(convolve(matched, w[f"{cell}.score.weight"], w[f"{cell}.score.bias"]))

    find = {word: scored("find", "picture", picture, word) for word in (4, 5, 6)}
    filtered = find[6] * scored("filter", "picture", picture, 7)
    moved = scored("relocate", "spread", filtered, 8)
    at = np.maximum(np.minimum(find[4], find[5]), moved)
    seen = (picture * at).mean(axis=(1, 2)) * linear("describe.word", w["words.weight"][9])
    inner = Module("relocate", 8, [Module("filter", 7, [Module("find", 6)])])
    program = Module("or", 0, [Module("and", 0, [Module("find", 4), Module("find", 5)]), inner])

    (answer,) = run(network, Question(1, Module("describe", 9, [program])))["answer"]
    assert_close(answer, linear("describe.out", seen))

    (answer,) = run(network, Question(1, Module("exist", 0, [program])))["answer"]
    assert_close(answer, linear("exist.out", np.concatenate([at.ravel(), [at.max(), at.min()]])))


def test_operators_read_features_and_inputs() -> None:
    """A hash join of a scan and a hashed scan: latencies stand inputs first."""
    network = small("query_plan_cost")
    linear = Linear(arrays(network))
    rng = np.random.default_rng(0)

    def operator(type_: str, *reads: Operator) -> Operator:
        return Operator(type_, rng.normal(size=WIDTHS[type_]).tolist(), list(reads))

    def unit(type_: str, plan: Operator, *reads: Array) -> Array:
        hidden = np.maximum(linear(f"units.{type_}.hidden", np.concatenate([plan.features, *reads])), 0)
        return linear(f"units.{type_}.data", np.maximum(linear(f"units.{type_}.deeper", hidden), 0))

    scan, other = operator("scan"), operator("index_scan")
    hashed = operator("hash", other)
    join = operator("hash_join", scan, hashed)
    first = unit("scan", scan)
    second = unit("index_scan", other)
    third = unit("hash", hashed, second)
    states = [first, second, third, unit("hash_join", join, first, third)]

    for actual, state in zip(run(network, join)["latency"], states, strict=True):
        assert_close(actual, linear("latency", state))


def test_complete_tree_joins_neighbours() -> None:
    """Four leaves: left pair, right pair, root; 255 inner nodes for 256 leaves."""
    network = small("tree_fc")
    w = arrays(network)
    linear = Linear(w)

    def join(left: Array, right: Array) -> Array:
        return np.maximum(linear("internal.fc", np.concatenate([left, right])), 0)

    a, b, c, d = (w["embedding.weight"][word] for word in (1, 2, 3, 4))
    (root,) = run(network, [1, 2, 3, 4])["root"]
    assert_close(root, join(join(a, b), join(c, d)))
    assert count_calls(network, model("tree_fc").sample(1, 0, vocab_size=50)) == {"internal": 255}


def test_language_model_reads_on() -> None:
    """Scores after each word depend on the words so far."""
    network = small("lstm_lm")
    w = arrays(network)
    linear = Linear(w)
    h = c = np.zeros(8)
    for word, scores in zip([1, 2, 1], run(network, [1, 2, 1])["words"], strict=True):
        h, c = lstm(linear, "lstm", w["embedding.weight"][word], h, c)
        assert_close(scores, linear("out", h))


def test_parser_scores_stack_and_buffer() -> None:
    """Two words, `1 <- 2 <- root`: what is missing on the stack or in the buffer is a learned vector."""
    network = small("transition_parser")
    w = arrays(network)
    linear = Linear(w)
    xs = [w["embedding.weight"][word] for word in (4, 7)]

    def states(cell: str, inputs: list[Array]) -> list[Array]:
        h = c = np.zeros(8)
        outputs = []
        for x in inputs:
            h, c = lstm(linear, cell, x, h, c)
            outputs.append(h)
        return outputs

    fs, bs = states("ahead", xs), states("back", xs[::-1])[::-1]
    one, two = (np.tanh(linear("word.both", np.concatenate(pair))) for pair in zip(fs, bs, strict=True))
    root, nothing = w["root"], w["nothing"]
    configurations = [
        (nothing, nothing, root, one),
        (nothing, root, one, two),
        (root, one, two, nothing),
        (nothing, root, two, nothing),
    ]
    scores = run(network, Sentence([4, 7], [SHIFT, SHIFT, 1, 2]))["transitions"]

    for actual, vectors in zip(scores, configurations, strict=True):
        assert_close(actual, linear("score.out", np.tanh(linear("score.hidden", np.concatenate(vectors)))))


def test_messages_run_both_ways() -> None:
    """A root with two children: each hears the root without its own message, the root hears both."""
    network = small("molecule_mpn")
    w = arrays(network)
    linear = Linear(w)
    x = [w["embedding.weight"][cluster] for cluster in (3, 5, 8)]

    def send(label: Array, *heard: Array) -> Array:
        total = sum(heard, np.zeros(8))
        kept = sum((sigma(linear("reset.r_x", label) + linear("reset.r_m", m)) * m for m in heard), np.zeros(8))
        z = sigma(linear("message.z_x", label) + linear("message.z_s", total))
        return (1 - z) * total + z * np.tanh(linear("message.c_x", label) + linear("message.c_s", kept))

    def gather(label: Array, *heard: Array) -> Array:
        return np.maximum(linear("gather.x", label) + linear("gather.m", sum(heard, np.zeros(8))), 0)

    up = [send(x[1]), send(x[2])]
    down = [send(x[0], up[1]), send(x[0], up[0])]
    clusters = [gather(x[0], *up), gather(x[1], down[0]), gather(x[2], down[1])]

    (value,) = run(network, JunctionTree([3, 5, 8], [None, 0, 0]))["property"]
    assert_close(value, linear("out", sum(clusters)))
    (value,) = run(network, JunctionTree([3], [None]))["property"]
    assert_close(value, linear("out", gather(x[0])))


def test_messages_from_many_neighbours() -> None:
    """The middle of a star of four tells each neighbour what the other three said: 8 messages, 4 x 3 resets."""
    calls = count_calls(small("molecule_mpn"), [JunctionTree([1, 2, 3, 4, 5], [None, 0, 0, 0, 0])])

    assert calls == {"message": 8, "reset": 12, "gather": 5, "out": 1}


@pytest.mark.parametrize("name", ["transition_parser", "molecule_mpn", "dag_gru"])
def test_single_item_runs(name: str) -> None:
    """The smallest instance there is: one word, one cluster, one gate."""
    smallest = {
        "transition_parser": Sentence([1], [0, 2]),
        "molecule_mpn": JunctionTree([1], [None]),
        "dag_gru": Circuit([0], [[]]),
    }

    (values,) = run(small(name), smallest[name]).values()
    assert len(values) == {"transition_parser": 2}.get(name, 1)
