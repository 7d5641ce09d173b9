"""Servers: an ASGI application under uvicorn, Ray Serve, and Triton's python backend by its documented objects."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from budget import HANGS
from engines import started

import edbc
from edbc.errors import ModelError

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SLOW = """

import time
plain = Model.forward

def forward(self, tree):
    time.sleep(0.2 if tree.word == zlib.crc32(b"SLOW") % 1000 else 0)
    return plain(self, tree)

Model.forward = forward
"""
TEXTS = ["one", "two words", "three more words", "and four more words"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the model file that `edbc new` writes; a word "SLOW" takes forward 0.2 s."""
    from edbc.tools.cli.new import run_new

    folder = tmp_path_factory.mktemp("servers")
    run_new(str(folder / "trees.py"))
    with (folder / "trees.py").open("a") as file:
        file.write(SLOW)
    edbc.compile(folder / "trees.py", folder / "plan.yaml", config={"hidden_size": 8}, policy="critical")
    return folder


@pytest.fixture(scope="module")
def wanted(home: Path) -> list[list[float]]:
    """The outputs of TEXTS."""
    net = edbc.load(home / "plan.yaml").bind()
    parse = sys.modules[type(net.model).__module__].parse
    with torch.no_grad():
        return [output.tolist() for output in net([parse(text) for text in TEXTS])]


def ask(port: int, body: bytes, timeout: float = 60, path: str = "/") -> tuple[int, Any]:
    """Status and content of one request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_answers(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + HANGS / 2
    while time.monotonic() < until and process.poll() is None:
        try:
            if ask(port, b"hello")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"no answer: {process.communicate()[0]}")


@pytest.fixture(scope="module")
def uvicorn(home: Path) -> Iterator[int]:
    """The example's application under uvicorn, with room for four waiting requests; its port."""
    pytest.importorskip("uvicorn", reason="reach: uvicorn is not installed; run make test-reach")
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "asgi_app:app", "--app-dir", EXAMPLES, "--lifespan", "off",
               "--port", port, "--log-level", "warning")  # fmt: skip
    with started(*command, env={"PLAN": str(home / "plan.yaml"), "MAX_WAITING": "4"}) as process:
        wait_until_it_answers(process, port)
        yield port
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.reach
def test_an_asgi_application_answers(uvicorn: int, wanted: list[list[float]]) -> None:
    """One instance per request; what is no instance is a 400 of its own, beside others that are answered."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: ask(uvicorn, text.encode()), [*TEXTS[:2], " ", *TEXTS[2:]]))

    assert [status for status, _ in found] == [200, 200, 400, 200, 200]
    assert [content["output"] for status, content in found if status == 200] == wanted
    assert "IndexError" in found[2][1]
    assert ask(uvicorn, b"\xff")[0] == 400


@pytest.mark.reach
def test_a_full_queue_is_busy_and_a_client_that_left_is_forgotten(uvicorn: int, wanted: list[list[float]]) -> None:
    """Thirty slow requests at once, of which four may wait: others are told 503; a client that left is no trouble."""
    with ThreadPoolExecutor(30) as pool:
        statuses = [status for status, _ in pool.map(lambda _: ask(uvicorn, b"SLOW"), range(30))]
    assert set(statuses) == {200, 503}
    assert statuses.count(503) >= 10
    slow = socket.create_connection(("127.0.0.1", uvicorn))
    slow.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\nSLOW")
    slow.close()
    assert ask(uvicorn, TEXTS[0].encode()) == (200, {"output": wanted[0]})


@pytest.mark.reach
def test_a_slow_client_holds_nobody_up(uvicorn: int, wanted: list[list[float]]) -> None:
    """A client that sends half of its body, and one that reads no answer: others are answered meanwhile."""
    half = socket.create_connection(("127.0.0.1", uvicorn))
    half.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\nhalf of")
    deaf = socket.create_connection(("127.0.0.1", uvicorn))
    deaf.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 3\r\n\r\none")

    assert ask(uvicorn, TEXTS[1].encode(), timeout=20) == (200, {"output": wanted[1]})
    half.close()
    deaf.close()


SERVE = """
import sys
import ray
from ray import serve
sys.path.insert(0, sys.argv[2])
quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ray.init("local", num_cpus=2, object_store_memory=1 << 28, **quiet)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
import serve_app
serve.run(serve_app.app)
print("ready", flush=True)
sys.stdin.readline()
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.reach
def test_ray_serve_joins_by_nodes(home: Path, wanted: list[list[float]], tmp_path: Path) -> None:
    """Requests at once through Ray Serve's own proxy: each gets its answer, and a bad one fails alone."""
    pytest.importorskip("ray.serve", reason="reach: Ray Serve is not installed; run make test-reach")
    port = free_port()
    (tmp_path / "serving.py").write_text(SERVE)
    environment = {"PLAN": str(home / "plan.yaml"), "PYTHONPATH": f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}"}
    with started(sys.executable, tmp_path / "serving.py", port, EXAMPLES, env=environment, stdin=True) as process:
        wait_until_it_answers(process, port)
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda text: ask(port, text.encode()), [*TEXTS * 5, " ", *TEXTS]))
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)

    assert [status for status, _ in found] == [200] * 20 + [500] + [200] * 4
    assert [content["output"] for status, content in found if status == 200] == wanted * 6


