"""Python callers that hold a bound net wrong: eager's numbers or a clear error, never a wrong number or a crash."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from budget import HANGS
from torch import Tensor, nn

import edbc
from edbc.errors import EdbcError, InputError, ModelError, StaleError, UnsupportedError
from edbc.run.session import Net

LENGTHS = [3, 1, 7, 0, 4]


@pytest.fixture
def net(chain: Path) -> Net:
    """A bound net; the model's class stands in a module of its own, as for somebody who imports it."""
    return edbc.load(chain).bind()


def states(outputs: Any) -> list[Tensor]:
    return [tensor for output in outputs for tensor in output.get("h", [])]


def require_eager(net: Net, tolerance: float = 1e-5) -> None:
    """The net's outputs, dtypes and devices are the model's."""
    ours, theirs = states(net(LENGTHS)), states(map(net.model, LENGTHS))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.device, a.requires_grad) == (b.dtype, b.device, b.requires_grad)
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.fixture
def default_device() -> Iterator[None]:
    """A default device on which no address may be taken."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_a_default_device_does_not_move_what_is_edbc_s_own(chain: Path) -> None:
    """Neither while building, binding and compiling nor in forward and backward passes: native code read addresses of
    tensors on another device, and crashed."""
    edbc.compile(chain.with_suffix(".py"), chain.with_name("again.yaml"), policy="critical")
    net = edbc.load(chain).bind()
    outputs = states(net(LENGTHS))
    torch.stack([h.sum() for h in outputs]).sum().backward()
    streamed = states(net.stream(LENGTHS, batch_size=2))
    torch.set_default_device(None)

    assert chain.with_name("again.yaml").read_bytes() == chain.read_bytes()
    require_eager(net)
    torch.testing.assert_close(streamed, outputs)
    ours = net.model.start.grad.clone()
    net.model.zero_grad()
    torch.stack([h.sum() for h in states(map(net.model, LENGTHS))]).sum().backward()
    torch.testing.assert_close(net.model.start.grad, ours)


@pytest.mark.parametrize(
    "instances", [None, 3, "abc", b"abc", {1: 2}, {1, 2}, iter([1, 2]), (n for n in [1])], ids=type
)
def test_what_is_no_list_of_instances_is_refused(instances: Any, net: Net) -> None:
    """Texts and mappings are no mini-batch; iterators are for `stream`."""
    with pytest.raises(InputError, match="a bound net: expected a list of instances, got "):
        net(instances)


def test_other_sequences_are_mini_batches(net: Net) -> None:
    """Tuples and ranges."""
    assert len(net(tuple(LENGTHS))) == len(net(range(5))) == 5


@pytest.mark.parametrize("model", [3, nn.Linear, lambda: None], ids=["int", "class", "function"])
def test_only_models_are_bound(model: Any, chain: Path) -> None:
    """A class is not yet a model."""
    with pytest.raises(ModelError, match=r"bind: expected a model, an nn\.Module, got "):
        edbc.load(chain).bind(model)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_torchscript_is_not_bound(net: Net) -> None:
    """Its forward is no Python that could be recorded, wherever in the model it stands."""
    part = nn.Sequential(nn.Linear(8, 8))
    part.append(torch.jit.script(nn.Linear(8, 8)))
    with pytest.raises(UnsupportedError, match=r"^1 is a RecursiveScriptModule: .* got one of TorchScript"):
        Net(net.plan, part)


def test_classes_of_torchscript_are_python_where_it_is_off(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTORCH_JIT=0 torch.jit.ScriptModule is a plain module."""
    monkeypatch.setattr(torch.jit, "ScriptModule", nn.Module)
    assert Net(net.plan, net.model)


@pytest.mark.parametrize("options", [
    {"layout": "x"}, {"dtype": "float16"}, {"dtype": torch.float64}, {"device": "cuda:1"}, {"batch_size": 0},
    {"limit": -1}, {"front_end": "x"}, {"recompute": 0}, {"policy": "x"}], ids=str)  # fmt: skip
def test_options_of_python_are_held_against_what_is_known(options: dict[str, Any], chain: Path) -> None:
    """As the command line does; a mini-batch of no instances ran none and said nothing."""
    with pytest.raises(EdbcError, match="expected "):
        edbc.load(chain).run(**options)


@pytest.mark.parametrize("options", [
    {"policy": "x"}, {"encoding": "x"}, {"trials": 0}, {"seed": -1}, {"seed": 0.5}, {"mini_batches": 0},
    {"inputs": "abc"}], ids=str)  # fmt: skip
