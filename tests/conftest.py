"""Options and fixtures that every test may use.

`--data=DIR` (or `$EDBC_DATA`) names the folder with the shared data sets; without it `../shared/data` beside the
repository is tried. Tests that need a file from it skip, and say so, where it is absent.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from budget import PLAIN, share_processors
from click.testing import Result
from hypothesis import HealthCheck, settings

from edbc.errors import DeviceError

REPOSITORY = Path(__file__).resolve().parent.parent

# How fast a busy machine draws examples says nothing of what is tested, and every run draws the same ones.
settings.register_profile("edbc", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fewer", settings.get_profile("edbc"), max_examples=34)
settings.register_profile("quick", settings.get_profile("edbc"), max_examples=20)
settings.load_profile("edbc")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Switches: where the data is, whether to run what takes minutes or starts engines, and whether to run less."""
    parser.addoption("--data", default=None, help="folder with the shared data sets (default: $EDBC_DATA)")
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")
    parser.addoption("--every-case", action="store_true", help="also run the cases in thin.txt")
    parser.addoption("--reach", action="store_true", help="also run tests marked reach")
    parser.addoption("--quick", action="store_true", help="one case of every test that takes no seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Processors are shared out among the processes that will run tests; under NUMBA_DISABLE_JIT=1 the reference back
    end is expected, and its warning no error."""
    share_processors(config.getoption("numprocesses", None) or 1)
    if not config.getoption("--slow"):
        settings.load_profile("quick" if config.getoption("--quick") else "fewer")
    if PLAIN:
        config.addinivalue_line("filterwarnings", "ignore::edbc.errors.NotNative")


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """git is as installed: no hooks, signatures or line ends of who runs the tests, and not the repository of a hook
    that runs them; a folder of a test is in no repository above. Errors come without tracebacks (EDBC_DEBUG)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EDBC_DEBUG", raising=False)
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            patch.delenv(name)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path_factory.getbasetemp()))
        yield


@pytest.fixture(scope="session", autouse=True)
def children_import_this_checkout() -> Generator[None, None, None]:
    """Processes that tests start, whichever edbc is installed; the first of them compiles its byte code for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiling_for_tests() -> None:
    """Compiling that is told nothing else does not measure whether batching pays, which on tiny models a clock would
    decide. Under NUMBA_DISABLE_JIT=1 it trains one encoding in a few trials: all of them would take minutes a plan."""
    from edbc import api
    from edbc.tools.cli.main import compile as command
    from edbc.tools.compile import compiler

    defaults: dict[str, object] = {"measure_gain": False, **({"trials": 4, "encoding": "sort"} if PLAIN else {})}
    for function in (api.compile_file, compiler.compile_model):
        inspect.unwrap(function).__kwdefaults__.update(defaults)
    for option in command.params:
        option.default = defaults.get(str(option.name), option.default)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Doctests are of edbc and of what tests stand on: in a file of tests there is none to look for."""
    found = yield
    if not file_path.name.startswith("test_"):
        return found
    return [collector for collector in found if type(collector) is pytest.Module]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests and those of reach unless asked, CUDA tests where there is no device, and tests of compiled code
    where nothing is compiled; all with their reason.

    Marks, not keywords: a test's keywords hold the names of its folders too.
    """
    if not config.getoption("--every-case"):
        _leave_out_thin_cases(items)
    if config.getoption("--quick"):
        _keep_first_cases(config, items)
    if not config.getoption("--slow"):
        _draw_fewer(items)
    for name in ("slow", "reach"):
        if not config.getoption(f"--{name}"):
            skip = pytest.mark.skip(reason=f"{name}: run with --{name}")
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(skip)
    if PLAIN:
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason="compiled: nothing is under NUMBA_DISABLE_JIT=1"))
    cuda_items = [item for item in items if item.get_closest_marker("cuda")]
    if cuda_items:
        import torch

        if not torch.cuda.is_available():
            for item in cuda_items:
                item.add_marker(pytest.mark.skip(reason="cuda: no CUDA device here"))


def _draw_fewer(items: list[pytest.Item]) -> None:
    """Properties see a third of the examples that they ask for; all with `--slow`."""
    asked = "_hypothesis_internal_use_settings"  # where `@settings` leaves them: a test takes no second ones
    for test in {item.function for item in items if isinstance(item, pytest.Function)}:
        if hasattr(test, asked):
            own = getattr(test, asked)
            setattr(test, asked, settings(own, max_examples=-(-own.max_examples // 3)))


def _leave_out_thin_cases(items: list[pytest.Item]) -> None:
    """Cases that reach what enough others reach are slow (`thin`)."""
    thin = frozenset((REPOSITORY / "tests" / "thin.txt").read_text().splitlines())
    for item in items:
        if item.nodeid in thin:
            item.add_marker(pytest.mark.slow)


def _keep_first_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are marked long or slow, and of the others all cases but the first."""
    cases: dict[str, pytest.Item] = {}
    for item in items:
        if not any(map(item.get_closest_marker, ("long", "slow", "reach"))):
            cases.setdefault(item.nodeid.partition("[")[0], item)
    kept = set(cases.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Importing a model file puts its folder first on the path, for good: here until its test ends, or a `numpy.py`
    beside some model would be the one of every process that a later test spawns."""
    before = sys.path[:]
    try:
        return (yield)
    finally:
        sys.path[:] = before


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Under NUMBA_DISABLE_JIT=1 a test that asks for the native back end, which is not there then, is skipped."""
    try:
        return (yield)
    except DeviceError as error:
        if PLAIN and "expected native code to run here" in str(error):
            pytest.skip(str(error))
        raise


def pytest_collection_finish() -> None:
    """What stands by now (torch, numba, thousands of tests) stays, and is no business of the garbage collector: looking
    at all of it took three quarters of the time of a test that binds a model. At the oldest objects of all it looks
    where a file of tests ends: within files that took a tenth of the time."""
    _keep_for_good()
    gc.set_threshold(*gc.get_threshold()[:2], 1_000)


@pytest.fixture(scope="module", autouse=True)
def what_a_file_leaves_stays() -> Generator[None, None, None]:
    """Compiled kernels and what is known of types, mostly."""
    yield
    _keep_for_good()


def pytest_unconfigure() -> None:
    """Libraries that count what is left of them at the end find nothing."""
    gc.unfreeze()


def _keep_for_good() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def edbc() -> Callable[..., Result]:
    """Run a command in this process: `edbc("run", path, "--limit", 3)`."""
    from commands import command

    return command


@pytest.fixture(scope="session")
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder with the shared data sets, or a skip."""
    named = request.config.getoption("--data") or os.environ.get("EDBC_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; name it with --data DIR or EDBC_DATA")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY
