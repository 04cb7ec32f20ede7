# SPDX-License-Identifier: Apache-2.0
# Inside a booted systemd: the Debian packages in /job/old and /job/new, installed, upgraded with the data kept, purged.
set -ex
export DEBIAN_FRONTEND=noninteractive
rm -f /usr/sbin/policy-rc.d # which keeps packages in a container from starting services
say() { echo "== $*"; }
wait_for() { # seconds, command
  for _ in $(seq $(($1 * 5))); do if eval "$2"; then return 0; fi; sleep 0.2; done
  echo "not within $1 s: $2"; systemctl --no-pager status 'netmon-*' || true; journalctl --no-pager -n 60; exit 1
}
active() { [ "$(systemctl is-active "netmon-$1")" = active ]; }
stored() { find /var/lib/netmon/ledger -name 'part-*.parquet' 2>/dev/null | wc -l; }

rm -rf /var/cache/netmon /var/lib/netmon /var/lib/netmon-agent # of the machine below
say install
dpkg -i /job/old/*.deb
[ "$(netmon --version)" = "netmon $(sed -n 's/^__version__ = "\(.*\)"/\1/p' /usr/lib/netmon/netmon/version.py)" ]
cd /tmp && netmon doctor
man -w netmon-agent netmon-collector >/dev/null
active collector # its configuration is one that works on one machine
[ "$(systemctl is-active netmon-agent)" = inactive ] # which interfaces, nobody has said yet
printf 'interface = ["lo"]\ncollector = "localhost:9400"\n' >/etc/netmon/agent.toml
systemctl start netmon-agent
active agent
[ "$(ls /var/cache/netmon/bpf | wc -l)" = 1 ]
wait_for 60 '[ "$(stored)" -gt 0 ]'
echo '# ours' >>/etc/netmon/collector.toml

say upgrade
before=$(stored)
pids="$(systemctl show -P MainPID netmon-agent) $(systemctl show -P MainPID netmon-collector)"
dpkg -i /job/new/*.deb
for service in agent collector; do active $service; done
[ "$(systemctl show -P MainPID netmon-agent) $(systemctl show -P MainPID netmon-collector)" != "$pids" ]
grep -qx '# ours' /etc/netmon/collector.toml
dpkg-query -W -f '${Version}\n' netmon-agent | grep -q '\.1$'
[ "$(stored)" -ge "$before" ]
wait_for 60 "[ \"\$(stored)\" -gt $before ]"

say remove: the data and settings stay
dpkg --remove netmon-agent netmon-collector netmon
[ "$(stored)" -gt "$before" ]
[ -e /etc/netmon/agent.toml ] && [ -e /etc/netmon/collector.toml ]
[ "$(systemctl show -P ActiveState netmon-agent)" = inactive ]
[ -z "$(pgrep -f 'netmon (agent|collector)')" ]
[ -z "$(tc filter show dev lo ingress)" ]

say purge: nothing stays
dpkg --purge netmon-agent netmon-collector netmon
for place in /etc/netmon /usr/lib/netmon /var/lib/netmon /var/lib/netmon-agent /var/cache/netmon /usr/bin/netmon; do
  [ ! -e $place ] || { find $place | head; exit 1; }
done
say over
