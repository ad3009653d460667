#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Drives fermatactl in the guest of `vm/run ctl`: each `point` is a TAP point, numbered there.
# Output that is to be parsed as JSON goes to /report.
point() { # point WHAT COMMAND…: good if the command succeeds
	what=$1
	shift
	if "$@" >/tmp/why 2>&1; then echo "ok - $what"; else
		echo "not ok - $what"
		sed 's/^/# /' /tmp/why
	fi
}
ctl() { fermatactl "$@"; }
# says TEXT COMMAND…: the command fails with status 1 and says TEXT on standard error, with advice below it
says() { fails 1 "$@"; }
# wrong TEXT COMMAND…: the same with status 2: the command line asks for something that does not exist
wrong() { fails 2 "$@"; }
fails() {
	wanted=$1 text=$2
	shift 2
	"$@" >/tmp/out 2>/tmp/err
	status=$?
	cat /tmp/out /tmp/err
	[ $status = "$wanted" ] && grep -qF -- "$text" /tmp/err && [ "$(wc -l </tmp/err)" -ge 2 ]
}
state_of() { ctl info 0 "$1" | awk '$1 == "state" { print $2 }'; }
is_state() { # is_state CONTEXT STATE: comes to be so
	tries=0
	until [ "$(state_of "$1")" = "$2" ]; do
		[ $((tries += 1)) -lt 100 ] || { ctl list; return 1; }
		sleep 0.1
	done
}
value_of() { ctl info 0 "$1" | awk -v name="$2" '$0 ~ "^  *" name "  " { print $NF }'; }
is() { [ "$1" = "$2" ] || { echo "$1, not $2"; return 1; }; }
json() { # json NAME COMMAND…: one value a line, parsed outside
	name=$1
	shift
	ctl --json "$@" >"/report/$name.json"
}
tenant() { su tenant -c "$*"; }
# container SETUP COMMAND…: in a mount namespace where SETUP was done to an empty /dev
container() {
	setup=$1
	shift
	unshare -m sh -c "mount -t tmpfs none /dev && { $setup; } && exec \"\$@\"" sh "$@"
}
screen() { fermata-screen --size 80x24 -- "$@"; }

# --- no card -------------------------------------------------------------
point "without the module it says what to load" says "modprobe fermata" ctl list
point "and so does top" says "modprobe fermata" ctl top --once
point "and without a command, with the way to the help" says "fermatactl --help" ctl
point "and without sysfs" says "the module fermata is not loaded" container "mount -t tmpfs none /sys" fermatactl list
point "a device of another driver" says "/dev/null is not a fermata card" ctl list /dev/null
insmod /fermata.ko || exit 1

# --- containers ----------------------------------------------------------
major=$(awk '$2 == "fermata" { print $1 }' /proc/devices)
point "a container without the card's node" says "the machine has fermata0" container true fermatactl list
point "what gives it the node" says "--device /dev/fermata0" container true fermatactl top --once
point "the card by its name" says "the machine has fermata0" container true fermatactl info 0
point "a card that the machine does not have" says "there is no card fermata7" container true fermatactl info 7
point "as JSON" sh -c '! unshare -m sh -c "mount -t tmpfs none /dev && fermatactl --json list" 2>/report/container.json'
point "without sysfs" says "it cannot be told which cards are bound" container "mount -t tmpfs none /sys" fermatactl list
point "without sysfs and proc" says "neither /sys nor /proc/devices" container "mount -t tmpfs none /sys; mount -t tmpfs none /proc" fermatactl list
point "and has nothing to pass on" says "the machine has fermata0" container true fermatactl cdi generate
point "with the node" container "mknod /dev/fermata0 c $major 0" fermatactl list
point "with the node, without sysfs and proc" container "mknod /dev/fermata0 c $major 0; mount -t tmpfs none /sys; mount -t tmpfs none /proc" fermatactl list
point "with a node that may not be opened" says "although its mode allows it" \
	container "mount -t tmpfs -o nodev none /dev; mknod -m 666 /dev/fermata0 c $major 0" fermatactl list
