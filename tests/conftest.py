"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("exegpt", deadline=None)  # a busy machine proves nothing
settings.load_profile("exegpt")
