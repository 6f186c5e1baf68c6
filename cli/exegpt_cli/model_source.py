"""The folder that a manifest's model.uri means on this machine.

file:///path or file://relative/path   a Hugging Face folder
demo://smollm2-135m-instruct           the demo model, converted once into the cache
hf://org/name                          downloaded once by huggingface_hub, safetensors only
pvc://claim/path                       refused: a volume of a cluster
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_planner.errors import InvalidSpec, Unavailable

_WANTED_FILES = ("*.json", "*.safetensors", "tokenizer.model", "*.jinja")


def resolve(
    uri: str, revision: str | None, cache: Cache, *, say: Callable[[str], None] = lambda _: None
) -> Path:
    """The local folder of `uri`; `say` is told of what takes long."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest:
        raise InvalidSpec("model.uri", [f"{uri!r} is not of the form scheme://name"])
    match scheme:
        case "file":
            return _existing_folder(rest)
        case "demo":
            from exegpt_cli.demo_model import demo_folder

            return demo_folder(rest, cache, say=say)
        case "hf":
            say(f"Fetching hf://{rest} from huggingface.co, unless it is here already")
            return download(rest, revision)
        case "pvc":
            problem = (
                f"{uri!r} is a volume of a Kubernetes cluster, which one machine cannot mount; "
                "copy the model here and use file://"
            )
            raise InvalidSpec("model.uri", [problem])
        case _:
            known = "file://, demo://, hf:// and, on a cluster, pvc://"
            raise InvalidSpec("model.uri", [f"unknown scheme {scheme!r} in {uri!r}; use {known}"])


def _existing_folder(text: str) -> Path:
    folder = Path(text).expanduser().resolve()
    try:
        next(folder.iterdir(), None)  # finds out whether it may be entered and listed
    except (FileNotFoundError, NotADirectoryError):
        pass  # said below
    except OSError as error:
        raise Unavailable(
            f"cannot read the model folder {folder}: {error.strerror}. Grant read permission there, "
            "or correct model.uri."
        ) from None
    if not folder.exists():
        raise Unavailable(f"the model folder {folder} does not exist. Correct model.uri.")
    if not folder.is_dir():
        raise Unavailable(
            f"{folder} is a file. Name the folder that holds config.json in model.uri."
        )
    return folder


def download(
    name: str,
    revision: str | None,
    *,
    patterns: Sequence[str] = _WANTED_FILES,
    into: Path | None = None,
) -> Path:
    """The folder of a repository of the hub: in its own cache, or `into` one of the caller's."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), local_dir=into
        )
    except HFValidationError as error:
        raise InvalidSpec("model.uri", [f"hf://{name}: {error}"]) from None
    except RevisionNotFoundError:
        raise Unavailable(
            f"hf://{name} has no revision {revision!r}. Correct model.revision."
        ) from None
    except RepositoryNotFoundError:
        raise Unavailable(
            f"hf://{name} does not exist or is private. Correct model.uri, or set HF_TOKEN to a token "
            "that may read it."
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise Unavailable(
            f"cannot fetch hf://{name}: {_first_line(error)} Check the network, or copy the model here "
            "and use file://."
        ) from None
    return Path(folder)


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if text.endswith(".") else f"{text}."
