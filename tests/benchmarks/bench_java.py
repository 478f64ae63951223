"""The real Java broker as a peer: jars from Maven Central, the start script's JVM options.

The heap is 2 GB instead of the script's 8 GB. The name server runs beside the generator and is
not measured; mailboat's numbers include its own.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import bench_machine as machine
from bench_brokers import Launch, Variant
from bench_machine import CACHE_DIR, BenchError

VERSIONS = ("5.5.0", "4.9.7")
# 4.9.8 was published without a broker; its client is the newest of its line.
_CLIENT_VERSIONS = {"4.9.7": "4.9.8"}

_MAVEN_TIMEOUT_S = 900
_JVM = [
    "-server",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseLargePages",
    # 4.9 unmaps files by reflection; without these Java 17 ends its second start.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
]
_HEAP = ["-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m"]
_HEAP += ["-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30"]
# The least heap with which a release comes up (5.5.0 does not with 64 MB).
_SMALLEST_HEAP_MB = {"4.9.7": 32, "5.5.0": 80}
_UNTRIED_HEAP_MB = 96
# 4.9 does not start without these files; 5.x has its own in the jars and ignores them.
_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/server.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>mailboat.bench</groupId><artifactId>peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
    <version>3.8.1</version>
  </plugin></plugins></build>
</project>
"""
_DEPENDENCY = """<dependency>
  <groupId>org.apache.rocketmq</groupId><artifactId>{name}</artifactId>
  <version>{version}</version>
</dependency>"""


class JavaRocketMQ:
    """A release of RocketMQ, with a running name server."""

    needs_warmup = True
    may_pause = True
    checkpoint_files = ("checkpoint",)

    def __init__(self, version: str, namesrv_port: int) -> None:
        """Use the name server on this port; see `java_rocketmq` for one."""
        self.name = self.name_of(version)
        self.client_name = f"rocketmq-client {_CLIENT_VERSIONS.get(version, version)}"
        self._version = version
        self._namesrv_port = namesrv_port

    @staticmethod
    def name_of(version: str) -> str:
        """Return a release's name in the tables."""
        return f"rocketmq {version}"

    def launch(self, home: Path, port: int, variant: Variant) -> Launch:
        """Write broker.conf and return the JVM's command line."""
        flush = "SYNC_FLUSH" if variant.sync_flush else "ASYNC_FLUSH"
        settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "deleteWhen": "04",
            "fileReservedTime": 48,
            "flushDiskType": flush,
            "autoCreateTopicEnable": "true",
            "enablePropertyFilter": "true",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": f"127.0.0.1:{self._namesrv_port}",
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
        }
        settings |= dict(variant.settings)
        # A slave of 5.5.0 forgets it at its start, and asks the name server as 4.9 does without it.
        settings.pop("haMasterAddress", None)
        heap = _smallest_heap(self._version) if variant.smallest else _HEAP
        return _java(self._version, home, [*_JVM, *heap], "broker.BrokerStartup", settings)

    def namesrv(self, port: int) -> str:
        """Return the name server that runs beside the broker."""
        return f"127.0.0.1:{self._namesrv_port}"

    def client(self, home: Path, work: str, options: Mapping[str, object]) -> Launch:
        """Return the command line of BenchClient.java, which Java compiles at each start."""
        version = _CLIENT_VERSIONS.get(self._version, self._version)
        jars = _jars("client", version, ("rocketmq-client",))
        program = Path(__file__).with_name("BenchClient.java")
        words = [f"{name}={value}" for name, value in options.items()]
        command = ["java", "-server", "-Xms1g", "-Xmx1g", f"-Duser.home={home}"]
        return Launch([*command, "-cp", f"{jars}/*", str(program), work, *words], {})

    def variants(self) -> frozenset[str]:
        """Return that its heap can be made small."""
        return frozenset({"smallest"})


@contextlib.contextmanager
def java_rocketmq(version: str, folder: Path) -> Iterator[JavaRocketMQ]:
    """Resolve the jars, run a name server, and yield the system."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise BenchError(f"{program} was not found; a peer needs Java 11 or newer and Maven")
    port, home = machine.free_port(), folder / "namesrv"
    launch = _java(
        version,
        home,
        ["-Xms64m", "-Xmx64m", "-XX:+UseSerialGC"],
        "namesrv.NamesrvStartup",
        {"listenPort": port},
    )
    command = ["taskset", "-c", str(machine.generator_cpu()), *launch.command]
    with (home / "output.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=home,
            env=os.environ | launch.environment,
            start_new_session=True,
        )
    try:
        _wait_booted(process, home / "output.log")
        yield JavaRocketMQ(version, port)
    finally:
        process.kill()
        process.wait()


def _smallest_heap(version: str) -> list[str]:
    megabytes = _SMALLEST_HEAP_MB.get(version, _UNTRIED_HEAP_MB)
    return [f"-Xms{megabytes}m", f"-Xmx{megabytes}m", "-XX:+UseSerialGC"]


def _wait_booted(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while b"boot success" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the Java name server did not start: {log.read_text()[-600:]}")
        time.sleep(0.1)


def _java(
    version: str, home: Path, jvm: list[str], main: str, settings: dict[str, object]
) -> Launch:
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for role in ("broker", "namesrv"):
        (conf / f"logback_{role}.xml").write_text(_LOGBACK)
    properties = conf / "server.conf"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    jars = _jars("rocketmq", version, ("rocketmq-namesrv", "rocketmq-broker"))
    command = ["java", *jvm, f"-Duser.home={home}", "-cp", f"{jars}/*"]
    command += [f"org.apache.rocketmq.{main}", "-c", str(properties)]
    return Launch(command, {"ROCKETMQ_HOME": str(home)})


def _jars(name: str, version: str, artifacts: tuple[str, ...]) -> Path:
    """Return the folder with some jars of a release, filled by Maven on first use."""
    target = CACHE_DIR / f"{name}-{version}"
    if target.exists():
        return target
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    pom = fresh / "pom.xml"
    dependencies = [_DEPENDENCY.format(name=name, version=version) for name in artifacts]
    pom.write_text(_POM.format(dependencies="".join(dependencies)))
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=_MAVEN_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        raise BenchError(f"Maven could not resolve {version}: {(result.stdout)[-1000:]}")
    fresh.rename(target)
    return target
