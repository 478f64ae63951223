"""What an administrator does to a small cluster with mqadmin, command by command.

The steps build on one another and leave nothing to chance, so that two servers print the same but
for times, addresses, identifiers and versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mqadmin_tools import MqAdmin, Printed

CLUSTER = "DefaultCluster"
BROKER = "broker-a"
TOPIC = "MqTopic"
GROUP = "CG"
PRODUCER = "PG"
BODY = "hello"
# The producer, and the inner ones of its client and of the consumer's.
_PRODUCER_COUNT = 3


@dataclass(frozen=True)
class Site:
    """Where the commands go."""

    broker: str
    files: Path
    """A folder for the files that commands read and write."""


class Session:
    """One run of all steps against one site."""

    def __init__(self, admin: MqAdmin, site: Site, *, is_version_5: bool) -> None:
        """Run the steps of `admin`'s release line."""
        self._admin = admin
        self._site = site
        self._is_version_5 = is_version_5
        self._unique_id = ""
        self.printed: dict[str, Printed] = {}
        """What each step printed, by the step's name."""

    def run(self) -> None:
        """Run all steps in their order."""
        self._topics()
        self._messages()
        self._groups()
        self._clients()
        self._offsets()
        self._queries()
        self._cluster()
        self._settings()
        self._key_values()
        self._exports()
        self._maintenance()
        if self._is_version_5:
            self._version_5()
        self._refused()
        self._removals()
        self._endless()

    def _step(self, name: str, *args: object, until: str = "", timeout_s: float = 40.0) -> Printed:
        command = name.partition(" ")[0]
        printed = self._admin.run(command, *args, until=until, timeout_s=timeout_s)
        self.printed[name] = printed
        return printed

    def _until(
        self, name: str, *args: object, accept: Callable[[Printed], bool], tries: int = 80
    ) -> Printed:
        """Repeat a step until what it prints is accepted: some things take a client a moment."""
        for _ in range(tries):
            printed = self._step(name, *args)
            if accept(printed):
                break
            self._admin.run("@wait", 250)
        return printed

    def _topics(self) -> None:
        # On a busy machine the first command of a JVM may be too slow for its own timeouts.
        self._until(
            "updateTopic",
            *("-c", CLUSTER, "-t", TOPIC, "-r", 4, "-w", 4),
            accept=lambda it: not it.failed,
        )
        self._step(
            "updateTopic order", "-c", CLUSTER, "-t", "Ordered", "-r", 2, "-w", 2, "-o", "true"
        )
        self._step(
            "updateTopic system", "-c", CLUSTER, "-t", "SCHEDULE_TOPIC_XXXX", "-r", 2, "-w", 2
        )
        self._step("updateTopic broker", "-b", self._site.broker, "-t", "Other", "-r", 1, "-w", 1)
        self._step("updateTopicPerm", "-b", self._site.broker, "-t", "Other", "-p", 4)
        self._step("topicRoute", "-t", "Other")
        self._step("topicRoute unknown", "-t", "NoSuchTopic")
        self._step("topicClusterList", "-t", TOPIC)
        self._step("topicList")
        self._step("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2")

    def _messages(self) -> None:
        for i in range(3):
            printed = self._step(
                "sendMessage", "-t", TOPIC, "-p", f"{BODY}{i}", "-k", f"key{i}", "-c", "red",
                "-b", BROKER, "-i", 0,
            )  # fmt: skip
            found = re.search(r"\b[0-9A-F]{32,}\b", printed.text)
            if found is not None and not self._unique_id:
                self._unique_id = found[0]
        # A Java broker's queues follow its log.
        self._until(
            "topicStatus",
            *("-t", TOPIC),
            accept=lambda it: bool(re.search(rf"^{BROKER}\s+0\s+0\s+3\s", it.text, re.MULTILINE)),
        )
        self._step("topicStatus unknown", "-t", "NoSuchTopic")

    def _groups(self) -> None:
        self._step("updateSubGroup", "-c", CLUSTER, "-g", "Made", "-r", 5, "-q", 2)
        self._step("getConsumerConfig", "-g", "Made")
        if self._is_version_5:
            # Version 4 brokers take any name, which would show up in what is listed later.
            self._step("updateSubGroup bad", "-c", CLUSTER, "-g", "a.b")

    def _clients(self) -> None:
        self._admin.run("@producer", PRODUCER, TOPIC, BROKER)
        self._admin.run("@push", GROUP, TOPIC)
        self._until("consumerConnection", "-g", GROUP, accept=lambda it: not it.failed)
        self._step("consumerConnection offline", "-g", "NoSuchGroup")
        self._until(
            "producerConnection", "-g", PRODUCER, "-t", TOPIC, accept=lambda it: not it.failed
        )
        self._step("producerConnection offline", "-g", "NoSuchGroup", "-t", TOPIC)
        # A Java broker forgets the client of the command before a moment after it has left.
        self._until(
            "producer",
            *("-b", self._site.broker),
            accept=lambda it: it.text.count("clientId=") == _PRODUCER_COUNT,
        )
        self._until(
            "consumerProgress group",
            "-g",
            GROUP,
            accept=lambda it: TOPIC in it.text and "Diff Total: 0" in it.text,
        )
        self._step("consumerProgress client", "-g", GROUP, "-s", "true")
        self._step("consumerProgress")
        self._step("consumerProgress offline", "-g", "NoSuchGroup")
        self._step("consumerStatus", "-g", GROUP)
        self._step("topicList cluster", "-c")

    def _offsets(self) -> None:
        # A Java broker refuses to reset a group that has not committed every queue yet; its
        # consumption statistics show such an empty queue like a committed one.
        self._until(
            "skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC, accept=lambda it: not it.failed
        )
        self._step("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "now")
        self._step("cloneGroupOffset", "-s", GROUP, "-d", "Made", "-t", TOPIC)
        self._step("cloneGroupOffset unknown", "-s", GROUP, "-d", "NoSuchGroup", "-t", TOPIC)
        self._step("statsAll", "-t", TOPIC)
        self._step("brokerConsumeStats", "-b", self._site.broker)

    def _queries(self) -> None:
        self._step("queryMsgByKey", "-t", TOPIC, "-k", "key1")
        self._step("queryMsgByKey unknown", "-t", TOPIC, "-k", "nokey")
        self._step("queryMsgByUniqueKey", "-t", TOPIC, "-i", self._unique_id)
        found = self._step("queryMsgByOffset", "-t", TOPIC, "-b", BROKER, "-i", 0, "-o", 1)
        offset_id = re.search(r"OffsetID:\s+(\w+)", found.text)
        topic = ("-t", TOPIC) if self._is_version_5 else ()
        self._step("queryMsgById", *topic, "-i", offset_id[1] if offset_id else "missing")
        self._step("queryMsgTraceById", "-i", self._unique_id)
        self._step("printMsg", "-t", TOPIC, "-d", "true")
        self._step(
            "printMsgByQueue", "-t", TOPIC, "-a", BROKER, "-i", 0, "-p", "true", "-d", "true"
        )
        self._step("queryCq", "-t", TOPIC, "-q", 0, "-i", 0, "-c", 2)
        self._step("queryCq group", "-t", TOPIC, "-q", 0, "-i", 1, "-c", 1, "-g", GROUP)
        self._step("queryCq unknown", "-t", TOPIC, "-q", 99, "-i", 0, "-b", self._site.broker)
        self._step("consumeMessage", "-t", TOPIC, "-b", BROKER, "-i", 0, "-o", 0, "-c", 2)
        self._step("sendMsgStatus", "-b", BROKER, "-c", 2)
        self._step("checkMsgSendRT", "-t", TOPIC, "-a", 2)

    def _cluster(self) -> None:
        self._step("clusterList")
        self._step("clusterList more", "-m")
        self._step("brokerStatus", "-b", self._site.broker)

    def _settings(self) -> None:
        broker = self._site.broker
        self._step("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", 48)
        self._step("updateBrokerConfig cluster", "-c", CLUSTER, "-k", "fileReservedTime", "-v", 49)
        self._step("getBrokerConfig", "-b", broker)
        self._step("updateBrokerConfig refused", "-b", broker, "-k", "brokerConfigPath", "-v", "/x")
        self._step("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        self._step("getNamesrvConfig")
        self._step("updateNamesrvConfig refused", "-k", "configStorePath", "-v", "/x")

    def _key_values(self) -> None:
        self._step("updateKvConfig", "-s", "space", "-k", "k", "-v", "v")
        self._step("deleteKvConfig", "-s", "space", "-k", "k")
        self._step("updateOrderConf put", "-m", "put", "-t", TOPIC, "-v", f"{BROKER}:4")
        self._step("updateOrderConf get", "-m", "get", "-t", TOPIC)
        self._step("updateOrderConf delete", "-m", "delete", "-t", TOPIC)
        self._step("updateOrderConf unknown", "-m", "get", "-t", "NoSuchTopic")
        self._step("wipeWritePerm", "-b", BROKER)
        self._step("topicRoute wiped", "-t", TOPIC)
        self._step("addWritePerm", "-b", BROKER)
        self._step("topicRoute added", "-t", TOPIC)

    def _exports(self) -> None:
        folder = self._site.files / "export"
        folder.mkdir(parents=True, exist_ok=True)
        for command in ("exportMetadata", "exportConfigs", "exportMetrics"):
            printed = self._step(command, "-c", CLUSTER, "-f", folder)
            file = folder / f"{command.removeprefix('export').lower()}.json"
            exported = file.read_text() if file.exists() else ""
            self.printed[command] = Printed(f"{printed.text}\n{exported}", printed.ended)

    def _maintenance(self) -> None:
        broker = self._site.broker
        self._step("cleanExpiredCQ", "-b", broker)
        self._step("cleanExpiredCQ cluster", "-c", CLUSTER)
        self._step("cleanUnusedTopic", "-b", broker)
        self._step("deleteExpiredCommitLog", "-b", broker)

    def _version_5(self) -> None:
        broker, files = self._site.broker, self._site.files
        topics = files / "topics.json"
        topics.write_text(
            json.dumps(
                [
                    {"topicName": f"Listed{i}", "readQueueNums": 1, "writeQueueNums": 1}
                    for i in (1, 2)
                ]
            )
        )
        self._step("updateTopicList", "-b", broker, "-f", topics)
        groups = files / "groups.json"
        groups.write_text(json.dumps([{"groupName": f"Listed{i}"} for i in (1, 2)]))
        self._step("updateSubGroupList", "-b", broker, "-f", groups)
        self._step("topicRoute listed", "-t", "Listed2")
        self._step("getConsumerConfig listed", "-g", "Listed2")
        self._step("setConsumeMode", "-b", broker, "-t", TOPIC, "-g", GROUP, "-m", "PULL")
        self._step("setConsumeMode pop", "-b", broker, "-t", TOPIC, "-g", GROUP, "-m", "POP")
        self._step("haStatus", "-b", broker)
        self._step("exportPopRecord", "-b", broker)
        self._step("checkRocksdbCqWriteProgress", "-c", CLUSTER, "-t", TOPIC)
        self._step("updateColdDataFlowCtrGroupConfig", "-b", broker, "-g", GROUP, "-v", 4000)
        self._step("getColdDataFlowCtrInfo", "-b", broker)
        self._step("removeColdDataFlowCtrGroupConfig", "-b", broker, "-g", GROUP)
        self._step("resetMasterFlushOffset", "-b", broker, "-o", 1)
        self._step("updateStaticTopic", "-b", BROKER, "-t", "Static", "-qn", 2)
        self._step("remappingStaticTopic", "-b", BROKER, "-t", "Static")

    def _refused(self) -> None:
        broker = self._site.broker
        if not self._is_version_5:
            self._step("updateAclConfig", "-b", broker, "-a", "RocketMQ", "-s", "1234567809123")
            self._step("deleteAclConfig", "-b", broker, "-a", "RocketMQ")
            self._step("clusterAclConfigVersion", "-b", broker)
            self._step("updateGlobalWhiteAddr", "-b", broker, "-g", "10.10.154.1")
            self._step("getAclConfig", "-b", broker)
            return
        self._step("setCommitLogReadAheadMode", "-b", broker, "-m", 1)
        self._step("getBrokerEpoch", "-b", BROKER)
        self._step("listUser", "-b", broker)
        self._step("createUser", "-b", broker, "-u", "u", "-p", "p")
        self._step("listAcl", "-b", broker)

    def _removals(self) -> None:
        self._step("deleteTopic", "-c", CLUSTER, "-t", "Other")
        self._step("topicRoute deleted", "-t", "Other")
        self._step("deleteTopic unknown", "-c", CLUSTER, "-t", "NoSuchTopic")
        self._step("deleteSubGroup", "-c", CLUSTER, "-g", "Made", "-r", "true")
        self._step("getConsumerConfig deleted", "-g", "Made")

    def _endless(self) -> None:
        self._step("clusterRT", "-a", 2, "-i", 1, until=CLUSTER, timeout_s=15)
        self._step("startMonitoring", timeout_s=15)
