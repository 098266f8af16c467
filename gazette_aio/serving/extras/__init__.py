"""Services for tools: health checks and reflection, which Gazette's servers don't have."""

from __future__ import annotations

from gazette_aio.serving.extras.health import Health
from gazette_aio.serving.extras.reflection import Reflection, reflection_handlers

__all__ = ["Health", "Reflection", "reflection_handlers"]
