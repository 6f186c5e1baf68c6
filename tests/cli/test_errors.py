from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli.manifests import run_cli, write_manifest

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
    "hidden_act": "silu",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEGPT_CACHE", str(tmp_path / "cache"))


def check(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    *words: str,
) -> None:
    """The command fails with this code and words, on one screen, without a stack trace, leaving nothing behind."""
    assert run_cli(monkeypatch, *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 24
    assert psutil.Process().children(recursive=True) == []


def test_a_missing_manifest_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(
        capsys, monkeypatch, ["plan", "-f", "/no/such.yaml"], 5, "/no/such.yaml", "Check the path"
    )


def test_an_unknown_field_names_the_nearest_right_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_manifest(tmp_path, latencyBund={"seconds": 3})
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, "latencyBund", "'latencyBound'")


def test_every_reason_why_one_machine_cannot_serve_it_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "cluster__gpus": 1,
        "replicas": 3,
        "suspend": True,
        "model__dtype": "float16",
    }
    file = write_manifest(tmp_path, scheduling__strategies=["WAA"], **changes)
    words = ["replicas", "suspend", "float16", "WAA needs two devices"]
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, *words)


def test_more_devices_than_cores_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_manifest(tmp_path, cluster__gpus=1000)
    words = ["cluster.gpus: 1000", f"there are {len(os.sched_getaffinity(0))} cores"]
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, *words)


def test_a_strategy_that_one_worker_cannot_run_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_manifest(tmp_path)
    arguments = ["explain", "-f", str(file), "--strategy", "FASTEST"]
    check(capsys, monkeypatch, arguments, 2, "FASTEST", "RRA or CRA")


def test_a_missing_model_folder_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_manifest(tmp_path, tmp_path / "gone")
    check(capsys, monkeypatch, ["serve", "-f", str(file), "--port", "0"], 5, "gone", "model.uri")


def test_an_unsupported_architecture_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    config = CONFIG | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    (model / "config.json").write_text(json.dumps(config))
    file = write_manifest(tmp_path, model)
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, "ixtral")


def test_a_folder_without_safetensors_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    file = write_manifest(tmp_path, model)
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, "pytorch_model.bin", "safetensors")


def test_a_workload_longer_than_the_context_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    (model / "model.safetensors").write_bytes(b"")
    file = write_manifest(tmp_path, model, workload__input={"mean": 60, "std": 20, "max": 120})
    check(capsys, monkeypatch, ["plan", "-f", str(file)], 2, "context of 128")


def test_a_port_in_use_is_found_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_manifest(tmp_path, tmp_path / "gone")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["serve", "-f", str(file), "--port", port]
        check(capsys, monkeypatch, arguments, 5, port, "--port")


@pytest.mark.parametrize(("name", "reason"), [("no/x.log", "No such file"), (".", "Is a dir")])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    reason: str,
) -> None:
    file, path = write_manifest(tmp_path, tmp_path / "gone"), str(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    serve = ["serve", "-f", str(file), "--port", "0", "--step-log", path]
    check(capsys, monkeypatch, serve, 5, "--step-log", path, reason, "Choose another file")
    bench = ["bench", "-f", str(file), "--csv", path]
    check(capsys, monkeypatch, bench, 5, "--csv", path, reason, "Choose another file")
    assert sorted(tmp_path.rglob("*")) == before


def test_bench_options_that_do_not_fit_together_are_all_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(capsys, monkeypatch, ["bench"], 2, "-f FILE", "--url")
    arguments = ["bench", "--url", "ftp://x", "--strategy", "RRA"]
    words = ["http://", "--model", "--input-lengths", "--strategy"]
    check(capsys, monkeypatch, arguments, 2, *words)


def test_help_comes_without_the_heavy_imports() -> None:
    code = "import sys, exegpt_cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "grpc", "fastapi", "scipy", "numpy", "httpx", "transformers"}
