"""A model as Configure asks for it, kept so that the same model with another KV arena is not read again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from exegpt_planner.errors import ExeGPTError, InvalidSpec
from exegpt_planner.model_spec import ModelSpec, read_model_spec
from exegpt_runner import identity
from exegpt_runner.models import families
from exegpt_runner.models.model import Model
from exegpt_runner.weights import weight_files
from exegpt_wire import worker_pb2 as pb

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}

DIGEST_SAMPLES = 256
DIGEST_SAMPLE_BYTES = 4096

Files = tuple[tuple[str, int, int], ...]  # name, size, time of change


class OutOfMemory(ExeGPTError):
    """Weights and KV arena do not fit this device."""

    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory and what it was read from."""

    model: Model
    spec: ModelSpec
    path: str
    dtype: str
    files: Files
    weight_bytes: int
    digest: str  # of the weights' values

    def serves(self, request: pb.ConfigureRequest) -> bool:
        """Whether this is the model that `request` asks for, its files unchanged."""
        return (
            request.model_path == self.path
            and request.dtype == self.dtype
            and _files(Path(request.model_path)) == self.files
        )


def load(request: pb.ConfigureRequest) -> Loaded:
    """The model of `request`; raises `InvalidSpec` or `OutOfMemory` before anything large is read."""
    dtype = DTYPES.get(request.dtype)
    if dtype is None:
        problem = f"dtype: {request.dtype!r} is not one of {', '.join(DTYPES)}"
        raise InvalidSpec("Configure", [problem])
    folder = Path(request.model_path)
    spec = read_model_spec(folder)
    if request.num_layers not in (0, spec.num_layers):
        problem = f"num_layers: {request.num_layers} of {spec.num_layers}; this worker holds all"
        raise InvalidSpec("Configure", [problem])
    weight_bytes = spec.weight_bytes(request.dtype)
    _check(weight_bytes, request.kv_tokens * spec.kv_bytes_per_token(request.dtype))
    model = families.load(folder, spec, dtype)
    model.warm_up()
    return Loaded(
        model=model,
        spec=spec,
        path=request.model_path,
        dtype=request.dtype,
        files=_files(folder),
        weight_bytes=weight_bytes,
        digest=weights_digest(folder),
    )


def check_memory(loaded: Loaded, kv_tokens: int) -> None:
    """Raises `OutOfMemory` when the arena does not fit beside the weights."""
    _check(loaded.weight_bytes, kv_tokens * loaded.spec.kv_bytes_per_token(loaded.dtype))


def _check(weight_bytes: int, kv_bytes: int) -> None:
    memory_bytes = identity.memory_bytes()
    if weight_bytes + kv_bytes > memory_bytes:
        raise OutOfMemory(
            f"weights of {_gib(weight_bytes)} and a KV arena of {_gib(kv_bytes)} exceed the device's "
            f"{_gib(memory_bytes)}. Lower kv_tokens or use a smaller model."
        )


def weights_digest(folder: Path) -> str:
    """Equal for equal weights, in whatever place: of the configuration and of samples all through the files.

    Reading every byte would double a large model's load time. Two revisions of a model differ nearly everywhere, and
    files that were cut short differ in size.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for sample in range(DIGEST_SAMPLES):
                file.seek(size * sample // DIGEST_SAMPLES)
                digest.update(file.read(DIGEST_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def _files(folder: Path) -> Files:
    paths = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    return tuple(
        (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists()
    )
