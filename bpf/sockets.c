// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Whose a TCP connection is, told when it is made: most are over before anybody could look them up. Runs on the raw
 * tracepoint inet_sock_set_state, a few times in the life of a connection and never per packet.
 *
 * Told twice: to the part of the agent that looks at processes, which is woken, and to the one that describes flows and
 * comes by itself, so that neither waits for the other.
 *
 * Set at load: NETMON_SOCKET_EVENT_PAGES and NETMON_SOCKET_HISTORY_PAGES, the offsets NETMON_SK_* of struct sock and NETMON_NET_INUM of struct net, which
 * user space reads from the kernel's own BTF.
 */
#include <uapi/linux/ptrace.h>
#include "netmon.h"
#include "current.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6

/* enum in include/net/tcp_states.h */
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_FIN_WAIT1 4
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9

struct who {
	u32 pid;
	u32 uid;
	u64 cgroup;
	char process[16];
};

BPF_RINGBUF_OUTPUT(socket_events, NETMON_SOCKET_EVENT_PAGES);
BPF_RINGBUF_OUTPUT(socket_history, NETMON_SOCKET_HISTORY_PAGES);
/* Sockets between connect() and its success. An LRU: one that is pushed out is looked up as if it had not been seen. */
BPF_TABLE("lru_hash", u64, struct who, connecting, 8192);
/* The only network namespace of interest, 0: all. Written before anything is attached; what is compiled is the same for all. */
BPF_TABLE("array", u32, u32, socket_netns, 1);

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), (void *)(from))

static __always_inline void look_at_current(struct who *who)
{
	who->pid = current_pid();
	who->uid = (u32)bpf_get_current_uid_gid();
	who->cgroup = bpf_get_current_cgroup_id();
	bpf_get_current_comm(who->process, sizeof(who->process));
}

static __always_inline u32 namespace_of(u64 sk)
{
	u64 net = 0;
	u32 number = 0;

	READ(net, sk + NETMON_SK_NET);
	READ(number, net + NETMON_NET_INUM);
	return number;
}

static __always_inline int is_of_interest(u64 sk)
{
	u32 first = 0, *only = socket_netns.lookup(&first);

	return only && (!*only || namespace_of(sk) == *only);
}

static __always_inline void map_ipv4(u8 *to, u64 from)
{
	u32 *words = (u32 *)to;

	words[0] = words[1] = 0;
	words[2] = 0xffff0000; /* bytes 00 00 ff ff: both our architectures are little-endian */
	READ(words[3], from);
}

static __always_inline void submit(u64 sk, u32 kind, const struct who *who)
{
	struct netmon_socket_event event = {};
	u16 family = 0, port = 0;

	if (!who->pid || !is_of_interest(sk))
		return;
	READ(family, sk + NETMON_SK_FAMILY);
	if (family == AF_INET6) {
		READ(event.local, sk + NETMON_SK_LOCAL6);
		READ(event.remote, sk + NETMON_SK_REMOTE6);
	} else {
		map_ipv4(event.local, sk + NETMON_SK_LOCAL);
		map_ipv4(event.remote, sk + NETMON_SK_REMOTE);
	}
	READ(port, sk + NETMON_SK_LOCAL_PORT);
	event.local_port = __builtin_bswap16(port); /* this one the kernel keeps in its own order */
	READ(port, sk + NETMON_SK_REMOTE_PORT);
	event.remote_port = port;
	event.pid = who->pid;
	event.kind = kind;
	event.uid = who->uid;
	event.cgroup = who->cgroup;
	__builtin_memcpy(event.process, who->process, sizeof(event.process));
	/* A full ring costs nothing but the news: the socket is looked up like those that are older than the agent. */
	socket_events.ringbuf_output(&event, sizeof(event), 0);
	socket_history.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP);
}

struct state_arguments {
	u64 sk, old_state, new_state;
};

int socket_state(struct state_arguments *ctx)
{
	u64 sk = ctx->sk;
	int before = ctx->old_state, now = ctx->new_state;
	struct who *connecting_process, who = {};
	u16 protocol = 0;

	READ(protocol, sk + NETMON_SK_PROTOCOL);
	if (protocol != IPPROTO_TCP)
		return 0; /* MPTCP's own socket, whose subflows come by themselves; SCTP */

	if (now == TCP_SYN_SENT) {
		/* In connect(): the process is known, the local port may not be yet. */
		look_at_current(&who);
		connecting.update(&sk, &who);
	} else if (before == TCP_SYN_SENT) {
		/* The answer, good or bad, outside of any process: now the port is known. */
		connecting_process = connecting.lookup(&sk);
		if (connecting_process) {
			who = *connecting_process;
			submit(sk, NETMON_SOCKET_CONNECT, &who);
			connecting.delete(&sk);
		}
	} else if (now == TCP_FIN_WAIT1 || now == TCP_LAST_ACK) {
		/* In close() or shutdown(): tells the process of a connection that was accepted, and again of one made. */
		look_at_current(&who);
		submit(sk, NETMON_SOCKET_CLOSE, &who);
	}
	return 0;
}
