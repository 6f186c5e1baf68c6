"""The model of a folder, of whatever family it is."""

from __future__ import annotations

from pathlib import Path

import torch

from exegpt_planner.model_spec import LlamaSpec, OptSpec
from exegpt_runner.models import llama, opt
from exegpt_runner.models.model import Model


def load(folder: Path, spec: LlamaSpec | OptSpec, dtype: torch.dtype) -> Model:
    """The model in `folder`, in memory as `dtype`."""
    match spec:
        case LlamaSpec():
            return llama.load(folder, spec, dtype)
        case OptSpec():
            return opt.load(folder, spec, dtype)
