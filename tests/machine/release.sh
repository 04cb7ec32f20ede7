# SPDX-License-Identifier: Apache-2.0
# In an emulated machine that has never seen netmon, with `make release`'s dist in /release and the wheel's libraries in
# /release/wheels: packages, wheel and image (the argument), installed, used on a training job, removed.
set -eu
export DEBIAN_FRONTEND=noninteractive HOME=/root LC_ALL=C.UTF-8 PYTHONSAFEPATH=1
job=/root/job steps=40
export MPLCONFIGDIR=$job/matplotlib # else matplotlib keeps fonts in the user's home
ip netns add far; ip netns del far # from now on there is a /run/netns

say() { echo "== $(cut -d. -f1 /proc/uptime) s: $*"; }
fail() { echo "$*" >&2; systemctl --no-pager status 'netmon-*' >&2 || true; journalctl --no-pager -n 40 -u 'netmon-*' >&2; exit 1; }
wait_for() { # seconds, command
  end=$(($(cut -d. -f1 /proc/uptime) + $1))
  until eval "$2"; do [ "$(cut -d. -f1 /proc/uptime)" -lt $end ] || fail "not within $1 s: $2"; sleep 1; done
}

# --- what there is on the machine, but for what it writes by itself and what apt and podman keep of all that they do
state() {
  find / -xdev -path /root/before -prune -o -path /root/after -prune -o -print | grep -Ev "$KEPT" | sort
  getent passwd; getent group; ip -o link | cut -d: -f2; ip netns list
  for link in $(ls /sys/class/net); do tc filter show dev "$link" ingress; tc filter show dev "$link" egress; done
  ls --ignore crun /run /sys/fs/bpf 2>/dev/null || true; systemctl list-unit-files --no-legend --no-pager | cut -d' ' -f1
}
KEPT='^/(var/(log|tmp|backups|lib/(apt|dpkg|systemd|containers)|cache/(apt|containers|debconf|ldconfig|man))|tmp/systemd-private)|^/var/(lib|cache)/private$'
nothing_stays() {
  state >/root/after
  diff /root/before /root/after >/root/left || { grep '^[<>]' /root/left | head -n 40 >&2; fail "something has changed"; }
}

# --- a job of two ranks, one of them in a network namespace, and a transfer beside it in its second half
network() {
  mkdir -p $job
  ip netns add far
  ip link add v0 type veth peer name v1 netns far
  ip addr add 10.9.0.1/24 dev v0; ip link set v0 up
  ip -n far addr add 10.9.0.2/24 dev v1; ip -n far link set v1 up; ip -n far link set lo up
}
no_network() { ip netns del far; wait_for 30 '[ ! -e /sys/class/net/v0 ]'; rm -rf $job; }
connected() { # the agent has compiled its programs and sends
  wait_for 900 "$netmon top --once --json 2>/dev/null | grep '\"hosts\"' | grep -vq '\"hosts\": \[\]'"
}
train() { # of each rank the command of a Python with netmon; a mark of a rank goes to the agent's socket
  set -- "$1" "ip netns exec far $1"
  for rank in 0 1; do
    [ $rank = 0 ] && in="$1" || in="$2"
    RANK=$rank WORLD_SIZE=2 $in -m netmon.lab.trainers.ring --addresses 10.9.0.1,10.9.0.2 --params 100000 \
      --compute-ns 500000000 --iterations $steps --log $job/rank$rank.csv >$job/rank$rank.log 2>&1 &
    eval "rank$rank=$!"
  done
  wait_for 600 '[ $(grep -c took $job/rank0.log) -ge 12 ] || ! kill -0 $rank0'
  python3 -c "
import socket, time
door = socket.create_server(('10.9.0.1', 5999))
peer, _ = door.accept()
while peer.recv(1 << 16): pass" &
  sleep 3
  ip netns exec far python3 -c "
import socket, time
peer, end = socket.create_connection(('10.9.0.1', 5999)), time.monotonic() + 5
while time.monotonic() < end: peer.sendall(bytes(1 << 16))"
  wait "$rank0" || fail "$(cat $job/rank0.log)"
  wait "$rank1" || fail "$(cat $job/rank1.log)"
}
stored() { # Python, dataset: it has each step of each rank once, and the transfer among what was received in them
  $1 - "$2" $steps <<'END'
import sys
import pandas
iterations = pandas.read_parquet(sys.argv[1] + "/iterations")
assert not iterations.duplicated(["rank", "iteration"]).any(), iterations
assert iterations.groupby("rank").size().to_dict() == dict.fromkeys((0, 1), int(sys.argv[2])), iterations
print(f"{len(iterations)} steps, {iterations.cross_rx_bytes.sum():,} B of cross traffic received in them")
assert iterations.cross_rx_bytes.sum() > 1e6, iterations
END
}
looks() { # what a person does with it; netmon: the command; all of the job's steps are known
  say "look"
  $netmon top --once
  $netmon top --once --json >$job/top.json
  python3 - $job/top.json $steps <<'END' || fail "$(head -c 3000 $job/top.json)"
import json, sys
jobs = json.load(open(sys.argv[1]))["jobs"]
assert [job["iteration"] >= int(sys.argv[2]) - 1 for job in jobs] == [True], jobs
END
  $netmon why --collector localhost:9400
  $netmon doctor --collector localhost:9400 || [ $? = 1 ]
}

