"""The generated stubs are those of worker.proto."""

from __future__ import annotations

from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships no types

import exegpt_wire


def test_the_stubs_in_the_tree_are_what_protoc_makes(tmp_path: Path) -> None:
    folder = Path(exegpt_wire.__file__).parent
    status = protoc.main(
        [
            "protoc",
            f"-I{folder.parent}",
            f"--python_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            str(folder / "worker.proto"),
        ]
    )
    assert status == 0
    for name in ("worker_pb2.py", "worker_pb2_grpc.py"):
        made = (tmp_path / "exegpt_wire" / name).read_text()
        assert made == (folder / name).read_text(), f"{name} is stale: run make proto"
