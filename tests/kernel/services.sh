# SPDX-License-Identifier: Apache-2.0
# Inside a booted systemd: both services from installation to removal, from the checkout in /opt/netmon.
set -e
say() { echo "== $*"; }
wait_for() { # seconds, command
  for _ in $(seq $(($1 * 5))); do if eval "$2"; then return 0; fi; sleep 0.2; done
  echo "not within $1 s: $2"; systemctl --no-pager status 'netmon-*' || true; journalctl --no-pager -u 'netmon-*' -n 60; exit 1
}
active() { [ "$(systemctl is-active "$1")" = active ]; }
restarts() { systemctl show -P NRestarts "$1"; }
rows() { /opt/netmon/.venv/bin/python -c 'import sys, pyarrow.dataset as d; print(d.dataset(sys.argv[1], format="parquet", partitioning="hive").count_rows())' \
  "/var/lib/netmon/$1" 2>/dev/null || echo 0; }
services="netmon-collector netmon-agent"

rm -rf /var/cache/netmon /var/lib/netmon /var/lib/netmon-agent # of the machine below
say installed but without a configuration: nothing is started, and that is no failure
cp /opt/netmon/systemd/netmon-*.service /etc/systemd/system/
systemctl daemon-reload
systemctl start $services
for service in $services; do [ "$(systemctl is-active $service)" = inactive ]; done
[ -z "$(systemctl list-units --state=failed --no-legend --plain 'netmon-*')" ]

say configured, with certificates and the drop-in for their group
mkdir -p /etc/netmon
netmon() { /opt/netmon/.venv/bin/netmon "$@"; }
certificates=/etc/netmon/authority
netmon certificates $certificates collector head --address localhost >/dev/null
netmon certificates $certificates agent booted >/dev/null
groupadd --system netmon
for service in agent collector; do
  name=agent-booted; [ $service = agent ] || name=collector-head
  cp -r $certificates/$name /etc/netmon/tls-$service
  chgrp -R netmon /etc/netmon/tls-$service && chmod 0750 /etc/netmon/tls-$service && chmod 0640 /etc/netmon/tls-$service/tls.key
  install -D -m 0644 /opt/netmon/systemd/tls.conf /etc/systemd/system/netmon-$service.service.d/tls.conf
done
chmod 0755 /etc/netmon
cat >/etc/netmon/agent.toml <<END
interface = ["lo"]
collector = "localhost:9400"
tls = "/etc/netmon/tls-agent"
host = "booted"
END
cat >/etc/netmon/collector.toml <<END
listen = "localhost:9400"
tls = "/etc/netmon/tls-collector"
data = "/var/lib/netmon"
flush = "200ms"
END
systemctl daemon-reload
systemctl start $services
for service in $services; do active $service; done
say the programs that root compiled are there for the agent to load
[ "$(stat -c %U:%a /var/cache/netmon/bpf)" = root:700 ]
ls /var/cache/netmon/bpf | wc -l
wait_for 60 '[ "$(rows ledger)" -gt 0 ]'

say reload: a new level, and what waits for a restart
echo 'log-level = "warning"' >>/etc/netmon/agent.toml
echo 'bucket = "20us"' >>/etc/netmon/agent.toml
systemctl reload netmon-agent
wait_for 30 'journalctl -q -u netmon-agent -g "after a restart: bucket" >/dev/null 2>&1'
active netmon-agent

say a service that stands still is started again by the watchdog
for service in $services; do
  printf '[Service]\nWatchdogSec=3s\nRestartSec=100ms\n' >/etc/systemd/system/$service.service.d/watchdog.conf
done
systemctl daemon-reload
systemctl restart $services
kept=$(rows ledger)
for service in $services; do
  kill -STOP "$(systemctl show -P MainPID $service)"
  wait_for 60 "[ \"\$(restarts $service)\" -gt 0 ] && active $service"
done
say nobody comes near a bound
for service in $services; do
  used=$(systemctl show -P MemoryCurrent $service) high=$(systemctl show -P MemoryHigh $service)
  echo "$service: $used of $high bytes, $(systemctl show -P TasksCurrent $service) of $(systemctl show -P TasksMax $service) tasks"
  case $used in *[!0-9]*) ;; *) [ "$used" -lt $((high / 2)) ] ;; esac
done
say an upgrade, which is a restart, keeps what is stored
systemctl restart $services
for service in $services; do active $service; done
wait_for 60 "[ \"\$(rows ledger)\" -gt $kept ]"

say who fails at every start is given up after so many
printf '[Unit]\nStartLimitIntervalSec=10min\nStartLimitBurst=4\n' >>/etc/systemd/system/netmon-agent.service.d/watchdog.conf
cp /etc/netmon/agent.toml /etc/netmon/agent.toml.right
sed -i 's/^interface.*/interface = ["nowhere"]/' /etc/netmon/agent.toml
systemctl daemon-reload
systemctl reset-failed
systemctl restart netmon-agent || true
wait_for 150 '[ "$(systemctl is-failed netmon-agent)" = failed ]'
[ "$(restarts netmon-agent)" -ge 3 ]
journalctl -q -u netmon-agent -g "nowhere" >/dev/null
mv /etc/netmon/agent.toml.right /etc/netmon/agent.toml
systemctl reset-failed
systemctl start netmon-agent
active netmon-agent

say what mends nothing is not tried for ever
sed -i 's/^flush.*/flushh = "1s"/' /etc/netmon/collector.toml
systemctl restart netmon-collector && exit 1
[ "$(systemctl is-failed netmon-collector)" = failed ]
[ "$(restarts netmon-collector)" = 0 ]
journalctl -q -u netmon-collector -g "collector.toml:4: unknown key 'flushh'; did you mean 'flush'" >/dev/null

say nothing of either has failed
if journalctl -q -o cat -u 'netmon-*' -g 'Traceback|the process that compares hosts has ended'; then exit 1; fi

say stopped and removed: nothing is left but the data
systemctl stop $services
[ -z "$(tc filter show dev lo ingress)$(tc filter show dev lo egress)" ]
[ -z "$(pgrep -f "netmon agent")" ]
rm -r /etc/systemd/system/netmon-*
systemctl daemon-reload
systemctl reset-failed
[ "$(systemctl show -P LoadState netmon-agent)" = not-found ]
[ "$(rows ledger)" -gt 0 ]
say over
