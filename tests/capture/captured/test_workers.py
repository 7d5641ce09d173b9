"""Mini-batches from workers: the bits of recording here, whatever starts the workers; checked when they arrive."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import numba.core.dispatcher as module_numba
import pytest
import torch
from every_kind import EveryKind, gradients, sentences, tensors, told
from fresh import run_script
from helpers import bound, seeded
from test_captured import net_of
from test_dataset import Items, outputs
from test_structures import Base, chain, words
from torch.utils.data import DataLoader

import edbc
from edbc import Captured, CapturedDataset, collate
from edbc.errors import EdbcError, InputError, SlowTransfer
from edbc.run import workers as module
from edbc.run.dataset import _telling as telling
from edbc.run.modelfile import import_model_file
from edbc.run.workers import CapturedBatch, weightless


def loader(data: Any, net: Any, **options: Any) -> Any:
    """A loader of mini-batches of five."""
    instance = options.pop("instance", None)
    return DataLoader(data, batch_size=5, collate_fn=collate(net, instance), **options)


@pytest.mark.parametrize(("context", "persistent"), [("fork", True), ("spawn", False)])
def test_workers_give_the_bits_of_recording(context: str, persistent: bool) -> None:
    """Workers, two where they are forks, epochs, and a net that has recorded nothing itself: outputs and gradients are
    the same."""
    plain = sentences(23)
    net, reference = net_of(), net_of()
    workers = 2 if context == "fork" else 1
    batches = loader(plain, net, num_workers=workers, multiprocessing_context=context, persistent_workers=persistent)
    expected = [plain[i : i + 5] for i in range(0, 23, 5)]

    for _ in range(2 if persistent else 1):
        found = list(batches)
        assert all(type(batch) is CapturedBatch for batch in found)
        assert outputs(net, found) == outputs(reference, expected)
    assert gradients(net, found[0]) == gradients(reference, expected[0])
    assert [list(batch) for batch in found] == [net.capture_all(batch) for batch in expected]


def test_labels_stand_beside_the_batch() -> None:
    """Tuples, lists and dicts of items become those of columns, numbers a tensor; in the main process too."""
    net, plain = net_of(), sentences(5)
    (one,) = loader(list(zip(plain, range(5), strict=True)), net, instance=0)
    (two,) = loader([[y, x] for y, x in enumerate(plain)], net, instance=1, num_workers=1)
    (three,) = loader([{"x": x, "y": y} for y, x in enumerate(plain)], net, instance="x")

    assert one[1].tolist() == two[0].tolist() == three["y"].tolist() == [0, 1, 2, 3, 4]
    assert outputs(net, [one[0], two[1], three["x"]]) == 3 * outputs(net, [plain])


def test_items_without_an_instance_are_told() -> None:
    """An item that is an instance itself, and a place or key that no item has."""
    for item, instance in ((sentences(1)[0], 7), (sentences(1)[0], "x"), ({"x": 1}, "y"), (object(), 0)):
        with pytest.raises(
            InputError, match=f"expected an instance at {instance!r} of each, got {type(item).__name__}"
        ):
            collate(net_of(), instance)([item])


def test_captured_items_and_plain_ones() -> None:
    """A captured data set in workers; what cannot be captured travels as it is."""
    net, plain = net_of(), sentences(10)
    assert outputs(net, loader(CapturedDataset(plain, net), net, num_workers=1)) == outputs(net, [plain])

    def forward(net: Any, item: Any) -> Any:
        return (net.out(net.start), object()) if item is None else chain(net, item)

    other = bound(seeded(Base, forward), [[1], None])
    (batch,) = loader([[1], None, [2, 3]], other)
    assert [type(item) for item in batch] == [Captured, type(None), Captured]
    assert len(other(batch)) == 3


@pytest.mark.long
def test_captured_data_sets_in_workers_that_are_no_forks() -> None:
    """They capture there, in the net of the collate function: a second epoch asks for no item again."""
    net, plain = net_of(), sentences(10)
    data = CapturedDataset(list(zip(plain, range(10), strict=True)), net, instance=0)
    batches = loader(data, net, instance=0, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)

    for _ in range(2):
        found = list(batches)
        assert [type(batch) for batch, _ in found] == [CapturedBatch, CapturedBatch]
        assert [labels.tolist() for _, labels in found] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        assert outputs(net, [batch for batch, _ in found]) == outputs(net, [plain])
    assert data.misses == 0


def test_a_worker_needs_no_weights() -> None:
    """What is sent to a worker that is no fork is the model's code and shapes; recording there gives the same."""
    net = net_of()
    big = weightless(seeded(EveryKind))
    sent = pickle.dumps(collate(net))
    again = pickle.loads(sent)

    assert all(p.untyped_storage().nbytes() <= 8 for p in big.parameters())
    assert len(sent) < 20_000
    assert list(again(sentences(7))) == net.capture_all(sentences(7))