point "with a node of no card" says "the card of this node is gone" container "mknod /dev/fermata0 c $major 9" fermatactl list
point "with a node of no card beside that of a card" container "mknod /dev/fermata0 c $major 0; mknod /dev/fermata9 c $major 9" fermatactl list
point "and so does top" container "mknod /dev/fermata0 c $major 0; mknod /dev/fermata9 c $major 9" fermatactl top --once --interval 100ms
point "unless the node is named" says "the card of this node is gone" container "mknod /dev/fermata0 c $major 0; mknod /dev/fermata9 c $major 9" fermatactl list 0 9
point "with a node of another driver" says "/dev/fermata0 is not a fermata card" container "mknod /dev/fermata0 c 1 3" fermatactl list
point "with a folder for the node" says "/dev/fermata0 is not a fermata card" container "mkdir /dev/fermata0" fermatactl list
point "files that are no cards" says "/etc/passwd is not a fermata card" ctl list /etc/passwd
point "nor is another driver's device" says "/dev/null is not a fermata card" ctl list /dev/null

# --- tenants -------------------------------------------------------------
# Counters that run until they are killed: two that share slot 0.
forever=1000000000000000
fermatactl run counter_up --count $forever --set timeslice=1ms --set preempt-timeout=10s >/dev/null 2>&1 &
one=$!
fermatactl run counter_up --count $forever --set timeslice=1ms --set preempt-timeout=10s >/dev/null 2>&1 &
two=$!
until [ "$(ctl list | awk '/fermatactl run/ && $2 ~ /running|queued/' | wc -l)" = 2 ]; do sleep 0.1; done
# Each has a line of its own, in the order of the numbers.
A=$(ctl list | awk '/fermatactl run/ { print $1 }' | sed -n 1p)
B=$(ctl list | awk '/fermatactl run/ { print $1 }' | sed -n 2p)
ctl list >/report/list
ctl info 0 "$A" >/report/info

point "list has both" test -n "$A" -a -n "$B"
point "list as JSON" json list list
point "a card as JSON" json card info 0
point "a context as JSON" json context info 0 "$A"
point "the card for containers as JSON" json cdi cdi generate
point "the same in a file" sh -c 'fermatactl cdi generate --output /tmp/cdi.json && tr -d " \n" </tmp/cdi.json >/report/cdi-file.json'
point "a file that cannot be written" says "there is no folder /nowhere" ctl cdi generate --output /nowhere/cdi.json
point "a card that is not there" says "there are: fermata0" ctl list 7
point "a context that is not there" says "there are: $A, $B" ctl info 0 4000000000
point "a word that is no card" sh -c '! fermatactl list nonsense 2>/tmp/err && grep -q "a card is a number" /tmp/err'
point "an error as JSON" sh -c '! fermatactl --json info 0 4000000000 2>/report/error.json'
point "wrong arguments as JSON" sh -c 'fermatactl --json hold 0 0 2>/report/wrong.json; [ $? = 2 ]'
point "arguments that do not go together, as JSON" sh -c 'fermatactl set --json 0 weight=1 2>>/report/wrong.json; [ $? = 2 ]'
point "help is text, and no error" sh -c 'fermatactl --json list --help | grep -q "^Usage: "'
point "nobody reads" sh -c 'fermatactl list | true; fermatactl info | head -1'

# --- control -------------------------------------------------------------
point "hold" ctl hold 0 "$A"
point "it is held" is_state "$A" held
point "the other one runs" sh -c "fermatactl info 0 $B | grep -qE 'state +(running|queued)'"
point "resume" ctl resume 0 "$A"
point "it is held no more" sh -c "fermatactl info 0 $A | grep -qE 'state +(running|queued)'"
point "preempt both" ctl preempt 0 "$A" "$B"
point "disable" ctl disable 0 "$A"
point "it is disabled" sh -c "until fermatactl info 0 $A | grep -q 'queued,disabled'; do sleep 0.1; done"
point "enable" ctl enable 0 "$A"
point "hold of a context that is not there" says "there is no context" ctl hold 0 4000000000
for verb in hold preempt resume disable enable; do
	point "$verb of two, one of which is not there" says "nothing was done" ctl $verb 0 "$A" 4000000000
