# SPDX-License-Identifier: Apache-2.0
"""Where Horovod's ranks find each other: what `horovodrun` starts alongside them. Runs in Horovod's environment."""

import sys
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main() -> None:
    """Serve the hosts named in the first argument (`h0:1,h1:1`), print the port, stay until killed."""
    hosts = parse_hosts(sys.argv[1])
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, len(hosts), len(hosts)))
    print(f"rendezvous port {port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