def test_moves_keep_what_they_are() -> None:
    """`.to` and pickling give the same captured instances."""
    net = net_of()
    batch = collate(net)(sentences(6))

    expected = net.capture_all(sentences(6))

    assert list(batch.to("cpu")) == list(pickle.loads(pickle.dumps(batch))) == list(batch) == expected
    assert len(batch) == 6


@pytest.mark.long
def test_instances_that_travel_are_pickled_or_refused_in_the_worker() -> None:
    """A tensor of an eager forward on an instance does not stop the loader, whose queue would not send it; what cannot
    be pickled is an error that says so, and no need where the net has captured before."""

    def forward(net: Any, item: dict[str, Any]) -> Any:
        item["state"] = net.join(net.start, net.table.weight[item["word"]])
        return net.out(item["state"])

    net = bound(seeded(Base, forward), [{"word": 1}, {"word": 2}])
    plain = [{"word": word} for word in range(5)]
    for item in plain:
        net.model(item)
    assert plain[0]["state"].grad_fn is not None
    (batch,) = loader(plain, net, num_workers=1)
    assert outputs(net, [batch]) == outputs(net, [plain])

    net = bound(seeded(Base, forward), [{"word": 1}, {"word": 2}])
    closed = [{"word": word, "f": lambda: None} for word in range(5)]
    with pytest.raises(InputError, match=r"expected instances that can be pickled.*net\.capture_all"):
        list(loader(closed, net, num_workers=1))
    net.capture_all(closed)
    (batch,) = loader(closed, net, num_workers=1)
    assert outputs(net, [batch]) == outputs(net, [plain])


def test_what_arrives_is_checked() -> None:
    """A number, length, nest or constant that means something else: an error before anything runs, or a result of the
    class that is promised. Items of a batch are read as safely as the batch."""
    net, rng, refused = net_of(), Random(0), 0
    good = pickle.loads(pickle.dumps(collate(net)(sentences(8))))
    expected = [type(result) for result in net(good)]
    for number in range(800):
        data, texts, constants = good.data.copy(), list(good.nest_texts), list(good.constants)
        if number % 4 == 0:  # among the lengths too
            at = rng.randrange(160) if number % 8 else rng.randrange(len(data))
            data[at] ^= rng.randrange(1, 256)
        if number % 4 == 1:
            wrong = ['["s", 0, 99]', '["r", -1]', "[", '["o", 44]', "7x", '["k", 0, 99]', '["k", 0, null, -1]']
            texts[rng.randrange(8)] = rng.choice(wrong)
        if number % 4 == 2:
            source, pool = constants[0]
            constants[0] = rng.choice([(source, pool[1:]), (source + 50, pool), (source, pool[:, :1])])
        if number % 4 == 3:
            data = data[: rng.randrange(len(data))]
        data.setflags(write=False)
        forged = CapturedBatch(good.of, data, texts, constants)
        found = outcome(net, forged)
        refused += isinstance(found, EdbcError)
        assert isinstance(found, EdbcError) or found == expected
        if number % 4 in (0, 3):
            assert isinstance(items_of(net, forged), EdbcError | list)

    assert refused > 680


def test_what_was_changed_on_the_way_is_refused() -> None:
    """A bit of the block, of a text or of a constant that differs, also where it would mean another row or number."""
    net, rng = net_of(), Random(1)
    reader, arguments = collate(net)(sentences(8)).__reduce__()
    assert outputs(net, [reader(*arguments)]) == outputs(net, [sentences(8)])
    text, data, nests, ((source, dtype, shape, raw), *others), *rest = arguments
    assert raw
    for number in range(100):
        changed = bytearray((data, raw)[number % 2])
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        block = data if number % 2 else bytes(changed)
        first = source, dtype, shape, bytes(changed) if number % 2 else raw
        with pytest.raises(InputError, match="expected what a worker sends"):
            reader(text, block, nests, [first, *others], *rest)
    with pytest.raises(InputError, match="expected what a worker sends"):
        reader(text, data, nests[::-1] + nests[:1], [(source, dtype, shape, raw), *others], *rest)