def test_options_of_compiling_are_held_against_what_is_known(options: dict[str, Any], chain: Path) -> None:
    """Before anything is captured; a text is no list of files."""
    with pytest.raises(EdbcError, match="expected "):
        edbc.compile(chain.with_suffix(".py"), chain, **options)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"epochs": 0}, {"lr": float("nan")}, {"optimizer": "x"},
                                     {"limit": 0}], ids=str)  # fmt: skip
def test_options_of_training_are_held_against_what_is_known(options: dict[str, Any], chain: Path) -> None:
    """Before anything is bound."""
    with pytest.raises(EdbcError, match="expected "):
        edbc.load(chain).train(chain.with_name("out"), **options)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_transforms_that_would_see_nothing_are_refused(net: Net) -> None:
    """torch.func, forward-mode differentiation and torch.jit.trace look at torch functions; a net calls few, so a
    trace would hold its numbers as constants and a tangent would be lost."""
    x = torch.ones(8)

    def product(x: Tensor) -> Tensor:
        return (net([2])[0]["h"][0] * x).sum()

    with pytest.raises(UnsupportedError, match=r"inside a transform of torch\.func"):
        torch.func.grad(product)(x)
    with pytest.raises(UnsupportedError, match=r"inside a transform of torch\.func"):
        torch.vmap(product)(x[None])
    with torch.autograd.forward_ad.dual_level(), torch.no_grad(), pytest.raises(UnsupportedError, match="forward-mode"):
        net([2])
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"inside torch\.jit\.trace"):
        torch.jit.trace(product, x)
    require_eager(net)


def test_storage_that_was_taken_away_is_refused(net: Net) -> None:
    """As code does that shares weights among processes: native code read freed memory, and crashed."""
    net(LENGTHS)
    for tensor in (net.model.step.weight.weight, net.model.table.weight):
        storage = tensor.untyped_storage()
        held = tensor.detach().clone()
        storage.resize_(0)
        with pytest.raises(ModelError, match=r"bytes of memory, got 0: its storage was resized"):
            net(LENGTHS)
        storage.resize_(held.nbytes)
        tensor.data.copy_(held)
        require_eager(net)


def test_a_model_that_moved_is_refused(net: Net) -> None:
    """To another device after binding: bind again."""
    net(LENGTHS)
    for module in (net.model.table, net.model.step):
        module.to("meta")
        with pytest.raises(EdbcError, match="meta"):
            net(LENGTHS)
        module.to_empty(device="cpu")


