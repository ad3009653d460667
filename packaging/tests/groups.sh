# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# For tests of groups, after systemd.sh: jobs in units of systemd, and the groups of card 0 that have contexts. The user 2000, member, may
# use cards.

# Where systemd mounts the cgroups of version 2.
TREE=/sys/fs/cgroup
CARD=$(basename "$(readlink /sys/class/fermata/fermata0/device)")
driver() { echo "$CARD" >"/sys/bus/pci/drivers/fermata/$1"; }
prepare_groups() {
	install_units fermata-groups@.service fermata-groups@.path
	cp /debian/fermata/packaging/60-fermata.rules /debian/usr/lib/udev/rules.d/
	cp /debian/fermata/packaging/fermata.sysusers /debian/usr/lib/sysusers.d/fermata.conf
	debian systemd-sysusers >/dev/null
	debian useradd --uid 2000 --groups fermata member
	head -c 1048576 /dev/zero >/debian/var/tmp/zeros
}
inode() { inside stat -c %i "$TREE/$1"; }
has_children() { inside fermatactl --json group 0 "$TREE/$1" | grep '"children":true'; }
is_registered() { retry 100 0.2 has_children "$1"; }
is_no_group() { ! inside fermatactl group 0 "$TREE/$1"; }
# Starts a job that does not end, in a unit of systemd with these options.
job() {
	unit=$1
	shift
	inside systemd-run --quiet --collect --unit "$unit" --property LimitMEMLOCK=infinity "$@" \
		fermatactl run membench /var/tmp/zeros --count 1000000000000
}
# The groups of contexts, one a line for each context.
groups() { fermatactl --json list 0 | tr '{' '\n' | sed -n 's/.*"group":\([0-9]*\),.*/\1/p'; }
group_is() { groups | grep -x "$1"; }
# The group with this number has a context.
has() { retry 100 0.2 group_is "$1"; }
job_of() { unit=$1; cgroup=$2; shift 2; job "$unit" "$@" && has "$(inode "$cgroup")"; }
contexts_are() { [ "$(groups | grep -cx "$1")" = "$2" ]; }
# The group with this number has so many contexts.
has_contexts() { retry 100 0.2 contexts_are "$1" "$2"; }
sessions_are_one() {
	for session in 1 2; do
		job "session-$session" --uid 2000 --slice user-2000.slice || return
	done
	has_contexts "$(user_group 2000)" 2
}
no_contexts() { [ -z "$(groups)" ]; }
all_stop() { inside systemctl stop "$@"; retry 100 0.2 no_contexts; }