# --- Triton's python backend, by the objects that its documentation describes ----------------------------------------


class Tensor:
    """`pb_utils.Tensor`: a name and a numpy array."""

    def __init__(self, name: str, array: Any):
        self._name, self._array = name, np.asarray(array)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class TritonError:
    """`pb_utils.TritonError`: a message."""

    def __init__(self, message: str):
        self._message = message

    def message(self) -> str:
        return self._message


class InferenceResponse:
    """`pb_utils.InferenceResponse`: tensors, or an error."""

    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None):
        self._tensors, self._error = output_tensors, error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Request:
    """`pb_utils.InferenceRequest`, as `execute` gets it: TYPE_STRING arrives as an array of bytes."""

    def __init__(self, *texts: bytes, cancelled: bool = False):
        self.texts, self.cancelled = texts, cancelled

    def inputs(self) -> list[Tensor]:
        return [Tensor("TEXT", np.array(self.texts, dtype=np.object_))]

    def is_cancelled(self) -> bool:
        return self.cancelled


@pytest.fixture
def triton(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend's model, initialised as the server does."""
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.TritonError, utils.InferenceResponse = Tensor, TritonError, InferenceResponse  # type: ignore[attr-defined]
    utils.get_input_tensor_by_name = lambda request, name: next(t for t in request.inputs() if t.name() == name)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    from edbc.reach.triton_model import TritonPythonModel

    config = {"parameters": {"plan": {"string_value": "plan.yaml"}},
              "output": [{"name": "output"}, {"name": "output_offsets"}]}  # fmt: skip
    model = TritonPythonModel()
    model.initialize({"model_config": json.dumps(config), "model_repository": str(home), "model_version": "1"})
    return model


def test_tritons_requests_are_one_mini_batch(
    triton: Any, wanted: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests of one, two and no instances: rows and offsets of each, by one run of the net."""
    sizes = []
    plain = triton.predictor._run
    monkeypatch.setattr(triton.predictor, "_run", lambda instances: sizes.append(len(instances)) or plain(instances))
    texts = [text.encode() for text in TEXTS]
    responses = triton.execute([Request(texts[0]), Request(texts[1], texts[2]), Request()])

    assert sizes == [3]
    assert not any(response.has_error() for response in responses)
    found = {t.name(): t.as_numpy() for t in responses[1].output_tensors()}
    assert found["output_offsets"].tolist() == [0, 2, 4]
    assert found["output"].tolist() == wanted[1] + wanted[2]
    assert responses[2].output_tensors() == []


def test_tritons_broken_and_cancelled_requests_fail_alone(triton: Any, wanted: list[list[float]]) -> None:
    """A text that is no instance, and a request that was cancelled, between two that are answered."""
    good = TEXTS[0].encode()
    responses = triton.execute([Request(good), Request(good, b""), Request(good, cancelled=True), Request(good)])

    assert [response.has_error() for response in responses] == [False, True, True, False]
    assert "TEXT[1]" in responses[1].error().message()
    assert responses[3].output_tensors()[0].as_numpy().tolist() == wanted[0]


def test_triton_without_a_plan_is_told_so() -> None:
    """What to write into config.pbtxt."""
    from edbc.reach.triton_model import TritonPythonModel

    with pytest.raises(ModelError, match="expected a parameter 'plan'"):
        TritonPythonModel().initialize({"model_config": "{}"})
