/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The only contract between the kernel and user space: every structure, map and limit that crosses the
 * boundary stands here, and nowhere else. netmon/records.py mirrors the structures as numpy dtypes; the two
 * are compared at load, and a mismatch refuses to start.
 *
 * Set at load: NETMON_BUCKET_NS (bucket width), NETMON_SLOTS (per CPU, power of two), NETMON_CPUS (possible
 * CPUs), NETMON_LINKS (interfaces), NETMON_BUCKETS and NETMON_FLOWS (records in the rings of a CPU, powers of two; the
 * latter at most 2^14), NETMON_STEP_PAGES, NETMON_TRANSFER_PAGES; for sockets.c, see there.
 */
#ifndef NETMON_H
#define NETMON_H

#define NETMON_RX 0
#define NETMON_TX 1

/* Slots that one flow may live in: a set is scanned once, so the cost of a packet has a bound. */
#define NETMON_WAYS 4

/* What a flow that is not IP has for a protocol; its destination port is the EtherType. */
#define NETMON_PROTOCOL_NON_IP 255

/*
 * One unidirectional 5-tuple on one link. IPv4 addresses are IPv4-mapped (::ffff:a.b.c.d). Ports are in
 * network order, 0 where there are none (other protocols, fragments).
 */
struct netmon_flow_key {
	u8 src[16];
	u8 dst[16];
	u16 src_port;
	u16 dst_port;
	u32 link_protocol; /* interface's number << 9 | direction << 8 | IP protocol */
};

/*
 * A watched interface. User space gives out the numbers, from 1, and an interface that is made again keeps its own.
 * One is found at its ifindex modulo NETMON_INTERFACES or at one of the NETMON_PROBES - 1 entries behind it.
 */
struct netmon_interface {
	u32 index; /* ifindex; 0: not in use */
	u32 number;
};

#define NETMON_INTERFACES 1024
#define NETMON_PROBES 4

/*
 * The open bucket of one flow on one CPU: one cache line. Only its own CPU writes it (the programs run with
 * bottom halves off), so nothing here is atomic; user space reads it through a mapping and never writes.
 */
struct netmon_slot {
	struct netmon_flow_key key;
	u64 bucket_start_ns; /* CLOCK_MONOTONIC; 0: never used */
	u32 wire_bytes;
	u32 payload_bytes;
	u16 packets;	/* segments */
	u16 generation; /* how often the slot changed its flow; bounded in flight by the flow ring's size */
	u32 losses;	/* how many of its closed buckets had no room in the ring */
};

/* A flow has taken a slot. Published before the first bucket of that flow in that slot can be. */
struct netmon_flow {
	struct netmon_flow_key key;
	u32 slot;
	u16 generation;
	u16 pad;
};

/* A closed bucket of the flow that held (slot, generation). */
struct netmon_bucket {
	u64 bucket_start_ns;
	u32 wire_bytes;
	u32 payload_bytes;
	u32 slot;
	u16 generation;
	u16 packets;
};

/*
 * The two rings of one CPU: its programs write records, user space reads them. Positions count records since the
 * start; record n is at n modulo the ring's size. One cache line for each side, so that neither waits for the other.
 */
struct netmon_producer {
	u64 buckets, flows;		/* positions of the next records: what is before them can be read */
	u64 buckets_limit, flows_limit; /* up to here there is room, as far as the programs have looked */
	u64 losses;			/* closed buckets that had no room */
	u64 fences;			/* counted up where that keeps stores in order */
	u64 woken;			/* the sleep of user space that was ended last */
	u64 pad;
};

/* User space sleeps until a record stands at one of the positions in wake_*; one word in the ring `wakes` ends a sleep. */
struct netmon_consumer {
	u64 buckets, flows; /* positions up to which user space has read */
	u64 wake_buckets, wake_flows;
	u64 sleep; /* its number, counted up */
	u64 pad[3];
};

/*
 * Monotonic counters of one link on one CPU. The entry of a link is its interface's number << 1 | direction; 0 and 1
 * have what comes from interfaces without a number.
 */
