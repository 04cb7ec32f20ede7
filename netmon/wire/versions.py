# SPDX-License-Identifier: Apache-2.0
"""Which agents and collectors understand each other: the agent says in its hello who can read it.

Messages grow by fields that an older reader passes over, which needs no new version. A change that an older reader
would misread raises SCHEMA_VERSION; an agent that can do without it where it is not understood says so by an older
`oldest_reader`.
"""

from netmon.records import SCHEMA_VERSION
from netmon.wire import netmon_pb2

OLDEST_AGENT = 3
"""What agents of this version and later send is understood."""


def misunderstanding(hello: netmon_pb2.Hello, own: int = SCHEMA_VERSION) -> str:
    """Why a collector whose version is `own` cannot read what will follow, and what to do; empty: it can."""
    versions = f"schema version {hello.schema_version} where the collector has {own}"
    if (hello.oldest_reader or hello.schema_version) > own:
        return f"{versions}; run the same netmon on both: update the collector, which goes before the agents"
    if hello.schema_version < OLDEST_AGENT:
        return f"{versions} and reads {OLDEST_AGENT} and later; run the same netmon on both: update the agent"
    return ""
