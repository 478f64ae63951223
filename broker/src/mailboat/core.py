"""The compiled core: whether it works here, and the only door to `mailboat_core`.

It is used where it is installed in mailboat's own version. Without it the Python path does the
same, byte for byte, only slower. The environment has one switch for it:

    MAILBOAT_CORE=off         the Python path, whatever is installed
    MAILBOAT_CORE=required    an error instead of the Python path

Whoever has both ways asks `FOUND.is_used` once and then calls `core.native`.
"""

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mailboat import __version__
from mailboat.errors import ConfigError

if TYPE_CHECKING:
    import mailboat_core

    # To the type checker this is the module, with its stub.
    native = mailboat_core

SWITCH: Final = "MAILBOAT_CORE"
_OFF: Final = "off"
_REQUIRED: Final = "required"
NEEDED: Final = (
    "IndexSlots",
    "SendRounds",
    "check_records",
    "choose_places",
    "decode_records",
    "decode_rows",
    "property_values",
    "scan_records",
    "read_condition",
)
"""What is called of the core."""

_DISTRIBUTION: Final = "mailboat-core"


class Found(NamedTuple):
    """What was found of the core when the process began."""

    module: ModuleType | None
    """What is used; None where the Python path works."""

    reason: str
    """Why it is not used; empty where it is."""

    error: ConfigError | None
    """What the switch asked for in vain."""

    @property
    def is_used(self) -> bool:
        """Whether the compiled core works, and not the Python path."""
        return self.module is not None

    @property
    def implementation(self) -> Literal["compiled", "python"]:
        """The word for it in metrics."""
        return "compiled" if self.is_used else "python"

    def __str__(self) -> str:
        """Say which one works, as `--version` and the log do."""
        return f"core {__version__}" if self.is_used else f"no core: {self.reason}"

    def check(self) -> None:
        """Return if the switch has a value that it knows and what it asks for is there.

        Raises:
            ConfigError: it is not; the text says what to do.
        """
        if self.error is not None:
            raise self.error


def find(switch: str, load: Callable[[], ModuleType]) -> Found:
    """Decide whether the core is used.

    Args:
        switch: the value of MAILBOAT_CORE; empty where it is not set.
        load: imports the core, or raises what an import may; not called where it is switched off.
    """
    if switch == _OFF:
        return Found(None, f"{SWITCH}={_OFF}", None)
    if switch not in ("", _REQUIRED):
        error = ConfigError(SWITCH, switch, f"must be {_OFF} or {_REQUIRED}, or not set")
        return Found(None, str(error), error)
    try:
        module = load()
        version = module.__version__
    except Exception as exc:
        # Not only ImportError: a folder that an uninstallation left behind is a module without
        # anything in it, and a power cut leaves files empty or full of zeros.
        return _missing(switch, _why(exc))
    if version != __version__:
        return _missing(switch, f"{_DISTRIBUTION} is {version}, mailboat {__version__}")
    lacking = [name for name in NEEDED if not hasattr(module, name)]
    if lacking:
        # Two states of a source tree may have one version.
        return _missing(switch, f"{_DISTRIBUTION} is of another time, it has no {lacking[0]}")
    return Found(module, "", None)


def _missing(switch: str, reason: str) -> Found:
    if switch != _REQUIRED:
        return Found(None, reason, None)
    advice = f"install {_DISTRIBUTION} {__version__} (the folder core/ of mailboat's source)"
    return Found(None, reason, ConfigError(SWITCH, switch, f"{reason}; {advice} or unset {SWITCH}"))


def _why(exc: Exception) -> str:
    if isinstance(exc, ModuleNotFoundError) and exc.name == "mailboat_core":
        return f"{_DISTRIBUTION} is not installed"
    return f"{_DISTRIBUTION} cannot be loaded: {exc}"


FOUND: Final = find(os.environ.get(SWITCH, ""), lambda: importlib.import_module("mailboat_core"))
"""Found once: a process never changes from one to the other."""

if not TYPE_CHECKING:
    # None where it is not used.
    native = FOUND.module
