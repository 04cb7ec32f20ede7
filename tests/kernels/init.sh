#!/usr/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of a machine of `make test-kernels`: mounts what there has to be, runs the tests, switches off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/shm /run /tmp /root /var/lib /etc
for place in /run /tmp /dev/shm; do busybox mount -t tmpfs tmpfs $place; done
busybox mount -t bpf bpf /sys/fs/bpf
busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
for module in $(busybox cat /netmon/tests/kernels/modules); do modprobe "$module" 2>/dev/null; done
echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
echo 127.0.0.1 localhost >/etc/hosts
busybox hostname matrix
ip link set lo up
cd /netmon || busybox poweroff -f
busybox sh /netmon/tests/kernels/inside.sh
echo "matrix-status $?"
busybox sync
busybox poweroff -f
