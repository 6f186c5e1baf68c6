"""Fetches a model from the Hugging Face hub into a folder, before the pod's other containers start.

A token is read from HF_TOKEN, which the deployment sets by secretKeyRef; without weights only what tokenizers need.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from exegpt_cli.model_source import download
from exegpt_planner.errors import ExeGPTError, InvalidSpec

WEIGHTS = ("*.safetensors",)
REST = ("*.json", "tokenizer.model", "*.jinja")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches; the exit status."""
    options = _parser().parse_args(arguments)
    scheme, _, name = options.uri.partition("://")
    patterns = REST if options.without_weights else (*REST, *WEIGHTS)
    try:
        if scheme != "hf":
            raise InvalidSpec("model.uri", [f"{options.uri!r} is not an hf:// model"])
        download(name, options.revision, patterns=patterns, into=options.folder)
    except ExeGPTError as error:
        print(f"exegpt fetch: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exegpt_cli.pods.fetch", description="Fetch a model.")
    parser.add_argument("uri", help="hf://org/name")
    parser.add_argument("folder", type=Path, help="where to put it")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--without-weights", action="store_true", help="tokenizer and config only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
