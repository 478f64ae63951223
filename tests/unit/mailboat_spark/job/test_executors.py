import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from mailboat_spark.job.executors import KubernetesApiError, PodClient, executor_settings
from mailboat_spark.job.options import KubernetesOptions
from mailboat_spark.rbac import DRIVER_RULES, role_rules


class _Api(BaseHTTPRequestHandler):
    """Two leftover pods that go when they are deleted."""

    def do_GET(self):
        self._answer("GET")

    def do_DELETE(self):
        self._answer("DELETE")
        self.server.pods.clear()

    def _answer(self, method):
        self.server.seen.append((method, self.path, self.headers["Authorization"]))
        body = json.dumps({"items": [{"metadata": {"name": n}} for n in self.server.pods]})
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def api():
    """An API server for two calls."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    server.pods, server.seen, server.status = ["job-exec-1", "job-exec-2"], [], 200
    server.location = ""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_leftover_executors_are_deleted_by_label(api, tmp_path):
    """Only executors of other runs are named, with the pod's token; their end is awaited."""
    (tmp_path / "token").write_text("secret\n")
    client = PodClient(f"k8s://http://127.0.0.1:{api.server_port}", "data", tmp_path)
    assert client.delete_executors("my-job", "", but_of="spark-now") == 2
    path = "/api/v1/namespaces/data/pods?labelSelector=mailboat.dev%2Fspark-job%3Dmy-job"
    methods = [method for method, _, _ in api.seen]
    assert methods == ["GET", "DELETE", "GET"]
    labels = f"{path}%2Cspark-role%3Dexecutor%2Cspark-app-selector%21%3Dspark-now"
    assert all(seen.startswith(labels) for _, seen, _ in api.seen)
    assert {token for _, _, token in api.seen} == {"Bearer secret"}
    assert client.delete_executors("my-job", "", but_of="spark-now") == 0


def test_jobs_of_one_name_keep_off_each_other(api, tmp_path):
    """With an instance, executors are deleted by exactly the labels that Spark gives them."""
    options = KubernetesOptions(namespace="data", image="i", pod_ip="10.0.0.7", instance="blue")
    prefix = "spark.kubernetes.executor.label."
    settings = executor_settings(options, "orders")
    given = {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}
    assert given == {"mailboat.dev/spark-job": "orders", "app.kubernetes.io/instance": "blue"}
    client = PodClient(f"http://127.0.0.1:{api.server_port}", "data", tmp_path)
    assert client.delete_executors("orders", "blue", but_of="spark-now") == 2
    for _, path, _ in api.seen:
        [selector] = parse_qs(urlsplit(path).query)["labelSelector"]
        own = {f"{label}={value}" for label, value in given.items()}
        assert set(selector.split(",")) == own | {
            "spark-role=executor",
            "spark-app-selector!=spark-now",
        }


def test_a_refusal_names_the_role(api, tmp_path):
    """403 most likely means that the Role is missing."""
    api.status = 403
    client = PodClient(f"http://127.0.0.1:{api.server_port}", "data", tmp_path)
    with pytest.raises(KubernetesApiError, match="403 Forbidden; does the service account"):
        client.delete_executors("x", "", but_of="spark-now")


def test_the_token_goes_to_the_api_server_alone(api, tmp_path, monkeypatch):
    """Whom it points elsewhere to, and a proxy of the environment, see nothing of it."""
    (tmp_path / "token").write_text("secret\n")
    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    elsewhere.pods, elsewhere.seen, elsewhere.status = [], [], 200
    elsewhere.location = ""
    thread = threading.Thread(target=elsewhere.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{elsewhere.server_port}"
        client = PodClient(f"http://127.0.0.1:{api.server_port}", "data", tmp_path)
        api.status, api.location = 307, address
        with pytest.raises(KubernetesApiError, match="307"):
            client.delete_executors("x", "", but_of="spark-now")
        api.status, api.location = 200, ""
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("http_proxy", address)
        assert client.delete_executors("x", "", but_of="spark-now") == 2
    finally:
        elsewhere.shutdown()
        thread.join()
        elsewhere.server_close()
    assert elsewhere.seen == []


def test_driver_and_executors_know_each_other():
    """Spark's own ports answer those only that have the secret of this run; a user may do without
    by a setting of his own."""
    options = KubernetesOptions(namespace="data", image="spark:1", pod_ip="10.0.0.7")
    assert executor_settings(options, "my-job")["spark.authenticate"] == "true"


def test_settings_fix_ports_and_owner():
    """No service is needed: executors call the driver's pod by its address at fixed ports."""
    options = KubernetesOptions(
        namespace="data", image="spark:1", pod_name="job-0", pod_ip="10.0.0.7"
    )
    settings = executor_settings(options, "my-job")
    assert settings["spark.driver.host"] == "10.0.0.7"
    assert settings["spark.driver.port"] == "7078"
    assert settings["spark.driver.blockManager.port"] == "7079"
    assert settings["spark.kubernetes.driver.pod.name"] == "job-0"
    assert settings["spark.kubernetes.executor.label.mailboat.dev/spark-job"] == "my-job"
    assert "spark.kubernetes.executor.label.app.kubernetes.io/instance" not in settings
    assert "spark.kubernetes.executor.podTemplateFile" not in settings


def test_the_role_is_small():
    """No wildcard, no secret, no write to what is not Spark's, one rule for each resource."""
    resources = [rule.resource for rule in DRIVER_RULES]
    assert sorted(resources) == ["configmaps", "persistentvolumeclaims", "pods", "services"]
    for rule in DRIVER_RULES:
        assert list(rule.verbs) == sorted(rule.verbs)
        assert "*" not in rule.verbs
    assert {"get", "watch", "deletecollection"} <= set(role_rules()[0]["verbs"])
