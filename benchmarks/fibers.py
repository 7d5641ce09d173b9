"""Models that read values: eager, batched by hand in torch, and edbc, which suspends instances.

    python benchmarks/fibers.py [--hidden 128] [--count 32] [--rounds 9] [--vocab 1000]

Per mini-batch, one core, float32, no gradients, weights seeded; four mini-batches from the models' `sample` by turns,
so that no contestant sees the same one twice in a row. `by hand` is what a person writes for this very model in plain
torch: the decoder over the sentences that are still running, the tree builder step by step over all sentences that
have parts left. `generators` and `threads` are other ways to let an instance wait: the decoder written as a generator
that yields the step that it wants, or as a function in a thread of its own that asks for it; whoever runs them batches
the steps of one kind when all wait. `forced` is the decoder by edbc with the words given that it would have chosen:
what waiting costs beside it, told per segment as well. `unseen` are mini-batches that come once: segments may be of
structures that have not been met. Contestants take turns; processor time, median of the rounds. At the end: what
suspending an instance and resuming it takes, with torch's state and the recorder's, and what switching greenlets takes
alone; and what a segment takes of the host beside native code: to cut it off, find what runs it, run that, and hand out
its values.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import statistics
import sys
import threading
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from edbc.capture.forward.fibers import Fiber, Fibers, require_greenlet
from edbc.capture.forward.states import OwnAttributes
from edbc.run.cpu import cpubackend, segmentatonce
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats
from edbc.tools.compile.compiler import compile_model

MINI_BATCHES = 4
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


Request = tuple[str, int, torch.Tensor, torch.Tensor]
"""A step that an instance wants: of the encoder or of the decoder, with a word and a state."""


class Steps:
    """Runs the steps that instances want, those of one kind in a batch."""

    def __init__(self, model: Any):
        self.model = model
        self.cells = {name: cell_by_hand(getattr(model, name)) for name in ("encoder", "decoder")}
        self.tables = {"encoder": model.source_embedding.weight, "decoder": model.target_embedding.weight}

    def run(self, wanted: dict[int, Request]) -> dict[int, tuple[torch.Tensor, torch.Tensor, int]]:
        """By instance the new state, and the decoder's word."""
        found = {}
        for kind in ("encoder", "decoder"):
            who = [i for i, request in wanted.items() if request[0] == kind]
            if not who:
                continue
            words = torch.tensor([wanted[i][1] for i in who])
            h, c = (torch.stack([wanted[i][part] for i in who]) for part in (2, 3))
            h, c = self.cells[kind](self.tables[kind][words], h, c)
            chosen = self.model.out(h).argmax(1).tolist() if kind == "decoder" else [0] * len(who)
            found.update(zip(who, zip(h, c, chosen, strict=True), strict=True))
        return found


def decoding(model: Any, pair: Any) -> Iterator[Any]:
    """One sentence as a generator."""
    h = c = model.zero
    for word in pair.source:
        h, c, _ = yield "encoder", word, h, c
    word, chosen = 0, []
    while word != 1 and len(chosen) < model.max_words:
        h, c, word = yield "decoder", word, h, c
        chosen.append(word)
    return chosen


def decode_by_generators(model: Any, pairs: list[Any]) -> list[list[int]]:
    steps, chosen = Steps(model), [[] for _ in pairs]
    running = {i: decoding(model, pair) for i, pair in enumerate(pairs)}
    wanted = {i: next(generator) for i, generator in running.items()}
    while wanted:
        found, wanted = steps.run(wanted), {}
        for i, result in found.items():
            try:
                wanted[i] = running[i].send(result)
            except StopIteration as end:
                chosen[i] = end.value
    return chosen


