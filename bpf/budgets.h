/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What processes and users may have told of the calls that they make. */
#ifndef NETMON_BUDGETS_H
#define NETMON_BUDGETS_H

/*
 * Anybody can call a function of that name in a library of that name, as often as a processor can. What is told has to be
 * paid for with time: paid_until is the moment at which all calls so far have been. Threads of one process may each
 * overwrite what another one has written, and be told some calls more.
 */
struct budget {
	u64 paid_until_ns, dropped;
};

#define OF_USER (1ULL << 32)

static __always_inline int pays(struct budget *budget, u64 now, u64 call_ns, u64 calls_at_once)
{
	u64 earliest = now - call_ns * calls_at_once, paid_until = budget->paid_until_ns;

	if (paid_until > now)
		return 0;
	budget->paid_until_ns = (paid_until > earliest ? paid_until : earliest) + call_ns;
	return 1;
}

#endif
