"""The real mqadmin of both release lines: it prints about mailboat what it prints about RocketMQ.

The same steps (`mqadmin_scenario.py`) run against mailboat and against the Java servers of the
line, and the outputs are compared but for times, addresses, identifiers, versions and rates
(`mqadmin_masking.py`). Where they differ on purpose, a test of its own says how.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_process import MailboatStandalone
from interop_servers import start_java_broker, start_java_namesrv
from machine_halts import MachineHalts
from mqadmin_masking import masked
from mqadmin_scenario import BODY, BROKER, CLUSTER, GROUP, TOPIC, Session, Site
from mqadmin_tools import MqAdmin, Printed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

NEW, OLD = "5.5.0", "4.9.8"
# The servers of 4.9.8 were not published as jars.
SERVER_OF = {NEW: "5.5.0", OLD: "4.9.7"}

# Steps that print the same against mailboat and against the Java servers, with both tools.
SAME = """
updateTopic updateTopic_order updateTopic_broker updateTopicPerm topicRoute topicRoute_unknown
topicClusterList allocateMQ sendMessage topicStatus topicStatus_unknown updateSubGroup
getConsumerConfig consumerConnection consumerConnection_offline
producerConnection producerConnection_offline producer consumerProgress_group
consumerProgress_client consumerProgress consumerProgress_offline consumerStatus
skipAccumulatedMessage resetOffsetByTime cloneGroupOffset brokerConsumeStats queryMsgByKey
queryMsgByKey_unknown queryMsgByUniqueKey queryMsgByOffset queryMsgById queryMsgTraceById printMsg
printMsgByQueue queryCq queryCq_group queryCq_unknown consumeMessage sendMsgStatus
updateBrokerConfig updateBrokerConfig_cluster updateNamesrvConfig updateNamesrvConfig_refused
updateKvConfig deleteKvConfig updateOrderConf_put updateOrderConf_get updateOrderConf_delete
updateOrderConf_unknown wipeWritePerm topicRoute_wiped addWritePerm topicRoute_added exportMetadata
exportConfigs exportMetrics cleanExpiredCQ cleanExpiredCQ_cluster cleanUnusedTopic
deleteExpiredCommitLog deleteTopic topicRoute_deleted deleteTopic_unknown deleteSubGroup
getConsumerConfig_deleted clusterList clusterList_more statsAll checkMsgSendRT clusterRT
startMonitoring topicList topicList_cluster
"""
SAME_IN_NEW = """
updateSubGroup_bad updateTopic_system cloneGroupOffset_unknown updateBrokerConfig_refused
updateTopicList updateSubGroupList topicRoute_listed getConsumerConfig_listed setConsumeMode
haStatus exportPopRecord checkRocksdbCqWriteProgress updateColdDataFlowCtrGroupConfig
getColdDataFlowCtrInfo removeColdDataFlowCtrGroupConfig resetMasterFlushOffset getBrokerEpoch
listUser createUser listAcl
"""
SAME_IN_OLD = "updateAclConfig deleteAclConfig updateGlobalWhiteAddr getAclConfig"

# Of the same steps, those that fail or end in an error after what they were asked for.
FAILING = """
topicRoute_unknown topicStatus_unknown consumerConnection_offline producerConnection_offline
consumerProgress_offline queryMsgByKey_unknown queryMsgByUniqueKey queryMsgByOffset queryMsgById
queryMsgTraceById queryCq_unknown updateNamesrvConfig_refused updateOrderConf_unknown
topicRoute_deleted updateTopic_system cloneGroupOffset_unknown updateBrokerConfig_refused
getBrokerEpoch listUser createUser listAcl updateAclConfig deleteAclConfig updateGlobalWhiteAddr
getAclConfig updateSubGroup_bad
""".split()

# The commands that work against a plain Java broker 5.
CHECKLIST = """
updateTopic updateTopicList deleteTopic updateTopicPerm topicList topicRoute topicStatus
topicClusterList allocateMQ updateSubGroup updateSubGroupList deleteSubGroup getConsumerConfig
setConsumeMode updateBrokerConfig getBrokerConfig getNamesrvConfig updateNamesrvConfig brokerStatus
clusterList haStatus statsAll brokerConsumeStats sendMessage consumeMessage sendMsgStatus
checkMsgSendRT clusterRT queryMsgById queryMsgByOffset queryMsgByKey queryMsgByUniqueKey printMsg
printMsgByQueue queryCq producer producerConnection consumerConnection consumerStatus
consumerProgress resetOffsetByTime skipAccumulatedMessage updateKvConfig deleteKvConfig
wipeWritePerm addWritePerm updateOrderConf cleanExpiredCQ deleteExpiredCommitLog cleanUnusedTopic
updateStaticTopic remappingStaticTopic exportMetadata exportConfigs exportMetrics exportPopRecord
checkRocksdbCqWriteProgress getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig
removeColdDataFlowCtrGroupConfig resetMasterFlushOffset startMonitoring
""".split()


def _steps(*tables: str) -> list[str]:
    return [name.replace("_", " ") for table in tables for name in table.split()]


@dataclass(frozen=True)
class Outputs:
    """What one line's mqadmin printed about each server, by the step's name."""

    mailboat: dict[str, Printed]
    java: dict[str, Printed]


def _run_mailboat(line: str, folder: Path) -> dict[str, Printed]:
    process = MailboatStandalone(folder / "data", folder / "mailboat.out", {})
    with ExitStack() as stack:
        stack.callback(process.close)
        ready = process.start()
        return _run_session(line, folder, ready.namesrv, ready.broker)


def _run_java(line: str, folder: Path) -> dict[str, Printed]:
    with ExitStack() as stack:
        namesrv = start_java_namesrv(SERVER_OF[line], folder / "namesrv")
        stack.callback(namesrv.kill)
        broker = start_java_broker(
            SERVER_OF[line], folder / "broker", folder / "store", namesrv.address, name=BROKER
        )
        stack.callback(broker.kill)
        return _run_session(line, folder, namesrv.address, broker.address)


def _run_session(line: str, folder: Path, namesrv: str, broker: str) -> dict[str, Printed]:
    files = folder / "files"
    files.mkdir()
    admin = MqAdmin(line, namesrv, folder / "mqadmin")
    try:
        session = Session(admin, Site(broker, files), is_version_5=line == NEW)
        session.run()
    finally:
        admin.close()
    return session.printed


@pytest.fixture(scope="session")
def run_line(
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
    machine_halts: MachineHalts,
) -> Callable[[str], Outputs]:
    """Return what a line's mqadmin printed; the steps run once, against both servers at a time."""
    done: dict[str, Outputs] = {}

    def take(line: str) -> Outputs:
        folder = tmp_path_factory.mktemp(f"mqadmin-{line}")
        (folder / "ours").mkdir()
        (folder / "java").mkdir()
        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(_run_mailboat, line, folder / "ours")
            java = pool.submit(_run_java, line, folder / "java")
            return Outputs(ours.result(), java.result())

    def outputs(line: str) -> Outputs:
        if line not in done:
            java_classpath("client", line)
            java_classpath("server", SERVER_OF[line])
            done[line] = machine_halts.undisturbed(lambda: take(line))
        return done[line]

    return outputs


