# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# For tests in a machine of `vm/boot --debian`, after `debian true` and tap.sh: runs systemd as the first process of namespaces of its own,
# with the Debian system as its root. `inside CMD...` runs a command there as root, `as USER CMD...` as a user with the user's groups.

# Installs units of packaging/, which run the machine's programs.
install_units() {
	mkdir -p /debian/run/systemd/system
	for unit; do sed 's|@bindir@|/machine/bin|' "/debian/fermata/packaging/$unit" >"/debian/run/systemd/system/$unit"; done
}
# Words are for systemd's command line, which is the kernel's for systemd in a container. With any, the cgroups are version 1, or hybrid.
# shellcheck disable=SC2120 # most tests have none
start_systemd() {
	cat >/debian/root/first <<-'END'
		umount -l /proc
		mount -t proc proc /proc
		while umount /sys/fs/cgroup; do :; done 2>/dev/null
		[ $# -gt 0 ] || mount -t cgroup2 cgroup /sys/fs/cgroup
		mount --make-rshared /
		exec env -i container=fermata PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target "$@"
	END
	# shellcheck disable=SC2016 # for the other shell
	unshare -m -p -f sh -c 'cd /debian && mount --move . / && exec chroot . /bin/sh /root/first "$@"' first "$@" >/report/systemd 2>&1 </dev/null &
	tries=0
	# A child that systemd has forked has systemd's name until it executes a program.
	until FIRST=$(pidof systemd) && [ -d "/proc/$FIRST" ] || [ $((tries += 1)) -gt 100 ]; do sleep 0.2; done
}
# Makes /var/tmp/image.tar, for containers: busybox, fermatactl, and a file /zeros of $1 bytes.
make_image() {
	mkdir -p /tmp/image/bin /tmp/image/dev /tmp/image/etc /tmp/image/proc /tmp/image/sys /tmp/image/tmp
	cp /bin/busybox /bin/fermatactl /tmp/image/bin/
	for applet in cat ls mknod sh; do ln -s busybox "/tmp/image/bin/$applet"; done
	head -c "$1" /dev/zero >/tmp/image/zeros
	tar -C /tmp/image -cf /debian/var/tmp/image.tar .
}
inside() { nsenter -t "$FIRST" -m -p /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin:/machine/bin "$@"; }
as() { user=$1; shift; inside setpriv --reuid="$user" --regid="$user" --init-groups "$@"; }
is_up() { inside systemctl is-system-running 2>/dev/null | grep -qE "running|degraded"; }
comes_up() { retry 300 0.2 is_up; }
# The number of a user's group: FERMATA_USER_GROUP | UID.
user_group() { printf '%u\n' $((1 << 63 | $1)); }
