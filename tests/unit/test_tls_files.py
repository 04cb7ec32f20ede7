# SPDX-License-Identifier: Apache-2.0
"""A folder for TLS: what is wrong with it is one line, and `netmon certificates` makes it right."""

import os
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from authorities import expired, pki
from collector_stream import hello

from collector.agent_checks import ImpostorError, read_hello
from netmon.certificates import Authority
from netmon.cli import main
from netmon.commands.doctor import certificate_in
from netmon.errors import CertificateError, WireError
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello
from netmon.wire.security import Identity, Role, Security, checked, is_local, new_session, read_identity
from netmon.wire.tls_files import read_tls, read_tokens

H0 = Identity(Role.AGENT, "h0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "tls"
    shutil.copytree(pki("ours").folder(H0), copy)
    return copy


def test_a_good_folder(folder: Path) -> None:
    assert read_tls(folder, Role.AGENT).identity == H0


def test_doctor_looks_at_it(folder: Path) -> None:
    assert certificate_in(folder)["of"] == "agent h0"
    (folder / "tls.key").chmod(0o644)
    with pytest.raises(CertificateError, match="can be read or changed by others"):
        certificate_in(folder)


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CertificateError, match=rf"cannot read .*/{name}: No such file.*netmon certificates"):
        read_tls(folder, Role.AGENT)


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_rubbish_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(os.urandom(100))
    with pytest.raises(CertificateError, match=rf"/{name} holds no "):
        read_tls(folder, Role.AGENT)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_key_that_others_can_read(folder: Path, mode: int) -> None:
    (folder / "tls.key").chmod(mode)
    with pytest.raises(CertificateError, match=rf"tls.key can be read or changed by others \(mode {mode:04o}\): chmod"):
        read_tls(folder, Role.AGENT)
    (folder / "tls.key").chmod(0o640)  # a group's
    assert read_tls(folder, Role.AGENT)


def test_one_that_has_expired_says_when_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Authority.make(tmp_path / "pki")
    old = expired(made, H0, 3)
    with pytest.raises(CertificateError) as error:
        read_tls(old, Role.AGENT)
    assert str(error.value).startswith(f"{old}/tls.crt of agent h0 has expired on 20")
    assert str(error.value).endswith(
        " UTC: renew it with `netmon certificates DIR renew` where the authority is, and copy it here"
    )
    assert main(["certificates", str(made.directory), "show"]) == 0
    assert "EXPIRED: renew" in capsys.readouterr().out
    assert main(["certificates", str(made.directory), "renew"]) == 0
    assert read_tls(old, Role.AGENT).identity == H0


def test_one_that_soon_expires_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = Authority.make(tmp_path / "pki").issue(H0, days=200)
    assert not caplog.records
    late = own.ends.replace(microsecond=0)
    for _ in range(2):
        read_tls(own.folder, Role.AGENT, now=late - timedelta(days=20))
    assert [r.message for r in caplog.records if "expires on" in r.message and "h0" in r.message] != []
    assert len(caplog.records) == 1


def test_another_key_and_another_authority(folder: Path) -> None:
    theirs = pki("theirs").folder(H0)
    shutil.copy(theirs / "tls.key", folder / "tls.key")
    with pytest.raises(CertificateError, match=r"tls.key is not the key of .*tls.crt"):
        read_tls(folder, Role.AGENT)
    shutil.copy(theirs / "tls.crt", folder / "tls.crt")
    with pytest.raises(CertificateError, match=r"tls.crt is of another authority"):
        read_tls(folder, Role.AGENT)


def test_names() -> None:
    for name in ("h0", "gpu-3.example", "h 0/ü"):
        if "/" in name:
            with pytest.raises(WireError):
                checked(Role.AGENT, name)
        else:
            assert read_identity([Identity(Role.AGENT, name).uri]) == Identity(Role.AGENT, name)
    strange = ("netmon://agent/", "netmon://agent/..", "netmon://agent/a/b", "netmon://agent/%2E%2E", "netmon://x/a")
    for uri in (*strange, "netmon://agent/%ff", "netmon://agent/%0a", "netmon://agent/a%2fb", "http://agent/a"):
        assert read_identity([uri]) is None
    assert read_identity(["netmon://agent/a", "netmon://collector/a"]) is None  # who says two things says nothing


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:9400", True),
        ("127.0.0.1:9400", True),
        ("127.9.9.9:1", True),
        ("[::1]:9400", True),
        ("unix:/run/x.sock", True),
        ("nats://127.0.0.1:4222", True),
        ("nats://user:secret@localhost:4222", True),
        ("dns:///localhost:9400", True),
        ("ipv6:[::1]:9400", True),
        ("0.0.0.0:9400", False),
        ("[::]:9400", False),
        ("10.0.0.1:9400", False),
        ("localhost.evil.example:9400", False),
        ("nats://localhost@10.0.0.1:4222", False),
        ("head:9400", False),
        ("", False),
    ],
)
def test_what_is_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local
    assert Security().exposed(address) is not local


def test_bad_tokens_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for bad in ("x full ann 1", "00 full ann 1", f"{'0' * 64} root ann 1", f"{'0' * 64} full .. 1", "full"):
        path.write_text(f"# ours\n{'1' * 64} jobs wall 5\n{bad}\n")
        with pytest.raises(CertificateError, match=r"tokens, line 3, is not a token"):
            read_tokens(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pki", "renew"], "pki is no authority: .*No such file.*netmon certificates .* init"),
        (["pki", "agent"], r"no name given: netmon certificates .*pki agent NAME"),
        (["pki", "agent", "../x"], "'../x' cannot name agent"),
        (["pki", "agent", "h", "--days", "0"], "--days is more than 0"),
        (["pki", "viewer", "h", "--address", "h"], "--address is for agent, collector and bus"),
    ],
)
def test_a_wrong_command_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["certificates", str(tmp_path / arguments[0]), *arguments[1:]]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


def test_an_installation_in_a_few_commands(tmp_path: Path) -> None:
    pki_ = str(tmp_path / "pki")
    assert main(["certificates", pki_, "collector", "head", "--address", "head.example", "10.0.0.1"]) == 0
    assert main(["certificates", pki_, "agent", "h0", "h1"]) == 0
    assert main(["certificates", pki_, "viewer", "wall", "--role", "jobs"]) == 0
    assert main(["certificates", pki_, "token", "graf"]) == 0
    assert main(["certificates", pki_, "init"]) == 1  # nobody's authority is replaced
    for path in Path(pki_).rglob("*"):
        if path.name in ("tls.key", "ca.key", "token", "tokens"):
            assert path.stat().st_mode & 0o077 == 0
    found = {str(one.identity): one.addresses for one in Authority.open(Path(pki_)).issued()}
    assert found["collector head"] == ("head.example", "localhost", "10.0.0.1", "127.0.0.1", "::1")
    assert read_tls(Path(pki_) / "viewer-wall", Role.FULL, Role.JOBS).identity == Identity(Role.JOBS, "wall")


def test_a_session_belongs_to_who_has_its_proof() -> None:
    session, proof = new_session()
    opening = encode_hello(hello(session=session))
    for wrong in ("", "x", new_session()[1], "ü" * 100):
        opening.proof = wrong
        with pytest.raises(ImpostorError, match=f"session {session} of h0 is another agent's"):
            read_hello(netmon_pb2.AgentMessage(hello=opening))
    opening.proof = proof
    assert read_hello(netmon_pb2.AgentMessage(hello=opening)).session == session
    assert read_hello(netmon_pb2.AgentMessage(hello=encode_hello(hello(session="3f2a9c")))).session == "3f2a9c"  # older
