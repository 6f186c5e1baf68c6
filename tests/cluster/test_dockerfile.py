"""The Dockerfile's three images, built from the tracked files and run as pods run them.

Without torch: in place of its five gigabytes the build finds an empty wheel of that name, as it would find a build of
torch for CPUs, and this machine's own torch is mounted when the runner runs.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cluster import building
from cluster.building import Builder
from cluster.required import lacks
from tiny_models import write_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
ENTRY = {
    "operator": "exegpt_operator.main",
    "gateway": "exegpt_cli.pods.gateway",
    "runner": "exegpt_runner.worker",
}
PODS = [  # what runs in which image, by the operator's manifests
    *ENTRY.items(),
    ("runner", "exegpt_cli.pods.gateway"),
    ("runner", "exegpt_cli.pods.profiler"),
    ("runner", "exegpt_cli.pods.fetch"),
]
PACKAGES = {
    "operator": "exegpt_operator exegpt_planner exegpt_wire",
    "gateway": "exegpt_gateway exegpt_planner exegpt_wire",
    "runner": "exegpt_runner exegpt_gateway exegpt_planner exegpt_wire exegpt_cli.pods",
}
ABSENT = {
    "operator": "torch nvidia triton numba exegpt_runner fastapi uvicorn hatchling",
    "gateway": "torch nvidia triton numba exegpt_runner kopf kubernetes hatchling",
    "runner": "kopf kubernetes hatchling",
}
TORCH = ("torch", "torchgen", "functorch", "nvidia", "triton")  # its folders in site-packages
TORCH_PATH = "/opt/torch"


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """A store with the Dockerfile's base in it."""
    if reason := building.lacking():
        lacks(reason)
    made = Builder(Path(tempfile.mkdtemp(prefix="exegpt-images-", dir=building.STORES)))
    try:
        made.base()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def images(builder: Builder) -> dict[str, str]:
    """The three, by target."""
    context, stand_ins = builder.folder / "checkout", builder.folder / "stand-ins"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name)
    version = importlib.metadata.version("torch").partition("+")[0]
    needed = [
        each
        for each in importlib.metadata.requires("torch") or []
        if not each.startswith(("nvidia", "cuda", "triton")) and "extra ==" not in each
    ]
    building.stand_in(stand_ins, "torch", f"{version}+elsewhere", needed)
    return {target: builder.build(target, context, stand_ins=stand_ins) for target in ENTRY}


def test_sizes(
    builder: Builder, images: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    megabytes = {target: builder.size_bytes(image) / 1e6 for target, image in images.items()}
    with capsys.disabled():
        print("", *(f"{target} {size:.0f} MB" for target, size in megabytes.items()), sep="\n  ")
    assert max(megabytes.values()) < 1000, megabytes


@pytest.mark.parametrize(("target", "module"), PODS)
def test_every_entry_point_answers(
    builder: Builder, images: dict[str, str], target: str, module: str
) -> None:
    done = builder.run(images[target], "python", "-m", module, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {module}")
    assert not done.stderr


@pytest.mark.parametrize("target", ENTRY)
def test_the_image_says_what_it_is(builder: Builder, images: dict[str, str], target: str) -> None:
    configuration = builder.configuration(images[target])
    assert configuration["User"] == "65532:65532"
    assert configuration["Entrypoint"] == ["python", "-m", ENTRY[target]]
    labels = configuration["Labels"]
    assert labels["org.opencontainers.image.title"] == f"exegpt {target}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    version = importlib.metadata.version("exegpt")
    assert labels["org.opencontainers.image.version"] == version


@pytest.mark.parametrize("target", ENTRY)
def test_it_holds_what_it_imports_and_little_else(
    builder: Builder, images: dict[str, str], target: str
) -> None:
    script = f"""
import importlib, importlib.util, os, pathlib, pkgutil
assert os.getuid() == 65532, os.getuid()
try:
    pathlib.Path("/usr/written").touch()
except OSError:
    pass
else:
    raise AssertionError("the root can be written to")
for name in {PACKAGES[target].split()}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
import exegpt_wire
assert (pathlib.Path(exegpt_wire.__file__).parent / "worker.proto").exists()
print(*(name for name in {ABSENT[target].split()} if importlib.util.find_spec(name)))
"""
    mounts = mounted_torch() if target == "runner" else {}
    done = builder.run(images[target], "python", "-c", script, mounts=mounts, PYTHONPATH=TORCH_PATH)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("target", ENTRY)
def test_nothing_is_left_of_building(builder: Builder, images: dict[str, str], target: str) -> None:
    with builder.root(images[target]) as root:
        for file in ("etc/pip.conf", "etc/apt/sources.list"):  # empty: what was mounted there
            assert not (root / file).exists() or (root / file).read_text() == ""
        for folder in ("mnt", "tmp", "root/.cache", "var/lib/apt/lists"):
            assert not list((root / folder).glob("*")), folder
        assert not [name for name in ("gcc", "cc", "make") if (root / "usr/bin" / name).exists()]


def test_the_runner_compiles_its_kernels_and_loads_a_model(
    builder: Builder, images: dict[str, str], tmp_path: Path
) -> None:
    """Without a compiler, on threads that may be called from several places at once."""
    model = write_model(tmp_path / "model", dtype=torch.bfloat16, hidden_size=128)
    for path in (model, *model.iterdir()):
        path.chmod(path.stat().st_mode | 0o055)
    script = """
import torch
torch.set_num_threads(2)
torch.set_grad_enabled(False)
from exegpt_runner.loading import load
from exegpt_wire.worker_pb2 import ConfigureRequest
load(ConfigureRequest(model_path="/models", dtype="bfloat16", kv_tokens=64))
from numba.np.ufunc import omppool
"""
    mounts = mounted_torch() | {model: "/models"}
    done = builder.run(
        images["runner"], "python", "-c", script,
        mounts=mounts, PYTHONPATH=TORCH_PATH, NUMBA_NUM_THREADS="2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def mounted_torch() -> dict[Path, str]:
    """This machine's torch, by its places in a container."""
    site = Path(torch.__file__).parents[1]
    return {site / name: f"{TORCH_PATH}/{name}" for name in TORCH if (site / name).exists()}