@pytest.fixture
def new(run_line: Callable[[str], Outputs]) -> Outputs:
    """What mqadmin 5.5.0 printed."""
    return run_line(NEW)


@pytest.fixture
def old(run_line: Callable[[str], Outputs]) -> Outputs:
    """What mqadmin 4.9.8 printed."""
    return run_line(OLD)


@pytest.fixture(params=[NEW, OLD])
def each(request: pytest.FixtureRequest, run_line: Callable[[str], Outputs]) -> Outputs:
    """What mqadmin of either line printed."""
    return run_line(request.param)


def _user_topics(lines: list[str]) -> list[str]:
    """Leave out the broker's own topics, of which each version has others."""
    return sorted(line for line in lines if not re.search(r"(?i)\brmq_sys_", line))


def _columns(count: int) -> Callable[[list[str]], list[str]]:
    """Keep the first words of each line, behind which there are rates."""
    return lambda lines: sorted(
        " ".join(line.split()[:count]) for line in lines if "NoSuchGroup" not in line
    )


def _without_retry(lines: list[str]) -> list[str]:
    """Leave out a group's retry topic, which comes with a commit that may be late."""
    return [line for line in lines if "%RETRY%" not in line]


def _without_tps(lines: list[str]) -> list[str]:
    return [" ".join(line.split()[:5] + line.split()[6:]) for line in lines]


def _without_numbers(lines: list[str]) -> list[str]:
    return sorted(re.sub(r"[0-9][0-9.E-]*", "N", line) for line in lines)


def _named_clients(lines: list[str]) -> list[str]:
    """Leave out the tools' own clients: one that has ended may be connected for a moment yet."""
    return sorted(line for line in lines if "clientId=ADDRESS" not in line)


def _without_filter_servers(lines: list[str]) -> list[str]:
    """Leave out a key that version 4 tools need and version 5 brokers have no more."""
    return sorted(line.rstrip(",") for line in lines if "filterServerNums" not in line)


# What else of a step's lines is left out before they are compared.
LEFT_OUT: dict[str, Callable[[list[str]], list[str]]] = {
    "topicList": _user_topics,
    "topicList cluster": _user_topics,
    "statsAll": _columns(2),
    "checkMsgSendRT": _columns(3),
    "clusterRT": _columns(2),
    "clusterList": _columns(5),
    "clusterList more": _columns(2),
    "consumerProgress": _without_tps,
    "consumerProgress group": _without_retry,
    "consumerProgress client": _without_retry,
    "brokerConsumeStats": _without_retry,
    "exportMetrics": _without_numbers,
    "producer": _named_clients,
    "exportMetadata": sorted,
    "exportConfigs": _without_filter_servers,
}


def _assert_same(outputs: Outputs, step: str) -> None:
    ours, java = outputs.mailboat[step], outputs.java[step]
    leave_out = LEFT_OUT.get(step, list)
    assert leave_out(masked(ours.text)) == leave_out(masked(java.text))
    assert ours.ended == java.ended
    assert ours.failed == (step.replace(" ", "_") in FAILING)