struct netmon_ledger {
	u64 frames;	 /* sk_buffs or XDP buffers seen */
	u64 packets;	 /* the same as sent on the link: the segments of a super-packet */
	u64 frame_bytes; /* their lengths, as a software NIC counts them: a super-packet has one header */
	u64 wire_bytes;	 /* the same as sent on the link: a super-packet has one header per segment */
	u64 overflow_packets, overflow_wire_bytes, overflow_payload_bytes; /* new flow, flow ring full */
	u64 lost_packets, lost_wire_bytes, lost_payload_bytes;		   /* closed bucket, bucket ring full */
	u64 pad[6]; /* to whole cache lines: every CPU has its own */
};

/* Who tells, best first: what a library says of its own gradients hides what it does by way of the next ones. */
#define NETMON_HOROVOD 1
#define NETMON_REDUCER 2 /* of PyTorch's DistributedDataParallel */
#define NETMON_NCCL 3
#define NETMON_GLOO 4 /* called by PyTorch's distributed package */
#define NETMON_XLA 5  /* gloo, called by programs that JAX has compiled */
#define NETMON_CUDA 6 /* tells of no gradients, only that a thread waits for its GPU */

#define NETMON_STEP_ENQUEUE 1	 /* gradients were handed to the library */
#define NETMON_STEP_WAIT_BEGIN 2 /* the training thread begins to wait for some */
#define NETMON_STEP_WAIT_END 3	 /* it has them */
#define NETMON_STEP_DONE 4	 /* a tensor has been reduced, whoever waits for it */
#define NETMON_STEP_OTHER 5	 /* another collective, not of gradients, was handed over */
#define NETMON_STEP_RANK 6	 /* the job is set up, again perhaps: name_hash is rank << 32 | size */
#define NETMON_STEP_CALL 7	 /* something was handed over; of what size, another thread tells in its turn */
#define NETMON_STEP_DROPPED 8	 /* calls beyond the budget; name_hash: how many of this process have been dropped */
#define NETMON_STEP_SIZE 9	 /* how large that is which is handed over by this name, said again now and then */
#define NETMON_STEP_TRANSFER 10	 /* something was sent that is not summed; name_hash: NETMON_OF_… */
#define NETMON_STEP_BEGIN 11 /* a collective or a transfer was begun; name_hash: its group, tensors: the operation */
#define NETMON_STEP_OVER 12  /* it is over: a transfer, or what has failed; of others WAIT_END tells */
#define NETMON_STEP_WORK_WAIT 13 /* a thread begins to wait for a transfer between two ranks, until it is over */
#define NETMON_STEP_BACKWARD 14	 /* a backward pass begins */
#define NETMON_STEP_GROUP 15	 /* a group is made; name_hash: it, or a part of it */
#define NETMON_STEP_GROUP_NAME \
	16 /* name_hash: of the name that all its ranks have for the groups made since the last one */

#define NETMON_OF_ALL 0	 /* its size is that of all ranks' parts, or of what this rank alone sends or takes */
#define NETMON_OF_ONE 1	 /* one rank sends it to all others, as at the start */
#define NETMON_OF_EACH 2 /* each rank has such a part */

/* Of BEGIN, as c10d::OpType has them, of which these are told apart here. */
#define NETMON_OPERATION_ALL_REDUCE 1
#define NETMON_OPERATION_ALL_GATHER 4
#define NETMON_OPERATION_REDUCE_SCATTER 9
#define NETMON_OPERATION_ALL_TO_ALL 11
#define NETMON_OPERATION_SEND 12
#define NETMON_OPERATION_RECEIVE 13
#define NETMON_SUMS(operation) ((operation) == 1 || (operation) == 2)

/* What a training process did, in the clock of the buckets. */
struct netmon_step {
	u64 time_ns;
	u64 name_hash; /* FNV-1a of the first tensor's name, or of what stands for it; 0: unknown */
	u32 pid;       /* thread group */
	u8 kind;
	u8 library;
	u16 tensors; /* handed over in one call */
	u64 size; /* values of them << 4 | bytes of each value; 0: unknown. Of kinds ENQUEUE, SIZE, TRANSFER and BEGIN */
	u64 work; /* of kinds BEGIN, OVER, WAIT_BEGIN, WAIT_END and WORK_WAIT: what is begun, waited for and over; 0: unknown */
	u32 sequence;		    /* of BEGIN: its number in its group; between two ranks: the other one */
	u16 group_rank, group_size; /* of BEGIN and GROUP; 0, 0: unknown */
};

