#!/usr/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of a machine of `make test-kernels`: mounts what there has to be, runs the tests, switches off.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 NETMON_REQUIRE_KERNEL=1
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/shm /run /tmp /root /var/lib /etc
for place in /run /tmp /dev/shm; do busybox mount -t tmpfs tmpfs $place; done
busybox mount -t bpf bpf /sys/fs/bpf
busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
for name in sh rm cat sleep; do [ -e /usr/bin/$name ] || busybox ln -s busybox /usr/bin/$name; done
for module in $MODULES; do modprobe "$module" 2>/dev/null; done
echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
echo 127.0.0.1 localhost >/etc/hosts
ip link set lo up
cd /netmon
echo "matrix: Linux $(busybox uname -rm), $(python3 --version), bcc $(python3 -c 'import bcc; print(bcc.__version__)')," \
	"pages of $(python3 -c 'import mmap; print(mmap.PAGESIZE)') bytes"
python3 -m pytest -q -rfEs --color=no --tb=short -p no:cacheprovider -o timeout=900 -m $MARK -k $ONLY \
	tests/kernel/test_matrix.py tests/kernel/test_kept_programs.py tests/kernel/test_rdma.py
echo "matrix: status $?"
busybox poweroff -f
