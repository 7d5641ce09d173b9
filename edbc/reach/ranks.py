"""Ranks: one training in several processes that torchrun started, each with a part of every mini-batch.

    torchrun --nproc-per-node 2 -m edbc train MODEL.py PLAN.yaml --input FILE

    net = edbc.load("plan.yaml").bind()                        # a loop of one's own
    model = DistributedDataParallel(edbc.reach.Module(net))

(1) DistributedDataParallel averages the gradients that ranks compute, parameter by parameter, and waits for each
    parameter's hook. In eager PyTorch a rank whose mini-batch does not reach a cell never calls the hooks of that
    cell's parameters. A net runs a mini-batch as one function of autograd, which `Module` lets name all parameters:
    their hooks are called in every backward pass, with no gradient where there is none, so nothing hangs and
    `find_unused_parameters` has nothing to find. A parameter that no rank reached has a gradient of zeros.
(2) `edbc train` under torchrun: the global mini-batches are those of one process (`--batch-size` is that of all ranks
    together), each dealt by nodes (`edbc.reach.sampler`). A rank's loss is weighted by its share of the instances, so
    the average of the gradients is the gradient of the whole mini-batch, however many ranks there are. A rank for which
    nothing is left takes the first instance, with weight 0. So training may be resumed with another number of ranks.
(3) Every rank draws random numbers of its own in each step, seeded by seed, epoch, step and rank.
(4) Before anything of the model runs, ranks compare versions, plan, model file and options. Where one differs, or could
    not read its own, all of them raise, with the same exit code.
(5) What a rank waits for takes TIMEOUT at most (EDBC_RANK_TIMEOUT seconds), and no more than SET_UP until all ranks
    have found each other. When one dies, torchrun ends the others
    and, with `--max-restarts`, starts all again: training then resumes from the checkpoint, if there is one by then.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from edbc._version import __version__
from edbc.errors import EdbcError, StaleError
from edbc.plan.reader import read_plan
from edbc.reach.sampler import deal
from edbc.run.modelfile import file_sha256, hash_model_file
from edbc.tools.checking import model_path
from edbc.train.fit.loop import Alone, Run
from edbc.train.fit.objective import Tally

if TYPE_CHECKING:
    from edbc.run.session import Net
    from edbc.tools.training import Setting

TIMEOUT = 600.0
SET_UP = 90.0
"""Ranks that are started again have been seen to wait for each other in gloo's set-up for good: better started once
more than waited for."""
OPTIONS: dict[str, Any] = {"gradient_as_bucket_view": True, "bucket_cap_mb": 1024}
"""Of DistributedDataParallel. All gradients of a mini-batch come at once, so there is nothing to average meanwhile, and
one bucket is the fastest; gradients are not copied out of it."""


class Module(nn.Module):
    """A bound net as a module whose forward takes a list of instances, for DistributedDataParallel; definition (1).

    Its parameters are the model's, under `model.`: save and load `net.model.state_dict()`. Not for a net that forward
    reads values of (`docs/fibers.md`) under `static_graph`, for the number of its backward functions varies.
    """

    def __init__(self, net: Net):
        super().__init__()
        self.model = net.model
        self.net = net
        net.names_all = True

    def forward(self, instances: Sequence[Any]) -> list[Any]:
        """What the model returns for each instance."""
        return self.net(instances)


def resumes(output: str | Path) -> bool:
    """Whether torchrun has started these ranks again, and there is a checkpoint to go on from; definition (5)."""
    from edbc.tools.training import CHECKPOINT

    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0 and (Path(output) / CHECKPOINT).exists()


@contextmanager
def ranks(plan: str | Path, model: str | None, setting: Setting) -> Iterator[Ranks]:
    """The process group that torchrun describes, once its ranks agree; definition (4). NCCL's between GPUs, else
    gloo's."""
    seconds = float(os.environ.get("EDBC_RANK_TIMEOUT", TIMEOUT))
    if setting.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % max(torch.cuda.device_count(), 1))
    backend = "nccl" if setting.device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=min(seconds, SET_UP)))
    try:
        agree(_facts(plan, model, setting))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))
        yield Ranks(setting.seed)
    except EdbcError:
        dist.destroy_process_group()
        raise
    dist.barrier()
    dist.destroy_process_group()


