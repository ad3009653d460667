# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# Shared by dkms/build, dkms/metadata and vm/fermatavm/kernel.py: messages, settings, the tools that the kernel was built with.
# docs/packaging.md explains the settings.

# Only root may write what a module is built from.
umask 022

say() { echo "fermata: $*" >&2; }
die() { say "$*"; exit 1; }

SETTINGS=${FERMATA_DKMS_SETTINGS:-/etc/default/fermata-dkms}
# shellcheck disable=SC1090 # the administrator's
if [ -r "$SETTINGS" ]; then . "$SETTINGS"; fi
CACHE=${FERMATA_METADATA_CACHE:-/var/cache/fermata-dkms}

# config HEADERS NAME: a value of the kernel's configuration, as make sees it.
config() { sed -n "s/^$2=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" "$1/include/config/auto.conf"; }

# compiler HEADERS: the C compiler with the name that the kernel was built with, otherwise `gcc`.
compiler() {
	name=$(config "$1" CONFIG_CC_VERSION_TEXT)
	name=${name%% *}
	if command -v "$name" >/dev/null; then echo "$name"; else echo gcc; fi
}

# Rust symbols contain a hash of compiler and crate: the kernel refuses a module of another rustc.
check_rustc() {
	command -v rustc >/dev/null || die "rustc is missing: apt-get install rustc"
	built=$(config "$1" CONFIG_RUSTC_VERSION_TEXT)
	here=$(rustc --version)
	[ "$here" = "$built" ] ||
		die "the kernel was built by '$built', and rustc here is '$here': put the kernel's into the path"
}

# prepare_tree SOURCE BUILD KERNELVER CC TARGET...: make the Rust metadata of the kernel whose .config is in BUILD, and other targets.
prepare_tree() {
	source=$1 build=$2 release=$3 cc=$4
	shift 4
	# 7.2.12 of the source becomes 7.2.12+deb13-amd64, the name that the kernel gives itself.
	bare=$(make -s -C "$source" kernelversion)
	case $release in "$bare"*) ;; *) die "$source is of $bare, the kernel $release" ;; esac
	echo "${release#"$bare"}" >"$build/localversion"
	for target in olddefconfig rustavailable prepare "$@"; do
		make -s -C "$source" O="$build" -j"$(nproc)" KBUILD_BUILD_TIMESTAMP=fermata CC="$cc" "$target" >&2
	done
	[ "$(cat "$build/include/config/kernel.release")" = "$release" ] || die "the build calls itself otherwise than $release"
}
