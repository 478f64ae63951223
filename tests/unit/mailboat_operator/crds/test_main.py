"""The generated files: what is in the repository is what the code says."""

import json

import jsonschema
import pytest
import yaml

from mailboat_operator.crds.__main__ import generated_files, main
from mailboat_operator.crds.broker import parse_broker
from mailboat_operator.crds.common import API_VERSION
from mailboat_operator.crds.definitions import custom_resource_definitions
from mailboat_operator.crds.name_server import parse_name_server
from mailboat_operator.crds.reference import EXAMPLES
from mailboat_operator.crds.topic import parse_topic
from mailboat_operator.crds.user import parse_user

PARSERS = {
    "Broker": parse_broker,
    "NameServer": parse_name_server,
    "Topic": parse_topic,
    "User": parse_user,
}
MAX_CRD_BYTES = 100 * 1024  # Two fifths of what the annotation of `kubectl apply` holds.


def test_files_are_what_the_code_says(repository):
    """Code, chart and reference agree; `make crds` mends it."""
    assert main(["--check", "--root", str(repository)]) == 0


def test_chart_holds_nothing_else(repository):
    """A definition that the code no longer has does not stay in the chart."""
    generated = {repository / path for path in generated_files()}
    templates = set((repository / "charts/mailboat-crds/templates").iterdir())
    assert templates <= generated


def test_check_tells_what_differs(tmp_path, capsys):
    """A missing or changed file fails the check by name, and is mended by a run without it."""
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
    changed = tmp_path / "charts/mailboat-crds/templates/brokers.yaml"
    changed.write_text(changed.read_text().replace("maximum: 64", "maximum: 65"))
    capsys.readouterr()
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "brokers.yaml is not what the code says: run `make crds`" in capsys.readouterr().err
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0


def test_definitions_are_plain_yaml_for_helm_and_kubectl():
    """Each file is one document that Helm has nothing to fill in, and small enough to apply."""
    texts = {path: text for path, text in generated_files().items() if path.suffix == ".yaml"}
    assert [yaml.safe_load(text) for text in texts.values()] == custom_resource_definitions()
    for path, text in texts.items():
        assert "{{" not in text, path
        assert len(text.encode()) < MAX_CRD_BYTES, path
        assert "\n---" not in text, path


def test_chart_takes_no_values(repository):
    """A value that does nothing is refused, not ignored."""
    chart = repository / "charts/mailboat-crds"
    schema = json.loads((chart / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((chart / "values.yaml").read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"install": True}, schema)


def test_examples_are_valid(repository, api_server):
    """Every object in the reference and in examples/ is one that is taken."""
    manifests = list(EXAMPLES.values())
    for path in sorted((repository / "examples").rglob("*.yaml")):
        manifests += [item for item in yaml.safe_load_all(path.read_text()) if item]
    ours = [item for item in manifests if item.get("apiVersion") == API_VERSION]
    assert {item["kind"] for item in ours} == PARSERS.keys()
    for manifest in ours:
        assert api_server.refusals(manifest) == {}
        PARSERS[manifest["kind"]](manifest)


def test_reference_names_every_field_and_rule(repository):
    """The reference has a row for each field, its default, and each rule's sentence."""
    text = (repository / "docs/crds.md").read_text()
    assert "| `spec.storage.segmentSize` | size | `1Gi` |" in text
    assert "| `spec.storage.size` | size | *required* |" in text
    assert "| `spec.groups` | integer, 1 to 64 | `1` |" in text
    assert "| `status.conditions[].type` | string | *required* |" in text
    assert "- `spec.storage`: storage.size can only grow" in text