#define NETMON_MOST_VALUES (1ULL << 48) /* more is no tensor, but something else that was read */
#define NETMON_HANDING 4096		/* threads that hand tensors over at a time */
#define NETMON_SIZES_REPORTED 16384	/* names whose size was told lately: who is forgotten is told of again */
#define NETMON_SIZE_AGAIN_NS 1000000000ULL

/*
 * What calls may cost, as the time that one of them uses up: of a process and of a user, and how much may be used in
 * advance. Training makes some thousands of calls per step and process. A user has many processes, and the ring has room for
 * what one user may have told at once, and as much again.
 */
#define NETMON_CALL_NS_OF_PROCESS (1 << 16) /* 15,259 calls/s */
#define NETMON_CALL_NS_OF_USER (1 << 14)    /* 61,035 calls/s */
#define NETMON_CALLS_AT_ONCE 8192	    /* of a process */
#define NETMON_CALLS_AT_ONCE_OF_USER 16384
#define NETMON_BUDGETS 8192		 /* processes and users that are remembered: who is forgotten begins anew */
#define NETMON_DROPS_REPORTED_EVERY 4096 /* of a process; and the first one */

#define NETMON_HASH_SEED 0xcbf29ce484222325ULL

/* Where a library tells no names: what is smaller is a metric that is averaged, not a gradient. Bytes, and values. */
#define NETMON_LEAST_GRADIENT_BYTES 1024
#define NETMON_LEAST_GRADIENT_VALUES 256

/* Bytes of a tensor's name that are hashed, a power of two. */
#define NETMON_NAME_BYTES 256

#define NETMON_SOCKET_CONNECT 1 /* the process connected */
#define NETMON_SOCKET_CLOSE 2	/* the process closed its end */

/* A TCP socket, and a process that has it. Addresses and ports as in struct netmon_flow_key. */
struct netmon_socket_event {
	u8 local[16];
	u8 remote[16];
	u16 local_port;
	u16 remote_port;
	u32 pid; /* thread group */
	u32 kind;
	u32 uid;	  /* the real one, as the machine numbers users */
	u64 cgroup;	  /* id of the process's cgroup v2 */
	char process[16]; /* the thread's name, NUL-padded */
};

/* How a watched process was stopped by signals: the last time, and in all. It is now where it began after it ended. */
struct netmon_stop {
	u64 begin_ns;
	u64 end_ns;
	u64 total_ns; /* of those that are over */
	u32 pid;      /* 0: nobody's */
	u32 pad;
};

/*
 * Where NCCL's structures have what is read of them, as the library's own debug information says: offsets in bytes.
 * Which layout holds in a library comes with each probe (its cookie).
 */
struct netmon_layout {
	u32 sub_bytes, subs;					   /* of ncclProxyArgs.subs: of each, how many */
	u32 connection, channel, steps, size;			   /* in ncclProxySubArgs */
	u32 operation, slice_steps, collective, pattern, protocol; /* in ncclProxyArgs */
	u32 send, resources;					   /* in ncclProxyConnection */
	u32 send_rank, send_peer, send_device;			   /* in sendNetResources */
	u32 receive_rank, receive_peer, receive_device;		   /* in recvNetResources */
	u32 sent, awaited, received;				   /* of ncclProfilerEventState_t */
	u32 total; /* 1: `size` is the sum of all transfers of the sub so far, and not the latest */
	u8 collectives[32], algorithms[32]; /* NCCL's number of a function or pattern → ours */
};

#define NETMON_LAYOUTS 256
#define NETMON_TRANSFER 0   /* one */
#define NETMON_OPERATION 1  /* of an operation of NCCL's proxy: those that were not told one by one */
#define NETMON_OPERATIONS 2 /* the same of several, on one connection */
#define NETMON_NO_RANK (-1)