def test_models_of_inference_mode(chain: Path) -> None:
    """A net may be bound and called inside; a model made inside has parameters whose changes nothing counts."""
    with torch.inference_mode():
        net = edbc.load(chain).bind()
        require_eager(net)
        made = type(net.model)(8)
    require_eager(net)
    with pytest.raises(ModelError, match=r"made under torch\.inference_mode"):
        edbc.load(chain).bind(made)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_default_dtypes_change_nothing(dtype: torch.dtype, net: Net, chain: Path) -> None:
    """Of a bound net; and a model of that dtype is bound as it is."""
    torch.set_default_dtype(dtype)
    try:
        require_eager(net)
        require_eager(edbc.load(chain).bind(type(net.model)(8)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_dtypes_and_shapes_that_change_under_a_net_are_stale(net: Net) -> None:
    """`model.double()` and parameters of other shapes after binding."""
    net(LENGTHS)
    net.model.double()
    with pytest.raises(StaleError, match="bind the model again"):
        net(LENGTHS)
    net.model.float()
    require_eager(net)
    net.model.start.data = torch.zeros(9)
    with pytest.raises(StaleError, match="bind the model again"):
        net(LENGTHS)


def test_outputs_are_the_caller_s(net: Net) -> None:
    """Writing to one changes no other of its call, of another call, and no later result."""
    with torch.no_grad():
        one, other = states(net([3, 3, 3])), states(net([3]))
        kept = [h.clone() for h in (*one[1:], *other)]
        one[0].fill_(7)
        assert all(map(torch.equal, kept, (*one[1:], *other)))
        require_eager(net)


def test_instances_may_change_after_the_call(chain: Path, net: Net) -> None:
    """Between forward and backward: what a call needs of them it has."""

    class Lists(type(net.model)):  # type: ignore[misc]
        def forward(self, instance: list[int]) -> Any:
            return super().forward(instance[0])

    model = Lists(8)
    lists = Net(net.plan, model)
    instances = [[3], [2]]
    outputs = states(lists(instances))
    instances[0][0] = 6
    torch.stack(outputs).sum().backward()
    ours = model.start.grad.clone()
    model.zero_grad()
    torch.stack(states(map(model, [[3], [2]]))).sum().backward()
    torch.testing.assert_close(model.start.grad, ours)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where a collector's callback got it
@pytest.mark.long
def test_interrupts_leave_a_net_that_works(net: Net) -> None:
    """Ctrl-C at many moments of a forward and a backward pass."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    many = LENGTHS * 300
    # a Ctrl-C while LLVM compiles leaves its lock to this thread, and others wait for it for ever
    torch.stack(states(net(many))).sum().backward()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(12):
            with suppress(KeyboardInterrupt):  # around both: it may come after the passes, before the timer stops
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 * (number + 1))
                    torch.stack(states(net(many))).sum().backward()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            net.model.zero_grad()
            require_eager(net)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_with_and_without_gradients(net: Net) -> None:
    """Eight threads, some of which train, all get eager's outputs."""
    with torch.no_grad():
        expected = states(map(net.model, LENGTHS))

    def call(number: int) -> float:
        with torch.set_grad_enabled(number % 2 == 0):
            found = states(net(LENGTHS))
        if number % 2 == 0:
            torch.stack(found).sum().backward()
        return max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(call, range(64))) < 1e-5


def _child(net: Net, results: Connection) -> None:
    with torch.no_grad():
        results.send([h.tolist() for h in states(net(LENGTHS))])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.long
def test_other_processes_run_a_net(method: str, net: Net, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a fork has it; to a fresh process it is pickled, as the plan and the model."""
    monkeypatch.syspath_prepend(chain.parent)
    sys.modules.pop("chain", None)
    import chain as module

    own = Net(net.plan, module.build(8))
    with torch.no_grad():
        expected = [h.tolist() for h in states(own(LENGTHS))]
    context: Any = multiprocessing.get_context(method)
    results, ours = context.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        child = context.Process(target=_child, args=(own, ours), daemon=True)
        child.start()
    ours.close()  # a child that dies ends the pipe: nobody waits for it
    assert results.poll(HANGS), "the child hangs"
    found = results.recv()
    child.join(HANGS)

    assert child.exitcode == 0
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), atol=1e-5)
    sys.modules.pop("chain", None)


def test_a_pickled_net_is_bound_anew(net: Net, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its own copy of the model, with its options."""
    monkeypatch.syspath_prepend(chain.parent)
    sys.modules.pop("chain", None)
    import chain as module

    own = Net(net.plan, module.build(8), layout="variable-order", share=False)
    copy = pickle.loads(pickle.dumps(own))
    require_eager(copy)
    assert (copy.layout, copy.share) == ("variable-order", False)
    assert copy.model is not own.model
    sys.modules.pop("chain", None)


@pytest.mark.compiled
def test_kernels_run_where_none_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no folder takes compiled kernels, in a read-only installation without a home: one warning, and they run."""
    from edbc.errors import NotNative
    from edbc.native import kernelcache

    def no_folder(_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(kernelcache, "KernelCache", no_folder)
    kernelcache._warn_without_folder.cache_clear()
    with pytest.warns(NotNative, match="NUMBA_CACHE_DIR"):
        made = kernelcache.njit(cache=True)(lambda x: x + 1)
    assert made(1) == 2


class Holding(nn.Module):
    """Tensors in a dict and a list; what it remembers is its own affair."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scales, self.shifts = nn.Linear(4, 4), {"a": torch.ones(4)}, [torch.zeros(4)]
        self.seen: dict[str, torch.Tensor] = {"last": torch.zeros(4)}
        self.history = [torch.zeros(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x) * self.scales["a"] + self.shifts[0]
        self.seen["last"] = h
        return h


def _change_in_place(model: Holding) -> None:
    model.scales["a"].mul_(3)


def _replace(model: Holding) -> None:
    model.shifts[0] = torch.ones(4)


@pytest.mark.parametrize("change", [_change_in_place, _replace])
def test_tensors_that_change_in_what_a_model_holds_are_seen(change: Callable[[Holding], None]) -> None:
    """Recording has copies of lists and dicts, and would go on with the numbers of before; what forward itself writes
    there, as eager's does, is no such change, and neither is what it never reads."""
    model, instances = Holding().eval(), [torch.randn(4) for _ in range(4)]
    net = edbc.compile(model, instances, force=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(net(instances), [model(x) for x in instances])
            model.history.append(torch.ones(4))
        change(model)
        with pytest.raises(StaleError, match="of the model changed after it was bound; bind the model again"):
            net(instances)
