"""Fixtures: a tiny model, once for the engine and once for transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_oracle import VARIANTS, Oracle
from exegpt_planner.model_spec import read_model_spec
from exegpt_runner.models.families import load
from tiny_models import write_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Spinning threads on shared cores made these tests ten times as slow."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers is half typed
    known: dict[str, Oracle] = {}

    def build(variant: str) -> Oracle:
        if variant not in known:
            folder = tmp_path_factory.mktemp(variant)
            write_model(folder, **VARIANTS[variant])
            reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
            model = load(folder, read_model_spec(folder), torch.float64)
            known[variant] = Oracle(folder, model, reference)
        return known[variant]

    return build


@pytest.fixture(scope="session")
def oracle(oracle_of: Callable[[str], Oracle]) -> Oracle:
    """The model with grouped heads."""
    return oracle_of("grouped")
