# SPDX-License-Identifier: Apache-2.0
"""What NATS servers have to know of the authority's identities: a part of their configuration.

An agent may publish and hear what is its host's and nothing else; answers come to it under a subject of its own.
"""

from collections.abc import Iterable
from pathlib import Path

from netmon.wire.bus import BATCHES, HELLOS, STREAM_BYTES, inbox, token, waiting_subject
from netmon.wire.identity import Identity, Role
from netmon.wire.tls_files import AUTHORITY, CERTIFICATE, KEY

_HEAD = """# Made by `netmon certificates`: make it anew when hosts come or go, then nats-server --signal reload.
# include it in the servers' configuration, beside jetstream and max_payload: 20MB.
tls {{
  ca_file: "{folder}/{authority}"
  cert_file: "{folder}/{certificate}"
  key_file: "{folder}/{key}"
  verify_and_map: true
  timeout: 5
}}
authorization {{
  users: [
"""


def configuration(identities: Iterable[Identity], folder: Path) -> str:
    """For servers whose certificate is in a folder; of agents, and collectors, which may do everything."""
    users = []
    for identity in identities:
        if identity.role is Role.AGENT:
            users.append(_agent(identity))
        elif identity.role is Role.COLLECTOR:
            users.append(f'    {{ user: "{identity.uri}" }}\n')
    head = _HEAD.format(folder=folder, authority=AUTHORITY, certificate=CERTIFICATE, key=KEY)
    return f"{head}{''.join(users)}  ]\n}}\n"


def _agent(identity: Identity) -> str:
    host = token(identity.name)
    refused = f"$KV.{HELLOS}.{host}.*.refused"
    publish = (
        f"{BATCHES}.{host}",
        f"$KV.{HELLOS}.{host}.*",
        f"netmon.v1.up.*.{host}.*",
        "netmon.v1.clock.*",
        waiting_subject(identity.name),
        f"$JS.API.DIRECT.GET.KV_{HELLOS}.{STREAM_BYTES}",
        f"$JS.API.DIRECT.GET.KV_{HELLOS}.{refused}",
    )
    subscribe = (f"{inbox(host)}.>", f"netmon.v1.down.{host}.*", refused)
    return (
        f'    {{ user: "{identity.uri}", permissions: {{\n'
        f"        publish: {{ allow: [{_list(publish)}] }}\n"
        f"        subscribe: {{ allow: [{_list(subscribe)}] }} }} }}\n"
    )


def _list(subjects: Iterable[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)