done
point "the first of them goes on" sh -c "fermatactl info 0 $A | grep -qE 'state +(running|queued)$'"
fermatactl run counter_up --count 1 --repeat 1000 --hint 10s >/dev/null 2>&1 &
idle=$!
until I=$(ctl list | awk '$2 == "idle" { print $1 }') && [ -n "$I" ]; do sleep 0.1; done
point "hold of two, one of which has no job" says "context $I: the context has no job" ctl hold 0 "$A" "$I"
point "as JSON" sh -c "! fermatactl --json hold 0 $A $I 2>/report/refused.json"
point "the first of them still goes on" sh -c "fermatactl info 0 $A | grep -qE 'state +(running|queued)$'"
point "both can be disabled" ctl disable 0 "$A" "$I"
point "and enabled" ctl enable 0 "$A" "$I"
kill $idle
wait $idle 2>/dev/null
point "as JSON" json hold hold 0 "$B"
ctl resume 0 "$B"

# --- set -----------------------------------------------------------------
point "parameters of a context" ctl set 0 "$A" weight=300 priority=20 timeslice=2ms cap=50
point "weight" is "$(value_of "$A" weight)" 300
point "priority" is "$(value_of "$A" priority)" 20
point "timeslice" is "$(value_of "$A" timeslice)" 2ms
ctl set 0 "$A" cap=0
point "policy and starvation boost" ctl set 0 policy=priority boost=500ms
point "policy" sh -c 'fermatactl info 0 | grep -q "policy  *priority"'
point "policy and starvation boost without sysfs" says "no files below /sys" container "mknod /dev/fermata0 c $major 0; mount -t tmpfs none /sys" fermatactl set 0 policy=fair
point "policy where sysfs is read-only" says "outside of the container" container "mknod /dev/fermata0 c $major 0; mount -o bind,remount,ro /sys" fermatactl set 0 policy=fair
ctl set 0 policy=fair boost=1s
point "as JSON" json set set 0 "$A" weight=100
point "a value out of range" wrong "32 is out of range: give 0 to 31" ctl set 0 "$A" priority=32
point "cooperative, where the engine has no boundaries" says "cooperative is what the engine can" ctl set 0 "$A" cooperative=yes
point "a slot of another engine" says "another engine" ctl set 0 "$A" slots=1
point "a policy that there is not" sh -c '! fermatactl set 0 policy=best 2>/tmp/err && grep -q "there are fair" /tmp/err'
point "a reservation that cannot be admitted" says "a smaller budget" ctl set 0 "$A" reservation=5ms/5ms/5ms
point "settings, the second of which is refused" says "done: weight=200; not done: slots=1, priority=25" ctl set 0 "$A" weight=200 slots=1 priority=25
point "the first is set" is "$(value_of "$A" weight)" 200
point "the last is not" is "$(value_of "$A" priority)" 20
point "as JSON" sh -c "! fermatactl --json set 0 $A weight=100 slots=1 priority=25 2>/report/half.json"
point "settings, the last of which is out of range" wrong "out of range" ctl set 0 "$A" weight=300 priority=32
point "the first is not set" is "$(value_of "$A" weight)" 100
point "of a card, to a context" wrong "leave out the number" ctl set 0 "$A" policy=fair

# --- group ---------------------------------------------------------------
cgroup=/sys/fs/cgroup/ctl
mkdir -p $cgroup
point "a cgroup that is not registered" says "not registered" ctl group 0 $cgroup
point "a cgroup is registered before it has a context" ctl group 0 $cgroup --weight 300 --max-bytes 64M --exclusive none
point "and keeps what was set" sh -c "fermatactl group 0 $cgroup | grep -q 'weight  *300'"
point "a cap is lifted" sh -c "fermatactl group 0 $cgroup --cap 20 && fermatactl group 0 $cgroup --cap none | grep -q 'cap  *none'"
point "as JSON" json group group 0 $cgroup --cap 150
point "something that is no cgroup" says "not the directory of a cgroup" ctl group 0 /tmp --weight 1
point "a directory that is not there" says "name the directory of a cgroup" ctl group 0 /nowhere
point "a weight out of range" wrong "give 1 to 10000" ctl group 0 $cgroup --weight 0
chmod 666 /dev/fermata0
point "without the capability" says "CAP_SYS_ADMIN" tenant fermatactl group 0 $cgroup
chmod 600 /dev/fermata0
point "options without a cgroup" wrong "<CGROUP|--user <USER>>" ctl group 0 --weight 1
point "a user is registered" ctl group 0 --user tenant --weight 200
point "and is listed by number" sh -c "fermatactl group 0 --user $(id -u tenant) | grep -q 'weight  *200'"
point "until the registration ends" ctl group 0 --user tenant --remove
point "a user that does not exist" wrong "there is no user" ctl group 0 --user nobody-here --weight 1
point "each cgroup in the root is a group" sh -c "fermatactl group 0 /sys/fs/cgroup --children | grep -q 'and each child'"
point "until the root is one group" sh -c "fermatactl group 0 /sys/fs/cgroup --no-children | grep -q 'group [0-9]*$'"
point "with --children again they are" sh -c "fermatactl --json group 0 /sys/fs/cgroup --children | grep -q '\"children\":true'"
point "until the registration ends" ctl group 0 /sys/fs/cgroup --remove