def items_of(net: Any, batch: Any) -> Any:
    """Classes of the results of a batch's items one by one, or the error."""
    try:
        return outcome(net, list(batch))
    except EdbcError as error:
        return error


def outcome(net: Any, batch: Any) -> Any:
    """Classes of the results, or the error."""
    try:
        with torch.no_grad():
            return [type(result) for result in net(batch)]
    except EdbcError as error:
        return error


def test_what_is_no_batch_is_refused() -> None:
    """Texts and numbers that no worker of this version sends."""
    reader, arguments = collate(net_of())(sentences(2)).__reduce__()
    for place, wrong in ((0, "{}"), (0, "["), (2, [["x"], [1]]), (2, [[7], [0]]),
                         (3, [(0, "f99", [1], b"")]), (3, [(0, "f32", [2], b"123")])):  # fmt: skip
        given = [*arguments[:place], wrong, *arguments[place + 1 :]]
        with pytest.raises(InputError, match="expected what a worker sends"):
            reader(*given)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_errors_in_workers_come_with_their_item() -> None:
    """An exception of forward keeps its class; a worker that dies is told of by the loader, and nothing hangs. Torch
    may be told of its death again while the loader goes, which nobody can catch."""
    net = bound(seeded(Base, chain), words(8))
    with pytest.raises(TypeError, match=r"instance 1|string"):
        list(loader([[1], [2, "x"]], net, num_workers=1))

    class Dies(Items):
        def __getitem__(self, index: int) -> Any:
            os._exit(3)

    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader(Dies([[1], [2]]), net, num_workers=1))


class Kills(Items):
    """The worker that reads item 2 is killed."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Deadly(torch.nn.Module):
    """So is the process that records more than three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, numbers: list[float]) -> torch.Tensor:
        if len(numbers) > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(torch.full((4,), sum(numbers)))


