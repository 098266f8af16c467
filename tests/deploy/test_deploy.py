"""Files of `deploy/`, and commands of the guide of clusters: their settings exist, their names agree.

No container is started. Members parse their settings, and the help of Etcd has its options.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gazette_aio.consumer.service.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS = {path.stem: path for path in DEPLOY.glob("*.yaml") if path.name != "compose.yaml"}
OBJECTS = [
    (name, each)
    for name, path in sorted(MANIFESTS.items())
    for each in yaml.safe_load_all(path.read_text("utf-8"))
]

# Wire: of `gazette serve --help`, v0.103. Each is also an environment variable.
GAZETTE_OPTIONS = frozenset(
    {
        *("broker.zone", "broker.id", "broker.host", "broker.port", "broker.server-cert-file"),
        *("broker.server-cert-key-file", "broker.server-ca-file", "broker.peer-cert-file"),
        *("broker.peer-cert-key-file", "broker.peer-ca-file", "broker.max-grpc-recv-size"),
        *("broker.allow-origin", "broker.limit", "broker.file-root", "broker.file-only"),
        *("broker.max-append-rate", "broker.max-replication", "broker.min-append-rate"),
        *("broker.watch-delay", "broker.auth-keys", "broker.auto-suspend"),
        *("etcd.address", "etcd.cert-file", "etcd.cert-key-file", "etcd.trusted-ca-file"),
        *("etcd.prefix", "log.level", "log.format", "debug.port", "debug.private"),
    }
)
GAZETTE_VARIABLES = {re.sub("[.-]", "_", name).upper() for name in GAZETTE_OPTIONS}


def pods() -> list[tuple[str, dict[str, Any]]]:
    """Return the pods of manifests, and their places."""
    return [
        (name, each["spec"]["template"])
        for name, each in OBJECTS
        if each["kind"] in {"Deployment", "StatefulSet"}
    ]


def programs() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the commands and variables of all containers."""
    found = {
        f"compose {name}": (service.get("command", []), service.get("environment", {}))
        for name, service in COMPOSE["services"].items()
    }
    for name, pod in pods():
        (container,) = pod["spec"]["containers"]
        variables = {each["name"]: each.get("value", "x" * 8) for each in container.get("env", [])}
        command = [*container.get("command", []), *container.get("args", [])]
        found[f"kubernetes {name}"] = (command, variables)
    return found


PROGRAMS = programs()
KINDS = {
    "gazette": {name for name, (command, _) in PROGRAMS.items() if command[:1] == ["gazette"]},
    "etcd": {name for name, (command, _) in PROGRAMS.items() if command[:1] == ["etcd"]},
    "member": {name for name, (command, _) in PROGRAMS.items() if not command},
}


def test_all_programs_are_known():
    assert [len(kind) for kind in KINDS.values()] == [4, 2, 3]
    assert set().union(*KINDS.values()) == PROGRAMS.keys()


@pytest.mark.parametrize("name", sorted(KINDS["gazette"]))
def test_brokers_have_the_settings_of_gazette(name):
    command, variables = PROGRAMS[name]

    assert command == ["gazette", "serve"]
    assert variables.keys() <= GAZETTE_VARIABLES
    assert 4 <= len(variables["BROKER_ID"]) <= 128


@pytest.mark.parametrize("name", sorted(KINDS["member"]))
def test_members_understand_their_settings(name):
    _, variables = PROGRAMS[name]
    by_variable = {str(each.envvar): each for each in SETTINGS}
    assert variables.keys() <= by_variable.keys()

    keys = {each: "c2VjcmV0" for each in variables if each.endswith("AUTH_KEYS")}
    done = subprocess.run(
        [sys.executable, DEPLOY / "words.py", "print-config"],
        env={"PYTHONPATH": str(ROOT), **variables, **keys},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"(?m)^Prefix = /consumers/words$", done.stdout)


@pytest.mark.parametrize("name", sorted(KINDS["etcd"]))
def test_etcd_has_the_options_of_its_command(name):
    etcd = shutil.which("etcd") or str(Path(sys.executable).parent / "etcd")
    if not Path(etcd).exists():
        pytest.skip("there's no Etcd")
    text = subprocess.run([etcd, "--help"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"^  (--[\w-]+) ", text.stdout + text.stderr, re.MULTILINE))
    command, _ = PROGRAMS[name]

    assert {each.partition("=")[0] for each in command[1:]} <= known


def test_commands_of_the_guide_have_options_of_gazette():
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    used = set(re.findall(r"--((?:broker|etcd)\.[\w-]+)(?=[=`])", page))
    settings = {each for each in used if each != "broker.cache"}

    assert len(settings) > 8
    assert settings - GAZETTE_OPTIONS <= {"broker.address"}, "of members"


def test_services_lead_to_ports_of_their_pods():
    labels = {name: pod["metadata"]["labels"] for name, pod in pods()}
    for name, each in OBJECTS:
        if each["kind"] == "Service":
            assert each["spec"]["selector"] == labels[name], name
        elif each["kind"] == "PodDisruptionBudget" or "template" in each["spec"]:
            assert each["spec"]["selector"] == {"matchLabels": labels[name]}, name
    ports = {name: ports_of(pod) for name, pod in pods()}
    for name, each in OBJECTS:
        if each["kind"] == "Service":
            assert {port["port"] for port in each["spec"]["ports"]} <= set(ports[name].values())


def ports_of(pod: dict[str, Any]) -> dict[str, int]:
    (container,) = pod["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


@pytest.mark.parametrize("name", sorted(name for name, _ in pods()))
def test_pods_agree_with_themselves(name):
    pod = dict(pods())[name]
    (container,) = pod["spec"]["containers"]
    workload = next(each for place, each in OBJECTS if place == name and "template" in each["spec"])
    volumes = {each["name"] for each in pod["spec"].get("volumes", [])}
    volumes |= {
        each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])
    }

    assert container["readinessProbe"]["httpGet"]["port"] in ports_of(pod)
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    variables = PROGRAMS[f"kubernetes {name}"][1]
    for prefix in ("BROKER", "CONSUMER", "DEBUG"):
        if f"{prefix}_PORT" in variables:
            assert int(variables[f"{prefix}_PORT"]) in ports_of(pod).values()


def test_addresses_name_services():
    services = {each["metadata"]["name"] for _, each in OBJECTS if each["kind"] == "Service"}
    hosts = {"compose": set(COMPOSE["services"]), "kubernetes": services}
    for place, (_, variables) in PROGRAMS.items():
        named = hosts[place.split()[0]]
        for variable in ("ETCD_ADDRESS", "BROKER_ADDRESS"):
            for host in re.findall(r"http://([^:,]+):", variables.get(variable, "")):
                assert host.split(".")[-1] in named, (place, variable)


def test_volumes_and_dependencies_of_services_exist():
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", [])) <= COMPOSE["services"].keys()
        assert {each.split(":")[0] for each in service.get("volumes", [])} <= COMPOSE[
            "volumes"
        ].keys()


def test_the_image_installs_extras_that_exist():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    (extras,) = re.findall(r"'gazette-aio\[(.*)\]'", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert all((DEPLOY / each).exists() for each in re.findall(r"^COPY (\S+) ", text, re.MULTILINE))


def test_members_outlive_their_graceful_exit():
    (pod,) = [pod for name, pod in pods() if name == "members"]
    timeout = PROGRAMS["kubernetes members"][1]["CONSUMER_EXIT_TIMEOUT"]

    assert int(timeout.removesuffix("s")) < pod["spec"]["terminationGracePeriodSeconds"]
