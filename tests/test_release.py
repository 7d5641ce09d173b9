"""What is published: sdist and wheel are built, checked, installed into an empty environment, and run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from edbc._version import __version__

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that no leftover of a checkout gets in."""
    pytest.importorskip("build", reason="builds a wheel: needs build")
    root, copy = Path(__file__).parents[1], tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in filter(None, listed):
        if (root / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((root / name).read_bytes())
    folder = tmp_path_factory.mktemp("dist")
    shipping = [sys.executable, "-m", "edbc.native.ahead", "--ship"]
    subprocess.run(shipping, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)], check=True,
                   capture_output=True)  # fmt: skip
    return folder


def test_both_hold_what_they_must(dist: Path) -> None:
    """The wheel has every module, the type marker and the pages; the sdist builds it again."""
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {p.relative_to(p.parents[len(p.parts) - 1 - p.parts.index("edbc")]).as_posix()
               for p in (Path(__file__).parents[1] / "edbc").rglob("*.py")}  # fmt: skip

    assert "edbc/py.typed" in names
    assert {name for name in modules if name.startswith("edbc/")} <= names
    assert any(name.endswith("share/man/man1/edbc-run.1") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "models/", "benchmarks/"))]
    with tarfile.open(sdist) as archive:
        assert f"edbc-{__version__}/pyproject.toml" in archive.getnames()


def test_metadata_is_what_registries_take(dist: Path) -> None:
    """twine's check passes for both."""
    pytest.importorskip("twine", reason="checks metadata: needs twine")
    files = [str(path) for path in dist.iterdir()]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True,
                          check=False)  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_runs_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    """Installed where nothing else of edbc is, the first minutes of a user work: new, compile, run, check, explain;
    numba compiles nothing for them."""
    (wheel,) = dist.glob("*.whl")
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    # Its dependencies are those of this environment, which take minutes to install; edbc itself is not among them,
    # because what is named in a .pth file is a folder of packages and nothing that its own .pth files add; that pip
    # finds it noted there must not keep it from installing.
    inside = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    (Path(inside) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([*pip, str(wheel)], check=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EDBC"))}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "kernels")

    def edbc(*words: str) -> str:
        return subprocess.run([str(programs / "edbc"), *words], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, check=True).stdout  # fmt: skip

    assert re.match(rf"edbc {re.escape(__version__)}, torch 2", edbc("--version"))
    edbc("new", "trees")
    assert "2 types" in edbc("compile", "trees.py", "-o", "plans/trees.yaml", "--quiet")
    assert "equal to eager" in edbc("run", "plans/trees.yaml", "--verify", "--limit", "32")
    compiled = {file.name.partition(".")[0] for file in (tmp_path / "kernels").rglob("*.nbc")}
    assert compiled == {"machinecode"}, "native loops that did not come with the wheel"
    assert "1 of 1 plan passed" in edbc("check", "plans")
    assert "WHAT BATCHES TOGETHER" in edbc("explain", "plans/trees.yaml")
    where = subprocess.run([str(programs / "python"), "-c", "import edbc; print(edbc.__file__)"], cwd=tmp_path,
                           env=environment, capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert str(home) in where
    assert (home / "share" / "man" / "man1" / "edbc.1").exists()