# --- who waits, and why --------------------------------------------------
sh -c "echo \$\$ >$cgroup/cgroup.procs; exec fermatactl run counter_up --count $forever" >/dev/null 2>&1 &
capped=$!
ctl group 0 $cgroup --cap 1 --exclusive none
ctl disable 0 "$B"
point "a disabled context is not without slots" is_state "$B" queued,disabled
because="cap 1 % of group /ctl is used up"
until ctl list | grep -q "waits because: $because"; do sleep 0.1; done
point "list has groups" sh -c "fermatactl list | grep -qE ' /ctl +[0-9]+ +fermatactl run'"
until ctl --json >/report/overview.json && grep -q '"group-cap"' /report/overview.json; do sleep 0.1; done
point "groups are listed" sh -c "fermatactl group 0 | grep -qE '^ +300 +1 % +1 .* yes +/ctl$'"
point "as JSON" json groups group 0
printf 'wait --help\nshow\nkeys \\r\nend\n' >/tmp/keys
until screen sh -c 'fermatactl; read -r key' </tmp/keys >/report/overview-screen && grep -q "$because" /report/overview-screen; do sleep 0.1; done
point "in a pipe nothing is cut" sh -c "fermatactl | grep -q 'fermatactl run counter_up --count $forever'"
point "without a size, too" sh -c "fermata-screen --size 0x0 -- sh -c 'fermatactl; read -r key' </tmp/keys | grep -q 'policy fair'"
kill $capped
wait $capped 2>/dev/null
# A alone on its slot: nobody makes the driver stop it.
until ctl list >/tmp/alone && grep -q "$A runs on slot 0 for .*, nobody waits" /tmp/alone; do sleep 0.5; done
point "a job that may hang has a remedy" grep -q "fermatactl preempt 0 $A" /tmp/alone
ctl preempt 0 "$A"
point "a good job goes on" is_state "$A" running
ctl enable 0 "$B"
nasty="/tmp/a$(printf '\033[31m\r\tb')"
cp "$(command -v fermatactl)" "$nasty"
"$nasty" run membench /bin/busybox --count $forever >/dev/null 2>&1 &
red=$!
until ctl list | grep -q " membench  *1 "; do sleep 0.1; done
point "the name of a stranger's command does nothing to the terminal" sh -c \
	"{ fermatactl; fermatactl list; fermatactl info 0; fermatactl top --once -i 100ms; fermatactl --json list; } >/tmp/names && ! grep -q '[[:cntrl:]]' /tmp/names"
point "it is shown" grep -qF '/tmp/a\x1b[31m\x0d\tb' /tmp/names
kill $red
wait $red 2>/dev/null
point "the end of a registration" ctl group 0 $cgroup --remove
point "there is none any more" says "not registered" ctl group 0 $cgroup --remove
rmdir $cgroup

# --- stats ---------------------------------------------------------------
ctl stats 0 >/report/stats
point "stats of a card" sh -c 'grep -qE "gap +[1-9]" /report/stats'
point "as JSON" json stats stats 0
point "stats of a context, as JSON" json stats-context stats 0 "$A"
point "stats of a context that is not there" says "there is no context" ctl stats 0 4000000000

