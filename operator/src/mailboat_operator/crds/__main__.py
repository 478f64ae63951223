"""Writes the CRDs and their reference into the repository: `python -m mailboat_operator.crds`."""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from mailboat_operator.crds.definitions import DEFINITIONS, custom_resource_definition
from mailboat_operator.crds.reference import reference

TEMPLATES: Final = Path("charts/mailboat-crds/templates")
REFERENCE: Final = Path("docs/crds.md")

_HEADER: Final = (
    "# Made by `make crds` from operator/src/mailboat_operator/crds; not to be edited.\n"
)


class _PlainDumper(yaml.SafeDumper):
    """Writes no anchors: each part of a CRD can be read by itself."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def generated_files() -> dict[Path, str]:
    """Return every generated file: its path in the repository and its text."""
    files = {
        TEMPLATES / f"{definition.plural}.yaml": _HEADER
        + yaml.dump(
            custom_resource_definition(definition), Dumper=_PlainDumper, sort_keys=False, width=100
        )
        for definition in DEFINITIONS
    }
    return {**files, REFERENCE: reference()}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say which are not as they should be; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mailboat_operator.crds", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one differs")
    parser.add_argument(
        "--root", type=Path, default=Path(), help="the repository (default: where you are)"
    )
    options = parser.parse_args(arguments)
    differing = {
        path: text
        for path, text in generated_files().items()
        if not (options.root / path).is_file() or (options.root / path).read_text() != text
    }
    for path, text in differing.items():
        if options.check:
            sys.stderr.write(f"{path} is not what the code says: run `make crds`\n")
        else:
            (options.root / path).parent.mkdir(parents=True, exist_ok=True)
            (options.root / path).write_text(text)
            sys.stderr.write(f"{path} written\n")
    return 1 if options.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