packages() {
  echo nameserver 10.0.2.3 >/etc/resolv.conf
  apt-get update -q >/dev/null
  state >/root/before
  say "packages: install"
  cd /release
  apt-get install -q -y ./netmon_*.deb ./netmon-agent_*.deb ./netmon-collector_*.deb >/root/apt.log 2>&1 || fail "$(tail -n 30 /root/apt.log)"
  cd /
  say "packages: use"
  netmon=netmon
  [ "$(netmon --version)" = "netmon $VERSION" ] || fail "$(netmon --version)"
  netmon doctor
  systemctl -q is-active netmon-collector || fail "the collector does not run as installed"
  [ "$(systemctl is-active netmon-agent)" = inactive ] || fail "the agent runs without knowing what to watch"
  network
  printf 'interface = ["v0"]\ncollector = "localhost:9400"\ncapacity = "1gbit"\n' >/etc/netmon/agent.toml
  systemctl start netmon-agent || fail "the agent does not start"
  connected
  python="env PYTHONPATH=/usr/lib/netmon python3"
  train "$python"
  looks
  systemctl stop netmon-agent netmon-collector
  stored "$python" /var/lib/netmon
  netmon why --data /var/lib/netmon --all
  netmon report /var/lib/netmon --out $job/report >$job/said || fail "$(cat $job/said)"
  say "packages: remove"
  no_network
  apt-get purge -q -y netmon netmon-agent netmon-collector >/root/apt.log 2>&1 || fail "$(tail -n 30 /root/apt.log)"
  apt-get autoremove -q -y --purge >>/root/apt.log 2>&1 || fail "$(tail -n 30 /root/apt.log)"
  rm /root/apt.log
  nothing_stays
}

wheel() {
  echo nameserver 10.0.2.3 >/etc/resolv.conf
  apt-get update -q >/dev/null
  apt-get install -q -y --no-install-recommends python3-bpfcc linux-libc-dev >/root/apt.log 2>&1 || fail "$(tail -n 30 /root/apt.log)"
  rm /root/apt.log
  state >/root/before
  say "wheel: install"
  python3 -m venv --system-site-packages /srv/netmon
  pip="/srv/netmon/bin/pip --quiet --disable-pip-version-check"
  $pip install --no-index --find-links /release/wheels "$(ls /release/netmon-*.whl)[all]"
  say "wheel: use"
  netmon=/srv/netmon/bin/netmon
  [ "$($netmon --version)" = "netmon $VERSION" ] || fail "$($netmon --version)"
  $netmon doctor
  network
  $netmon collector --data $job/data >$job/collector.log 2>&1 &
  collector=$!
  $netmon agent --interface v0 --capacity 1gbit --collector localhost:9400 >$job/agent.log 2>&1 &
  agent=$!
  connected
  train /srv/netmon/bin/python
  looks
  kill $agent; wait $agent || fail "$(cat $job/agent.log)"
  kill $collector; wait $collector || fail "$(cat $job/collector.log)"
  stored /srv/netmon/bin/python $job/data
  $netmon why --data $job/data --all
  $netmon report $job/data --out $job/report >$job/said || fail "$(cat $job/said)"
  $netmon lab run --data $job/lab --iterations 5 --hosts 3 --ring 0,1 --cross-load 0 --rate 100mbit --params 50000
  $netmon why --data $job/lab --all
  say "wheel: remove"
  no_network
  $pip uninstall --yes netmon
  [ -z "$(find /srv/netmon -iname '*netmon*' -not -path /srv/netmon)" ] || fail "$(find /srv/netmon -iname '*netmon*')"
  rm -rf /srv/netmon /var/cache/netmon /var/lib/netmon-agent /run/netmon /run/netmon-lab # what pip does not know
  nothing_stays
}

image() {
  state >/root/before
  say "image: load"
  podman load --quiet --input /release/netmon-*-image.tar
  podman tag "localhost/netmon:$VERSION" netmon
  say "image: use"
  run="podman --cgroup-manager cgroupfs run --rm --network host --log-driver none"
  [ "$($run netmon --version)" = "netmon $VERSION" ] || fail "$($run netmon --version)"
  network
  mkdir -p /run/netmon /var/cache/netmon $job/spool $job/data
  chown 9400:9400 $job/data
  # as packaging/kubernetes has them
  $run --name collector --read-only --cap-drop all --user 9400:9400 -v $job/data:/data netmon collector --data /data >$job/collector.log 2>&1 &
  collector=$!
  caps=$(echo BPF PERFMON NET_ADMIN SYS_PTRACE DAC_READ_SEARCH SYS_RESOURCE CHOWN SETUID SETGID | sed 's/\(^\| \)/ --cap-add /g')
  $run --name agent --pid host --user 0 --read-only --cap-drop all $caps --security-opt no-new-privileges \
    --security-opt seccomp=unconfined --tmpfs /tmp -v /run/netmon:/run/netmon -v $job/spool:/var/lib/netmon-agent \
    -v /var/cache/netmon:/var/cache/netmon -v /sys/kernel/btf:/sys/kernel/btf:ro netmon agent --interface v0 --capacity 1gbit \
    --collector localhost:9400 >$job/agent.log 2>&1 &
  agent=$!
  netmon="$run netmon"
  connected
  # the ranks in it, too: there is no other netmon here; podman run is outside of the namespace of its rank
  root=$(podman image mount netmon)
  python="env PYTHONPATH=$root/usr/lib/netmon python3"
  train "$python"
  looks
  podman stop --time 60 agent; wait $agent || fail "$(cat $job/agent.log)"
  podman stop --time 60 collector; wait $collector || fail "$(cat $job/collector.log)"
  stored "$python" $job/data
  $run -v $job/data:/data:ro netmon why --data /data --all
  say "image: remove"
  no_network
  podman image unmount netmon >/dev/null
  podman rmi --force netmon "localhost/netmon:$VERSION" >/dev/null
  rm -rf /run/netmon /var/cache/netmon
  nothing_stays
}

"$1"
say over