# --- trace ---------------------------------------------------------------
tracing=/sys/kernel/tracing
umount $tracing
umount /sys/kernel/debug
point "without tracefs it says what to mount" says "mount -t tracefs" ctl trace --duration 10ms -o /tmp/trace.json
mount -t tracefs nodev $tracing
mount -t debugfs nodev /sys/kernel/debug
tenant "echo earlier >/tmp/tenant.json"
point "nobody but root may trace" says "run it as root" tenant "fermatactl trace --duration 10ms -o /tmp/tenant.json"
point "an earlier trace stays" is "$(cat /tmp/tenant.json)" earlier
point "a trace, as JSON" json trace trace 0 --duration 2s -o /report/trace-events.json --svg /report/trace.svg --text /report/trace.txt
# Tenants whose commands look like events, or are torn by a line end.
mkdir /tmp/forged
for name in ': fermata_x' "$(printf 'x\n#')" "$(printf '1.0: fermata_:\n#')" "$(printf 'a\033[31m<b>')"; do
	cp "$(command -v fermatactl)" "/tmp/forged/$name"
	"/tmp/forged/$name" run counter_up --count 1000 --repeat 1000000000 >/dev/null 2>&1 &
	forgers="$forgers $!"
done
sleep 1
point "a trace of tenants that forge events" json forged trace 0 --duration 2s -o /report/forged-events.json --svg /report/forged.svg --text /report/forged.txt
# shellcheck disable=SC2086 # words
kill $forgers
# shellcheck disable=SC2086 # words
wait $forgers 2>/dev/null
# shellcheck disable=SC2016 # sh expands it
point "the files of a trace are root's alone" sh -c 'is_600() { [ "$(stat -c %a "$1")" = 600 ]; }; is_600 /report/forged.svg && is_600 /report/forged.txt'
echo earlier >/tmp/trace.json
point "a trace that fails" says "/nowhere/svg" ctl trace -o /tmp/trace.json --svg /nowhere/svg --duration 10ms
point "leaves an earlier one" is "$(cat /tmp/trace.json)" earlier
point "a trace of a card that is not there" says "there are: fermata0" ctl trace 7 --duration 10ms -o /tmp/trace.json
point "a trace while a command runs has the status of that" sh -c 'fermatactl trace -o /tmp/trace.json -- sh -c "exit 5"; [ $? = 5 ]'
point "a command that there is not" sh -c '! fermatactl trace -o /tmp/trace.json -- /nowhere 2>/tmp/err && grep -q "/nowhere: No such file" /tmp/err'
point "a trace that cannot be written" sh -c '! fermatactl trace -o /nowhere/trace --duration 10ms 2>/tmp/err && grep -q "/nowhere/trace: No such file" /tmp/err'
# A trace that does not get to read until its buffer has overflowed.
fermatactl set 0 "$A" timeslice=500us
fermatactl trace --buffer 64 -o /tmp/trace.json >/tmp/lost &
slow=$!
until grep -q 1 $tracing/instances/fermatactl-$slow/events/fermata/enable 2>/dev/null; do sleep 0.1; done
kill -STOP $slow
until cat $tracing/instances/fermatactl-$slow/per_cpu/cpu*/stats | grep -q '^overrun: [1-9]'; do sleep 0.1; done
kill -CONT $slow
kill -TERM $slow
wait $slow
point "what was lost is told" grep -qE "^[1-9][0-9]* events were LOST" /tmp/lost
point "no instance is left behind" sh -c "! ls $tracing/instances | grep ."

# --- hint ----------------------------------------------------------------
point "a hint while the job runs" says "has not ended" ctl hint 0 "$A" 5ms
fermatactl run counter_up --count 1 --repeat 1000 --hint 10s >/dev/null 2>&1 &
three=$!
until C=$(ctl list | awk '$2 == "idle" { print $1 }') && [ -n "$C" ]; do sleep 0.1; done
point "a hint for a program that waits" ctl hint 0 "$C" 5ms
point "it is taken back, as JSON" json hint hint 0 "$C" never
kill $three 2>/dev/null
wait $three 2>/dev/null
mknod /tmp/node c "$major" 0
fermatactl run --card /tmp/node counter_up --count 1 --repeat 1000 --hint 10s >/dev/null 2>&1 &
elsewhere=$!
until C=$(ctl list | awk '$2 == "idle" { print $1 }') && [ -n "$C" ]; do sleep 0.1; done
point "a hint for a program that has the card by another node" ctl hint 0 "$C" 5ms
kill $elsewhere 2>/dev/null
wait $elsewhere 2>/dev/null
point "a hint that is too far" wrong "1h is out of range: give 1us to 10s" ctl hint 0 "$A" 1h
point "a hint for no context" wrong "0 is not the number of a context" ctl hint 0 0 1ms

