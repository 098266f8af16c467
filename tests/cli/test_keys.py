"""Keys of commands, by files that the list of processes doesn't show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import spawn

KEY = "c2VjcmV0"


@pytest.mark.gazette_broker(auth_keys=KEY)
async def test_keys_of_a_file_sign_requests(
    broker_cli: Any, gazette_broker: Any, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    by_option = await broker_cli("journals", "list", f"--broker.auth-keys-file={path}")
    by_variable = await broker_cli("journals", "list", env={"BROKER_AUTH_KEYS_FILE": str(path)})
    env = {"BROKER_ADDRESS": gazette_broker.endpoint, "BROKER_AUTH_KEYS_FILE": "/dev/stdin"}
    process = await spawn("journals", "list", env=env)
    _, err = await process.communicate(KEY.encode())

    assert by_option.code == 0, by_option.err
    assert by_variable.code == 0, by_variable.err
    assert process.returncode == 0, err


@pytest.mark.parametrize("content", [b"", b"\n", b"not base64!", b"\xff"])
def test_a_file_without_keys_is_an_error(inline: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    done = inline("journals", "list", f"--broker.auth-keys-file={path}")

    assert done.code == 2
    assert "authorization keys" in done.err
    assert "not base64!" not in done.err


def test_keys_are_given_once(inline: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    both = inline(
        "journals", "list", f"--broker.auth-keys-file={path}", f"--broker.auth-keys={KEY}"
    )

    assert both.code == 2
    assert "but not both" in both.err
