"""The same bytes of plan and the same bits of output, whoever computes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = (
    {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    {"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
)


def start(repository: Path, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that compiles a model with a learned table, and runs the plan twice."""
    folder.mkdir()
    code = (
        "import sys; from edbc.tools.cli import main; from click.testing import CliRunner\n"
        "model, folder = sys.argv[1:]\n"
        "def do(*arguments):\n"
        "    result = CliRunner().invoke(main, list(arguments)); assert result.exit_code == 0, result.output\n"
        "plan = folder + '/plan.yaml'\n"
        "options = ('--set', 'hidden_size=8', '--encoding', 'sort', '--trials', '20', '--no-measure-gain')\n"
        "do('compile', model, '-o', plan, *options)\n"
        "for name in 'ab': do('run', plan, '--limit', '12', '--output', f'{folder}/{name}', '--model', model)\n"
    )
    model = repository / "models" / "tree_lstm_2type.py"
    everything = {**os.environ, "PYTHONPATH": str(repository), **environment}
    return subprocess.Popen([sys.executable, "-c", code, str(model), str(folder)], env=everything)


@pytest.mark.long
def test_plans_and_outputs_do_not_depend_on_the_process(repository: Path, tmp_path: Path) -> None:
    """Two processes with other hash seeds and numbers of threads write the same plan, byte for byte; each gives the
    same bits for a mini-batch twice, and with equal threads both give the same."""
    processes = [start(repository, tmp_path / str(i), setting) for i, setting in enumerate(SETTINGS)]
    assert [process.wait() for process in processes] == [0, 0]
    first, second = (tmp_path / str(i) for i in range(2))

    assert (first / "plan.yaml").read_bytes() == (second / "plan.yaml").read_bytes()
    for folder in (first, second):
        assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"} for seed in (1, 2, 3)])
def test_outputs_do_not_depend_on_the_hash_seed(setting: dict[str, str], repository: Path, tmp_path: Path) -> None:
    """Processes that differ in the hash seed only give the same bits of output."""
    processes = [start(repository, tmp_path / "0", SETTINGS[0]), start(repository, tmp_path / "1", setting)]
    assert [process.wait() for process in processes] == [0, 0]

    for name in ("plan.yaml", "a"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
