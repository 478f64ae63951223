"""Which one works, the compiled core or Python: the decision, and where it is said."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mailboat import __version__, core
from mailboat.config import load_settings
from mailboat.errors import ConfigError
from mailboat.web.context import WebContext
from mailboat.web.metrics import MetricsPage

ROOT = Path(__file__).resolve().parents[3]
NOT_INSTALLED = "mailboat-core is not installed"


def module(version: str, *lacking: str) -> ModuleType:
    """Return a core of a version, whose functions do nothing."""
    made = ModuleType("mailboat_core")
    made.__version__ = version
    for name in core.NEEDED:
        if name not in lacking:
            setattr(made, name, None)
    return made


def absent() -> ModuleType:
    """Import a core that is not installed."""
    raise ModuleNotFoundError("No module named 'mailboat_core'", name="mailboat_core")


def broken() -> ModuleType:
    """Import a core that was made for another machine."""
    raise ImportError("_native.abi3.so: wrong ELF class")


def zeros() -> ModuleType:
    """Import a core whose files a power cut left with their size only."""
    raise SyntaxError("source code string cannot contain null bytes")


def leftover() -> ModuleType:
    """Import the folder of a core that was uninstalled, which is a module to Python."""
    return ModuleType("mailboat_core")


@pytest.mark.parametrize("switch", ["", "required"])
def test_a_core_of_our_version_is_used(switch: str) -> None:
    """Installed and equal: nothing else is asked."""
    made = module(__version__)
    found = core.find(switch, lambda: made)
    found.check()
    assert found.module is made
    assert (found.is_used, found.implementation) == (True, "compiled")
    assert str(found) == f"core {__version__}"


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (absent, NOT_INSTALLED),
        (broken, "mailboat-core cannot be loaded: _native.abi3.so: wrong ELF class"),
        (zeros, "mailboat-core cannot be loaded: source code string cannot contain null bytes"),
        (
            leftover,
            "mailboat-core cannot be loaded: module 'mailboat_core' has no attribute '__version__'",
        ),
        (lambda: module("0.0.9"), f"mailboat-core is 0.0.9, mailboat {__version__}"),
        (
            lambda: module(__version__, "choose_places"),
            "mailboat-core is of another time, it has no choose_places",
        ),
    ],
)
def test_without_a_core_that_fits_python_works_and_says_why(load, reason: str) -> None:
    """The same behaviour; with `required` one sentence that says what to do."""
    found = core.find("", load)
    found.check()
    assert (found.is_used, found.implementation) == (False, "python")
    assert str(found) == f"no core: {reason}"
    wanted = core.find("required", load)
    assert wanted.is_used is False
    with pytest.raises(ConfigError) as caught:
        wanted.check()
    assert str(caught.value) == (
        f"MAILBOAT_CORE=required: {reason}; install mailboat-core {__version__} (the folder core/"
        " of mailboat's source) or unset MAILBOAT_CORE"
    )


def test_a_core_that_is_switched_off_is_not_even_loaded() -> None:
    """A core that takes the process down can be kept out of it."""

    def load() -> ModuleType:
        raise AssertionError("loaded")

    found = core.find("off", load)
    found.check()
    assert str(found) == "no core: MAILBOAT_CORE=off"


@pytest.mark.parametrize("switch", ["on", "OFF", "0", "require"])
def test_a_wrong_value_is_refused(switch: str) -> None:
    """Nobody believes to have switched what was only misspelt."""
    found = core.find(switch, lambda: module(__version__))
    assert found.is_used is False
    with pytest.raises(ConfigError) as caught:
        found.check()
    assert str(caught.value) == f"MAILBOAT_CORE={switch}: must be off or required, or not set"
    assert caught.value.exit_code == 3


def run(*words: str, switch: str = "", hidden: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; `hidden` hides an installed core from it."""
    hide = "sys.modules['mailboat_core'] = None;" if hidden else ""
    program = f"import sys; {hide} from mailboat.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env=os.environ | {"MAILBOAT_CORE": switch},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_version_says_why_there_is_no_core() -> None:
    """With no core installed, and with one switched off."""
    assert run("--version", hidden=True).stdout == (
        f"mailboat {__version__} (no core: {NOT_INSTALLED})\n"
    )
    assert run("--version", switch="off").stdout == (
        f"mailboat {__version__} (no core: MAILBOAT_CORE=off)\n"
    )


@pytest.mark.core
def test_the_version_names_the_core() -> None:
    """`required` changes nothing where the core is there."""
    for switch in ("", "required"):
        assert run("--version", switch=switch).stdout == (
            f"mailboat {__version__} (core {__version__})\n"
        )


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        ("maybe", "mailboat: MAILBOAT_CORE=maybe: must be off or required, or not set\n"),
        ("required", f"mailboat: MAILBOAT_CORE=required: {NOT_INSTALLED}; install mailboat-core"),
    ],
)
@pytest.mark.parametrize("words", [["--version"], ["broker", "--print-config"], ["topic", "list"]])
def test_every_command_refuses_in_one_sentence(
    words: list[str], switch: str, sentence: str
) -> None:
    """A wrong value or a core that is missing: exit code 3, and nothing is started."""
    done = run(*words, switch=switch, hidden=True)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("role", ["broker", "namesrv", "standalone"])
def test_the_switch_is_no_setting_of_a_server(role) -> None:
    """Other unknown variables that begin with MAILBOAT_ stop a server."""
    load_settings(role, environ={"MAILBOAT_CORE": "off"})
    with pytest.raises(ConfigError):
        load_settings(role, environ={"MAILBOAT_CORES": "off"})


@pytest.mark.parametrize(
    ("found", "implementation"),
    [
        (core.find("", lambda: module(__version__)), "compiled"),
        (core.find("", absent), "python"),
    ],
)
async def test_metrics_say_which_one_works(
    found: core.Found, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One series, with the word and the version as labels."""
    monkeypatch.setattr(core, "FOUND", found)
    page = await MetricsPage(WebContext(load_settings("namesrv"))).render()
    samples = [
        sample
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == "mailboat_core_info"
    ]
    labels = {"implementation": implementation, "version": __version__}
    assert [(sample.labels, sample.value) for sample in samples] == [(labels, 1)]


def test_all_versions_are_one() -> None:
    """mailboat, the core's crates, its package, and what the extra `fast` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((ROOT / "core" / "Cargo.toml").read_text())["workspace"]
    package = (ROOT / "core/python/mailboat_core/__init__.py").read_text()
    assert project["version"] == __version__
    assert workspace["package"]["version"] == __version__
    assert f'__version__: Final = "{__version__}"\n' in package
    fast = project["optional-dependencies"]["fast"]
    assert fast == [f"mailboat-core=={__version__}", "mailboat[loop]"]
