// SPDX-License-Identifier: GPL-2.0
/*
 * "insmod delay.ko symbol=FUNCTION comm=TASK ms=N": every call of the function
 * by the task begins so many milliseconds late, as on a processor that does
 * something else meanwhile.  So a window of nanoseconds becomes one that a test
 * hits each time.
 */

#include <linux/delay.h>
#include <linux/kprobes.h>
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

static int delay_call(struct kprobe *probe, struct pt_regs *regs)
{
	if (!strcmp(current->comm, comm))
		mdelay(ms);
	return 0;
}

static struct kprobe probe = {
	.pre_handler = delay_call,
};

static int __init delay_init(void)
{
	probe.symbol_name = symbol;
	return register_kprobe(&probe);
}

static void __exit delay_exit(void)
{
	unregister_kprobe(&probe);
}

module_init(delay_init);
module_exit(delay_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Delays a kernel function for the tests of fermata");
