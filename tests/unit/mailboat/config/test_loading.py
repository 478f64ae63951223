"""Where settings come from, and what is said about keys that are wrong or have no effect."""

from pathlib import Path

import pytest

from mailboat.config import OPERATOR_MARK, Role, load_settings, parse_overrides, properties_of
from mailboat.errors import ConfigError

# The file that RocketMQ ships as conf/broker.conf, comments apart.
SHIPPED_BROKER_CONF = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def _write(folder: Path, text: str) -> Path:
    file = folder / "broker.conf"
    file.write_text(text, "utf-8")
    return file


def test_the_shipped_broker_conf_is_taken_without_a_word(tmp_path: Path) -> None:
    """The configuration of a RocketMQ installation starts here as it is."""
    settings = load_settings("broker", file=_write(tmp_path, SHIPPED_BROKER_CONF))
    assert settings.store.file_reserved_time == 48
    assert settings.warnings == ()


def test_later_sources_win(tmp_path: Path) -> None:
    """The order is default, file, environment, command line."""
    file = _write(tmp_path, "listenPort=1\nbrokerName=file\nbrokerClusterName=file\n")
    environ = {"MAILBOAT_BROKER_NAME": "environ", "MAILBOAT_brokerClusterName": "environ"}
    settings = load_settings(
        "broker", file=file, environ=environ, overrides={"brokerClusterName": "line"}
    )
    broker = settings.broker
    assert broker.listen_port == 1
    assert broker.broker_name == "environ"
    assert broker.broker_cluster_name == "line"
    assert broker.default_topic_queue_nums == 8
    assert settings.sources == {
        "listenPort": f"{file}:1",
        "brokerName": "environment MAILBOAT_BROKER_NAME",
        "brokerClusterName": "command line",
    }


def test_the_name_servers_of_rocketmqs_environment_are_the_weakest_source(tmp_path: Path) -> None:
    """NAMESRV_ADDR counts where nothing else names the name servers."""
    environ = {"NAMESRV_ADDR": "a:1"}
    assert load_settings("broker", environ=environ).broker.namesrv_addr == "a:1"
    file = _write(tmp_path, "namesrvAddr=b:2\n")
    assert load_settings("broker", file=file, environ=environ).broker.namesrv_addr == "b:2"


def test_the_clients_variable_names_a_brokers_name_servers_too() -> None:
    """MAILBOAT_NAMESRV is what `-n` of every command reads."""
    environ = {"MAILBOAT_NAMESRV": "a:1", "NAMESRV_ADDR": "b:2"}
    assert load_settings("broker", environ=environ).broker.namesrv_addr == "a:1"


def test_standalone_registers_at_its_own_name_server_only() -> None:
    """Name servers that the shell knows for other tools do not hear of a broker for tests."""
    environ = {"MAILBOAT_NAMESRV": "a:1", "NAMESRV_ADDR": "b:2"}
    assert load_settings("standalone", environ=environ).broker.namesrv_addr == ""
    assert load_settings("namesrv", environ=environ).sources == {}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("FileReservedTime", "fileReservedTime"),
        ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(key: str, nearest: str) -> None:
    """A slip of the pen never passes for a setting."""
    with pytest.raises(ConfigError, match=f"is not a setting of broker; .*{nearest}"):
        load_settings("broker", overrides={key: "1"})


def test_any_unknown_key_gets_a_nearest_one() -> None:
    """Also a key that resembles nothing is answered with one."""
    with pytest.raises(ConfigError, match="the nearest one is"):
        load_settings("namesrv", overrides={"zzz": "1"})


@pytest.mark.parametrize(
    "line",
    [
        "httpTokn=a-secret-of-many",
        'initAuthenticationUsr={"username":"root","password":"a-secret-of-many"}',
        "tls.server.keyPasword: a-secret-of-many",
        "httpToken a-secret-of-many",
        "a-secret-of-many",
        "httpToken=a-secret-of-many!",
    ],
)
def test_a_slip_shows_no_secret(tmp_path: Path, line: str) -> None:
    """What follows a mistyped key may be one: it is in no error, which ends up in logs."""
    with pytest.raises(ConfigError, match="<hidden>") as caught:
        load_settings("broker", file=_write(tmp_path, line))
    assert "a-secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="<hidden>") as caught:
        load_settings("broker", overrides=parse_overrides([line.replace(": ", "=")]))
    assert "a-secret" not in str(caught.value)


def test_an_error_in_a_file_names_its_line(tmp_path: Path) -> None:
    """The line of an unknown key is part of the sentence."""
    file = _write(tmp_path, "listenPort=1\n\nnoSuchKey=2\n")
    with pytest.raises(ConfigError, match=f"{file}:3"):
        load_settings("broker", file=file)


def test_a_key_of_rocketmq_without_effect_is_one_warning(tmp_path: Path) -> None:
    """It is named once with its place, whatever it is set to, and the start goes on."""
    file = _write(tmp_path, "transientStorePoolEnable=true\nhaSlaveFallbehindMax=10912\n")
    assert load_settings("broker", file=file).warnings == (
        f"transientStorePoolEnable ({file}:1) is a RocketMQ setting that has no effect here",
        f"haSlaveFallbehindMax ({file}:2) is a RocketMQ setting that has no effect here",
    )


