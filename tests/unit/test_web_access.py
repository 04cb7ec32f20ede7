# SPDX-License-Identifier: Apache-2.0
"""Who may look at a page, and what of it: real certificates and tokens, a real server, real requests."""

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from authorities import HERE, pki, security

pytest.importorskip("aiohttp", reason="aiohttp is not installed: the page cannot be served")
from synthetic_source import Synthetic, serving

from netmon.certificates import Authority, make_token
from netmon.cli import main
from netmon.errors import UsageError
from netmon.web import server
from netmon.web import server as page_access
from netmon.web.server import Access
from netmon.wire.security import PLAIN, Identity, Role, Security

COLLECTOR = security(Role.COLLECTOR, "c")


class Asked:
    """An answer."""

    def __init__(self, address: str, path: str, context: ssl.SSLContext | None = None, **more: Any) -> None:
        at = urlsplit(address)
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        made = kind(at.hostname, at.port, **({"context": context} if context else {}))
        made.request(more.pop("method", "GET"), path, more.pop("body", None), more)
        answer = made.getresponse()
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()
        made.close()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def trusting(viewer: Security | None = None) -> ssl.SSLContext:
    assert COLLECTOR.tls
    context = ssl.create_default_context(cafile=str(COLLECTOR.tls / "ca.crt"))
    if viewer and viewer.tls:
        context.load_cert_chain(viewer.tls / "tls.crt", viewer.tls / "tls.key")
    return context


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with serving(Synthetic(4, 30)) as address:
        yield address


@pytest.fixture(scope="module")
def protected() -> Iterator[tuple[str, str]]:
    """Its address, and a token of one who sees jobs only."""
    made = pki("ours")
    folder, _ = make_token(made, Identity(Role.JOBS, "screen"), 1)
    with serving(Synthetic(4, 30), Access("localhost:0", COLLECTOR, made.directory / "tokens")) as address:
        yield address, (folder / "token").read_text().strip()


def test_every_answer_keeps_scripts_and_frames_of_others_out(plain: str) -> None:
    for path in ("/", "/static/app.js", "/api/state", "/nowhere"):
        policy = Asked(plain, path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/static/../server.py", 404),
        ("/static/%2e%2e%2fserver.py", 404),
        ("/static/nothing.js", 404),
        ("/api/tile?generation=0&level=99&index=0&block=0", 400),
        ("/api/tile?generation=0&level=0&index=x&block=0", 400),
        ("/api/tile?generation=7&level=0&index=0&block=0", 409),
        ("/api/tile?generation=0&level=0&index=0&block=9999", 200),
        ("/api/span?host=h&begin_ns=2&end_ns=1", 400),
        ("/api/figures?begin_ns=0&end_ns=99999999999999999", 400),
        ("/api/explain?job=j&iteration=1&end_ns=1", 404),
    ],
)
def test_what_cannot_be_answered_is_refused_in_a_line(plain: str, path: str, status: int) -> None:
    answer = Asked(plain, path)
    assert answer.status == status
    assert status == 200 or answer.json["error"]


def test_another_name_of_this_machine_is_nobodys_page(plain: str) -> None:
    assert Asked(plain, "/api/state", Host="evil.example").status == 421
    assert Asked(plain, "/api/state", Host="127.0.0.1:1").status == 200


def test_a_certificate_shows_who_looks(protected: tuple[str, str]) -> None:
    address, _ = protected
    assert Asked(address, "/api/state", trusting()).status == 401
    assert Asked(address, "/", trusting()).headers["Location"] == "/login"
    assert Asked(address, "/api/catalogue", trusting(security(Role.FULL, "ann"))).json["full"] is True
    assert Asked(address, "/api/catalogue", trusting(security(Role.JOBS, "wall"))).json["full"] is False
    assert Asked(address, "/api/state", trusting(security(Role.AGENT, "h0"))).status == 401


def test_who_sees_jobs_sees_no_names_of_processes(protected: tuple[str, str]) -> None:
    address, token = protected
    bearer = {"Authorization": f"Bearer {token}"}
    verdicts = Asked(address, "/api/verdicts", trusting(), **bearer)
    first = verdicts.json["verdicts"][0]
    assert (first["cause"], first["letter"], first["network"]) == ("cross", "X", True)
    assert b"alert" not in verdicts.body
    Asked(address, "/api/state", trusting(), **bearer)
    incidents = Asked(address, "/api/incidents", trusting(), **bearer)
    assert len(incidents.json["incidents"]) == incidents.json["all"] > 0
    assert "cross traffic into gpu-0000" in incidents.json["incidents"][-1]["line"][-1]
    for word in (b"alert", b"ann"):  # the culprit, and whose process it is
        assert word not in incidents.body
        assert word not in verdicts.body
    for path in ("/api/span?host=h&begin_ns=0&end_ns=1", "/api/explain?job=job-000&iteration=1&end_ns=1"):
        assert Asked(address, path, trusting(), **bearer).status == 403
    assert Asked(address, "/api/state", trusting(), Authorization="Bearer x").status == 401


