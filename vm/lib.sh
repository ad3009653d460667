# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# Shared by the scripts that run on the host: messages, the cache folder, and the build root in it.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${FERMATA_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/fermata}
SUITE=trixie

say() { echo "fermata: $*" >&2; }
die() { say "$*"; exit 1; }

# need_space GIB: stop early when the cache's file system is too full.
need_space() {
	local free
	free=$(df -Pk "$CACHE" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge "$1" ] ||
		die "no space: $CACHE needs $1 GiB free and has $free; free some, or set FERMATA_CACHE to a larger disk"
}

# How namespaces are made here: as root, as a user with user namespaces, or through sudo.
ns_mode() {
	if [ "$(id -u)" = 0 ]; then
		echo root
	elif unshare --user --map-root-user --mount true 2>/dev/null; then
		echo user
	elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
		echo sudo
	else
		die "neither root nor user namespaces nor sudo: run as root, or allow kernel.unprivileged_userns_clone"
	fi
}

root_key() {
	{ grep -v '^#' "$TOP/vm/packages"; echo "$SUITE ${FERMATA_MIRROR:-}"; sed -n '/^make_root()/,/^}/p' "$TOP/vm/lib.sh"; } |
		sha256sum | cut -c1-12
}

# Remove an incomplete tree. There are never mounts below the tree, because mounts are made only in private namespaces.
remove_tree() {
	[ -e "$1" ] || return 0
	! grep -qF " $1/" /proc/self/mountinfo || die "$1 has file systems mounted below it: unmount them, then try again"
	chmod -R u+w "$1" 2>/dev/null || true
	rm -rf --one-file-system "$1"
}

make_root() {
	local dest=$1 mode=$2 tmp=$1.tmp log=$1.log keys=/usr/share/keyrings/debian-archive-keyring.gpg include extract
	command -v mmdebstrap >/dev/null ||
		die "mmdebstrap is missing: apt-get install mmdebstrap debian-archive-keyring uidmap"
	[ -e "$keys" ] ||
		die "Debian's keys are missing: apt-get install debian-archive-keyring"
	need_space 5
	remove_tree "$tmp"
	remove_tree "$dest"
	mkdir -p "$tmp"
	include=$(grep -v '^#' "$TOP/vm/packages" | paste -sd,)
	# shellcheck disable=SC2016 # $1 is the new root, for the hooks
	local backports='sed -n "s/SUITE main/SUITE-backports main/p;T;q" "$1/etc/apt/sources.list" | head -1 >>"$1/etc/apt/sources.list"
		printf "Package: qemu-* seabios\nPin: release n=SUITE-backports\nPin-Priority: 500\n" >"$1/etc/apt/preferences.d/qemu"'
	# shellcheck disable=SC2016
	local finish='mkdir -p "$1/fermata" "$1/cache"; touch "$1/etc/hosts"; rm -f "$1/etc/resolv.conf"; : >"$1/etc/resolv.conf"'
	# Named, since apt on Ubuntu does not trust Debian's keys by itself, and mmdebstrap finds them only where gpg is installed.
	local args=(--variant=minbase --include="$include" --format=tar --keyring="$keys" --setup-hook="${backports//SUITE/$SUITE}"
		--customize-hook="$finish" "$SUITE" - ${FERMATA_MIRROR:+"$FERMATA_MIRROR"})
	# A private namespace, so that what mmdebstrap mounts can never outlive it. The tree belongs to the caller.
	local run=(unshare --mount --propagation private mmdebstrap --mode=root)
	extract=(tar -x -C "$tmp" --exclude=./dev/* --no-same-owner --delay-directory-restore)
	case $mode in
	user) run=(mmdebstrap --mode=unshare) ;;
	sudo) run=(sudo "${run[@]}") ;;
	esac
	say "making the build root (Debian $SUITE), about two minutes"
	if ! "${run[@]}" "${args[@]}" 2> >(tee "$log" | sed -un 's/^I: \(\(down\|extract\|install\|creat\).*\)/fermata:   \1/p' >&2) |
		"${extract[@]}" 2>/dev/null; then
		explain_apt_log "$log"
	fi
	[ -x "$tmp/usr/bin/qemu-system-x86_64" ] || die "the build root has no QEMU: see $log"
	rm -rf "$tmp/var/cache/apt/archives" "$tmp/usr/share/doc" "$tmp/usr/share/locale"
	"$tmp/usr/bin/busybox" true || die "the build root does not run here: this needs an x86-64 machine"
	date >"$tmp/.complete"
	mv "$tmp" "$dest"
}

# Print one line about the most frequent problem with an archive.
explain_apt_log() {
	if grep -qE 'NO_PUBKEY|is not signed|EXPKEYSIG' "$1"; then
		die "this machine's Debian keys are too old for $SUITE: upgrade debian-archive-keyring ($1)"
	elif grep -qiE 'no space left' "$1"; then
		die "no space left while making the build root: free some, or set FERMATA_CACHE to a larger disk ($1)"
	elif grep -qiE 'could not resolve|temporary failure|could not connect|connection failed|unable to connect|network is unreachable' "$1"; then
		die "the Debian archive cannot be reached: connect, set http_proxy, or name a mirror in FERMATA_MIRROR ($1)"
	elif grep -qiE 'newuidmap|/etc/subuid' "$1"; then
		die "user namespaces need uidmap and an entry in /etc/subuid for $(id -un): apt-get install uidmap ($1)"
	fi
	tail -n 15 "$1" >&2
	die "making the build root failed: see $1"
}

# Set ROOT to a complete build root, which is made if necessary. Two clones wait for one another.
ensure_root() {
	local mode=$1
	mkdir -p "$CACHE" || die "cannot make the cache folder $CACHE: set FERMATA_CACHE"
	ROOT=$CACHE/root-$(root_key)
	if ! root_ok; then
		exec 9>"$ROOT.lock"
		flock -n 9 || { say "another run is making the build root, waiting"; flock 9; }
		root_ok || make_root "$ROOT" "$mode"
		exec 9>&-
	fi
}
root_ok() { [ -e "$ROOT/.complete" ] && [ -x "$ROOT/usr/bin/rustc" ] && [ -x "$ROOT/usr/bin/qemu-system-x86_64" ]; }