SHORT: list[Any] = [[1.0], [2.0], [3.0, 1.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("items", "expected", "context"),
    [(Kills(SHORT), [2], "fork"), (Kills(SHORT), [2], "spawn"), (Items([*SHORT[:3], [1.0] * 4]), [2, 3], "fork")],
)
def test_what_a_killed_worker_was_at_is_known(items: Items, expected: list[int], context: str) -> None:
    """By its process: the item that it read, or those that it captured."""
    data = CapturedDataset(items, bound(seeded(Deadly), SHORT))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as caught:
        list(DataLoader(data, 2, num_workers=1, collate_fn=list, multiprocessing_context=context))
    ((pid, found),) = data.in_workers.items()
    assert str(pid) in str(caught.value)
    assert found == expected
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    (note,) = [line for line in lines if "edbc: worker" in line]
    assert f"worker {pid} was at item" in note
    assert re.findall(r"\d+", note.partition("was at")[2]) == list(map(str, expected))


def test_a_death_is_not_told_where_numba_is_at_work() -> None:
    """An exception there would leave a process that compiles nothing; it is told a moment later."""
    told: list[int] = []

    def tell(number: int, frame: Any) -> None:
        told.append(number)
        raise RuntimeError("a worker died")

    within = compile("def at_work(die):\n    die()\n    return 'done'\n", f"{module_numba.__file__}", "exec")
    scope: dict[str, Any] = {}
    exec(within, scope)
    before = signal.signal(signal.SIGCHLD, telling(tell))
    try:
        assert scope["at_work"](lambda: signal.raise_signal(signal.SIGCHLD)) == "done"
        assert not told
        with pytest.raises(RuntimeError, match="a worker died"):
            time.sleep(10)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert told == [signal.SIGCHLD]


def test_workers_that_have_ended_are_at_nothing() -> None:
    """What they noted of each item is taken back."""
    data = CapturedDataset(Items(SHORT), bound(seeded(Deadly), SHORT))
    assert len(list(DataLoader(data, 2, num_workers=2, collate_fn=list, multiprocessing_context="fork"))) == 2
    assert data.in_workers == {}


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a loader takes for an accelerator: the threads that pinned a tensor, which then is another one."""
    threads: list[int] = []
    for name, value in (("is_available", True), ("current_accelerator", torch.device("cpu")),
                        ("current_device_index", 0), ("set_device_index", None)):  # fmt: skip
        monkeypatch.setattr(torch.accelerator, name, lambda *_, value=value: value)

    def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        threads.append(threading.get_ident())
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return threads


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pins_what_workers_send(pinned: list[int], workers: int) -> None:
    """In its thread, where there are workers: the constants of a mini-batch, and of captured instances in a list; the
    net takes them as they are, and errors come through."""
    net, plain = net_of(), sentences(10)
    batches = list(loader(plain, net, num_workers=workers, pin_memory=True))
    assert [type(batch) for batch in batches] == [CapturedBatch, CapturedBatch]
    assert len(pinned) == sum(len(batch.constants) for batch in batches) > 0
    assert (threading.get_ident() in pinned) == (workers == 0)
    assert outputs(net, batches) == outputs(net, [plain])
    assert gradients(net, batches[0]) == gradients(net, plain[:5])

    captured = CapturedDataset(plain, net)
    as_lists = list(DataLoader(captured, 5, collate_fn=list, num_workers=workers, pin_memory=True))
    assert {type(item) for batch in as_lists for item in batch} == {Captured}
    assert outputs(net, as_lists) == outputs(net, [plain])

    failing = bound(seeded(Base, chain), words(8))
    with pytest.raises(TypeError, match=r"instance 1|string"):
        list(loader([[1], [2, "x"]], failing, num_workers=workers, pin_memory=True))


@pytest.mark.cuda
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_device_pins_what_workers_send(context: str) -> None:
    """Once the device is in use here, which workers do not open: not for weights, and not for buffers."""
    model = seeded(EveryKind).cuda()
    model.register_buffer("unused", torch.ones(3, device="cuda"))
    assert all(tensor.is_cpu for tensor in weightless(model).state_dict().values())
    net, plain = bound(model, sentences(40)), sentences(10)
    with torch.no_grad():
        expected, found = tensors(net(plain)), []
        for batch in loader(plain, net, num_workers=1, pin_memory=True, multiprocessing_context=context, timeout=100):
            assert all(pool.is_pinned() for _, pool in batch.constants)
            found += tensors(net(batch))
    torch.testing.assert_close(found, expected)


def test_a_slow_transfer_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where receiving takes longer than capturing took, one warning says both times and what to do; nothing is said
    where it does not, nor of a mini-batch for which nothing was captured."""
    monkeypatch.setattr(module, "MEASURED", 3)
    expected = told(net_of()(sentences(5)))
    for seconds, is_slow in ((1e-9, True), (1e9, False), (0.0, False)):
        net = net_of()
        batch = pickle.loads(pickle.dumps(collate(net)(sentences(5))))
        batch.seconds = seconds
        net(batch), net(batch)
        with pytest.warns(SlowTransfer, match="num_workers=0, or a CapturedDataset") if is_slow else nullcontext():
            net(batch)
        assert told(net(batch)) == expected


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader
import edbc

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, words):
        return self.out(sum(torch.tanh(self.table.weight[word]) for word in words))

if __name__ == "__main__":
    words = [[1, 2, 3], [4], [5, 6]]
    model = Words().eval()
    net = edbc.compile(model, words, policy="critical", measure_gain=False)
    loader = DataLoader(words, 3, num_workers=1, collate_fn=edbc.collate(net), multiprocessing_context="spawn")
    torch.testing.assert_close(net(next(iter(loader))), [model(item) for item in words])
"""


@pytest.mark.long
def test_a_model_of_a_script_in_workers_that_are_spawned(tmp_path: Path) -> None:
    """Its class is of `__main__` here and of `__mp_main__` there, and the same class."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    as_a_file = f"__file__ = {str(file)!r}\nexec(compile(open(__file__).read(), __file__, 'exec'))"

    assert run_script(as_a_file, tmp_path) == (0, "", "")


def test_a_model_of_a_file_in_another_process(repository: Path, tmp_path: Path) -> None:
    """A plan bound twice has one model class, which a process that has not imported it finds in its file."""
    net, other = (edbc.load(repository / "plans" / "tree_gru.yaml").bind(config={"hidden_size": 4}) for _ in range(2))
    trees = import_model_file(repository / "models" / "tree_gru.py").sample(3, 1, {})
    (tmp_path / "given").write_bytes(pickle.dumps(collate(net)) + pickle.dumps(trees))
    read = (
        "import pickle\n"
        "with open('given', 'rb') as given, open('made', 'wb') as made:\n"
        "    pickle.dump(pickle.load(given)(pickle.load(given)), made)"
    )

    assert run_script(read, tmp_path) == (0, "", "")
    assert list(pickle.loads((tmp_path / "made").read_bytes())) == other.capture_all(trees)
