"""Hook of hatchling: adds the compiled core of messages to wheels and editable trees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import build_core


class CoreBuildHook(BuildHookInterface[Any]):
    """Without the core, wheels are of pure Python, and fit every platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the core, and name its place."""
        if version == "editable":
            build_core.install()
        elif library := build_core.compiled():
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{build_core.platform_tag()}"
            build_data["force_include"][str(library)] = build_core.MODULE
