# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# Second half of vm/enter, which runs this script as root of a new mount and PID namespace: lay out the root, then chroot.
set -euo pipefail
PATH=/usr/sbin:/usr/bin:/sbin:/bin
ROOT=$1 TOP=$2 CACHE=$3 CWD=$4 USER_SPEC=$5
shift 5
ENV=()
while [ "$1" != -- ]; do ENV+=("$1"); shift; done
shift

mount --rbind "$ROOT" "$ROOT"
bind() { mount --rbind "$1" "$ROOT$2"; }
for dir in tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$ROOT/$dir"; done
# Not sticky: below a sticky /dev the kernel refuses `>/dev/null` to users who do not own the device.
for dir in run root dev; do mount -t tmpfs -o mode=755 tmpfs "$ROOT/$dir"; done
mount -t proc proc "$ROOT/proc"
# Only harmless devices, one by one: the host's /dev as a whole never appears below the root.
for dev in null zero full random urandom tty kvm; do
	[ -e "/dev/$dev" ] || continue
	: >"$ROOT/dev/$dev"
	bind "/dev/$dev" "/dev/$dev"
done
mkdir "$ROOT/dev/shm" "$ROOT/dev/pts"
bind /dev/pts /dev/pts
ln -s pts/ptmx "$ROOT/dev/ptmx"
ln -s /proc/self/fd "$ROOT/dev/fd"
ln -s /proc/self/fd/0 "$ROOT/dev/stdin"
ln -s /proc/self/fd/1 "$ROOT/dev/stdout"
ln -s /proc/self/fd/2 "$ROOT/dev/stderr"
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
	[ ! -f "$file" ] || bind "$(readlink -f "$file")" "$file"
done
bind "$TOP" /fermata
bind "$CACHE" /cache
mount -o remount,bind,ro "$ROOT" 2>/dev/null || true

DROP=()
if [ "$USER_SPEC" != - ]; then
	# Numbers, because the root's passwd does not have the user. All groups, for /dev/kvm.
	IFS=: read -r uid gid groups <<<"$USER_SPEC"
	chown "$uid:$gid" "$ROOT/root"
	DROP=(setpriv --reuid="$uid" --regid="$gid" --groups="$groups")
fi
[ $# -gt 0 ] || set -- bash
# This shell stays as process 1, so that an interrupt ends the command and the namespace with it.
# shellcheck disable=SC2016 # expanded in the root
exec chroot "$ROOT" env -i "${ENV[@]}" "${DROP[@]}" bash -c 'cd "$0" && "$@"; exit $?' "$CWD" "$@"