def test_an_unknown_key_in_the_operators_file_is_a_warning(tmp_path: Path) -> None:
    """It may be one of a newer broker; a bad value of a known key stays an error."""
    file = tmp_path / "broker.conf"
    file.write_text(f"{OPERATOR_MARK}\nkeyOfTomorrow=7\nlistenPort=1\n")
    settings = load_settings("broker", file=file)
    assert settings.broker.listen_port == 1
    (warning,) = settings.warnings
    assert warning.startswith("keyOfTomorrow is not a setting of broker; the nearest one is ")
    assert warning.endswith(f"({file}:2); it is left out")
    file.write_text(f"{OPERATOR_MARK}\nlistenPort=x\n")
    with pytest.raises(ConfigError, match="listenPort"):
        load_settings("broker", file=file)


def test_a_key_that_is_set_twice_is_a_warning_and_the_last_counts(tmp_path: Path) -> None:
    """Java takes the last one silently."""
    file = _write(tmp_path, "listenPort=1\nlistenPort=2\n")
    settings = load_settings("broker", file=file)
    assert settings.broker.listen_port == 2
    assert settings.warnings == (f"listenPort is set twice in {file}; line 2 counts",)


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    """A missing file and one that is not UTF-8 are both refused in one sentence."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings("broker", file=tmp_path / "none.conf")
    (tmp_path / "latin.conf").write_bytes(b"brokerName=caf\xe9\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings("broker", file=tmp_path / "latin.conf")


@pytest.mark.parametrize(
    "name",
    [
        "MAILBOAT_SERVICE_HOST",
        "MAILBOAT_SERVICE_PORT",
        "MAILBOAT_BROKER_SERVICE_PORT_REMOTING",
        "MAILBOAT_PORT_9876_TCP",
        "MAILBOAT_PORT_9876_TCP_ADDR",
        "MAILBOAT_TEST_REQUIRE_INTEROP",
    ],
)
def test_variables_that_kubernetes_and_tests_set_are_left_alone(name: str) -> None:
    """A Service called mailboat adds variables to every pod beside it, which are no settings."""
    assert load_settings("broker", environ={name: "x"}).sources == {}


def test_a_service_link_that_looks_like_a_key_is_no_setting() -> None:
    """A Service mailboat-http sets MAILBOAT_HTTP_PORT=tcp://..., which is not our httpPort."""
    settings = load_settings("broker", environ={"MAILBOAT_HTTP_PORT": "tcp://10.0.0.7:8080"})
    assert settings.broker.http_port == 8080


def test_an_unknown_variable_is_an_error() -> None:
    """A misspelt variable is named, as a misspelt key is."""
    with pytest.raises(ConfigError, match=r"MAILBOAT_FLUSH_DISK_TPE=<hidden>.*flushDiskType"):
        load_settings("broker", environ={"MAILBOAT_FLUSH_DISK_TPE": "x"})


def test_variables_of_another_role_are_ignored() -> None:
    """One environment may serve a broker and a name server."""
    environ = {"MAILBOAT_FLUSH_DISK_TYPE": "SYNC_FLUSH"}
    assert load_settings("namesrv", environ=environ).sources == {}


def test_a_broker_key_in_a_name_servers_file_is_an_error(tmp_path: Path) -> None:
    """The wrong file given with -c is noticed."""
    with pytest.raises(ConfigError, match="is not a setting of namesrv"):
        load_settings("namesrv", file=_write(tmp_path, "flushDiskType=SYNC_FLUSH\n"))


def test_standalone_listens_on_this_machine_only_and_keeps_off_rocketmqs_store() -> None:
    """The embedded default is reachable from nowhere else and never opens ~/store."""
    settings = load_settings("standalone")
    assert settings.broker.bind_address == "127.0.0.1"
    assert settings.namesrv.bind_address == "127.0.0.1"
    assert settings.store.store_path_root_dir == "~/mailboat"
    assert load_settings("broker").broker.bind_address == "0.0.0.0"


def test_overrides_are_split_at_the_first_equals_sign() -> None:
    """A value may hold further ones."""
    assert parse_overrides(["a=1", "b = c=d"]) == {"a": "1", "b": " c=d"}


@pytest.mark.parametrize("text", ["a", "", "=1"])
def test_an_override_without_key_or_value_is_an_error(text: str) -> None:
    """`-o` takes KEY=VALUE."""
    with pytest.raises(ConfigError, match="must be key=value"):
        parse_overrides([text])


@pytest.mark.parametrize("role", ["broker", "namesrv", "standalone"])
def test_the_token_of_http_comes_from_its_own_variable(role: Role) -> None:
    """It is never shown, and locks HTTP by itself."""
    settings = load_settings(role, environ={"MAILBOAT_TOKEN": "a-token-of-at-least-16"})
    assert settings.security.http_token == "a-token-of-at-least-16"
    assert settings.security.is_http_locked
    assert "a-token" not in repr(settings)
    assert properties_of(settings)["httpToken"] == "<hidden>"
    assert not load_settings(role).security.is_http_locked


@pytest.mark.parametrize("text", ["", " ", "short", "x" * 1025, "with a space in it", "=" * 16])
def test_a_variable_that_holds_no_token_stops_the_start(text: str) -> None:
    """An empty one would leave HTTP open; what a wrong one holds is not told."""
    with pytest.raises(ConfigError) as raised:
        load_settings("broker", environ={"MAILBOAT_TOKEN": text})
    assert not text.strip() or text not in str(raised.value)


@pytest.mark.parametrize(
    "overrides", [{"authenticationEnabled": "true"}, {"aclEnable": "true"}, {"httpTokenFile": "x"}]
)
def test_what_locks_http(overrides: dict[str, str]) -> None:
    """Each of them alone does."""
    assert load_settings("broker", overrides=overrides).security.is_http_locked
