"""Time of making a mini-batch's graph by both front ends, per vertex.

    python benchmarks/vertex.py [--vertices 20000] [--repeat 30] [MODEL ...]

Mini-batches of made-up instances with at least `--vertices` vertices each. `join` concatenates arrays and
writes the graph; `record` runs the model's forward instance by instance. Medians and minima of processor time (other
processes do not count), in microseconds per vertex; then the time of recording all fragments once. One core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.capture.vertex.vertexprogram import VertexProgram
from edbc.run.modelfile import ModelFile, import_model_file

MODELS = Path(__file__).resolve().parents[1] / "models"
DEFAULT = "tree_lstm tree_gru mv_rnn lattice_lstm lattice_gru bilstm_tagger bilstm_tagger_char lstm_nmt dag_gru".split()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vertices", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("models", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'model':20} {'vertices':>8} {'nodes':>8} {'join':>8} {'least':>8} {'record':>8} {'kinds':>6} {'first ms':>9}"
    )
    for name in arguments.models:
        print(row(name, arguments.vertices, arguments.repeat), flush=True)


def row(name: str, num_vertices: int, repeat: int) -> str:
    """One model's figures."""
    file = import_model_file(MODELS / f"{name}.py")
    config = file.config({"hidden_size": 8})
    instances, vertices = mini_batch(file, config, num_vertices)
    shadow, recorder = recording_shadow(ModelView(file.build(config, 0)), TypeTable())
    VertexProgram(shadow, recorder).join(vertices)  # loads the kernels and records the types
    program = VertexProgram(shadow, recorder)
    first = seconds(lambda: program.join(vertices))
    graph = program.join(vertices).graph
    joined = [seconds(lambda: program.join(vertices)) for _ in range(repeat)]
    recorded = min(seconds(lambda: capture(shadow, recorder, instances)) for _ in range(2))
    count = sum(x.num_vertices for x in vertices)
    median, least, record = (1e6 * t / count for t in (statistics.median(joined), min(joined), recorded))
    return (
        f"{name:20} {count:8,} {graph.num_nodes:8,} {median:8.3f} {least:8.3f} {record:8.2f} "
        f"{program.num_fragments:6} {1e3 * first:9.1f}"
    )


def mini_batch(file: ModelFile, config: dict[str, Any], num_vertices: int) -> tuple[list[Any], list[Any]]:
    """Instances with at least so many vertices in all, both ways."""
    as_vertices = file.vertex_instance(config)
    count = 16
    while True:
        instances = file.sample(count, 0, config)
        vertices = [as_vertices(instance) for instance in instances]
        if sum(x.num_vertices for x in vertices) >= num_vertices:
            return instances, vertices
        count += count // 2


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    function()
    return time.process_time() - started


if __name__ == "__main__":
    sys.exit(main())
