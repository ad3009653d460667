#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Runs in the machine of the check `foreign`: card 0 is the model of Optimus's chip (optimus.c), card 1 the same with a race, card 2 of the
# profile irq.
# shellcheck disable=SC2317 # functions are called by point
point() { # point WHAT COMMAND…: good if the command succeeds
	what=$1
	shift
	n=$((n + 1))
	if "$@" >/tmp/why 2>&1; then echo "ok $n - $what"; else
		echo "not ok $n - $what"
		failed=1
	fi
	sed 's/^/# /' /tmp/why
}
LIST=092a3e62-81c5-499a-ae2c-62ff4788fadd
check() { fermatactl check-engine "$@"; }
# fails TEXT COMMAND…: the command ends with status 1 and says TEXT
fails() {
	text=$1
	shift
	"$@" >/tmp/out 2>&1
	status=$?
	cat /tmp/out
	[ "$status" = 1 ] && grep -qF -- "$text" /tmp/out
}
value() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" /tmp/json; }
# sound CARD: the engine has right results, after preemptions on both slots
sound() {
	check --json "$LIST" /tmp/list --card "$1" --runs 40 >/tmp/json && cat /tmp/json && [ "$(value right)" = 40 ] &&
		[ "$(value preemptions)" -ge 1 ] && [ "$(value slot_changes)" -ge 1 ]
}
short() { fermatactl run "$LIST" --card "${CARD:-0}" --arena 8192 --reg 0x48=@0/64 --reg 0x50=@4096/64 --result 0x30 "$@"; }
one() { short | grep '0x030: 0x1$'; }
# together CARD: another tenant's jobs come while jobs are checked
together() {
	check "$LIST" /tmp/list --card "$1" --runs 60 >/tmp/one 2>&1 &
	one=$!
	sleep 1
	CARD=$1 short --repeat 300 >/tmp/two
	wait "$one"
	status=$?
	cat /tmp/one
	[ "$status" = 0 ] && [ "$(grep -c '0x030: 0x1$' /tmp/two)" = 300 ]
}
# The chip keeps the slots in reset that the driver left so.
after_reset() { echo 1 >/sys/bus/pci/devices/0000:00:02.0/reset && one; }
has_features() { fermatactl --json info 2 >/tmp/json && cat /tmp/json && grep -F '"features":["irq","window","quiescent","snapshot-unit"' /tmp/json; }
# The other cards have no interrupts.
has_interrupts() { cat /proc/interrupts && [ "$(awk '/ fermata$/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts)" -ge 40 ]; }
# A line that is not in the arena.
astray() {
	! fermatactl run "$LIST" --card 2 --arena 8192 --reg 0x48=@0/64 --reg 0x50=1 --result 0x30 >/tmp/out 2>&1 && cat /tmp/out &&
		grep "has read 0x40, which is outside of the arena" /tmp/out
}
loaded_again() { rmmod fermata && insmod /fermata.ko && fermatactl list && one; }

# A list of nodes in any order, each in a line of its own; the third word of the result is a count of cycles.
awk -v nodes=4000 'BEGIN {
	print "arena 262144\nreg 0x48 @0/64\nreg 0x50 @4096/64\nreg 0x58 1\nresult 0x30\nignore 16 8"
	for (i = 0; i < nodes; i++) {
		at = 4096 + 64 * (i * 1001 % nodes)
		if (i + 1 < nodes) print "word " at " @" 4096 + 64 * ((i + 1) * 1001 % nodes)
		print "word " at + 8 " " i * 40503 + 1
	}
}' >/tmp/list
printf 'arena 8192\nreg 0x48 @0/64\nreg 0x50 @4096/64\nreg 0x58 1\nword 4104 5\nignore 16 8\n' >/tmp/short

n=0 failed=0
echo 1..14
point "the driver has all cards" fermatactl list
point "a job of a UUID runs, with registers in lines" one
point "the model's results are right after preemptions and changes of the slot" sound 0
point "and after a reset of the function" after_reset
point "and when the module is loaded again, which finds the slots in reset" loaded_again
point "a race is found" fails "of 40 runs are wrong" check "$LIST" /tmp/list --card 1 --runs 40
point "and with the seed" grep -q "seed 0x" /tmp/out
point "a job that is too short to be preempted is no success" fails "nothing was tested" check "$LIST" /tmp/short --card 0 --runs 3
point "tenants at once" together 0
point "the driver has the features of the profile irq" has_features
point "results are right after preemptions and changes of the slot" sound 2
point "interrupts end the runs" has_interrupts
point "a window ends a job that leaves its arena" astray
point "tenants at once" together 2
exit "$failed"
