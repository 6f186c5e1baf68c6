"""An operator that ends at a write of its own, at once and without cleaning up: for test_kills.

EXEGPT_DIES says when: `before:3` its third write, or `after:3`; empty: never. Renewals of its Lease do not count.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

from exegpt_operator import main
from exegpt_operator.api import Api

DIES = "EXEGPT_DIES"


def die_at(when: str) -> None:
    """Has this process end before or after a write."""
    side, _, number = when.partition(":")
    numbers, call = itertools.count(1), Api._call

    def dying(self: Api, verb: str, kind: str, *where: Any, **how: Any) -> Any:
        if verb in ("get", "list") or kind == "Lease":
            return call(self, verb, kind, *where, **how)
        is_last = next(numbers) == int(number)
        if is_last and side == "before":
            os._exit(1)
        try:
            return call(self, verb, kind, *where, **how)
        finally:
            if is_last:
                os._exit(1)

    Api._call = dying  # type: ignore[method-assign]  # the product knows nothing of dying


if __name__ == "__main__":
    if os.environ.get(DIES):
        die_at(os.environ[DIES])
    sys.exit(main.main())
