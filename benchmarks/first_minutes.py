"""From `pip install` to results of a model of one's own, in an empty environment: docs/first-minutes.md's table.

    python benchmarks/first_minutes.py build/dist/edbc-*.whl [--torch torch==2.13.0] [--rounds 5]

The model is the page's own, `mine.py`, and the lines that compile and call it are typed into Python, so that no file is
edited beside the model. Seconds of the clock, pip's cache as it is. What is installed is a wheel, which brings native
loops as machine code, in a folder of its own that is thrown away. Figures of a run are medians of so many rounds, in
turns with `import torch` alone.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first-minutes.md"


class Environment:
    """A virtual environment in a folder, and a folder to work in beside it."""

    def __init__(self, folder: Path):
        self.work = folder / "work"
        self.work.mkdir()
        venv.create(folder / "venv", with_pip=True)
        self.programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EDBC", "NUMBA"))}
        self.variables = kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def seconds(self, program: str, *arguments: str) -> float:
        """What a program of the environment takes."""
        started = time.perf_counter()
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, cwd=self.work, env=self.variables, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return time.perf_counter() - started


def blocks() -> tuple[str, str]:
    """The page's model, and what is typed into Python."""
    model, typed, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return model.partition("\n")[2], typed


def of_wheel(wheel: Path) -> str:
    """Its size, and how much of it are native loops."""
    with zipfile.ZipFile(wheel) as archive:
        loops = [file.compress_size for file in archive.infolist() if file.filename.startswith("edbc/native/loops/")]
    return f"{wheel.stat().st_size / 1e6:.1f} MB, of which {sum(loops) / 1e6:.1f} in {len(loops)} files of native loops"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", default="torch", help="the build of torch to install")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model, typed = blocks()
    print(f"the model: {len(model.splitlines())} lines; the wheel: {of_wheel(options.wheel)}")
    print("\n| | seconds |\n|---|--:|")
    with tempfile.TemporaryDirectory() as folder:
        here = Environment(Path(folder))
        install = here.seconds("pip", "install", "--quiet", options.torch, str(options.wheel.resolve()))
        tell(f"`pip install` of edbc, {options.torch} and what they need into an empty environment", install)
        (here.work / "mine.py").write_text(model)
        first = here.seconds("python", "-c", typed)
        tell("the model's first `edbc.compile`, results, and what `explain` says of them", first)
        tell("**from `pip install` to results**", install + first)
        tell("the same lines again", here.seconds("python", "-c", typed))
        here.seconds("edbc", "new", "trees")
        tell("`edbc compile trees.py`", here.seconds("edbc", "compile", "trees.py", "-o", "trees.yaml", "--quiet"))
        run = ("run", "trees.yaml", "--limit", "32")
        tell("the first `edbc run` on 32 trees", here.seconds("edbc", *run))
        turns = [
            (here.seconds("edbc", *run), here.seconds("python", "-c", "import torch")) for _ in range(options.rounds)
        ]
        tell("every later one", statistics.median(ours for ours, _ in turns))
        tell("of which beside `import torch`", statistics.median(ours - theirs for ours, theirs in turns))


def tell(what: str, seconds: float) -> None:
    """A row of the table."""
    print(f"| {what} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