def test_a_token_is_given_once(protected: tuple[str, str]) -> None:
    address, token = protected
    form = {"method": "POST", "Content-Type": "application/x-www-form-urlencoded"}
    wrong = Asked(address, "/login", trusting(), body=urlencode({"token": "no"}), **form)
    assert wrong.headers["Location"] == "/login?again"
    right = urlencode({"token": token})
    stolen = Asked(address, "/login", trusting(), body=right, Origin="https://evil.example", **form)
    assert stolen.status == 403
    entered = Asked(address, "/login", trusting(), body=right, **form)
    cookie = entered.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=Strict"))
    shown = {"Cookie": cookie.partition(";")[0]}
    assert Asked(address, "/api/state", trusting(), **shown).status == 200
    assert Asked(address, "/logout", trusting(), method="POST", **shown).status == 303
    assert Asked(address, "/api/state", trusting(), **shown).status == 401


class Kept:
    """A connection that goes on from request to request."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        at = urlsplit(address)
        self.made = http.client.HTTPSConnection(at.hostname, at.port, context=context, timeout=60)

    def status(self) -> int:
        self.made.request("GET", "/api/state")
        answer = self.made.getresponse()
        answer.read()
        return answer.status


def test_a_new_authority_shuts_the_viewers_of_the_old_one_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_RENEW_S", 0.05)
    ann, collector, served = Identity(Role.FULL, "ann"), Identity(Role.COLLECTOR, "c"), tmp_path / "served"
    contexts = {}
    for name in ("new", "old"):
        made = Authority.make(tmp_path / name)
        made.issue(collector, HERE)
        shutil.copytree(made.folder(collector), served, dirs_exist_ok=True)
        contexts[name] = ssl.create_default_context(cafile=str(tmp_path / "new" / "ca.crt"))
        contexts[name].load_verify_locations(made.directory / "ca.crt")
        contexts[name].load_cert_chain(made.issue(ann).folder / "tls.crt", made.folder(ann) / "tls.key")
    with serving(Synthetic(4, 30), Access("localhost:0", Security(served), None)) as address:
        kept = Kept(address, contexts["old"])
        with contextlib.closing(kept.made):
            assert kept.status() == 200
            session = kept.made.sock.session  # with which a handshake may be shortened
            shutil.copytree(tmp_path / "new" / "collector-c", served, dirs_exist_ok=True)
            assert kept.made.sock.recv(1) == b""  # the page hangs up
        again = Kept(address, contexts["old"])
        with contextlib.closing(again.made), pytest.raises((OSError, http.client.HTTPException)):
            again.status()
        assert not resumed(address, contexts["old"], session)
        assert Asked(address, "/api/state", contexts["new"]).status == 200


def resumed(address: str, context: ssl.SSLContext, session: ssl.SSLSession) -> bool:
    """Whether a handshake is shortened, and so no certificate looked at."""
    at = urlsplit(address)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((at.hostname, at.port)) as plain,
        context.wrap_socket(plain, server_hostname=at.hostname, session=session) as tried,
    ):
        tried.sendall(b"GET /api/state HTTP/1.0\r\n\r\n")
        return bool(tried.session_reused and tried.recv(1))
    return False


def test_a_certificate_that_expires_shows_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Synthetic(4, 30), Access("localhost:0", COLLECTOR, None)) as address:
        kept = Kept(address, trusting(security(Role.FULL, "ann")))
        with contextlib.closing(kept.made):
            assert kept.status() == 200
            later = SimpleNamespace(time=lambda: time.time() + 400 * 86_400)
            monkeypatch.setattr(page_access, "time", later, raising=False)
            assert kept.status() == 401


def test_nothing_leaves_the_machine_unless_it_is_meant() -> None:
    with pytest.raises(UsageError, match=r"cannot serve a page on 0\.0\.0\.0:9480 without encryption"):
        Access("0.0.0.0:9480", PLAIN, None)
    with pytest.raises(UsageError, match="cannot take tokens without encryption"):
        Access("localhost:9480", PLAIN, Path("tokens"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "/nowhere"], "cannot show /nowhere: no such directory"),
        (["localhost:1", "--data", "x"], "cannot show two things on one page"),
        (["--data", ".", "--listen", "localhost"], "without encryption"),
        (["--data", "."], "it holds no row of buckets yet"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["web", *options]) != 0
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert "netmon.web" in sys.modules
