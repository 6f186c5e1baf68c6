"""A checkpoint's tensors, from safetensors files only.

Pickled weights (`pytorch_model.bin`) are refused: loading them runs code. Every missing, surplus or mis-shaped tensor
is named in one error. Files are memory-mapped, so a tensor is read when it is first asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from exegpt_planner.errors import InvalidSpec, Unavailable

Shapes = Mapping[str, tuple[int, ...]]

_LISTED_PROBLEMS = 20  # an error fits one screen


class Checkpoint:
    """The safetensors files of `folder`, open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}  # safe_open has no types
        for path in weight_files(folder):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                self._stack.close()
                raise Unavailable(
                    f"cannot read {path}: {error}. Copy or download the file again."
                ) from None
            self._files |= dict.fromkeys(file.keys(), file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def names(self) -> Set[str]:
        """Of all tensors."""
        return self._files.keys()

    def check(self, expected: Shapes, *, ignored: frozenset[str] = frozenset()) -> None:
        """Raises `InvalidSpec` naming every tensor that is missing, surplus or mis-shaped."""
        problems = [f"{name} is missing" for name in expected if name not in self._files]
        problems += [
            f"{name} is not a tensor of this architecture"
            for name in sorted(self._files.keys() - expected.keys() - ignored)
            if not name.endswith(
                "rotary_emb.inv_freq"
            )  # old checkpoints store what follows from config.json
        ]
        for name in expected.keys() & self._files.keys():
            shape = tuple(self._files[name].get_slice(name).get_shape())
            if shape != expected[name]:
                problems.append(f"{name} has shape {shape}, config.json says {expected[name]}")
        if problems:
            more = len(problems) - _LISTED_PROBLEMS
            shown = problems[:_LISTED_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
            raise InvalidSpec(str(self._folder), shown)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor called `name`, as `dtype`."""
        tensor: Tensor = self._files[name].get_tensor(name)
        if not tensor.dtype.is_floating_point:
            raise InvalidSpec(
                str(self._folder),
                [
                    f"{name} is stored as {tensor.dtype}; quantised weights are not computed, use a float checkpoint"
                ],
            )
        return tensor.to(dtype)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the model in `folder`."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        return _indexed(index)
    pickled = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.pth")
    )
    if pickled:
        raise InvalidSpec(
            str(folder),
            [
                f"has only pickled weights ({', '.join(pickled[:3])}), and loading them runs code; convert them once, "
                "where you trust them, with transformers: "
                "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)"
            ],
        )
    raise Unavailable(
        f"{folder} holds neither model.safetensors nor model.safetensors.index.json. "
        "Point spec.model.uri at a Hugging Face model folder."
    )


def _indexed(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidSpec(
            str(index), [f"is not an index of safetensors files ({error!r})"]
        ) from None
    # A name is a file beside the index, never a path out of the folder.
    paths = [index.parent / Path(str(name)).name for name in sorted(names)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise Unavailable(
            f"{index.parent} lacks {', '.join(missing)}, which its index names. Download the model again."
        )
    return paths