# --- top -----------------------------------------------------------------
point "top in a pipe" sh -c 'fermatactl top --once -i 500ms >/report/top && grep -q "RUN%" /report/top'
point "no escapes in a pipe" sh -c "! grep -q '$(printf '\033')' /report/top"
point "top as JSON, twice" json top top -n 2 -i 300ms
point "top, no times" wrong "0 is out of range: give 1 or more" ctl top --count 0
point "top, filtered" sh -c "fermatactl top --once -i 200ms -f $one >/tmp/filtered && grep -qE ' $one +fermatactl run' /tmp/filtered && ! grep -qE ' $two +fermatactl run' /tmp/filtered"
# Sorted by number, the first row is A's: it is held and resumed by keys, then raised.
screen fermatactl top -i 200ms --sort context >/report/screen 2>/tmp/screen.err <<END
wait q quit
wait fermatact…
show
keys j
keys h
wait hold: context $A: done
wait 1 held
show
keys r
wait resume: context $A: done
keys +
wait priority up: context $A: done
keys /held
wait filter: held_
gone fermatact…
keys \r
wait filter held  |
keys /
wait filter: _
keys \e
wait filter held  |
keys ?
wait any key goes on
show
keys x
gone any key goes on
keys s
wait sort STATE down
keys q
end
END
screen_status=$?
point "top on a terminal of 80x24, with keys" sh -c "cat /tmp/screen.err; [ $screen_status = 0 ]"
point "its keys have raised the priority" is "$(value_of "$A" priority)" 21
# While both are held nothing changes: a narrow terminal must show the same values as a wide one.
ctl hold 0 "$A" "$B"
is_state "$A" held && is_state "$B" held
for width in 40 60 69 70 80 200; do
	# The last line is drawn last.
	printf 'wait sort CTX\nshow\nkeys q\nend\n' >/tmp/keys
	point "top on a terminal of $width columns" sh -c \
		"fermata-screen --size ${width}x24 -- fermatactl top -i 10s --sort context </tmp/keys >/report/screen-$width"
done
point "top on a terminal without a size" sh -c \
	"fermata-screen --size 0x0 -- fermatactl top -i 10s --sort context </tmp/keys | grep -q '^CTX\|^ *CTX '"
ctl resume 0 "$A" "$B"

# --- unprivileged users --------------------------------------------------
point "a device that is not for everybody" says "only root may" tenant fermatactl list
point "the page that has the udev rule" says "docs/operations.md" tenant fermatactl list
echo fermata:x:999: >>/etc/group
chgrp fermata /dev/fermata0
chmod 660 /dev/fermata0
point "a device of a group that one is not in" says "a member of the group fermata" tenant fermatactl list
sed -i s/fermata:x:999:/fermata:x:999:tenant/ /etc/group
point "a member of its group" tenant fermatactl list
chmod 666 /dev/fermata0
point "no pids of others for a tenant" sh -c "su tenant -c 'fermatactl list' | grep -q 'counter_up.* -  -\$'"
point "no parameters and times of others, and no 0 for them" sh -c "su tenant -c 'fermatactl info 0 $A' | grep -qE '^  weight +-\$'"
point "nor counters of slots" sh -c "su tenant -c 'fermatactl --json list' | grep -q '\"busy_ns\":null'"
point "no control for a tenant" says "CAP_SYS_ADMIN" tenant "fermatactl hold 0 $A"
point "no policy for a tenant" says "CAP_SYS_ADMIN" tenant "fermatactl set 0 policy=fair"
point "a larger weight takes CAP_SYS_NICE" says "more than the default takes CAP_SYS_NICE" tenant "fermatactl run counter_up --count 1 --set weight=300"
point "a smaller one takes nothing" tenant "fermatactl run counter_up --count 1 --set weight=50"
point "a reservation takes CAP_SYS_NICE" says "a reservation takes CAP_SYS_NICE" tenant "fermatactl run counter_up --count 1 --set reservation=2ms/5ms/10ms"
point "another user's histograms take CAP_SYS_ADMIN" says "CAP_SYS_ADMIN" tenant "fermatactl stats 0 $A"
point "nor does a tenant see those of slots" says "CAP_PERFMON" tenant "fermatactl stats 0"
point "top shows a tenant what is there" tenant "fermatactl top --once --interval 100ms"
chgrp tenant /sys/class/fermata/fermata0/monitor
point "who may read the figures in sysfs has the counters" sh -c "su tenant -c 'fermatactl stats 0 $A' | grep -q '[1-9][0-9]* slices'"
point "and those of slots" sh -c "su tenant -c 'fermatactl stats 0' | grep -q '[1-9][0-9]* switches'"
chgrp root /sys/class/fermata/fermata0/monitor
point "no hint for a tenant" says "run it as root" tenant "fermatactl hint 0 $A 5ms"
point "a job of a tenant's own" tenant "fermatactl run sha256 /etc/passwd"
printf 'arena 200000\nreg 0x30 @4096\nreg 0x38 190000\nreg 0x40 @0\n' >/tmp/job
printf 'arena 4096\nreg 0x31 1\n' >/tmp/badjob
point "a tenant checks an engine" tenant "fermatactl check-engine sha256 /tmp/job --runs 20 --seed 7 >/tmp/checked && grep 'seed 0x7, slots 2' /tmp/checked && grep '20 right, 0 wrong, 0 failed' /tmp/checked"
point "a wrong line of the job's file is named" says "/tmp/badjob: line 2: registers are at multiples of 8" ctl check-engine sha256 /tmp/badjob
kill $one $two
wait $one $two 2>/dev/null
until ctl list | grep -q ', 0 of'; do sleep 0.1; done