def decode_by_threads(model: Any, pairs: list[Any]) -> list[list[int]]:
    """The same generators, each driven by a thread that hands over what it wants and sleeps."""
    steps, chosen = Steps(model), [[] for _ in pairs]
    asked: queue.SimpleQueue[tuple[int, Request | None]] = queue.SimpleQueue()
    answers = [queue.SimpleQueue() for _ in pairs]

    def drive(i: int) -> None:
        generator = decoding(model, pairs[i])
        request = next(generator)
        while request is not None:
            asked.put((i, request))
            try:
                request = generator.send(answers[i].get())
            except StopIteration as end:
                chosen[i], request = end.value, None
        asked.put((i, None))

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(len(pairs))]
    for thread in threads:
        thread.start()
    live = len(pairs)
    while live:
        got = [asked.get() for _ in range(live)]
        wanted = {i: request for i, request in got if request is not None}
        live = len(wanted)
        with torch.no_grad():
            found = steps.run(wanted)
        for i, result in found.items():
            answers[i].put(result)
    for thread in threads:
        thread.join()
    return chosen


def forced(model: Any) -> Any:
    """The decoder with its words given: an instance is a pair and its words."""

    class Forced(type(model)):  # type: ignore[misc]
        def forward(self, instance: Any) -> Any:
            pair, words = instance
            h = c = self.zero
            for word in pair.source:
                h, c = self.encoder(self.source_embedding.weight[word], h, c)
            scores = []
            for word in [0, *words[:-1]]:
                h, c = self.decoder(self.target_embedding.weight[word], h, c)
                scores.append(self.out(h))
            return {"words": scores}

    made = Forced.__new__(Forced)
    made.__dict__.update(model.__dict__)
    return made


BY_HAND: dict[str, Callable[[Any, list[Any]], Any]] = {"greedy_nmt": decode_by_hand, "easy_first": build_by_hand}


def suspending(net: Net) -> tuple[float, float]:
    """Microseconds of suspending and resuming an instance, and of two bare switches."""
    greenlet = require_greenlet()

    def wait(_: Any) -> None:
        while True:
            greenlet.getcurrent().parent.switch()

    with net._leased() as (shadow, recorder):
        recorder.begin()
        attributes = OwnAttributes(shadow, recorder.tracer)
        fibers = Fibers(recorder, lambda _: [], lambda *_: None, 0, attributes)
        fiber = Fiber(greenlet.greenlet(wait), 0, None)
        fiber.flows = fibers.home_flows
        fibers.fibers.append(fiber)
        fibers._go_on(fiber, None)
        found = [
            1e6 * min(timeit.repeat(each, number=1000, repeat=20, timer=time.process_time)) / 1000
            for each in (lambda: fibers._go_on(fiber), fiber.greenlet.switch)
        ]
        fibers._cancel()
    return found[0], found[1]


def of_a_segment(net: Net, batches: list[list[Any]]) -> tuple[float, float]:
    """Microseconds per segment: of the host beside native code, and of that, which of segments of known structures is
    what binds their operands and carries their values, too. Of some mini-batches the least."""
    in_kernels, cuts = [0.0], []

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.thread_time()
            found = run(*args)
            in_kernels[0] += time.thread_time() - started
            return found

        return call

    def cut(*args: Any) -> None:
        started, before = time.thread_time(), in_kernels[0]
        whole(*args)
        kernels = in_kernels[0] - before
        cuts.append((time.thread_time() - started - kernels, kernels))

    whole, native = Fibers._cut, [(cpubackend, "walk"), (segmentatonce, "run_at_once")]
    found = []
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(Fibers, "_cut", cut))
        for module, name in native:
            patches.enter_context(mock.patch.object(module, name, timed(getattr(module, name))))
        for batch in batches * 3:
            cuts.clear()
            net(batch)
            found.append(tuple(1e6 * statistics.fmean(each) for each in zip(*cuts, strict=True)))
    host, kernels = min(found)
    return host, kernels


