from __future__ import annotations

from pathlib import Path

import torch

from exegpt_planner.model_spec import read_model_spec
from exegpt_runner.clocks import CalibrationKernel
from exegpt_runner.engine import Engine
from exegpt_runner.measure import measure
from exegpt_runner.models.families import load
from exegpt_wire import worker_pb2 as pb
from tiny_models import write_model


def test_shapes_with_more_and_more_queries_are_measured_in_any_order(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    engine = Engine(load(folder, read_model_spec(folder), torch.float64), 64 * 64)
    shapes = [
        pb.MeasuredShape(id=1, chunk_starts=[0], chunk_tokens=[4]),
        pb.MeasuredShape(
            id=2, decode_contexts=[8] * 5, chunk_starts=[0, 4, 0, 0], chunk_tokens=[4] * 4
        ),
    ]
    found = list(measure(pb.MeasureRequest(shapes=shapes), engine, CalibrationKernel(threads=1)))
    assert [(each.shape.decode_queries, each.shape.encode_chunks) for each in found] == [
        (0, 1),
        (5, 4),
    ]
