# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# Shared by the scripts that run on the host: messages, the cache folder, and the build root in it.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${FERMATA_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/fermata}
SUITE=trixie
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

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

# In the environment of commands in a root, besides variables of the caller.
ENV_OF_ROOT=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8)
PASSED=(TERM CI V http_proxy https_proxy no_proxy)

# in_root MODE ROOT FOLDER VAR=VALUE... -- CMD...: run CMD in FOLDER of a root, by vm/enter. With MODE user-ids, the root's processes
# have all users and groups, not only the caller's.
in_root() {
	local mode=$1 root=$2 folder=$3 env=("${ENV_OF_ROOT[@]}") spec=- name
	local run=(unshare --mount --pid --fork --kill-child --propagation private)
	shift 3
	for name in "${PASSED[@]}"; do [ -z "${!name:-}" ] || env+=("$name=${!name}"); done
	case $mode in
	user) run+=(--user --map-root-user) ;;
	user-ids) run+=(--user --map-auto --map-root-user) ;;
	sudo) run=(sudo "${run[@]}") spec=$(id -u):$(id -g):$(id -G | tr ' ' ,) ;;
	sudo-root) run=(sudo "${run[@]}") ;;
	esac
	"${run[@]}" bash "$TOP/vm/enter" --inside "$root" "$TOP" "$CACHE" "$folder" "$spec" "${env[@]}" "$@"
}

# Show on a terminal that a command of many seconds is alive, until `quiet`.
ALIVE=
alive() {
	[ -t 2 ] || return 0
	(seconds=0; while sleep 3; do printf '\rfermata:   %d s \r' $((seconds += 3)) >&2; done) &
	ALIVE=$!
}
quiet() { [ -z "$ALIVE" ] || { kill "$ALIVE"; wait "$ALIVE" 2>/dev/null || true; ALIVE=; }; }
trap quiet EXIT

# make_tools DEST LOG: unpack mmdebstrap and all that it needs, from Debian's archive. Nothing is installed on this machine: apt has
# its own state here, and the packages' scripts do not run.
make_tools() {
	local dest=$1 log=$2 apt options name mirror
	for name in apt-get dpkg-deb unshare; do
		command -v $name >/dev/null || die "$name is missing: the build root can be made on Debian 12 and 13"
	done
	[ -e "$KEYS" ] || die "Debian's keys are missing ($KEYS): apt-get install debian-archive-keyring"
	remove_tree "$dest"
	mkdir -p "$dest/apt/lists/partial" "$dest/apt/archives/partial" "$dest/root"
	apt=$(realpath "$dest/apt")
	# The archive that this machine's own apt uses, also if its lists have not been downloaded. Nothing is written to apt's cache.
	# shellcheck disable=SC2016 # a field of apt
	mirror=${FERMATA_MIRROR:-$(apt-get -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= indextargets --no-release-info \
		--format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$' || true)}
	[ -n "$mirror" ] || die "this machine's apt names no archive of Debian: name one in FERMATA_MIRROR"
	echo "deb [arch=amd64 signed-by=$KEYS] $mirror $SUITE main" >"$apt/sources.list"
	: >"$apt/status"
	options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State=$apt"
		-o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o APT::Architecture=amd64 -o APT::Sandbox::User= -o Debug::NoLocking=1
		-o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Update::Error-Mode=any)
	{ apt-get "${options[@]}" update && apt-get "${options[@]}" --yes --no-install-recommends --download-only install \
		'?essential' mount mmdebstrap debian-archive-keyring; } >"$log" 2>&1 || explain_apt_log "$log"
	for name in bin sbin lib lib64; do
		mkdir -p "$dest/root/usr/$name"
		ln -s "usr/$name" "$dest/root/$name"
	done
	for name in "$apt"/archives/*.deb; do dpkg-deb --extract "$name" "$dest/root"; done
	rm -rf "$apt"
	mkdir -p "$dest/root/fermata" "$dest/root/cache" "$dest/root/etc/ssl/certs"
	printf '%s\n' root:x:0:0:root:/root:/bin/sh >"$dest/root/etc/passwd"
	printf '%s\n' root:x:0: >"$dest/root/etc/group"
	touch "$dest/root/etc/"{resolv.conf,hosts,ssl/certs/ca-certificates.crt}
}

make_root() {
	local dest=$1 mode=$2 tmp=$1.tmp tools=$1.tools log=$1.log include extract
	need_space 5
	[ "$mode" != user ] || unshare --user --map-auto --map-root-user true 2>/dev/null ||
		die "making the build root as a user needs uidmap, and an entry for $(id -un) in /etc/subuid: apt-get install uidmap"
	remove_tree "$tmp"
	remove_tree "$dest"
	mkdir -p "$tmp"
	say "the build root (Debian $SUITE) is made once, in about two minutes:"
	say "  fetching what makes it (60 MB)"
	alive
	make_tools "$tools" "$log"
	quiet
	include=$(grep -v '^#' "$TOP/vm/packages" | paste -sd,)
	# shellcheck disable=SC2016 # $1 is the new root, for the hooks
	local backports='sed -n "s/SUITE main/SUITE-backports main/p;T;q" "$1/etc/apt/sources.list" | head -1 >>"$1/etc/apt/sources.list"
		printf "Package: qemu-* seabios\nPin: release n=SUITE-backports\nPin-Priority: 500\n" >"$1/etc/apt/preferences.d/qemu"'
	# shellcheck disable=SC2016
	local finish='mkdir -p "$1/fermata" "$1/cache"; touch "$1/etc/hosts"; rm -f "$1/etc/resolv.conf"; : >"$1/etc/resolv.conf"'
	local args=(--mode=root --variant=minbase --include="$include" --format=tar --keyring="$KEYS" --setup-hook="${backports//SUITE/$SUITE}"
		--customize-hook="$finish" --aptopt='APT::Sandbox::User "root"' "$SUITE" - ${FERMATA_MIRROR:+"$FERMATA_MIRROR"})
	extract=(tar -x -C "$tmp" --exclude=./dev/* --no-same-owner --delay-directory-restore)
	case $mode in
	user) mode=user-ids ;;
	sudo) mode=sudo-root ;;
	esac
	alive
	# The tree belongs to the caller.
	if ! in_root "$mode" "$tools/root" /cache TMPDIR=/cache -- mmdebstrap "${args[@]}" \
		2> >(tee "$log" | sed -un 's/^I: \(\(down\|extract\|install\|creat\).*\)/fermata:   \1/p' >&2) | "${extract[@]}" 2>/dev/null; then
		quiet
		explain_apt_log "$log"
	fi
	quiet
	remove_tree "$tools"
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
