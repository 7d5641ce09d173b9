"""Models that read values: eager, batched by hand in torch, and edbc, which suspends instances.

    python benchmarks/fibers.py [--hidden 128] [--count 32] [--rounds 9] [--vocab 1000]

Per mini-batch, one core, float32, no gradients, weights seeded, instances from the models' `sample`. `by hand` is what
a person writes for this very model in plain torch: the decoder over the sentences that are still running, the tree
builder step by step over all sentences that have parts left. Contestants take turns; processor time, smallest of the
rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats
from edbc.tools.compile.compiler import compile_model

MODELS = Path(__file__).resolve().parents[1] / "models"
sys.path.insert(0, str(MODELS))


def cell_by_hand(cell: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """An LSTM cell of the zoo over rows, its products in two."""
    gates = "ifog"
    w_x = torch.cat([getattr(cell, f"{g}_x").weight for g in gates]).t().contiguous()
    w_h = torch.cat([getattr(cell, f"{g}_h").weight for g in gates]).t().contiguous()
    bias = torch.cat([getattr(cell, f"{g}_x").bias for g in gates])

    def step(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, o, g = torch.addmm(torch.addmm(bias, x, w_x), h, w_h).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return step


def decode_by_hand(model: Any, pairs: list[Any]) -> list[list[int]]:
    """Greedy decoding: the longest sources first, so that those that are still read are the first rows."""
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i].source))
    sources = [pairs[i].source for i in order]
    encoder, decoder = cell_by_hand(model.encoder), cell_by_hand(model.decoder)
    h = c = model.zero.expand(len(pairs), -1)
    for at in range(len(sources[0])):
        live = sum(len(source) > at for source in sources)
        x = model.source_embedding.weight[torch.tensor([source[at] for source in sources[:live]])]
        new_h, new_c = encoder(x, h[:live], c[:live])
        h, c = torch.cat([new_h, h[live:]]), torch.cat([new_c, c[live:]])
    words = torch.zeros(len(pairs), dtype=torch.int64)
    rows = list(range(len(pairs)))
    chosen: list[list[int]] = [[] for _ in pairs]
    for _ in range(model.max_words):
        h, c = decoder(model.target_embedding.weight[words], h, c)
        words = model.out(h).argmax(1)
        for row, word in zip(rows, words.tolist(), strict=True):
            chosen[order[row]].append(word)
        live_rows = words != 1
        if not live_rows.any():
            break
        if not live_rows.all():
            rows = [row for row, lives in zip(rows, live_rows.tolist(), strict=True) if lives]
            h, c, words = h[live_rows], c[live_rows], words[live_rows]
    return chosen


def build_by_hand(model: Any, sentences: list[list[int]]) -> list[int]:
    """Easy-first trees: one composition and one batch of scores per step for all sentences."""
    words = model.word(model.embedding.weight[torch.tensor([word for words in sentences for word in words])])
    ends = torch.tensor([len(words) for words in sentences]).cumsum(0).tolist()
    parts = [list(words[end - len(each) : end]) for end, each in zip(ends, sentences, strict=True)]
    scores: list[list[float]] = [[] for _ in sentences]
    left = [part for each in parts for part in each[:-1]]
    if left:
        right = [part for each in parts for part in each[1:]]
        flat = model.score(torch.stack(left), torch.stack(right))[:, 0].tolist()
        for each, row in zip(parts, scores, strict=True):
            row += flat[: len(each) - 1]
            del flat[: len(each) - 1]
    steps = 0
    while live := [i for i, each in enumerate(parts) if len(each) > 1]:
        steps += 1
        at = [max(range(len(scores[i])), key=scores[i].__getitem__) for i in live]
        lefts, rights = zip(*[(parts[i][a], parts[i][a + 1]) for i, a in zip(live, at, strict=True)], strict=True)
        made = model.compose(torch.stack(lefts), torch.stack(rights))
        pairs, spans = [], []
        for row, (i, a) in enumerate(zip(live, at, strict=True)):
            parts[i][a : a + 2] = [made[row]]
            first = max(a - 1, 0)
            new = list(zip(parts[i][first : a + 1], parts[i][first + 1 : a + 2], strict=False))
            spans.append((i, first, a + 2, len(new)))
            pairs += new
        flat = []
        if pairs:
            lefts, rights = zip(*pairs, strict=True)
            flat = model.score(torch.stack(lefts), torch.stack(rights))[:, 0].tolist()
        for i, first, stop, count in spans:
            scores[i][first:stop] = flat[:count]
            del flat[:count]
    return [steps]


BY_HAND: dict[str, Callable[[Any, list[Any]], Any]] = {"greedy_nmt": decode_by_hand, "easy_first": build_by_hand}


def seconds(function: Callable[[], Any]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def measure(name: str, options: argparse.Namespace) -> None:
    settings: dict[str, Any] = {"hidden_size": options.hidden, "vocab_size": options.vocab}
    compiled = compile_model(MODELS / f"{name}.py", settings=settings, policy="critical", measure_gain=False)
    file = import_model_file(MODELS / f"{name}.py")
    instances = file.sample(options.count, 1, compiled.captured.config)
    model = compiled.captured.model.eval()
    net, by_hand, stats = Net(compiled.plan, model), BY_HAND.get(name), Stats()
    contestants: dict[str, Callable[[], Any]] = {
        "eager": lambda: [model(instance) for instance in instances],
        "fibers": lambda: net(instances),
        "one alone, eager": lambda: model(instances[0]),
        "one alone, fibers": lambda: net(instances[:1]),
    }
    if by_hand is not None:
        contestants["by hand"] = lambda: by_hand(model, instances)
    with torch.no_grad():
        for _ in range(20):  # recording asks for lines in its first mini-batches
            net(instances)
        net.run(instances, stats)
        if name == "greedy_nmt":
            ours = [[int(s.argmax()) for s in one["words"]] for one in net(instances)]
            assert ours == decode_by_hand(model, instances)
        times: dict[str, list[float]] = {key: [] for key in contestants}
        for _ in range(options.rounds):
            for key, contestant in contestants.items():
                times[key].append(seconds(contestant))
    best = {key: 1e3 * min(found) for key, found in times.items()}
    hand = f"{best['by hand']:.2f} | {best['fibers'] / best['by hand']:.2f}" if by_hand is not None else "- | -"
    reads = sum(stats.reads.values())
    print(
        f"| {name} | {options.hidden} | {options.count} | {best['eager']:.1f} | {hand} | {best['fibers']:.2f} "
        f"| {best['eager'] / best['fibers']:.1f} x | {stats.segments} | {stats.batches} | {reads:,} "
        f"| {best['one alone, eager'] / best['one alone, fibers']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--models", default="greedy_nmt,easy_first,early_exit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | hidden | instances | eager ms | by hand ms | fibers / by hand | fibers ms | gain | segments "
          "| batches | reads | one alone |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        measure(name, options)


if __name__ == "__main__":
    main()
