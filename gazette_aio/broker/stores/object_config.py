"""Clients of object stores: the `obstore` client of a URL.

`obstore` takes credentials from the environment of the process. This module keeps none.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import re
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.proxies import proxy_of_url
from gazette_aio.serving.address import http_origin

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


# Bounds of one request: it fails well before an append gives up on an unreachable store. Callers
# repeat requests later, so no long retries are needed here.
_CLIENT: ClientConfig = {
    "connect_timeout": dt.timedelta(seconds=2),
    "read_timeout": dt.timedelta(seconds=10),
    "timeout": dt.timedelta(seconds=60),
}
_RETRY: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": dt.timedelta(seconds=3),
    "backoff": {
        "init_backoff": dt.timedelta(milliseconds=100),
        "max_backoff": dt.timedelta(seconds=1),
        "base": 2,
    },
}

_UNSUPPORTED = {
    "acl": "set the bucket's object ownership instead",
    "profile": "credentials come from the environment",
}
# Arguments that become a part of the host or path of requests, and mustn't lead elsewhere.
_NAMES = {
    "bucket": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII),
    "region": re.compile(r"[A-Za-z0-9-]+", re.ASCII),
    "container": re.compile(r"[A-Za-z0-9$][A-Za-z0-9-]*", re.ASCII),
    "account": re.compile(r"[A-Za-z0-9]+", re.ASCII),
    "tenant": re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*", re.ASCII),
}
_S3_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")

_NO_PROXY = "http://127.0.0.1"
"""What `obstore` takes for a proxy when everything is excluded from it."""

_MAX_ERROR_CHARS = 400
_MIN_SECRET_CHARS = 8
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|ACCOUNT_KEY|MASTER_KEY|SAS_KEY|CREDENTIALS|_FILE$"
)
_URL = re.compile(r"(https?://)(?:[^\s/?#@]*@)?([^\s?#]*)[?#]?\S*")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_STATUS = re.compile(r"(status code: \d{3}[\w ]*)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>|\"message\":\s*\"([^\"]*)\"")


def check_arguments(parsed: pb.FragmentStoreURL) -> None:
    """Check that the arguments of a store's URL can be satisfied.

    Raises:
        StoreError: An argument can't be satisfied. Clients may see the text.
    """
    try:
        parsed.validate_arguments()
    except pb.ValidationError as error:
        raise pb.StoreError(str(error)) from None
    for name, reason in _UNSUPPORTED.items():
        if parsed.arguments.get(name):
            raise pb.StoreError(f'store URL argument "{name}" is not supported: {reason}')


def check_destination(parsed: pb.FragmentStoreURL, origins: frozenset[str]) -> None:
    """Check that requests for a store go to its provider, or to an allowed server.

    Requests carry credentials of the broker, and clients choose the URL of the store.

    Args:
        parsed: URL of the store.
        origins: Allowed origins of the argument `endpoint`.

    Raises:
        StoreError: Requests would go elsewhere.
    """
    arguments = parsed.arguments
    if endpoint := arguments.get("endpoint", ""):
        try:
            allowed = http_origin(endpoint) in origins
        except ValueError:
            allowed = False
        if not allowed:
            raise pb.StoreError(
                'store URL argument "endpoint" is not an origin which the broker allows '
                "(--store-endpoint)"
            )
    names = {"bucket": parsed.host}
    match parsed.scheme:
        case "s3":
            names["region"] = arguments.get("region", "") or "none"
        case "azure":
            names = {"container": parsed.host}
        case "azure-ad":
            account, container, *_ = parsed.path[1:].split("/")
            names = {"tenant": parsed.host, "account": account, "container": container}
        case _:
            pass
    for kind, name in names.items():
        if not _NAMES[kind].fullmatch(name):
            raise pb.StoreError(f"invalid name of a {kind} in store URL")


def check_installed(scheme: str) -> None:
    """Check that there's a client for object stores.

    Raises:
        StoreError: There's no client. The text names the package to install.
    """
    try:
        found = importlib.util.find_spec("obstore")
    except (ImportError, ValueError):
        found = None
    if found is None:
        text = f"fragment stores of scheme {scheme} need obstore: pip install 'gazette-aio[server]'"
        raise pb.StoreError(text) from ModuleNotFoundError("obstore")


def container_prefix(parsed: pb.FragmentStoreURL) -> str:
    """Return the prefix of keys of `FragmentStoreURL.object_key()` that names the container."""
    if parsed.scheme != "azure-ad":
        return ""
    account, container, *_ = parsed.path[1:].split("/")
    return f"{account}/{container}/"


def open_client(parsed: pb.FragmentStoreURL) -> ObjectStore:
    """Return a client of the bucket or container of a URL. Blocks for some milliseconds.

    Raises:
        obstore.exceptions.BaseError, ValueError: The client can't be configured.
    """
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    match parsed.scheme:
        case "s3":
            config = _s3_config(parsed)
            client = _CLIENT.copy()
            endpoints = (
                [config["endpoint"]]
                if "endpoint" in config
                else [os.environ.get(name, "") for name in _S3_ENDPOINTS]
            )
            client["allow_http"] = any(each.startswith("http://") for each in endpoints)
            if any(endpoints):
                # `obstore` would reach servers of this machine through a proxy.
                proxies = [proxy_of_url(each) for each in endpoints if each]
                proxy = next(filter(None, proxies), None)
                client["proxy_url"] = proxy.url if proxy else _NO_PROXY
                client["proxy_excludes"] = "" if proxy else "*,0.0.0.0/0,::/0"
            return S3Store(parsed.host, config=config, client_options=client, retry_config=_RETRY)
        case "gs":
            # Otherwise, servers would decompress objects with a content encoding, and ignore
            # ranges.
            client = _CLIENT.copy()
            client["default_headers"] = {"accept-encoding": "gzip"}
            return GCSStore(parsed.host, client_options=client, retry_config=_RETRY)
        case "azure":
            azure: Any = _azure_environment()
            container = parsed.host
        case _:
            account, container, *_ = parsed.path[1:].split("/")
            azure = {"account_name": account, "tenant_id": parsed.host}
    return AzureStore(container, config=azure, client_options=_CLIENT, retry_config=_RETRY)


def put_attributes(parsed: pb.FragmentStoreURL, *, gzipped: bool) -> dict[str, str]:
    """Return the attributes of an object to write."""
    attributes = {"Content-Encoding": "gzip"} if gzipped else {}
    if storage_class := parsed.arguments.get("storageclass", ""):
        attributes["Storage-Class"] = storage_class
    return attributes


def error_text(error: Exception) -> str:
    """Return the text of an error of a client, without secrets.

    The text has no queries of URLs, which may hold signatures, of bodies of responses only code and
    message, and no credentials of the environment or paths of their files.
    """
    text = str(error).strip() or type(error).__name__
    head = text.partition("\n")[0]
    body_at = re.search(r"[<{]", head)
    shown = (head[: body_at.start()] if body_at else head).strip(" :")
    if (status := _STATUS.search(shown)) is not None:
        shown = shown[: status.end()]  # What follows is content of the response.
    shown = _URL.sub(r"\1\2", shown)
    parts = [shown[:_MAX_ERROR_CHARS]]
    for pattern in (_CODE, _MESSAGE):
        if (match := pattern.search(text.partition("Debug source")[0])) is not None:
            part = next(group for group in match.groups() if group is not None)
            parts.append(_URL.sub(r"\1\2", part)[:_MAX_ERROR_CHARS])
    joined = ": ".join(parts)
    for name, value in os.environ.items():
        if len(value) >= _MIN_SECRET_CHARS and _SECRET_NAME.search(name):
            joined = joined.replace(value, "***")
    return joined


def _s3_config(parsed: pb.FragmentStoreURL) -> Any:
    arguments = parsed.arguments
    config: dict[str, Any] = {}
    if endpoint := arguments.get("endpoint", ""):
        config["endpoint"] = endpoint
        if "AWS_ENDPOINT_URL_S3" in os.environ:
            config["aws_endpoint_url_s3"] = endpoint  # It would win otherwise.
    if region := arguments.get("region", ""):
        config["region"] = region
    if encryption := arguments.get("sse", ""):
        config["server_side_encryption"] = encryption
    if key := arguments.get("ssekmskeyid", ""):
        config["sse_kms_key_id"] = key
    return config


def _azure_environment() -> dict[str, str]:
    """Return the values of the variables that Gazette's broker knows."""
    names = {"AZURE_ACCOUNT_NAME": "account_name", "AZURE_ACCOUNT_KEY": "account_key"}
    return {names[name]: os.environ[name] for name in names if os.environ.get(name)}