def _facts(plan: str | Path, model: str | None, setting: Setting) -> dict[str, Any]:
    """What must be the same on every rank: values by name, or the error that this rank has."""
    versions = {"edbc": __version__, "torch": torch.__version__}
    try:
        loaded = read_plan(plan)
        options = {f.name: getattr(setting, f.name) for f in fields(setting) if f.name not in ("inputs", "dev")}
        hashes = {"plan": file_sha256(plan), "model file": hash_model_file(model_path(Path(plan), loaded, model))}
        data = {"input": [file_sha256(p) for p in setting.inputs], "dev": [file_sha256(p) for p in setting.dev]}
        return {**versions, **hashes, **data, **{name: str(value) for name, value in options.items()}}
    except (EdbcError, OSError) as error:
        return {**versions, "error": str(error), "code": getattr(error, "exit_code", EdbcError.exit_code)}


def agree(facts: Mapping[str, Any]) -> None:
    """Raise on every rank, with one exit code, unless facts are the same on all; definition (4)."""
    try:
        everybody = [json.loads(text) for text in gathered(json.dumps(facts))]
        error = _difference(everybody)
    except RuntimeError as reason:
        raise EdbcError(f"ranks: expected all of them to answer, got: {reason}; see the errors of the others") from None
    if error is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's: each rank ends by itself, with its exit code
        raise error


def _difference(everybody: Sequence[Mapping[str, Any]]) -> EdbcError | None:
    for name in ("edbc", "torch", "error", *everybody[0]):
        for rank, facts in enumerate(everybody):
            if name == "error" and name in facts:
                error = EdbcError(f"rank {rank}: {facts[name]}")
                error.exit_code = int(facts["code"])
                return error
            if name != "error" and facts.get(name) != everybody[0].get(name):
                return StaleError(
                    f"ranks: expected one {name} on all, got {everybody[0].get(name)} on rank 0 and {facts.get(name)} "
                    f"on rank {rank}; give all ranks the same files, versions and options"
                )
    return None


def gathered(text: str) -> list[str]:
    """A text of each rank, in their order. As bytes: nothing is unpickled."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(data)], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.cat([data, data.new_zeros(longest - len(data))])
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [bytes(part[: int(size)].tolist()).decode() for part, size in zip(parts, sizes, strict=True)]


class Ranks(Alone):
    """The ranks of a training, seen from one of them; what `edbc.train.fit.loop` asks of it. All ranks call its methods
    in the same order."""

    def __init__(self, seed: int):
        self.seed = seed
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._costs: dict[int, float] = {}

    def wrapped(self, net: Net) -> Run:
        """The net with gradients averaged over ranks; without gradients the net itself, for ranks then need not run in
        step."""
        ids = [torch.cuda.current_device()] if net.device.type == "cuda" else None
        parallel = DistributedDataParallel(Module(net), device_ids=ids, **OPTIONS)
        return lambda batch: parallel(batch) if torch.is_grad_enabled() else net(batch)

    def weigh(self, instances: Sequence[Any], nodes: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """Learn what instances cost; `nodes` of numbers of instances. Each rank counts its share of them."""
        mine = range(self.rank, len(instances), self.size)
        counts = [json.loads(text) for text in gathered(json.dumps(list(nodes(mine))))]
        for number, instance in enumerate(instances):
            self._costs[id(instance)] = counts[number % self.size][number // self.size]

    def part(self, batch: Sequence[Any], epoch: int, step: int) -> tuple[list[Any], float]:
        """This rank's part of a mini-batch and its weight; definitions (2) and (3)."""
        torch.manual_seed(hash((self.seed, epoch, step, self.rank)) % 2**63)
        positions = deal([self._costs.get(id(instance), 1) for instance in batch], self.size)[self.rank]
        if not positions:
            return [batch[0]], 0.0
        return [batch[i] for i in positions], len(positions) * self.size / len(batch)

    def total(self, tally: Tally) -> Tally:
        """The sums of all ranks; of seconds their mean."""
        parts = [
            json.loads(text) for text in gathered(json.dumps([tally.instances, tally.loss, tally.seconds, tally.pairs]))
        ]
        names = dict.fromkeys(name for *_, pairs in parts for name in pairs)
        none = (0.0, 0.0)
        pairs = {name: tuple(map(sum, zip(*(p.get(name, none) for *_, p in parts), strict=True))) for name in names}
        instances, loss, seconds = (sum(part[i] for part in parts) for i in range(3))
        return Tally(int(instances), loss, pairs, seconds / self.size)  # type: ignore[arg-type]

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        value = torch.tensor([float(flag)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(value)
        return bool(value.item())