def seconds(function: Callable[[], Any]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def contestants_of(
    name: str, model: Any, net: Net, batches: list[list[Any]], fresh: Iterator[list[Any]]
) -> dict[str, Callable[[int], Any]]:
    """What runs mini-batch number so many."""
    plan, by_hand = net.plan, BY_HAND.get(name)
    found: dict[str, Callable[[int], Any]] = {
        "eager": lambda i: [model(instance) for instance in batches[i]],
        "fibers": lambda i: net(batches[i]),
        "unseen": lambda _: net(next(fresh)),
        "one alone, eager": lambda i: model(batches[i][0]),
        "one alone, fibers": lambda i: net(batches[i][:1]),
    }
    if by_hand is not None:
        found["by hand"] = lambda i: by_hand(model, batches[i])
    if name == "greedy_nmt":
        words = [decode_by_hand(model, batch) for batch in batches]
        for other in (decode_by_generators, decode_by_threads):
            assert [other(model, batch) for batch in batches] == words
        ours = [[[int(s.argmax()) for s in one["words"]] for one in net(batch)] for batch in batches]
        assert ours == words
        given = [list(zip(*pair, strict=True)) for pair in zip(batches, words, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            teacher = Net(plan, forced(model))
            teacher(given[0])
        found["generators"] = lambda i: decode_by_generators(model, batches[i])
        found["threads"] = lambda i: decode_by_threads(model, batches[i])
        found["forced"] = lambda i: teacher(given[i])
    return found


def measure(name: str, options: argparse.Namespace) -> None:
    settings: dict[str, Any] = {"hidden_size": options.hidden, "vocab_size": options.vocab}
    compiled = compile_model(MODELS / f"{name}.py", settings=settings, policy="critical", measure_gain=False)
    file = import_model_file(MODELS / f"{name}.py")
    batches = [file.sample(options.count, seed, compiled.captured.config) for seed in range(1, 1 + MINI_BATCHES)]
    later = range(1 + MINI_BATCHES, 1 + MINI_BATCHES + options.seen + options.rounds)
    fresh = iter([file.sample(options.count, seed, compiled.captured.config) for seed in later])
    model, stats = compiled.captured.model.eval(), Stats()
    net = Net(compiled.plan, model)
    with torch.no_grad():
        contestants = contestants_of(name, model, net, batches, fresh)
        for number in range(20):  # recording asks for lines in its first mini-batches
            contestants["fibers"](number % MINI_BATCHES)
        for _ in range(options.seen):
            contestants["unseen"](0)
        net.run(batches[0], stats)
        times: dict[str, list[float]] = {key: [] for key in contestants}
        for number in range(options.rounds):
            for key, contestant in contestants.items():
                times[key].append(seconds(lambda run=contestant, i=number % MINI_BATCHES: run(i)))
    best = {key: 1e3 * statistics.median(found) for key, found in times.items()}
    hand = f"{best['by hand']:.2f} | {best['fibers'] / best['by hand']:.2f}" if "by hand" in best else "- | -"
    reads = sum(stats.reads.values())
    ours = f"{best['fibers']:.2f} | {best['eager'] / best['fibers']:.1f} x | {best['unseen']:.2f}"
    alone = best["one alone, eager"] / best["one alone, fibers"]
    print(
        f"| {name} | {options.hidden} | {options.count} | {best['eager']:.1f} | {hand} | {ours} "
        f"| {stats.segments} | {stats.batches} | {reads:,} | {alone:.2f} |"
    )
    with_state, bare = suspending(net)
    print(f"suspending and resuming {with_state:.2f} us, two bare switches {bare:.2f} us")
    with torch.no_grad():
        print("a segment: {:.0f} us of the host beside {:.0f} us of native code".format(*of_a_segment(net, batches)))
    others = [f"{key} {best[key]:.1f}" for key in ("generators", "threads", "forced") if key in best]
    if others:
        print(f"other ways, ms: {', '.join(others)}")
    if "forced" in best:
        waiting = 1e3 * (best["fibers"] - best["forced"]) / max(stats.segments, 1)
        print(f"words given in place of read: {waiting:.0f} us less per segment")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--seen", type=int, default=20, help="other mini-batches before the first that is measured")
    parser.add_argument("--models", default="greedy_nmt,easy_first,early_exit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | hidden | instances | eager ms | by hand ms | fibers / by hand | fibers ms | gain | unseen ms "
          "| segments | batches | reads | one alone |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        measure(name, options)


if __name__ == "__main__":
    main()
