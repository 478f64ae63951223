"""Tests of the calls of kubelets, with a kubelet that has a certificate of its own."""

from pathlib import Path

import pytest
from fake_kubelet import Kubelet

from mailboat.errors import ConfigError
from mailboat_operator.kubelet_api import KubeletApiError, KubeletRefusedError


async def test_the_summary_comes_with_the_operators_token(kubelet: Kubelet) -> None:
    """The kubelet itself is asked, and asks the API server whose token that is."""
    kubelet.summary = {"pods": [], "node": {"nodeName": "n"}}
    assert await kubelet.api().summary("127.0.0.1") == kubelet.summary
    assert kubelet.tokens == ["Bearer secret"]


async def test_no_token_goes_to_a_kubelet_that_is_not_trusted(kubelet: Kubelet) -> None:
    """A certificate of an unknown authority ends the call before anything is sent."""
    with pytest.raises(KubeletRefusedError, match="MAILBOAT_OPERATOR_KUBELET_CA"):
        await kubelet.api(ca_file="").summary("127.0.0.1")
    assert kubelet.tokens == []
    # The certificate is for 127.0.0.1 alone.
    with pytest.raises(KubeletRefusedError):
        await kubelet.api().summary("localhost")
    assert kubelet.tokens == []


async def test_the_check_can_be_switched_off(kubelet: Kubelet) -> None:
    """For kubelets that sign their own certificate."""
    assert await kubelet.api(ca_file="", is_verified=False).summary("127.0.0.1") == {"pods": []}


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, KubeletRefusedError), (403, KubeletRefusedError), (500, KubeletApiError)],
)
async def test_refusals_are_told_apart(
    kubelet: Kubelet, status: int, error: type[Exception]
) -> None:
    """What needs somebody to act, and what may pass."""
    kubelet.status = status
    with pytest.raises(error, match=f"HTTP {status}"):
        await kubelet.api().summary("127.0.0.1")


async def test_nobody_there_is_an_error_that_may_pass(kubelet: Kubelet) -> None:
    """A node that is down."""
    with pytest.raises(KubeletApiError):
        await kubelet.api(port=1).summary("127.0.0.1")


async def test_an_authority_that_is_none_is_a_wrong_setting(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    """One sentence at the start of the process."""
    (tmp_path / "empty.crt").write_text("nothing")
    for name in ("empty.crt", "missing.crt"):
        with pytest.raises(ConfigError, match="KUBELET_CA"):
            kubelet.api(ca_file=str(tmp_path / name))
