// SPDX-License-Identifier: GPL-2.0
/*
 * "insmod delay.ko symbol=FUNCTION comm=TASK ms=N": delays every call of the
 * function by the task by N milliseconds.  This widens a race window of
 * nanoseconds, so that a test hits it each time.
 *
 * The task sleeps, so that an RCU grace period or anything else that waits for
 * the processors does not wait for the task: the function must be allowed to
 * sleep.  A kprobe would not do, because its handler runs with preemption disabled.
 */

#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/string.h>

static char *symbol = "";
module_param(symbol, charp, 0444);
MODULE_PARM_DESC(symbol, "The function that is delayed");

static char *comm = "";
module_param(comm, charp, 0444);
MODULE_PARM_DESC(comm, "The name of the task that it is delayed for");

static unsigned int ms;
module_param(ms, uint, 0444);
MODULE_PARM_DESC(ms, "How long, in milliseconds");

static void delay_call(unsigned long ip, unsigned long parent_ip,
		       struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	if (!strcmp(current->comm, comm))
		msleep(ms);
}

/* Without FTRACE_OPS_FL_RECURSION and FTRACE_OPS_FL_RCU, which would disable preemption. */
static struct ftrace_ops delay_ops = {
	.func = delay_call,
};

static int __init delay_init(void)
{
	int err = ftrace_set_filter(&delay_ops, symbol, strlen(symbol), 1);

	return err ?: register_ftrace_function(&delay_ops);
}

/* Remove the module only when no task sleeps in the function any more. */
static void __exit delay_exit(void)
{
	unregister_ftrace_function(&delay_ops);
	ftrace_free_filter(&delay_ops);
}

module_init(delay_init);
module_exit(delay_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Delays a kernel function for the tests of fermata");