# --- run -----------------------------------------------------------------
head -c 65536 /bin/busybox >/tmp/list
ctl run sha256 /etc/passwd >/report/run
point "sha256 as sha256sum has it" grep -q "$(sha256sum </etc/passwd | cut -c1-64)" /report/run
point "a list" json list-run run linkedlist /tmp/list --seed 5
point "a file that cannot be written is refused before the job" says "there is no folder /nowhere" \
	timeout 20 fermatactl run counter_up --count $forever -o /nowhere/file
fermatactl run membench /tmp/list --access update --random --seed 5 -o /tmp/unread | true
point "a result that nobody reads is in the file" [ "$(stat -c '%a %s' /tmp/unread)" = "600 $(stat -c %s /tmp/list)" ]
point "a full disk is told" says "No space left" ctl run sha256 /tmp/list -o /dev/full
point "a result that finds no room is in the file" sh -c 'fermatactl run sha256 /tmp/list -o /tmp/full >/dev/full 2>/dev/full; [ $? = 1 ] && cmp /tmp/full /tmp/list'
fermatactl run counter_up --count $forever -o /tmp/ended &
ended=$!
until ls /tmp/.tmp* >/dev/null 2>&1; do sleep 0.1; done
kill $ended
wait $ended 2>/dev/null
point "a job that is ended leaves no file" sh -c '! ls /tmp/ended /tmp/.tmp* 2>/dev/null'
point "membench" json membench run membench /tmp/list --access update --random --seed 5 -o /report/membench
point "blockmix" json blockmix run blockmix /tmp/list --seed 5 -o /report/blockmix
point "a program, with its output" sh -c 'fermatactl run riscv /selftests/riscv-mixture --arg 2 | grep -q "exit 0"'
point "a counter, hinted" json counter run counter_up --count 21 --first 3 --hint 5ms
for op in sha256 crc32c copy fill; do
	point "queue: $op" json "queue-$op" run queue /tmp/list --op $op --arg 0 -o "/tmp/made-$op"
done
point "queue: the copy is one" cmp /tmp/list /tmp/made-copy
point "an engine by its registers" json raw run sha256 /tmp/list --raw \
	--reg 0x30=@0 --reg 0x38=4096 --reg 0x40=0 --result 0x58 --result 0x60 --result 0x68 --result 0x70