/* What a rank of NCCL's has sent to another one or received of it. */
struct netmon_transfer {
	u64 queued_ns; /* NCCL's proxy was given the operation; 0: not seen */
	u64 start_ns, end_ns;
	u64 bytes;
	u64 number;	 /* of the operation in its communicator */
	u32 pid, thread; /* each communicator's proxy is a thread of its own */
	u32 transfers;	 /* that the bytes are of */
	u32 missed;	 /* others of the same operations: of what size is not known */
	u32 operations;
	s32 rank, peer, device;
	u16 channel;
	u8 level, receives, collective, algorithm, protocol, pad;
};

#define NETMON_OPEN_OPERATIONS 4096	   /* at a time: who is forgotten misses transfers, and says so */
#define NETMON_ROW_NS_OF_PROCESS (1 << 20) /* 954 rows/s, in advance as many as 4 s have */
#define NETMON_ROW_NS_OF_USER (1 << 18)	   /* 3,815 rows/s */
#define NETMON_ROWS_AT_ONCE 4096
#define NETMON_ROWS_AT_ONCE_OF_USER 4096
#define NETMON_MOST_TRANSFER_BYTES (1ULL << 40)

/* What is counted while that is going on, in this order: u64 each. */
#define NETMON_TRAPS 0		  /* of the probes that one transfer each meets */
#define NETMON_UNREPORTED 1	  /* operations that wait to be told with the next one of their connection */
#define NETMON_UNREPORTED_BYTES 2 /* theirs */
#define NETMON_IMPLAUSIBLE 3	  /* calls whose arguments are no operation's */
#define NETMON_EACH 4		  /* set by user space: transfers are told one by one */
#define NETMON_TRANSFER_COUNTS 5

/* A queue pair of a process that uses libibverbs. context: the device as the process has opened it. */
struct netmon_queue_key {
	u64 context;
	u32 pid; /* thread group */
	u32 number;
};

#define NETMON_POSTED_SEND 0
#define NETMON_POSTED_WRITE 1
#define NETMON_POSTED_READ 2
#define NETMON_POSTED_OTHER 3 /* atomics, and what moves nothing, of which the bytes are 0 */
#define NETMON_POSTED_KINDS 4

/* What was posted on it since it was seen first. */
struct netmon_queue {
	u64 bytes[NETMON_POSTED_KINDS];
	u64 requests[NETMON_POSTED_KINDS];
	u64 unread;	  /* lists and requests that were longer than is read, so that bytes are less than was posted;
		       * lists that were counted as they were built, and given up */
	u64 begun_ns;	  /* it was made ready, so that something could be posted; 0: that was not seen */
	u8 gid[16];	  /* of the other end; 0: not known */
	u32 remote;	  /* number of the queue pair there; 0: not known */
	u32 lid;	  /* of the other end, in InfiniBand; 0: not known */
	u32 uid;	  /* the real one, as the machine numbers users */
	u32 building;	  /* kind of the request that is being built */
	char process[16]; /* the thread's name, NUL-padded */
	char device[32];
};

#define NETMON_POSTS 0	/* post_send takes a list of requests */
#define NETMON_BUILDS 1 /* one of the functions by which requests are built one after the other */

/* Where a process has a function to post by: in a library that exports no such name. */
struct netmon_provider {
	u64 address;
	u32 pid;
	u32 way; /* NETMON_POSTS or NETMON_BUILDS */
};

#define NETMON_QUEUES 32768	    /* of all processes */
#define NETMON_QUEUES_OF_USER 24576 /* nobody has all of them */
#define NETMON_POSTED_REQUESTS 16   /* of a list that are read */
#define NETMON_POSTED_PARTS 16	    /* of a request */
#define NETMON_PROVIDERS 4096	    /* processes and functions: who is forgotten is told of again */
#define NETMON_PROVIDER_RING_BYTES 65536

/* Of what was not counted. */
#define NETMON_UNCOUNTED_REQUESTS 0 /* there was no room for their queue pair; those that were read */
#define NETMON_UNCOUNTED_BYTES 1
#define NETMON_UNCOUNTED_PROVIDERS 2 /* providers that the ring had no room for */
#define NETMON_UNCOUNTED 3

#endif