@pytest.mark.parametrize("step", _steps(SAME, SAME_IN_NEW))
def test_mqadmin_5_prints_the_same(new: Outputs, step: str) -> None:
    """A command of mqadmin 5.5.0 prints what it prints about a Java broker 5.5.0."""
    _assert_same(new, step)


@pytest.mark.parametrize("step", _steps(SAME, SAME_IN_OLD))
def test_mqadmin_4_prints_the_same(old: Outputs, step: str) -> None:
    """A command of mqadmin 4.9.8 prints what it prints about a Java broker 4.9.7."""
    _assert_same(old, step)


def test_every_command_that_works_is_tried(new: Outputs) -> None:
    """The steps leave out no command of the checklist."""
    assert set(CHECKLIST) <= {step.partition(" ")[0] for step in new.mailboat}


def test_sent_messages_are_printed(each: Outputs) -> None:
    """printMsg and consumeMessage show the bodies that sendMessage sent."""
    for step in ("printMsg", "consumeMessage"):
        assert f"BODY: {BODY}0" in each.mailboat[step].text
        assert f"BODY: {BODY}1" in each.mailboat[step].text


def test_own_topics_are_listed(each: Outputs) -> None:
    """Those that clients and tools look for are there; the numbers of topics may differ."""
    listed = set(each.mailboat["topicList"].lines)
    assert {"TBW102", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", CLUSTER, BROKER} <= listed


def test_broker_status_has_every_key(each: Outputs) -> None:
    """No line of RocketMQ's brokerStatus is missing but the one that has a path in its name."""
    keys = [
        {line.partition(":")[0].strip() for line in printed["brokerStatus"].lines}
        for printed in (each.mailboat, each.java)
    ]
    missing = keys[1] - keys[0]
    assert {key for key in missing if not key.startswith("commitLogDiskRatio_")} == set()


def test_numbers_of_the_cluster_are_right(each: Outputs) -> None:
    """clusterList prints the rates of the messages sent just now."""
    (row,) = each.mailboat["clusterList"].rows("#Cluster")
    assert row[:3] == [CLUSTER, BROKER, "0"]
    in_tps, out_tps = (float(text.partition("(")[0]) for text in row[5:7])
    assert in_tps > 0
    assert out_tps > 0


def test_sums_of_messages_are_up_to_date(each: Outputs) -> None:
    """statsAll counts what was sent at once; RocketMQ shows it after ten seconds or minutes."""
    rows = {row[1]: row for row in each.mailboat["statsAll"].rows("#Topic")}
    assert rows[GROUP][0] == TOPIC
    # Three by sendMessage and one by the producer; none is unread.
    assert rows[GROUP][2] == "0"
    assert rows[GROUP][5:] == ["4", "4"]


def test_changed_settings_are_shown(each: Outputs) -> None:
    """getBrokerConfig prints what updateBrokerConfig changed, and no secret of the machine."""
    text = each.mailboat["getBrokerConfig"].text
    assert re.search(r"fileReservedTime +=  49", text)
    assert re.search(r"brokerName +=  broker-a", text)
    text = each.mailboat["getNamesrvConfig"].text
    assert re.search(r"orderMessageEnable +=  true", text)


def test_unsafe_settings_are_refused(each: Outputs) -> None:
    """Code 16; RocketMQ 4.9.7 takes brokerConfigPath, 5.5.0 refuses it too."""
    assert each.mailboat["updateBrokerConfig refused"].code == 16
    assert each.mailboat["updateNamesrvConfig refused"].code == 16


def test_system_topics_cannot_be_changed(each: Outputs) -> None:
    """Code 29 as 5.5.0; 4.9.7 answers 1."""
    assert each.mailboat["updateTopic system"].code == 29


def test_offsets_are_not_cloned_to_an_unknown_group(each: Outputs) -> None:
    """Code 26 as 5.5.0; 4.9.7 takes any name."""
    assert each.mailboat["cloneGroupOffset unknown"].code == 26


def test_the_version_of_access_rules_is_refused_at_once(old: Outputs) -> None:
    """A 4.9.7 broker without access control leaves the tool without an answer."""
    assert old.mailboat["clusterAclConfigVersion"].code == 1


def test_pop_is_refused(new: Outputs) -> None:
    """RocketMQ lets a group pop; here it is told that it cannot."""
    assert new.mailboat["setConsumeMode pop"].code == 29
    assert "consumption by POP is not supported" in new.mailboat["setConsumeMode pop"].text


def test_static_topics_are_refused(new: Outputs) -> None:
    """updateStaticTopic says why; remappingStaticTopic finds no such topic."""
    printed = new.mailboat["updateStaticTopic"]
    assert printed.code == 1
    assert "static topics are not supported" in printed.text
    assert "No topic route to do the remapping" in new.mailboat["remappingStaticTopic"].text


def test_read_ahead_cannot_be_set(new: Outputs) -> None:
    """The kernel's business here."""
    printed = new.mailboat["setCommitLogReadAheadMode"]
    assert printed.code == 1
    assert "leaves read-ahead to the kernel" in printed.text
