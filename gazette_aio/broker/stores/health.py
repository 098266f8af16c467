"""Health checks of fragment stores: a file is written, read, listed and fetched. All block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import os_error_text

if TYPE_CHECKING:
    from gazette_aio.broker.stores.fragment_store import FragmentStore

_CHECK_PATH = ".test/health-check"
_CHECK_CONTENT = b"health-check\n"
_CHECK_URL_SECONDS = 300.0
_FETCH_TIMEOUT_SECONDS = 5.0
_PROBE_NAME = ".gazette-delete-probe"


def check_store(store: FragmentStore) -> str:
    """Write, read and list a file of a store; return the failure, or an empty text."""
    if not _keeps_name(store, _CHECK_PATH):
        return "health check would be written to another file, by the store's argument find"
    step = "PUT"
    try:
        store.put(_CHECK_PATH, (_CHECK_CONTENT,))
        step = "GET"
        with contextlib.closing(store.open(_CHECK_PATH)) as file:
            content = file.read(len(_CHECK_CONTENT) + 1)
        if content != _CHECK_CONTENT:
            return "health check content mismatch"
        step = "LIST"
        directory, _, name = _CHECK_PATH.rpartition("/")
        if name not in (listed.path for listed in store.list(directory + "/")):
            return "health check LIST did not find test file"
        step = "SignGet"
        url = store.sign_get(_CHECK_PATH, _CHECK_URL_SECONDS)
    except (OSError, pb.StoreError) as error:
        return f"health check {step} failed: {_text(error)}"
    return _check_url(url) if url.startswith(("http://", "https://")) else ""


def probe_delete(store: FragmentStore, prefix: str) -> str:
    """Write and remove a file below `prefix`; return the failure, or an empty text."""
    path = prefix + _PROBE_NAME
    if not _keeps_name(store, path):
        return "delete-probe would remove another file, by the store's argument find"
    step = "PUT"
    try:
        store.put(path, (b"delete-probe\n",))
        step = "DELETE"
        store.remove(path)
    except (OSError, pb.StoreError) as error:
        return f"delete-probe {step} failed: {_text(error)}"
    return ""


def _text(error: Exception) -> str:
    return os_error_text(error) if isinstance(error, OSError) else str(error)


def _keeps_name(store: FragmentStore, path: str) -> bool:
    """Return whether a check's file keeps its name in the store, and thus isn't a fragment's."""
    try:
        key = pb.parse_fragment_store(store.url).object_key(path)
    except pb.ValidationError:
        return True  # The operation itself fails, and says why.
    return key.rpartition("/")[2] == path.rpartition("/")[2]


def _check_url(url: str) -> str:
    """Fetch the file of a check as clients do; return the failure, or an empty text."""
    import http.client  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415

    from gazette_aio.broker.stores.direct_http import open_url  # noqa: PLC0415

    try:
        with open_url(url, _FETCH_TIMEOUT_SECONDS) as response:
            content = response.read(len(_CHECK_CONTENT) + 1)
    except urllib.error.HTTPError as error:
        error.close()
        return f"health check fetch returned status {error.code}"
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        # Texts of other errors have the URL, which is secret.
        text = os_error_text(cause) if isinstance(cause, OSError) else type(error).__name__
        return f"health check fetch failed: {text}"
    if content != _CHECK_CONTENT:
        return "health check fetch content mismatch"
    return ""