cp /tmp/list /report/list-data
ctl run sha256 /tmp/list --raw --reg 0x30=0x5000 --reg 0x38=64 2>/tmp/err
status=$?
point "a job that fails has a status of its own" is $status 3
point "and the address is told" grep -q "has read 0x5000, which is outside of the arena" /tmp/err
point "an option of another engine" wrong "sha256 has no --block" ctl run sha256 /tmp/list --block 4096
point "a job that is run no times" wrong "0 is out of range: give 1 or more" ctl run sha256 /etc/passwd --repeat 0
point "a count of none" wrong "--count 0 is out of range for this engine" ctl run membench /tmp/list --count 0
point "an argument that is too wide" wrong "give 0 to 4294967295" ctl run riscv /selftests/riscv-mixture --arg 0x100000000
point "an engine that no slot has" says "there are fermata0: counter_up" ctl run counter_down
point "a file that is not there" sh -c '! fermatactl run sha256 /nowhere 2>/tmp/err && grep -q "/nowhere: No such file" /tmp/err'

# --- examples ------------------------------------------------------------
abc=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad
zeros=$(head -c 33554432 /dev/zero | sha256sum | cut -c1-64)
for example in /examples/hash /examples/hash-rust; do point "$example" is "$($example)" $abc; done
for example in /examples/hold /examples/hold-rust; do
	$example >/tmp/held
	point "$example" is "$(tail -1 /tmp/held)" "$zeros"
	point "$example was taken off its slot" grep -qE "taken off [1-9]" /tmp/held
done

# --- dump ----------------------------------------------------------------
point "a card without a dump" says "fermata0 has no dump" ctl dump 0
point "no dump of any card" says "no card has a dump" ctl dump
fermatactl run counter_up --count $forever --set preempt-timeout=20ms >/dev/null 2>&1 &
hangs=$!
until ctl list | grep -q "running.*fermatactl run"; do sleep 0.1; done
C=$(ctl list | awk '/fermatactl run/ { print $1 }')
exec 5<>/dev/virtio-ports/fermata.card0
echo "1 fault slot=0 hang=1" >&5
head -n 1 <&5 >/dev/null
ctl preempt 0 "$C"
wait $hangs
until ls /sys/class/devcoredump/devcd*/data >/dev/null 2>&1; do sleep 0.1; done
ctl dump >/report/dump-text
point "the dump of a hang, as JSON" json dump dump 0
point "a dump is for root only" says "sudo fermatactl dump" tenant "fermatactl dump 0"
point "a dump of another card" says "fermata7 has no dump" ctl dump 7
point "a dump as the driver has written it" sh -c 'fermatactl dump --raw >/tmp/dump && head -n 1 /tmp/dump | grep -qx "fermata-dump 1" && tail -n 1 /tmp/dump | grep -qx "\[end\]"'
point "a dump in a file, for a tenant" sh -c 'su tenant -c "fermatactl dump /tmp/dump" | cmp - /report/dump-text'
point "a dump from the standard input" sh -c 'fermatactl dump - </tmp/dump | cmp - /report/dump-text'
point "a file that is no dump" says "/etc/passwd: not a dump of fermata" ctl dump /etc/passwd
point "a file that there is not" says "/nowhere/dump: No such file" ctl dump /nowhere/dump
point "a file is not deleted" wrong "only a dump that the kernel keeps" ctl dump --delete /tmp/dump
point "a dump is deleted once it was shown" sh -c 'fermatactl dump 0 --delete | cmp - /report/dump-text'
until ! ls /sys/class/devcoredump/devcd*/data >/dev/null 2>&1; do sleep 0.1; done
point "and is gone" says "fermata0 has no dump" ctl dump 0

# --- pages and completions -----------------------------------------------
# shellcheck disable=SC2016 # of the inner shell
point "completions" sh -c 'for shell in bash zsh fish; do fermatactl completions $shell | grep -q preempt || exit 1; done'
point "manual pages" sh -c 'mkdir /report/man && fermatactl man /report/man && test -s /report/man/fermatactl-top.1'

# --- the card goes -------------------------------------------------------
echo 1 >"/sys/bus/pci/devices/$(basename "$(readlink -f /sys/bus/pci/drivers/fermata/0000:*)")/remove"
point "a card that is gone" says "the module fermata is loaded, but no card is bound" ctl list
point "its node in a container" says "the module fermata is loaded, but no card is bound" container "mknod /dev/fermata0 c $major 0" fermatactl list
rmmod fermata
point "without the module" says "the module fermata is not loaded" container "mknod /dev/fermata0 c $major 0" fermatactl list
