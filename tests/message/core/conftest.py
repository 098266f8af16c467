"""Both forms of the core, whichever is in use."""

from __future__ import annotations

import importlib

import pytest

from gazette_aio.message import core

FORMS = {"native": "_native", "plain": "plain"}


@pytest.fixture(params=FORMS)
def form(request):
    """Module of a form."""
    name = request.param
    if name == "native" and core.FORM == "plain":
        pytest.importorskip("gazette_aio.message.core._native", reason="it isn't built")
    return importlib.import_module(f"gazette_aio.message.core.{FORMS[name]}")


@pytest.fixture(scope="session")
def forms():
    """Modules of both forms."""
    native = pytest.importorskip("gazette_aio.message.core._native", reason="it isn't built")
    return native, importlib.import_module("gazette_aio.message.core.plain")
